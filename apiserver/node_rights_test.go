package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ofNodes starts an API with two nodes, n1 and n2, each with a pod of its name in the namespace team that
// needs what is called as it is.
func ofNodes(t *testing.T) (s *testServer, root, n1 kubernetes.Interface) {
	t.Helper()
	s, root = withRoles(t)
	s.withKey(t, nil)
	ctx := t.Context()
	api := root.CoreV1()
	for _, name := range []string{"n1", "n2"} {
		s.node(t, name)
		for _, what := range []string{"", "-env", "-pull"} {
			if _, err := api.Secrets("team").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + what}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := api.ConfigMaps("team").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := api.ServiceAccounts("team").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := api.Pods("team").Create(ctx, needy(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s, root, s.clientOf(t, "system:node:n1", "system:nodes")
}

// needy is a pod on a node that needs what is called as the node.
func needy(node string) *corev1.Pod {
	p := testPod(node)
	p.Spec.NodeName, p.Spec.ServiceAccountName = node, node
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: node + "-pull"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: node}}},
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: node}}}},
	}
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: node + "-env"}}}}
	return p
}

// TestNodeRights: a node sees what its pods need, and no more of it than they do.
func TestNodeRights(t *testing.T) {
	_, root, _ := ofNodes(t)
	for _, tt := range []struct {
		ask string // verb resource[/part] namespace name
		may bool
	}{
		{"get secrets team n1", true},
		{"watch secrets team n1", true},
		{"list secrets team n1", true},
		{"get secrets team n1-env", true},
		{"get secrets team n1-pull", true},
		{"get secrets team n2", false},
		{"watch secrets team n2", false},
		{"get secrets team none", false},
		{"get secrets default n1", false},
		{"list secrets team -", false},
		{"list secrets - -", false},
		{"watch secrets team -", false},
		{"update secrets team n1", false},
		{"delete secrets team n1", false},
		{"get configmaps team n1", true},
		{"get configmaps team n2", false},
		{"get configmaps team kube-root-ca.crt", true}, // it is in every pod's token volume
		{"get configmaps default kube-root-ca.crt", false},
		{"create serviceaccounts/token team n1", true},
		{"create serviceaccounts/token team n2", false},
		{"get serviceaccounts team n2", false},
		{"get persistentvolumeclaims team n1", false},
		{"get pods team n1", true},
		{"get pods team n2", false},
		{"list pods - -", false},
		{"update pods team n1", false},
		{"get pods/log team n1", false},
		{"create pods/exec team n1", false},
		{"create pods/binding team n1", false},
		{"update pods/status team n1", true},
		{"create pods/eviction team n1", true},
		{"get nodes - n1", true},
		{"get nodes - n2", false},
		{"list nodes - -", false},
		{"delete nodes - n1", false},
		{"get leases.coordination.k8s.io kube-node-lease n1", true},
		{"update leases.coordination.k8s.io kube-node-lease n2", false},
		{"list leases.coordination.k8s.io kube-node-lease -", false},
		{"delete leases.coordination.k8s.io kube-system revoked-node-n1", false},
		{"list services - -", true},
		{"list deployments.apps team -", false},
		{"create deployments.apps team -", false},
		{"get clusterroles.rbac.authorization.k8s.io - cluster-admin", false},
		{"impersonate users - root", false},
		{"list runtimeclasses.node.k8s.io - -", true},
	} {
		words := strings.Fields(tt.ask)
		resource, part, _ := strings.Cut(words[1], "/")
		resource, group, _ := strings.Cut(resource, ".")
		name := strings.TrimPrefix(words[3], "-")
		namespace := strings.TrimPrefix(words[2], "-")
		review, err := root.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: words[0], Group: group, Resource: resource, Subresource: part, Namespace: namespace, Name: name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != tt.may {
			t.Errorf("%s: %v %q, want %v (%v)", tt.ask, review.Status.Allowed, review.Status.Reason, tt.may, err)
		}
	}
}

// TestNodeRightsOfVolumes: a claim of a pod, and the volume that has it, are its node's to read; a volume that
// only says that it has the claim is not.
func TestNodeRightsOfVolumes(t *testing.T) {
	s, root, n1 := ofNodes(t)
	ctx := t.Context()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "v1",
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}}
	claim, err := root.CoreV1().PersistentVolumeClaims("team").Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v1", "v2"} {
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "team", Name: "data", UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "csi.example.com", VolumeHandle: name, NodePublishSecretRef: &corev1.SecretReference{Namespace: "team", Name: name + "-secret"},
			}},
		}}
		if _, err := root.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := root.CoreV1().Secrets("team").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "-secret"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(by kubernetes.Interface, volume string) (errs []error) {
		_, err := by.CoreV1().PersistentVolumeClaims("team").Get(ctx, "data", metav1.GetOptions{})
		errs = append(errs, err)
		_, err = by.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		errs = append(errs, err)
		_, err = by.CoreV1().Secrets("team").Get(ctx, volume+"-secret", metav1.GetOptions{})
		return append(errs, err)
	}
	for _, err := range get(n1, "v1") {
		wantStatus(t, err, 403, "no relationship found between node 'n1' and this object")
	}
	pod := needy("n1")
	pod.Name = "with-data"
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}})
	if _, err := root.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, err := range get(n1, "v1") {
		if err != nil {
			t.Error(err)
		}
	}
	for _, err := range get(n1, "v2")[1:] {
		wantStatus(t, err, 403, "no relationship found")
	}
	for _, err := range get(s.clientOf(t, "system:node:n2", "system:nodes"), "v1") {
		wantStatus(t, err, 403, "no relationship found")
	}
}

