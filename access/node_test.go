package access

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCheckNode: a worker says what its machine is, and nothing that decides
// over the object.
func TestCheckNode(t *testing.T) {
	grace := int64(1)
	now := metav1.Unix(1, 0)
	full := &corev1.Node{}
	full.Labels = map[string]string{}
	for i := range 128 {
		full.Labels[fmt.Sprintf("l%d", i)] = ""
	}
	full.Status.Capacity = corev1.ResourceList{}
	for i := range 256 {
		full.Status.Capacity[corev1.ResourceName(fmt.Sprintf("a.io/r%d", i))] = resource.MustParse("1")
	}
	for i := range 64 {
		full.Status.Conditions = append(full.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprintf("C%d", i))})
	}
	for _, c := range []struct {
		name   string
		change func(n *corev1.Node)
		old    *corev1.Node
		want   string // in the refusal; "" for none
	}{
		{"what a worker says", func(*corev1.Node) {}, nil, ""},
		{"the same again", func(*corev1.Node) {}, full, "metadata.labels would have 131 entries, and may have 128"},
		{"nothing new to a full node", func(n *corev1.Node) { n.Labels, n.Status.Conditions, n.Status.Capacity = full.Labels, nil, nil }, full, ""},
		{"zone", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "a" }, nil, ""},
		{"a kubelet's domain", func(n *corev1.Node) { n.Labels["node.kubernetes.io/x"] = "a" }, nil, ""},
		{"restricted", func(n *corev1.Node) { n.Labels["node-restriction.kubernetes.io/pci"] = "yes" }, nil,
			"a worker does not set the label node-restriction.kubernetes.io/pci of its node"},
		{"restricted, below", func(n *corev1.Node) { n.Labels["a.node-restriction.kubernetes.io/pci"] = "yes" }, nil, "does not set the label"},
		{"role", func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, nil, "does not set the label"},
		{"k8s.io", func(n *corev1.Node) { n.Labels["x.k8s.io/a"] = "" }, nil, "does not set the label"},
		{"a domain that only looks so", func(n *corev1.Node) { n.Labels["notk8s.io/a"] = "" }, nil, ""},
		{"no label", func(n *corev1.Node) { n.Labels["a b"] = "" }, nil, `metadata.labels: "a b"`},
		{"no value", func(n *corev1.Node) { n.Labels["a"] = "\x00" }, nil, `metadata.labels[a]`},
		{"annotation", func(n *corev1.Node) { n.Annotations = map[string]string{"a.io/b": "c"} }, nil, ""},
		{"no annotation", func(n *corev1.Node) { n.Annotations = map[string]string{"a\nb": "c"} }, nil, "metadata.annotations"},
		{"finalizer", func(n *corev1.Node) { n.Finalizers = []string{"a.io/b"} }, nil, "metadata.finalizers"},
		{"owner", func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }, nil, "metadata.ownerReferences"},
		{"uid", func(n *corev1.Node) { n.UID = "u" }, nil, "metadata.uid"},
		{"deleted", func(n *corev1.Node) { n.DeletionTimestamp = &now }, nil, "metadata.deletionTimestamp"},
		{"grace", func(n *corev1.Node) { n.DeletionGracePeriodSeconds = &grace }, nil, "metadata.deletionTimestamp"},
		{"created", func(n *corev1.Node) { n.CreationTimestamp = now }, nil, "metadata.creationTimestamp"},
		{"fields", func(n *corev1.Node) { n.ManagedFields = []metav1.ManagedFieldsEntry{{}} }, nil, "metadata.managedFields"},
		{"revision", func(n *corev1.Node) { n.ResourceVersion = "5" }, nil, "metadata.resourceVersion"},
		{"cordon", func(n *corev1.Node) { n.Spec.Unschedulable = true }, nil, "spec but for its taints"},
		{"phase", func(n *corev1.Node) { n.Status.Phase = corev1.NodeRunning }, nil, "status but for"},
		{"taint", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoSchedule"}} }, nil, ""},
		{"effect", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Never"}} }, nil, `spec.taints[0].effect: "Never"`},
		{"taint's time", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoExecute", TimeAdded: &now}}
		}, nil, "spec.taints[0].timeAdded"},
		{"negative", func(n *corev1.Node) { n.Status.Allocatable["cpu"] = resource.MustParse("-1") }, nil, "status.allocatable[cpu]: -1 is negative"},
		{"no resource", func(n *corev1.Node) { n.Status.Capacity["a b"] = resource.MustParse("1") }, nil, `status.capacity: "a b"`},
		{"other amounts each time", func(*corev1.Node) {}, &corev1.Node{Status: full.Status}, "status.capacity would have 257 entries, and may have 256"},
		{"other conditions each time", func(*corev1.Node) {}, &corev1.Node{Status: full.Status}, "status.conditions would have 65 entries, and may have 64"},
		{"long annotation", func(n *corev1.Node) { n.Annotations = map[string]string{"a": strings.Repeat("x", 2<<10+1)} }, nil, "metadata.annotations[a] has 2049 bytes"},
		{"long condition", func(n *corev1.Node) { n.Status.Conditions[0].Message = strings.Repeat("x", 2<<10) }, nil, "status.conditions[0] has"},
		{"size", func(n *corev1.Node) { n.Annotations = map[string]string{"a": strings.Repeat("x", 128<<10)} }, nil, "bytes, and may have 131072"},
		{"name", func(n *corev1.Node) { n.Name = "a/b" }, nil, `metadata.name "a/b"`},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
			corev1.LabelHostname: "n1", corev1.LabelOSStable: "linux", "disk": "ssd",
		}}}
		n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")}
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4")}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}}
		n.Status.NodeInfo.SystemUUID = "machine"
		c.change(n)
		err := CheckNode(n, c.old)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: refused: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
