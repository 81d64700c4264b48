package access

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// What a worker may say of its node. A node is the API's object, and what
// stands in it is believed: labels send pods, finalizers and owners decide over
// its end. A worker says what its machine is, as NodeRestriction lets a kubelet,
// and no more than fits into an object.
const (
	maxNodeLabels      = 128
	maxNodeAnnotations = 64
	maxNodeTaints      = 64
	maxNodeResources   = 256
	maxNodeConditions  = 64
	maxNodeAddresses   = 64
	maxNodeBytes       = 128 << 10
	maxNodeText        = 2 << 10 // of one annotation, and of one condition
)

// restricted is the domain of labels that only administrators set, so that
// workers cannot attract pods by them.
const restricted = "node-restriction.kubernetes.io"

// CheckNode says why a worker may not write its node so, all reasons; nil if it
// may. old is the node as it is stored, nil if it is new: what is said is added
// to it, and must not make it grow without end.
func CheckNode(said, old *corev1.Node) error {
	var errs []error
	refuse := func(format string, values ...any) { errs = append(errs, fmt.Errorf(format, values...)) }
	if problems := validation.IsDNS1123Subdomain(said.Name); len(problems) > 0 {
		refuse("metadata.name %q: %s", said.Name, problems[0])
	}
	if size := said.Size(); size > maxNodeBytes {
		refuse("the node has %d bytes, and may have %d", size, maxNodeBytes)
		return errors.Join(errs...)
	}
	// What is left when all is taken away that is a worker's to say.
	rest := said.DeepCopy()
	m, spec, status := &rest.ObjectMeta, &rest.Spec, &rest.Status
	m.Name, m.Labels, m.Annotations, spec.Taints = "", nil, nil, nil
	status.Capacity, status.Allocatable, status.Conditions, status.Addresses = nil, nil, nil, nil
	status.DaemonEndpoints, status.NodeInfo, status.Images = corev1.NodeDaemonEndpoints{}, corev1.NodeSystemInfo{}, nil
	for _, field := range []struct {
		name string
		is   bool
	}{
		{"metadata.finalizers", len(m.Finalizers) > 0},
		{"metadata.ownerReferences", len(m.OwnerReferences) > 0},
		{"metadata.uid", m.UID != ""},
		{"metadata.resourceVersion", m.ResourceVersion != ""},
		{"metadata.generation", m.Generation != 0},
		{"metadata.creationTimestamp", !m.CreationTimestamp.IsZero()},
		{"metadata.deletionTimestamp", m.DeletionTimestamp != nil || m.DeletionGracePeriodSeconds != nil},
		{"metadata.managedFields", len(m.ManagedFields) > 0},
		{"metadata.namespace", m.Namespace != ""},
		{"metadata.generateName", m.GenerateName != ""},
		{"metadata.selfLink", m.SelfLink != ""},
		{"spec but for its taints", !equality.Semantic.DeepEqual(*spec, corev1.NodeSpec{})},
		{"status but for amounts, conditions, addresses, endpoints, system information and images",
			!equality.Semantic.DeepEqual(*status, corev1.NodeStatus{})},
	} {
		if field.is {
			refuse("a worker does not set %s of its node", field.name)
		}
	}
	if old == nil {
		old = &corev1.Node{}
	}
	errs = append(errs, checkLabels(said.Labels)...)
	for _, key := range slices.Sorted(maps.Keys(said.Annotations)) {
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			refuse("metadata.annotations: %q: %s", key, problems[0])
		}
	}
	errs = append(errs, checkTexts(said, &corev1.Node{})...)
	errs = append(errs, checkTaints(said.Spec.Taints)...)
	errs = append(errs, checkAmounts("status.capacity", said.Status.Capacity)...)
	errs = append(errs, checkAmounts("status.allocatable", said.Status.Allocatable)...)
	return errors.Join(append(errs, checkCounts(said, old)...)...)
}

// CheckNodeSize says why a node may not write its object so through the API, where it writes it whole: by what it
// would come to. old is the node as it is stored, nil if it is new; what others put there is no reason.
func CheckNodeSize(said, old *corev1.Node) error {
	if old == nil {
		old = &corev1.Node{}
	}
	if size := said.Size(); size > maxNodeBytes && size > old.Size() {
		return fmt.Errorf("the node has %d bytes, and may have %d", size, maxNodeBytes)
	}
	return errors.Join(append(checkTexts(said, old), checkCounts(said, old)...)...)
}

