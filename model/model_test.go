package model

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func container(requests ...string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(requests...)}}
}

func sidecar(requests ...string) corev1.Container {
	c := container(requests...)
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func TestPodRequest(t *testing.T) {
	tests := []struct {
		name string
		spec corev1.PodSpec
		want Resources
		non0 [2]int64
	}{
		{"IN6 one container", corev1.PodSpec{Containers: []corev1.Container{container("cpu", "500m", "memory", "1Gi")}},
			Resources{MilliCPU: 500, MemoryBytes: 1 << 30, Pods: 1}, [2]int64{500, 1 << 30}},
		{"nothing asked for", corev1.PodSpec{Containers: []corev1.Container{container()}},
			Resources{Pods: 1}, [2]int64{100, 200 << 20}},
		{"an explicit zero stays zero", corev1.PodSpec{Containers: []corev1.Container{container("cpu", "0")}},
			Resources{Pods: 1}, [2]int64{0, 200 << 20}},
		{"IN6 the larger init container", corev1.PodSpec{
			InitContainers: []corev1.Container{container("cpu", "2"), container("cpu", "1", "memory", "3Gi")},
			Containers:     []corev1.Container{container("cpu", "1", "memory", "1Gi"), container("cpu", "500m")}},
			Resources{MilliCPU: 2000, MemoryBytes: 3 << 30, Pods: 1}, [2]int64{2000, 3 << 30}},
		{"IN6 a sidecar adds to what comes after it", corev1.PodSpec{
			InitContainers: []corev1.Container{container("cpu", "3"), sidecar("cpu", "1"), container("cpu", "2500m")},
			Containers:     []corev1.Container{container("cpu", "1", "memory", "1")}},
			Resources{MilliCPU: 3500, MemoryBytes: 1, Pods: 1}, [2]int64{3500, 400 << 20}},
		{"IN6 overhead", corev1.PodSpec{Overhead: list("cpu", "250m"), Containers: []corev1.Container{container("cpu", "1", "memory", "1")}},
			Resources{MilliCPU: 1250, MemoryBytes: 1, Pods: 1}, [2]int64{1250, 1}},
		{"pod-level resources", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("cpu", "4")},
			Containers: []corev1.Container{container("cpu", "1", "memory", "1Gi"), container()}},
			Resources{MilliCPU: 4000, MemoryBytes: 1 << 30, Pods: 1}, [2]int64{4000, 1 << 30}},
		{"extended resources, sorted, unknown names dropped", corev1.PodSpec{Containers: []corev1.Container{
			container("z.io/b", "1", "a.io/gpu", "2", "hugepages-2Mi", "4Mi", "widgets", "7")}},
			Resources{Pods: 1, Scalars: []Scalar{{"a.io/gpu", 2}, {"hugepages-2Mi", 4 << 20}, {"z.io/b", 1}}}, [2]int64{100, 200 << 20}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: tt.spec}
			if got := PodRequest(pod); !got.Equal(tt.want) {
				t.Errorf("request %+v, want %+v", got, tt.want)
			}
			if got := PodNonZeroRequest(pod); got.MilliCPU != tt.non0[0] || got.MemoryBytes != tt.non0[1] {
				t.Errorf("non-zero request %+v, want %v", got, tt.non0)
			}
		})
	}
}