// TestNodesWatchWhatTheirPodsNeed: and no longer than they do. A list of its own pods is a node's, and what
// everybody may who is known is not.
func TestNodesWatchWhatTheirPodsNeed(t *testing.T) {
	s, root, n1 := ofNodes(t)
	ctx := t.Context()
	watch, err := n1.CoreV1().Secrets("team").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	node2, err := s.clientOf(t, "system:node:n2", "system:nodes").CoreV1().Secrets("team").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=n2"})
	if err != nil {
		t.Fatal(err)
	}
	defer node2.Stop()
	if _, err := n1.CoreV1().Secrets("team").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=n2"}); err == nil {
		t.Error("it watches what another node's pods need")
	}
	if e := <-watch.ResultChan(); e.Type != "ADDED" || e.Object.(*corev1.Secret).Name != "n1" {
		t.Error(e)
	}
	if e := <-node2.ResultChan(); e.Type != "ADDED" {
		t.Error(e)
	}
	list, err := n1.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "n1" {
		t.Error(list, err)
	}
	now := int64(0)
	if err := root.CoreV1().Pods("team").Delete(ctx, "n1", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	for range watch.ResultChan() { // it ends
	}
	if _, err := root.CoreV1().Secrets("team").Patch(ctx, "n2", types.MergePatchType, []byte(`{"stringData":{"a":"b"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if e, ok := <-node2.ResultChan(); !ok || e.Type != "MODIFIED" {
		t.Error("a watch that may go on has ended")
	}

	everybody := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everybody"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
	}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, everybody, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = n1.AppsV1().Deployments("team").List(ctx, metav1.ListOptions{})
	wantStatus(t, err, 403, "cannot list")
	everybody.Name, everybody.Subjects[0].Name = "nodes", "system:nodes"
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, everybody, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = n1.AppsV1().Deployments("team").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error("what is given to nodes:", err)
	}
}

// TestNodeRestriction: a node writes itself, what its pods have come to, and their mirrors.
func TestNodeRestriction(t *testing.T) {
	_, root, n1 := ofNodes(t)
	ctx := context.Background()
	node, err := n1.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mirror := func(change func(p *corev1.Pod)) func() error {
		yes := true
		p := testPod("mirror-n1")
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x", "kubernetes.io/config.hash": "x"}
		p.Spec.NodeName = "n1"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: node.UID, Controller: &yes}}
		change(p)
		return func() error {
			_, err := n1.CoreV1().Pods("team").Create(ctx, p, metav1.CreateOptions{})
			return err
		}
	}
	patchNode := func(name, patch string, part ...string) func() error {
		return func() error {
			_, err := n1.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, part...)
			return err
		}
	}
	newNode := func(change func(n *corev1.Node)) func() error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		change(n)
		return func() error {
			_, err := n1.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
			return err
		}
	}
	podStatus := func(name, patch string) func() error {
		return func() error {
			_, err := n1.CoreV1().Pods("team").Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			return err
		}
	}
	evict := func(name string) func() error {
		return func() error {
			return n1.PolicyV1().Evictions("team").Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"}})
		}
	}
	token := func(account, pod string) func() error {
		p, err := root.CoreV1().Pods("team").Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return func() error {
			_, err := n1.CoreV1().ServiceAccounts("team").CreateToken(ctx, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod, UID: p.UID},
			}}, metav1.CreateOptions{})
			return err
		}
	}
	event := func(kind, namespace, about, host string) func() error {
		return func() error {
			_, err := n1.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "e-"}, Source: corev1.EventSource{Component: "kubelet", Host: host},
				InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about, Namespace: strings.TrimPrefix(namespace, "default")},
			}, metav1.CreateOptions{})
			return err
		}
	}
	lease := func(name string) func() error {
		return func() error {
			_, err := n1.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return err
		}
	}
	for _, tt := range []struct {
		what string
		do   func() error
		want string // in the refusal; "" for none
	}{
		{"its label", patchNode("n1", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"a"}}}`), ""},
		{"its status", patchNode("n1", `{"status":{"conditions":[{"type":"Ready","status":"True","message":"well"}]}}`, "status"), ""},
		{"another node", patchNode("n2", `{"metadata":{"labels":{"a":"b"}}}`), `node "n1" is not allowed to modify node "n2"`},
		{"another's status", patchNode("n2", `{"status":{"phase":"Running"}}`, "status"), `is not allowed to modify node "n2"`},
		{"a role", patchNode("n1", `{"metadata":{"labels":{"node-restriction.kubernetes.io/pci":"yes"}}}`), "is not allowed to modify labels"},
		{"taints", patchNode("n1", `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`), "is not allowed to modify taints"},
		{"finalizers", patchNode("n1", `{"metadata":{"finalizers":["a.io/b"]}}`), "metadata.finalizers"},
		{"owners", patchNode("n1", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n2","uid":"u"}]}}`), "owner"},
		{"a network", patchNode("n1", `{"spec":{"podCIDR":"10.0.0.0/8","podCIDRs":["10.0.0.0/8"]}}`), "spec.podCIDRs"},
		{"cordoned", patchNode("n1", `{"spec":{"unschedulable":true}}`), ""},
		{"and back", patchNode("n1", `{"spec":{"unschedulable":false}}`), "spec.unschedulable"},
		{"a new node with owners", newNode(func(n *corev1.Node) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n2", UID: "u"}}
		}), "metadata.ownerReferences"},
		{"with a network", newNode(func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.0.0/8", []string{"10.0.0.0/8"} }), "spec.podCIDRs"},
		{"with finalizers", newNode(func(n *corev1.Node) { n.Finalizers = []string{"a.io/b"} }), "metadata.finalizers"},
		{"finalizers of its pod", podStatus("n1", `{"metadata":{"finalizers":["a.io/b"]}}`), "metadata.finalizers"},
		{"of a mirror", mirror(func(p *corev1.Pod) { p.Finalizers = []string{"a.io/b"} }), "metadata.finalizers"},
		{"long", patchNode("n1", fmt.Sprintf(`{"metadata":{"annotations":{"a":"%s"}}}`, strings.Repeat("x", 3000))), "metadata.annotations[a] has 3000 bytes"},
		{"status of its pod", podStatus("n1", `{"status":{"phase":"Running"}}`), ""},
		{"status of another's", podStatus("n2", `{"status":{"phase":"Running"}}`), "can only update pod status for pods with spec.nodeName set to itself"},
		{"labels by status", podStatus("n1", `{"metadata":{"labels":{"a":"b"}}}`), "cannot update labels through pod status"},
		{"evict another's", evict("n2"), "can only evict pods with spec.nodeName set to itself"},
		{"a token for its pod", token("n1", "n1"), ""},
		{"for another account", token("n2", "n1"), "no relationship found"},
		{"for another pod", token("n1", "n2"), "node requested token bound to a pod scheduled on a different node"},
		{"a mirror", mirror(func(*corev1.Pod) {}), ""},
		{"no mirror", mirror(func(p *corev1.Pod) { p.Annotations = nil }), "can only create mirror pods"},
		{"on another node", mirror(func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), "with spec.nodeName set to itself"},
		{"of nobody", mirror(func(p *corev1.Pod) { p.OwnerReferences = nil }), "owner reference"},
		{"with a secret", mirror(func(p *corev1.Pod) { p.Spec.Volumes = needy("n2").Spec.Volumes[:1] }), "can not create pods that reference secrets"},
		{"delete another's", func() error { return n1.CoreV1().Pods("team").Delete(ctx, "n2", metav1.DeleteOptions{}) }, "can only delete pods with spec.nodeName set to itself"},
		{"its lease", lease("n1"), ""},
		{"another's lease", lease("n2"), "can only access node lease with the same name"},
		{"of itself", event("Node", "default", "n1", "n1"), ""},
		{"of another", event("Node", "default", "n2", "n1"), `does not tell of node "n2"`},
		{"as another", event("Node", "default", "n1", "n2"), `does not tell for "n2"`},
		{"of its pod", event("Pod", "team", "n1", "n1"), ""},
		{"of another's pod", event("Pod", "team", "n2", "n1"), `is not on node "n1"`},
		{"of anything", event("Secret", "team", "n1", "n1"), "tells of itself"},
		{"evict its pod", evict("n1"), ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			err := tt.do()
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "":
				wantStatus(t, err, 403, tt.want)
			}
		})
	}
}

// TestLeasesOfNodes: a node renews its lease, and holds nobody up by it.
func TestLeasesOfNodes(t *testing.T) {
	_, root, n1 := ofNodes(t)
	ctx := t.Context()
	leases := n1.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	made, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(l *coordinationv1.Lease){
		"metadata.finalizers": func(l *coordinationv1.Lease) { l.Finalizers = []string{"example.com/held"} },
		"labels and annotations of a node's lease may have 4096 bytes": func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{"note": strings.Repeat("x", 5000)}
		},
	} {
		l := made.DeepCopy()
		change(l)
		_, err := leases.Update(ctx, l, metav1.UpdateOptions{})
		wantStatus(t, err, 403, what)
	}
	if _, err := leases.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	made.Finalizers = []string{"example.com/held"}
	if _, err := root.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}
