package informers

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers/worldtest"
)

const (
	detects = "KUBE_CACHE_MUTATION_DETECTOR"
	changes = "BERTH_TEST_CHANGES_A_ROW"
)

// TestWhoChangesARowIsFound: where client-go's detector is on, a controller that changes what it was shown ends the process.
func TestWhoChangesARowIsFound(t *testing.T) {
	if os.Getenv(changes) != "" {
		changeARow(t)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), detects+"=true", changes+"=yes")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cache rows modified") {
		t.Errorf("%v: %s", err, out)
	}
}

// changeARow changes the first pod that it is shown, and follows the state until somebody minds.
func changeARow(t *testing.T) {
	w := worldtest.New(t)
	f := NewFeed(w.State)
	i := f.Add(Typed(podTable, func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods }))
	if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		o.(*corev1.Pod).Labels = map[string]string{"changed": "yes"}
	}}); err != nil {
		t.Fatal(err)
	}
	at := f.Begin()
	w.Do(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: worldtest.Meta("a", "p", 0), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}},
	}}})
	t.Fatal(f.Follow(t.Context(), at))
}
