package worker

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// unseenPod is a pod of a job, as the servers have it, of which something runs as far as they know.
func unseenPod() *corev1.Pod {
	pod := testPod("job")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "fake://job_main_0",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(epoch)}}}}
	return pod
}

// Of a pod whose containers could not be looked at nothing is done, and no end is told, whatever the servers want of it. When it is found what runs
// of it, that goes on, or ends as it is to.
func TestPodThatIsNotSeenYet(t *testing.T) {
	const uid = types.UID("job")
	runs := []runtime.Container{{ID: runtime.ID{Pod: uid, Container: "main"}, StartedAt: epoch}}
	lost := unseenPod()
	lost.ObjectMeta = metav1.ObjectMeta{UID: uid}
	for name, c := range map[string]struct {
		deleted, gone bool
		early         bool // it is found before it is assigned
		found         runtime.Pod
		want          string // what is done
		phase         corev1.PodPhase
		event         string
	}{
		"it runs":               {found: runtime.Pod{Pod: unseenPod(), Containers: runs}},
		"found first":           {early: true, found: runtime.Pod{Pod: unseenPod(), Containers: runs}},
		"its record is lost":    {found: runtime.Pod{Pod: lost, Lost: true, Containers: runs}, event: "go on"},
		"deleted":               {deleted: true, found: runtime.Pod{Pod: unseenPod(), Containers: runs}, want: "TERM main#0"},
		"deleted, without more": {deleted: true, found: runtime.Pod{Pod: lost, Lost: true, Containers: runs}, want: "TERM main#0", event: "go on"},
		"gone":                  {gone: true, found: runtime.Pod{Pod: unseenPod(), Containers: runs}, want: "TERM main#0"},
		"gone, and nothing":     {gone: true, found: runtime.Pod{Pod: &corev1.Pod{ObjectMeta: lost.ObjectMeta}, Lost: true}, want: "remove"},
		"nothing is there": {found: runtime.Pod{Pod: &corev1.Pod{ObjectMeta: lost.ObjectMeta}, Lost: true}, want: "unmount",
			phase: corev1.PodFailed, event: "not on this node any more"},
	} {
		t.Run(name, func(t *testing.T) {
			var events []string
			core := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Files: true,
				Event: func(_ *corev1.Pod, _, _, message string) { events = append(events, message) }})
			now := epoch
			core.Adopt([]runtime.Pod{{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, Lost: true, Unseen: true}}, now)
			find := func() { core.Observe(runtime.Event{ID: runtime.ID{Pod: uid}, Found: &c.found}, now) }
			quiet := func(when string) {
				t.Helper()
				now = now.Add(time.Hour)
				core.Tick(now)
				if actions, reports := core.TakeActions(), core.TakeReports(10, now); len(actions)+len(reports) > 0 {
					t.Fatalf("%s: done is %+v, and told %+v", when, actions, reports)
				}
			}
			if c.early {
				find()
				quiet("found")
			}
			pod := unseenPod()
			core.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}, Node: testNode(t)}, now)
			if !c.early {
				quiet("assigned")
				if len(events) != 1 || !strings.Contains(events[0], "cannot be found out") {
					t.Errorf("it is told %q", events)
				}
			}
			if c.deleted {
				pod = deleted(pod, 30)
				core.Assign(Assignment{Pods: []*corev1.Pod{pod}}, now)
				quiet("deleted")
			}
			if c.gone {
				core.Assign(Assignment{Gone: []types.UID{uid}}, now)
				quiet("gone")
			}
			if core.Len() != 1 || core.usage.Requested.Pods != 1 {
				t.Errorf("there are %d pods, and counted %d", core.Len(), core.usage.Requested.Pods)
			}
			events = nil
			find()
			find() // again says nothing new
			var did []string
			for _, a := range core.TakeActions() {
				switch a.Kind {
				case ActionSignal:
					did = append(did, a.Signal.String()+" "+a.ID.Container+"#0")
				case ActionMeasure, ActionRefresh: // that it runs
				default:
					did = append(did, a.Kind.String())
				}
			}
			if got := strings.Join(did, ", "); got != c.want {
				t.Errorf("done is %q, want %q", got, c.want)
			}
			if c.want == "unmount" {
				core.Done(Outcome{Action: Action{Kind: ActionUnmount, ID: runtime.ID{Pod: uid}}}, now)
			}
			var phase corev1.PodPhase
			for _, r := range core.TakeReports(10, now) {
				if phase = r.Status.Phase; phase == corev1.PodRunning {
					phase = ""
				}
			}
			if phase != c.phase {
				t.Errorf("it is told as %q, want %q", phase, c.phase)
			}
			if told := strings.Join(events, "; "); !strings.Contains(told, c.event) || c.event != "not on this node any more" && strings.Contains(told, "not on this node") {
				t.Errorf("its events are %q", told)
			}
		})
	}
}

// A pod of the node's own that is not seen yet goes on, too, also while its file cannot be read, and ends when that has gone.
func TestStaticPodThatIsNotSeenYet(t *testing.T) {
	own := testPod("own")
	own.UID = types.UID(strings.Repeat("a", 32))
	own.Annotations[ManifestAnnotation] = "own.yaml"
	wanted := Manifests{Pods: []*corev1.Pod{own}}
	for name, c := range map[string]struct {
		manifests []Manifests
		ends      bool
	}{
		"wanted":       {[]Manifests{wanted}, false},
		"broken":       {[]Manifests{{Broken: []string{"own.yaml"}}}, false},
		"gone":         {[]Manifests{wanted, {Broken: []string{"another.yaml"}}}, true},
		"there again":  {[]Manifests{{}, wanted}, false},
		"not read yet": {nil, false},
	} {
		core := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake"})
		core.Adopt([]runtime.Pod{{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: own.UID}}, Lost: true, Unseen: true}}, epoch)
		for _, m := range c.manifests {
			core.SetStatic(m, epoch)
		}
		if actions := core.TakeActions(); len(actions) > 0 {
			t.Errorf("%s: done is %+v", name, actions)
		}
		core.Observe(runtime.Event{ID: runtime.ID{Pod: own.UID}, Found: &runtime.Pod{Pod: own,
			Containers: []runtime.Container{{ID: runtime.ID{Pod: own.UID, Container: "main"}, StartedAt: epoch}}}}, epoch)
		if actions := core.TakeActions(); c.ends != (len(actions) > 0) || c.ends && actions[0].Kind != ActionSignal {
			t.Errorf("%s: done is %+v", name, actions)
		}
		if id, runs := core.Running(own.UID, "main"); !runs {
			t.Errorf("%s: %v does not run", name, id)
		}
	}
}
