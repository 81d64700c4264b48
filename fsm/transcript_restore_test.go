package fsm

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"fmt"
	"net/http"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// save keeps a snapshot of the state under a name.
func (w *world) save(name string) {
	w.t.Helper()
	if w.saved == nil {
		w.saved = map[string][]byte{}
	}
	w.saved[name] = deflated(w.t, w.view())
}

func deflated(t failer, v *View) []byte {
	t.Helper()
	var buf bytes.Buffer
	out, err := flate.NewWriter(&buf, flate.BestSpeed)
	if err == nil {
		err = v.Write(out)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// withoutOffsets leaves out what changes with every row of a snapshot.
func withoutOffsets(answer string) string {
	answer = regexp.MustCompile(`staged, and the piece begins at \d+`).ReplaceAllString(answer, "staged, and the piece begins elsewhere")
	answer = regexp.MustCompile(`: \d+ bytes of restore`).ReplaceAllString(answer, ": some bytes of restore")
	return regexp.MustCompile(`not a valid snapshot: .*`).ReplaceAllString(answer, "not a valid snapshot: …")
}

// stage NAME [id=ID] [from=PERCENT] [to=PERCENT] [damaged]: a piece of what was
// saved, in percent of its bytes.
func (s *transcript) stage(a words, _ string) []Command {
	whole := s.saved[a.name()]
	at := func(key string, otherwise int64) int64 {
		if n := a.number(key); n != nil {
			otherwise = *n
		}
		return otherwise * int64(len(whole)) / 100
	}
	piece := bytes.Clone(whole[at("from", 0):at("to", 100)])
	if a.has("damaged") {
		piece[len(piece)/2] ^= 1
	}
	return one(&StageSnapshot{ID: a.or("id", "r"), Offset: at("from", 0), Data: piece})
}

// restore NAME [id=ID] [damaged]: damaged gives the sum of what was staged so.
func (s *transcript) restoreSaved(a words, _ string) []Command {
	whole := bytes.Clone(s.saved[a.name()])
	if a.has("damaged") {
		whole[len(whole)/2] ^= 1
	}
	sum := sha256.Sum256(whole)
	return one(&RestoreSnapshot{ID: a.or("id", "r"), Bytes: int64(len(whole)), SHA256: sum[:]})
}

// restoreSome goes back to what was saved, or begins to and is cut off.
func (r *random) restoreSome() string {
	if r.saved["s"] == nil {
		return ""
	}
	r.restores++
	id := fmt.Sprintf("id=r%d", r.restores)
	r.line("stage s " + id + " to=40")
	if r.pick("then", "go on", "go on", "stop", "damage") == "stop" {
		return ""
	}
	if rapid.Bool().Draw(r.t, "meanwhile") {
		r.admit()
	}
	r.line("stage s " + id + " from=40")
	clear(r.bound)  // pods go back to where they were
	clear(r.quotas) // and may be more than a quota lets come
	return r.line("restore s " + id)
}

// TestRestoreIsCutOffAnywhere: whatever is missing of a restore leaves the state
// as it was, and what is there all of it makes it what was saved.
func TestRestoreIsCutOffAnywhere(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=4\npod a cpu=1 uid=a\nbind a n1")
	w.save("s")
	saved := w.view()
	w.run("cluster", nil, "pod b cpu=1 uid=b\nnode n2 cpu=1\ndelete a grace=0")
	for cut := 10; cut < 100; cut += 30 {
		before := w.view()
		w.line(fmt.Sprintf("stage s id=cut%d to=%d", cut, cut))
		if got := w.line(fmt.Sprintf("restore s id=cut%d", cut)); got == "ok" {
			t.Fatalf("restored with %d%% of it", cut)
		}
		w.line(fmt.Sprintf("abandon cut%d", cut))
		if after := w.view(); after.Revision() != before.Revision() || after.staged.Len() != 0 {
			t.Fatalf("%d%%: revision %d after %d, %d pieces left", cut, after.Revision(), before.Revision(), after.staged.Len())
		}
	}
	given := w.view().Revision()
	w.quiet = true
	w.line("stage s to=50")
	w.line("stage s from=50")
	if got := w.line("restore s"); got != "ok" {
		t.Fatal(got)
	}
	v := w.view()
	if v.Revision() <= given || v.Pods.Len() != saved.Pods.Len() || v.Nodes.Len() != saved.Nodes.Len() || v.staged.Len() != 1 {
		t.Errorf("revision %d after %d, %d pods, %d nodes, %d rows staged", v.Revision(), given, v.Pods.Len(), v.Nodes.Len(), v.staged.Len())
	}
	if v.Index() != w.index {
		t.Errorf("at index %d, the log is at %d", v.Index(), w.index)
	}
	again := v.Digest()
	if got := w.line("restore s"); got != "ok" || w.view().Digest() != again {
		t.Errorf("a restore that is asked for twice: %s", got)
	}
}

// TestRestoreInTheMidstOfAnEntry: what comes before it in the entry is gone, what
// comes after it is done to the restored state.
func TestRestoreInTheMidstOfAnEntry(t *testing.T) {
	w := newTranscript(t)
	w.line("node n1 cpu=4")
	w.save("s")
	w.line("stage s")
	restore := w.restoreSaved(words{"s"}, "")[0]
	rs := w.apply(&PutNode{Node: NodeWire{Object: nodeNamed("before")}, Create: true}, restore, &PutNode{Node: NodeWire{Object: nodeNamed("after")}, Create: true})
	for i, r := range rs {
		if r.Refused() {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	v := w.view()
	_, before := v.Nodes.Get("before")
	_, after := v.Nodes.Get("after")
	if before || !after || v.Revision() != rs[1].Revision+1 {
		t.Errorf("before %t, after %t, revision %d after %d", before, after, v.Revision(), rs[1].Revision)
	}
	if changes, err := w.state.Feed().After(rs[1].Revision, 9); err != nil || len(changes) != 1 {
		t.Errorf("the feed goes on with %d changes, %v", len(changes), err)
	}
}

// TestAnEntryGoesOnBehindARestore: the commands behind a restore, in one entry with it, are carried out as any.
func TestAnEntryGoesOnBehindARestore(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=1\npod low cpu=1 node=n1\npod high cpu=1 priority=10")
	w.save("s")
	w.line("stage s")
	restore := w.restoreSaved(words{"s"}, "")
	plan := w.plan(words{"preempt", "high", "n1", "low"}, "")
	plan[0].(*ApplyPlan).Revision = 1 << 40
	service, err := (&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}, Spec: corev1.ServiceSpec{
		ClusterIP: "10.0.0.7", ClusterIPs: []string{"10.0.0.7"},
	}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	w.apply(append(append(restore, plan...), &PutObject{Resource: serviceResource.Name, Raw: service, Create: true})...)
	v := w.view()
	if v.Nominations.Len() != 1 || v.ApplyFailures.Len() != 0 {
		t.Errorf("%d nominations, failures %+v", v.Nominations.Len(), v.LastApplyFailures(9))
	}
	if _, ok := v.Objects.Get(ObjectKey(IPAddresses, "", "10.0.0.7")); !ok {
		t.Error("the address of a service has no object")
	}
}

// TestWhatWasDecidedBeforeARestore: of what is in one entry with a restore, what says by which state it was decided is refused.
func TestWhatWasDecidedBeforeARestore(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=1")
	w.save("s")
	w.line("stage s")
	ps := []Proposal{{User: w.user, Groups: w.groups, Command: w.restoreSaved(words{"s"}, "")[0]}}
	now := w.view().Revision()
	for node, seen := range map[string]int64{"before": now, "after": now + restoredRevisions, "whichever": 0} { // order does not matter
		ps = append(ps, Proposal{User: w.user, Groups: w.groups, Seen: seen, Command: &PutNode{Node: NodeWire{Object: nodeNamed(node)}, Create: true}})
	}
	entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: w.now.UnixNano(), Server: "s1"}, ps)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range w.applyEntry(entry) {
		if before := ps[i].Seen == now; r.Refused() != before || before && r.Code != http.StatusConflict {
			t.Errorf("what was decided by revision %d: %d %s", ps[i].Seen, r.Code, r.Message)
		}
	}
	if v := w.view(); v.RestoredAt() != now+restoredRevisions || v.Nodes.Len() != 3 {
		t.Errorf("restored at %d, %d nodes", v.RestoredAt(), v.Nodes.Len())
	}
}

// TestSchedulersOfOddNames: what goes on behind a NUL is part of the name.
func TestSchedulersOfOddNames(t *testing.T) {
	w := newTranscript(t)
	w.line("pod odd cpu=1")
	pod, _ := w.view().Pods.Get("default/odd")
	pod = pod.DeepCopy()
	pod.Name, pod.UID, pod.Spec.SchedulerName = "other", "other", "packed\x00x"
	w.apply(&AdmitPod{Pod: PodWire{Object: pod}})
	w.line("configure profiles=default-scheduler,packed")
	if _, queued := w.view().Queue.Get("default/other"); queued {
		t.Error("it is taken for a pod of the profile")
	}
}
