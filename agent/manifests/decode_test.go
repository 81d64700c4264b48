package manifests

import (
	"fmt"
	"testing"
)

// FuzzDecode: whatever a file of the folder holds is refused, or it is a pod of this node, the same each time.
func FuzzDecode(f *testing.F) {
	f.Add(fmt.Appendf(nil, good, "web"))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b"}]}}`))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := decode("x.yaml", data, "n")
		if err != nil {
			return
		}
		if p.Spec.NodeName != "n" || p.UID == "" || p.Name == "" || p.Namespace == "" || len(p.Spec.Containers) == 0 {
			t.Errorf("%+v", p)
		}
		if again, err := decode("x.yaml", data, "n"); err != nil || again.UID != p.UID {
			t.Errorf("another time it is %v, %v", again, err)
		}
	})
}
