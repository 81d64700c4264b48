package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// TestLocalVolumesEnd: the deletion of a volume that nobody claims any more begins where its policy says so, and it goes when
// its directory has, or is to stay, or has no node any more.
func TestLocalVolumesEnd(t *testing.T) {
	w := newWorld(t)
	w.upgrade()
	apply := w.must
	apply(&fsm.RegisterNode{Node: fsm.NodeWire{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}})
	retain := corev1.PersistentVolumeReclaimRetain
	ends := metav1.NewTime(w.now)
	for name, of := range map[string]struct {
		node    string
		reclaim *corev1.PersistentVolumeReclaimPolicy // nil: Delete
		phase   corev1.PersistentVolumePhase
		ends    *metav1.Time
		holds   bool // something else
	}{
		"used":     {"n1", nil, corev1.VolumeBound, nil, true},
		"kept":     {"n1", &retain, corev1.VolumeReleased, nil, false},
		"released": {"n1", nil, corev1.VolumeReleased, nil, false},
		"going":    {"n1", nil, corev1.VolumeReleased, &ends, false},
		"held":     {"gone", nil, corev1.VolumeReleased, &ends, true},
		"let-go":   {"n1", &retain, corev1.VolumeReleased, &ends, false},
		"lost":     {"gone", nil, corev1.VolumeReleased, &ends, false},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: of.node}}
		v := model.LocalVolume(claim, &storagev1.StorageClass{ReclaimPolicy: of.reclaim}, node, types.UID("uid-"+name), ends)
		v.Name, v.Status.Phase, v.DeletionTimestamp = name, of.phase, of.ends
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name}
		if !of.holds {
			v.Finalizers = []string{model.LocalFinalizer}
		}
		raw, err := v.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		apply(&fsm.PutObject{Resource: fsm.PersistentVolumes, Raw: raw, Create: true})
	}
	for _, want := range []int{3, 0} { // released, let-go, lost
		commands := controller.LocalVolumes(w.state.View())
		if len(commands) != want {
			t.Errorf("%d commands, want %d: %v", len(commands), want, commands)
		}
		for _, c := range commands {
			apply(c)
		}
	}
	for name, there := range map[string]bool{
		"used": true, "kept": true, "released": true, "going": true, "held": true, "let-go": false, "lost": false,
	} {
		v, ok := w.state.View().PersistentVolume(name)
		if ok != there || name == "released" && v.DeletionTimestamp == nil || name == "kept" && v.DeletionTimestamp != nil {
			t.Errorf("%s: %v, %v", name, ok, v)
		}
	}
}
