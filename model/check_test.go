package model

import (
	"math/bits"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func affinity(exprs ...corev1.NodeSelectorRequirement) *corev1.Affinity {
	return affinityTerms(corev1.NodeSelectorTerm{MatchExpressions: exprs})
}

func affinityTerms(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

func expr(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

func TestCheckNode(t *testing.T) {
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a", "cores": "8"}}}
	cordoned := plain.DeepCopy()
	cordoned.Spec.Unschedulable = true
	tainted := plain.DeepCopy()
	tainted.Spec.Taints = []corev1.Taint{{Key: "team", Value: "x", Effect: corev1.TaintEffectNoSchedule},
		{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "gone", Effect: corev1.TaintEffectNoExecute}}

	const noMatch = "node(s) didn't match Pod's node affinity/selector"
	tests := []struct {
		name string
		spec corev1.PodSpec
		node *corev1.Node
		want string
	}{
		{"fits", corev1.PodSpec{}, plain, ""},
		{"cordoned", corev1.PodSpec{}, cordoned, "node(s) were unschedulable"},
		{"cordoned, tolerated", corev1.PodSpec{Tolerations: []corev1.Toleration{
			{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}}, cordoned, ""},
		{"AF4 taints", corev1.PodSpec{}, tainted, "node(s) had untolerated taint(s): {team: x}, {gone: }"},
		{"AF4 one tolerated", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "team", Value: "x"}}}, tainted,
			"node(s) had untolerated taint(s): {gone: }"},
		{"AF4 all tolerated", corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, tainted, ""},
		{"AF4 wrong effect", corev1.PodSpec{Tolerations: []corev1.Toleration{
			{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}}, tainted, "node(s) had untolerated taint(s): {gone: }"},
		{"AF1 nodeSelector", corev1.PodSpec{NodeSelector: map[string]string{"zone": "a"}}, plain, ""},
		{"AF1 nodeSelector differs", corev1.PodSpec{NodeSelector: map[string]string{"zone": "b"}}, plain, noMatch},
		{"AF1 In", corev1.PodSpec{Affinity: affinity(expr("zone", "In", "b", "a"))}, plain, ""},
		{"AF1 NotIn", corev1.PodSpec{Affinity: affinity(expr("zone", "NotIn", "a"))}, plain, noMatch},
		{"AF1 NotIn without the label", corev1.PodSpec{Affinity: affinity(expr("rack", "NotIn", "a"))}, plain, ""},
		{"AF1 Exists", corev1.PodSpec{Affinity: affinity(expr("rack", "Exists"))}, plain, noMatch},
		{"AF1 DoesNotExist", corev1.PodSpec{Affinity: affinity(expr("rack", "DoesNotExist"))}, plain, ""},
		{"AF1 Gt", corev1.PodSpec{Affinity: affinity(expr("cores", "Gt", "7"))}, plain, ""},
		{"AF1 Gt equal", corev1.PodSpec{Affinity: affinity(expr("cores", "Gt", "8"))}, plain, noMatch},
		{"AF1 Lt", corev1.PodSpec{Affinity: affinity(expr("cores", "Lt", "9"))}, plain, ""},
		{"AF1 expressions are ANDed", corev1.PodSpec{Affinity: affinity(expr("zone", "In", "a"), expr("cores", "Lt", "8"))}, plain, noMatch},
		{"AF1 terms are ORed", corev1.PodSpec{Affinity: affinityTerms(
			corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expr("zone", "In", "b")}},
			corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{expr("metadata.name", "In", "n1")}})}, plain, ""},
		{"AF1 matchFields differs", corev1.PodSpec{Affinity: affinityTerms(
			corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{expr("metadata.name", "In", "n2")}})}, plain, noMatch},
		{"AF1 no terms match nothing", corev1.PodSpec{Affinity: affinityTerms()}, plain, noMatch},
		{"all reasons", corev1.PodSpec{NodeSelector: map[string]string{"zone": "b"}}, func() *corev1.Node {
			n := tainted.DeepCopy()
			n.Spec.Unschedulable = true
			return n
		}(), "node(s) were unschedulable; node(s) had untolerated taint(s): {team: x}, {gone: }; " + noMatch},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := ClassOf(&corev1.Pod{Spec: tt.spec})
			if got := explain(CheckNode(c, tt.node)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if (NodeFailures(c, tt.node) == 0) != (tt.want == "") {
				t.Error("NodeFailures and CheckNode differ")
			}
		})
	}
}

func explain(reasons []Reason) string {
	var out []string
	for _, r := range reasons {
		out = append(out, r.Explain())
	}
	return strings.Join(out, "; ")
}

