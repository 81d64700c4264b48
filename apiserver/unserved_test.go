package apiserver

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

const networkPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {}}
`

// TestKubectlToldOfKindsThatAreNotServed: kubectl says that there is no such
// kind, and not what went wrong when it looked for one.
func TestKubectlToldOfKindsThatAreNotServed(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	const none = `no matches for kind "NetworkPolicy" in version "networking.k8s.io/v1"`
	for _, args := range [][]string{{"apply"}, {"apply", "--validate=strict"}, {"apply", "--server-side"}, {"apply", "--dry-run=server"}, {"create"}, {"replace"}, {"delete"}} {
		k.refused(networkPolicy, args, none)
	}
	k.refused("", []string{"get", "netpol"}, `the server doesn't have a resource type "netpol"`)
	k.refused("", []string{"delete", "netpol", "web"}, `the server doesn't have a resource type "netpol"`)
	k.refused("", []string{"get", "--raw", "/apis/networking.k8s.io/v1/networkpolicies"}, "Berth does not serve networkpolicies.networking.k8s.io in version v1; it serves apiservices.apiregistration.k8s.io, bindings, certificatesigningrequests.certificates.k8s.io")
}

// TestUnserved: what is not served is refused with what is, as a Status; paths
// that are no resources are answered as ever.
func TestUnserved(t *testing.T) {
	s := share(t)
	root, ann := httpClient(t, s.config(t, "root", user.SystemPrivilegedGroup)), httpClient(t, s.config(t, "ann", "people"))
	base := "https://" + s.Addr().String()
	for _, tt := range []struct {
		client *http.Client
		path   string
		status int
		parts  string
	}{
		{root, "/apis/policy/v1/namespaces/default/podsecuritypolicies", 404, `"kind":"Status"|does not serve podsecuritypolicies.policy in version v1; it serves|replicasets.apps`},
		{root, "/apis/storage.k8s.io/v1/volumesnapshots", 404, `"reason":"NotFound"|does not serve volumesnapshots.storage.k8s.io in version v1`},
		{root, "/apis/batch/v1/jobs/x", 404, `"reason":"NotFound"|jobs.batch are in namespaces, and the path /apis/batch/v1/jobs/x names none`},
		{root, "/api/v1/namespaces/default/nodes/x", 404, `nodes are in no namespace, and the path /api/v1/namespaces/default/nodes/x names one`},
		{root, "/apis/apps/v1/namespaces/default/replicasets/x/unknown", 404, `does not serve replicasets.apps/unknown`},
		{root, "/nowhere", 404, `"/livez"`},
		{ann, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", 200, `"CustomResourceDefinitionList"`},
		{ann, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", 404, `customresourcedefinitions.apiextensions.k8s.io \"x\" not found`},
	} {
		status, body := get(t, tt.client, base+tt.path)
		if status != tt.status {
			t.Errorf("%s: status %d: %s", tt.path, status, body)
		}
		for part := range strings.SplitSeq(tt.parts, "|") {
			if !strings.Contains(body, part) {
				t.Errorf("%s: no %q in %s", tt.path, part, body)
			}
		}
	}
}

// TestRequestsAreMeasured: what upstream's handlers measure of requests is in
// Gatherer.
func TestRequestsAreMeasured(t *testing.T) {
	s := share(t)
	get(t, httpClient(t, s.config(t, "root", user.SystemPrivilegedGroup)), "https://"+s.Addr().String()+"/api/v1/namespaces/default/podtemplates")
	want := map[string]string{
		"apiserver_request_total": "podtemplates", "apiserver_request_duration_seconds": "podtemplates",
		"apiserver_response_sizes": "podtemplates", "apiserver_current_inflight_requests": "", "apiserver_longrunning_requests": "",
	}
	eventually(t, "the request's metrics", func() bool {
		families, err := Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, f := range families {
			if resource, ok := want[f.GetName()]; ok && (resource == "" || strings.Contains(f.String(), `value:"`+resource+`"`)) {
				seen++
			}
		}
		return seen >= 3
	})
}