func TestQOS(t *testing.T) {
	with := func(requests, limits corev1.ResourceList) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	full := with(list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))
	tests := []struct {
		name string
		spec corev1.PodSpec
		want corev1.PodQOSClass
	}{
		{"IN7 nothing", corev1.PodSpec{Containers: []corev1.Container{with(nil, nil)}}, corev1.PodQOSBestEffort},
		{"IN7 all equal", corev1.PodSpec{Containers: []corev1.Container{full, full}}, corev1.PodQOSGuaranteed},
		{"IN7 one without limits", corev1.PodSpec{Containers: []corev1.Container{full, with(nil, nil)}}, corev1.PodQOSBurstable},
		{"IN7 init containers count alike", corev1.PodSpec{InitContainers: []corev1.Container{with(list("cpu", "1"), nil)},
			Containers: []corev1.Container{full}}, corev1.PodQOSBurstable},
		{"IN7 request below limit", corev1.PodSpec{Containers: []corev1.Container{
			with(list("cpu", "500m", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))}}, corev1.PodQOSBurstable},
		{"IN7 ephemeral containers do not", corev1.PodSpec{Containers: []corev1.Container{full},
			EphemeralContainers: []corev1.EphemeralContainer{{}}}, corev1.PodQOSGuaranteed},
		{"extended resources do not", corev1.PodSpec{Containers: []corev1.Container{with(list("a.io/gpu", "1"), nil)}}, corev1.PodQOSBestEffort},
		{"pod level decides", corev1.PodSpec{Resources: &corev1.ResourceRequirements{
			Requests: list("cpu", "1", "memory", "1Gi"), Limits: list("cpu", "1", "memory", "1Gi")},
			Containers: []corev1.Container{with(nil, nil)}}, corev1.PodQOSGuaranteed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := QOS(&corev1.Pod{Spec: tt.spec}); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestValidateClass(t *testing.T) {
	class := func(name string, value int32, def bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: def}
	}
	tests := []struct {
		name string
		pc   *schedulingv1.PriorityClass
		want string
	}{
		{"PC2 highest", class("a", HighestUserPriority, false), ""},
		{"PC2 too high", class("a", HighestUserPriority+1, false),
			"value: Forbidden: maximum allowed value of a user defined priority is 1000000000"},
		{"T6 negative", class("a", -2147483648, true), ""},
		{"PC3 system name", class("system-mine", 1, false),
			"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class"},
		{"PC3 exact", class(SystemNodeCritical, SystemNodeCriticalPriority, false), ""},
		{"PC3 wrong value", class(SystemNodeCritical, 5, false),
			"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: value of system-node-critical PriorityClass must be 2000001000"},
		{"PC3 default", class(SystemClusterCritical, SystemClusterCriticalPriority, true),
			"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: globalDefault of system-cluster-critical PriorityClass must be false"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if errs := ValidateUserClass(tt.pc); len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("PC8", func(t *testing.T) {
		old, never := class("a", 1, false), corev1.PreemptNever
		changed := class("a", 2, true)
		changed.PreemptionPolicy = &never
		if errs := ValidateClassUpdate(changed, old); len(errs) != 2 {
			t.Errorf("value and policy changed: %v", errs)
		}
		changed = class("a", 1, true)
		changed.Description = "new"
		if errs := ValidateClassUpdate(changed, old); len(errs) != 0 {
			t.Errorf("globalDefault and description are mutable: %v", errs)
		}
	})
}

func TestHostPortConflicts(t *testing.T) {
	port := func(ip, proto string, n int32) HostPort { return HostPort{IP: ip, Protocol: proto, Port: n} }
	tests := []struct {
		a, b HostPort
		want bool
	}{
		{port(AnyHostIP, "TCP", 80), port(AnyHostIP, "TCP", 80), true},
		{port(AnyHostIP, "TCP", 80), port("10.0.0.1", "TCP", 80), true},
		{port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80), false},
		{port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), true},
		{port(AnyHostIP, "TCP", 80), port(AnyHostIP, "UDP", 80), false},
		{port(AnyHostIP, "TCP", 80), port(AnyHostIP, "TCP", 81), false},
	}
	for _, tt := range tests {
		if conflictsWith(tt.a)(tt.b) != tt.want || (&Class{Ports: []HostPort{tt.a}}).TakesPortOf(&Class{Ports: []HostPort{tt.b}}) != tt.want ||
			conflictsWith(tt.b)(tt.a) != tt.want {
			t.Errorf("%v and %v: want %v both ways", tt.a, tt.b, tt.want)
		}
	}
}

var genResources = rapid.Custom(func(t *rapid.T) Resources {
	n := rapid.Int64Range(-3, 3)
	r := Resources{MilliCPU: n.Draw(t, "cpu"), MemoryBytes: n.Draw(t, "memory"), Pods: n.Draw(t, "pods")}
	for _, name := range []string{"a.io/x", "b.io/y", "c.io/z"} {
		if v := n.Draw(t, name); v != 0 {
			r.Scalars = append(r.Scalars, Scalar{name, v})
		}
	}
	return r
})

// TestResourcesProperties holds the vector against the plain meaning of its operations, name by name, and sees that no
// operation changes an operand.
func TestResourcesProperties(t *testing.T) {
	names := []string{"cpu", "memory", "ephemeral-storage", "pods", "a.io/x", "b.io/y", "c.io/z", "none"}
	rapid.Check(t, func(t *rapid.T) {
		a, b := genResources.Draw(t, "a"), genResources.Draw(t, "b")
		a0, b0 := a.Add(Resources{}), b.Add(Resources{})
		sum, diff := a.Add(b), a.Sub(b)
		for _, name := range names {
			x, y := a.Get(name), b.Get(name)
			if sum.Get(name) != x+y || diff.Get(name) != x-y {
				t.Fatalf("%s: %d and %d give sum %d, difference %d", name, x, y, sum.Get(name), diff.Get(name))
			}
		}
		if !sum.Sub(b).Equal(a) || !a.Sub(a).IsZero() || !sum.Equal(b.Add(a)) {
			t.Fatalf("Add and Sub are not each other's reverse on %+v, %+v", a, b)
		}
		if !a.Equal(a0) || !b.Equal(b0) {
			t.Fatal("an operand was changed")
		}
	})
}

// TestUsageProperty: With then Without gives the usage back, ports included.
func TestUsageProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var u Usage
		var classes []*Class
		for range rapid.IntRange(0, 6).Draw(t, "pods") {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container("cpu", "1")}}}
			for range rapid.IntRange(0, 2).Draw(t, "ports") {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: rapid.Int32Range(1, 3).Draw(t, "port")})
			}
			c := ClassOf(pod)
			classes = append(classes, c)
			u = u.With(c)
		}
		n := 0
		for _, c := range classes {
			n += len(c.Ports)
		}
		kept := 0
		u.Ports.from(HostPort{}, func(p usedPort) bool {
			kept += int(p.pods)
			return true
		})
		if kept != n {
			t.Fatalf("%d ports kept of %d", kept, n)
		}
		for _, c := range classes {
			u = u.Without(c)
		}
		if !u.Requested.IsZero() || !u.NonZero.IsZero() || u.Ports.Len() > 0 {
			t.Fatalf("left over: %+v", u)
		}
	})
}