// checkTexts bounds what people are to read, but for what is there already.
func checkTexts(said, old *corev1.Node) (errs []error) {
	for _, key := range slices.Sorted(maps.Keys(said.Annotations)) {
		if size := len(said.Annotations[key]); size > maxNodeText && said.Annotations[key] != old.Annotations[key] {
			errs = append(errs, fmt.Errorf("metadata.annotations[%s] has %d bytes, and may have %d", key, size, maxNodeText))
		}
	}
	for i := range said.Status.Conditions {
		c := &said.Status.Conditions[i]
		if size := c.Size(); size > maxNodeText && !slices.Contains(old.Status.Conditions, *c) {
			errs = append(errs, fmt.Errorf("status.conditions[%d] has %d bytes, and may have %d", i, size, maxNodeText))
		}
	}
	return errs
}

// checkCounts bounds maps and lists, with what is there already.
func checkCounts(said, old *corev1.Node) (errs []error) {
	for _, list := range []struct {
		name    string
		n, most int
	}{
		{"metadata.labels", together(said.Labels, old.Labels), maxNodeLabels},
		{"metadata.annotations", together(said.Annotations, old.Annotations), maxNodeAnnotations},
		{"spec.taints", len(said.Spec.Taints), maxNodeTaints},
		{"status.capacity", together(said.Status.Capacity, old.Status.Capacity), maxNodeResources},
		{"status.allocatable", together(said.Status.Allocatable, old.Status.Allocatable), maxNodeResources},
		{"status.conditions", together(conditionTypes(said), conditionTypes(old)), maxNodeConditions},
		{"status.addresses", len(said.Status.Addresses), maxNodeAddresses},
	} {
		if list.n > list.most {
			errs = append(errs, fmt.Errorf("%s would have %d entries, and may have %d", list.name, list.n, list.most))
		}
	}
	return errs
}

// checkLabels is NodeRestriction's rule: of Kubernetes' own labels a worker sets
// those that a kubelet does.
func checkLabels(labels map[string]string) (errs []error) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("metadata.labels: %q: %s", key, problems[0]))
			continue
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("metadata.labels[%s]: %q: %s", key, value, problems[0]))
		}
		if !mayLabel(key) {
			errs = append(errs, fmt.Errorf("metadata.labels: a worker does not set the label %s of its node; set it through the API", key))
		}
	}
	return errs
}

func mayLabel(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	if !strings.Contains(key, "/") {
		return true
	}
	under := func(parent string) bool { return domain == parent || strings.HasSuffix(domain, "."+parent) }
	switch {
	case under(restricted):
		return false
	case under("kubernetes.io"), under("k8s.io"):
		return kubeletapis.IsKubeletLabel(key)
	}
	return true
}

func checkTaints(taints []corev1.Taint) (errs []error) {
	for i := range taints {
		t := &taints[i]
		if problems := validation.IsQualifiedName(t.Key); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("spec.taints[%d].key: %q: %s", i, t.Key, problems[0]))
		}
		if problems := validation.IsValidLabelValue(t.Value); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("spec.taints[%d].value: %q: %s", i, t.Value, problems[0]))
		}
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			errs = append(errs, fmt.Errorf("spec.taints[%d].effect: %q is none", i, t.Effect))
		}
		if t.TimeAdded != nil {
			errs = append(errs, fmt.Errorf("spec.taints[%d].timeAdded: a worker does not set it", i))
		}
	}
	return errs
}

func checkAmounts(field string, amounts corev1.ResourceList) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		if problems := validation.IsQualifiedName(string(name)); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s: %q: %s", field, name, problems[0]))
		}
		if q := amounts[name]; q.Sign() < 0 {
			errs = append(errs, fmt.Errorf("%s[%s]: %s is negative", field, name, q.String()))
		}
	}
	return errs
}

func conditionTypes(n *corev1.Node) map[string]bool {
	out := make(map[string]bool, len(n.Status.Conditions))
	for i := range n.Status.Conditions {
		out[string(n.Status.Conditions[i].Type)] = true
	}
	return out
}

// together is how many keys a map has with those that are added to it; 0 where
// none is: what somebody else put there is not the worker's doing.
func together[K comparable, V, W any](added map[K]V, to map[K]W) int {
	n := 0
	// order does not matter: they are counted.
	for key := range added {
		if _, has := to[key]; !has {
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return len(to) + n
}
