package fsm

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestACommandReleasesSoManyDependents: owners that leave thousands of dependents
// behind let a bounded number of them go in one command, and all of them in the end.
func TestACommandReleasesSoManyDependents(t *testing.T) {
	const ownersCount, each = 3, 700
	w := worstPlan{Nodes: 1, Zones: 1, Kinds: 1, Namespaces: 1, Levels: 1}.build(t)
	collect := &CollectGarbage{}
	for o := range ownersCount {
		name := fmt.Sprint("owner-", o)
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(0), Name: name, UID: types.UID(name)}}
		raw, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		w.must(&PutObject{Resource: "configmaps", Raw: raw, Create: true})
		for i := range each {
			pod := w.pod(fmt.Sprintf("p-%d-%d", o, i), "p", 0, 0, worstRules{})
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: c.UID}}
			w.must(&AdmitPod{Pod: PodWire{Object: pod}})
		}
		w.must(&DeleteObject{Resource: "configmaps", Namespace: w.namespace(0), Name: name, Propagation: Propagation(metav1.DeletePropagationOrphan)})
		collect.Objects = append(collect.Objects, ObjectRef{Resource: "configmaps", Namespace: w.namespace(0), Name: name, UID: name})
	}
	commands := 0
	for left := ownersCount * each; left > 0; commands++ {
		before := w.state.View().Revision()
		w.must(collect)
		if changes := w.state.View().Revision() - before; changes > maxReleased+ownersCount {
			t.Fatalf("one command made %d changes", changes)
		}
		was := left
		left = 0
		w.state.View().Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
			left += len(pod.OwnerReferences)
			return true
		})
		if left >= was {
			t.Fatalf("%d references are left, and none was released", left)
		}
	}
	if w.must(collect); commands < 2 {
		t.Errorf("%d commands", commands)
	}
	for _, ref := range collect.Objects {
		if _, ok := w.state.View().Objects.Get(ObjectKey(ref.Resource, ref.Namespace, ref.Name)); ok {
			t.Errorf("%s has no dependents, and is there", ref.Name)
		}
	}
}
