package connect

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
)

// aggregated is a server that tells of all groups in one answer.
type aggregated struct {
	discovery.DiscoveryInterface
	groups *metav1.APIGroupList
	lists  map[schema.GroupVersion]*metav1.APIResourceList
}

func (a *aggregated) GroupsAndMaybeResources() (*metav1.APIGroupList, map[schema.GroupVersion]*metav1.APIResourceList, map[schema.GroupVersion]error, error) {
	return a.groups, a.lists, nil, nil
}

// TestKindsAreInTheServersOrder: what a command finds of many kinds it shows in the order in which the server lists them, each time.
func TestKindsAreInTheServersOrder(t *testing.T) {
	server := &aggregated{groups: &metav1.APIGroupList{}, lists: map[schema.GroupVersion]*metav1.APIResourceList{}}
	var want []string
	for i := range 12 {
		gv := schema.GroupVersion{Group: fmt.Sprintf("group-%d.example.com", (i*7)%12), Version: "v1"}
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: "v1"}
		server.groups.Groups = append(server.groups.Groups, metav1.APIGroup{
			Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
		})
		server.lists[gv] = &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: []metav1.APIResource{
			{Name: "things", Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"list"}, Categories: []string{"all"}},
		}}
		want = append(want, gv.String())
	}
	client := inOrder{memory.NewMemCacheClient(server)}
	for range 10 {
		_, all, err1 := client.ServerGroupsAndResources()
		preferred, err2 := client.ServerPreferredResources()
		namespaced, err3 := client.ServerPreferredNamespacedResources()
		for what, err := range map[string]error{"all": err1, "preferred": err2, "namespaced": err3} {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		for what, lists := range map[string][]*metav1.APIResourceList{"all": all, "preferred": preferred, "namespaced": namespaced} {
			var got []string
			for _, l := range lists {
				got = append(got, l.GroupVersion)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
	}
}
