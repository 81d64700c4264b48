package workloads

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

type registered map[string]int

// AddAPIServiceToSync implements autoregister.AutoAPIServiceRegistration.
func (r registered) AddAPIServiceToSync(s *apiregistrationv1.APIService) { r[s.Name]++ }

// AddAPIServiceToSyncOnStart implements autoregister.AutoAPIServiceRegistration.
func (r registered) AddAPIServiceToSyncOnStart(s *apiregistrationv1.APIService) { r[s.Name]++ }

// RemoveAPIServiceToSync implements autoregister.AutoAPIServiceRegistration.
func (r registered) RemoveAPIServiceToSync(name string) { delete(r, name) }

// Of custom kinds' groups so many are registered, and one that goes makes room; what is registered is kept.
func TestBoundedRegistration(t *testing.T) {
	all := registered{}
	b := &boundedRegistration{keeper: all, names: map[string]bool{}}
	named := func(i int) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("v1.group-%d", i)}}
	}
	for i := range registeredCustom + 1 {
		b.AddAPIServiceToSync(named(i))
	}
	b.AddAPIServiceToSync(named(0))
	if len(all) != registeredCustom || all["v1.group-0"] != 2 {
		t.Fatalf("%d are registered, the first %d times", len(all), all["v1.group-0"])
	}
	b.RemoveAPIServiceToSync("v1.group-0")
	b.RemoveAPIServiceToSync("v1.nobodys")
	b.AddAPIServiceToSync(named(registeredCustom))
	if len(all) != registeredCustom || all[fmt.Sprintf("v1.group-%d", registeredCustom)] != 1 {
		t.Fatalf("%d are registered when one has gone", len(all))
	}
}

// The versions of a group have one priority, and groups before others have more; all have more than custom kinds'.
func TestBuiltInServices(t *testing.T) {
	all := builtInServices([]schema.GroupVersion{{Version: "v1"}, {Group: "a", Version: "v2"}, {Group: "a", Version: "v1"}, {Group: "b", Version: "v1"}})
	names, priorities := []string{"v1.", "v2.a", "v1.a", "v1.b"}, []int32{18000, 17900, 17900, 17800}
	for i, s := range all {
		if s.Name != names[i] || s.Spec.GroupPriorityMinimum != priorities[i] || s.Spec.Service != nil {
			t.Errorf("%d is %+v", i, s)
		}
	}
}