func TestCheckUsage(t *testing.T) {
	alloc := FromList(list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "10Gi", "pods", "3", "a.io/gpu", "2"))
	pod := func(ports []corev1.ContainerPort, requests ...string) *Class {
		c := container(requests...)
		c.Ports = ports
		return ClassOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}})
	}
	web := []corev1.ContainerPort{{HostPort: 80}, {HostPort: 443, HostIP: "10.0.0.1"}}
	used := Usage{}.With(pod(web, "cpu", "3", "memory", "1Gi", "a.io/gpu", "1"))
	tests := []struct {
		name  string
		class *Class
		used  Usage
		want  string
	}{
		{"fits exactly", pod(nil, "cpu", "1", "a.io/gpu", "1"), used, ""},
		{"cpu", pod(nil, "cpu", "1500m"), used, "Insufficient cpu (short 500m)"},
		{"several", pod(nil, "cpu", "2", "memory", "8Gi", "a.io/gpu", "2"), used,
			"Insufficient cpu (short 1); Insufficient memory (short 1Gi); Insufficient a.io/gpu (short 1)"},
		{"PR4 beyond the node", pod(nil, "cpu", "5"), used, "Insufficient cpu (short 4)"},
		{"PR4 a resource that the node lacks", pod(nil, "b.io/x", "1"), used, "Insufficient b.io/x (short 1)"},
		{"too many pods", pod(nil), used.With(pod(nil)).With(pod(nil)), "Too many pods (short 1)"},
		{"overcommitted, nothing asked", pod(nil), used.With(pod(nil, "cpu", "9")), ""},
		{"port", pod([]corev1.ContainerPort{{HostPort: 80, HostIP: "10.0.0.9"}}), used,
			"node(s) didn't have free ports for the requested pod ports: 10.0.0.9:80/TCP"},
		{"port of another address", pod([]corev1.ContainerPort{{HostPort: 443, HostIP: "10.0.0.2"}}), used, ""},
		{"port of another protocol", pod([]corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolUDP}}), used, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reasons := CheckUsage(tt.class, alloc, &tt.used)
			if got := explain(reasons); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if (UsageFailures(tt.class, &alloc, &tt.used) == 0) != (tt.want == "") {
				t.Error("UsageFailures and CheckUsage differ")
			}
			for _, r := range reasons {
				if strings.HasPrefix(tt.name, "PR4") == r.Kind.Resolvable() {
					t.Errorf("%s: resolvable %v", r.Kind, r.Kind.Resolvable())
				}
			}
		})
	}
}

func TestClassSignature(t *testing.T) {
	base := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Labels: map[string]string{"app": "web", "tier": "x"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{container("cpu", "1")}, NodeSelector: map[string]string{"a": "b"}}}
	}
	same := map[string]func(*corev1.Pod){
		"name":          func(p *corev1.Pod) { p.Name = "b" },
		"bound":         func(p *corev1.Pod) { p.Spec.NodeName = "n1" },
		"equal request": func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{container("cpu", "1000m")} },
	}
	differs := map[string]func(*corev1.Pod){
		"request":    func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{container("cpu", "2")} },
		"priority":   func(p *corev1.Pod) { v := int32(1); p.Spec.Priority = &v },
		"policy":     func(p *corev1.Pod) { v := corev1.PreemptNever; p.Spec.PreemptionPolicy = &v },
		"selector":   func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "c"} },
		"toleration": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k"}} },
		"affinity":   func(p *corev1.Pod) { p.Spec.Affinity = affinity(expr("zone", "Exists")) },
		"port":       func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 1}} },
		"spread": func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1}}
		},
		"gate":      func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} },
		"scheduler": func(p *corev1.Pod) { p.Spec.SchedulerName = "other" },
		"strictness": func(p *corev1.Pod) {
			p.Annotations = map[string]string{DisruptionPolicyAnnotation: "Strict"}
		},
	}
	relabelled := map[string]func(*corev1.Pod){
		"namespace": func(p *corev1.Pod) { p.Namespace = "other" },
		"labels":    func(p *corev1.Pod) { p.Labels["app"] = "db" },
		"image":     func(p *corev1.Pod) { p.Spec.Containers[0].Image = "i" },
	}
	want := ClassOf(base())
	var cs Classes
	if cs.Of(base()) != cs.Of(base()) || cs.Len() != 1 {
		t.Error("equal pods do not share their class")
	}
	try := func(changes map[string]func(*corev1.Pod), signature, shape bool) {
		for name, change := range changes {
			p := base()
			change(p)
			c := ClassOf(p)
			if (c.Signature == want.Signature) != signature || (c.Shape == want.Shape) != shape {
				t.Errorf("%s: equal signature %v, equal shape %v", name, c.Signature == want.Signature, c.Shape == want.Shape)
			}
		}
	}
	try(same, true, true)
	try(differs, false, false)
	try(relabelled, false, true)
}

// TestFailuresBits: the bits of all resources are apart from each other and from those of the other filters. A class without
// claims has as many of them as before there were claims: what servers say of it is in rows.
func TestFailuresBits(t *testing.T) {
	claims := failClaimInUse | failVolumes | failClaimElsewhere | failVolumeNode | failVolumeBind | failVolumeZone
	if n := bits.OnesCount64(uint64(claims)); n != 6 {
		t.Fatalf("claims have %d bits", n)
	}
	for bit := Failures(1) << firstClaimBit; bit != 0; bit <<= 1 {
		if claims&bit != 0 && bit.Resolvable() != (bit == failClaimInUse) {
			t.Errorf("bit %b of claims: resolvable %v", bit, bit.Resolvable())
		}
	}
	for _, of := range []struct {
		class     *Class
		resources int
		taken     Failures
	}{{new(Class), resourceScalars + 22, 0}, {&Class{volumes: new(Volumes)}, resourceScalars + 18, claims}} {
		seen := unresolvableNode | failPorts | of.taken
		if n := of.class.namedResources(); n != of.resources {
			t.Errorf("%d resources have bits, want %d", n, of.resources)
		}
		for i := range of.resources {
			for _, exceeds := range []bool{false, true} {
				b := of.class.short(i, exceeds)
				if seen&b != 0 || b == 0 {
					t.Fatalf("resource %d: bit %b is taken", i, b)
				}
				if b.Resolvable() == exceeds {
					t.Errorf("resource %d: PR4: resolvable %v", i, b.Resolvable())
				}
				seen |= b
			}
		}
		if of.class.short(of.resources+3, true) != of.class.short(of.resources-1, true) {
			t.Error("what has no bit of its own must share the last one")
		}
	}
}
