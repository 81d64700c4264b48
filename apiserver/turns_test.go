package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// inLine is how many wait for a turn.
func (t *turns) inLine() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range t.users {
		n += len(q.waiting)
	}
	return n
}

// Users follow one another, however many each has in the line.
func TestTurnsGoFromUserToUser(t *testing.T) {
	all := &turns{free: 1}
	if err := all.take(t.Context(), "storm"); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	for i, user := range []string{"storm", "storm", "storm", "calm", "other", "calm"} {
		go func() {
			if err := all.take(t.Context(), user); err != nil {
				t.Error(err)
			}
			got <- user
		}()
		eventually(t, "it waits", func() bool { return all.inLine() == i+1 })
	}
	var order []string
	for range 6 {
		all.done()
		order = append(order, <-got)
	}
	if want := []string{"storm", "calm", "other", "storm", "calm", "storm"}; !slices.Equal(order, want) {
		t.Errorf("turns went to %v, and not to %v", order, want)
	}
	all.done()
	if all.free != 1 || all.contended.Load() {
		t.Errorf("%d turns are free, somebody waits: %t", all.free, all.contended.Load())
	}
}

// Rows that are not shown but counted are charged, and the changes that a list of an earlier moment goes through are looked at in turns.
func TestWhatIsCountedIsCharged(t *testing.T) {
	d := newDouble(t)
	for i := range rowsWithoutTurn + 10 {
		d.must(t, putConfigMap("default", fmt.Sprint("m", i), "x", true))
	}
	tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: d, pins: newPins(time.Now), attrs: storage.DefaultNamespaceScopedAttr}
	all := &turns{free: 1, pace: pace{share: 1e-9}}
	mine := &turn{all: all, user: "lister", paced: true}
	ctx := context.WithValue(t.Context(), answerKey{}, &answer{form: rowByRow, share: &fairShare{turns: all, clients: map[string]*underway{"": {}}}, turn: mine})
	list := &core.ConfigMapList{}
	everything := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), Limit: 1}
	if err := tb.GetList(ctx, "/configmaps/default", storage.ListOptions{Recursive: true, Predicate: everything}, list); err != nil {
		t.Fatal(err)
	}
	if of := all.pace.accounts["lister"]; len(list.Items) != 1 || list.RemainingItemCount == nil || mine.taken || of == nil || of.left == paceBurst {
		t.Errorf("%d rows are shown, %v counted, in turns: %t; his account is %v", len(list.Items), list.RemainingItemCount, mine.taken, of)
	}

	for i := range undoBatch {
		d.must(t, putConfigMap("kube-system", "m", fmt.Sprint(i), i == 0))
	}
	if before, err := tb.rowsBefore(ctx, "default/", d.View().Revision()-undoBatch-2, d.View().Revision()); err != nil || len(before) != 2 || !mine.taken {
		t.Errorf("%d rows were otherwise, %v; in turns: %t", len(before), err, mine.taken)
	}
	mine.pause()
}

// Who does not wait any longer has no turn, and keeps nobody from his.
func TestTurnsAreNotKeptForWhoIsGone(t *testing.T) {
	all := &turns{free: 1}
	if err := all.take(t.Context(), "calm"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- all.take(ctx, "storm") }()
	eventually(t, "it waits", func() bool { return all.inLine() == 1 })
	cancel()
	if err := <-failed; err == nil {
		t.Error("a request that is over has a turn")
	}
	all.done()
	if all.free != 1 || all.inLine() != 0 {
		t.Errorf("%d turns are free, %d wait", all.free, all.inLine())
	}
}

// looksAway is a client to whom nothing is written while a turn is held for it.
type looksAway struct {
	*httptest.ResponseRecorder
	t   *testing.T
	all *turns
}

func (w looksAway) Write(b []byte) (int, error) {
	if w.all.free != 1 {
		w.t.Error("a turn is held while a client is written to")
	}
	return w.ResponseRecorder.Write(b)
}

func TestNoTurnIsHeldWhileAClientIsWrittenTo(t *testing.T) {
	all := &turns{free: 1}
	mine := &turn{all: all, user: "lister"}
	w := turnWriter{looksAway{httptest.NewRecorder(), t, all}, t.Context(), mine}
	for i := range 3 * rowsWithoutTurn {
		if err := mine.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if held := i >= rowsWithoutTurn; mine.held != held {
			t.Fatalf("after %d rows it has a turn: %t", i+1, mine.held)
		}
		if _, err := io.WriteString(w, "row"); err != nil {
			t.Fatal(err)
		}
	}
	mine.pause()
	if all.free != 1 {
		t.Error("the turn is kept")
	}
}

// While all turns are taken, lists and watches of many objects wait, and what is short is answered.
func TestListsOfManyObjectsWaitForTheirTurn(t *testing.T) {
	s := start(t, manyPods(t, 3*rowsWithoutTurn), nil)
	root := s.client(t)
	taken := 0
	for s.turns.free > 0 {
		if err := s.turns.take(t.Context(), "somebody"); err != nil {
			t.Fatal(err)
		}
		taken++
	}
	list, err := root.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{Limit: rowsWithoutTurn / 4})
	if err != nil || len(list.Items) != rowsWithoutTurn/4 {
		t.Fatalf("a short list: %d items, %v", len(list.Items), err)
	}
	client, host := httpClient(t, s.config(t, "lister", "system:masters")), "https://"+s.Addr().String()
	forms := []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io"}
	answered := make(chan int, len(forms))
	for i, form := range forms {
		go func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, host+"/api/v1/pods", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Accept", form)
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				answered <- 0
				return
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close()
			answered <- resp.StatusCode
		}()
		eventually(t, "the list waits", func() bool { return s.turns.inLine() == i+1 })
	}
	w, err := root.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	eventually(t, "the watch waits", func() bool { return s.turns.inLine() == len(forms)+1 })
	for range taken {
		s.turns.done()
	}
	for range forms {
		if status := <-answered; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
	for range 3 * rowsWithoutTurn {
		<-w.ResultChan()
	}
	eventually(t, "nobody has a turn", func() bool {
		s.turns.mu.Lock()
		defer s.turns.mu.Unlock()
		return s.turns.free == taken && len(s.turns.users) == 0
	})
}
