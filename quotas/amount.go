package quotas

import (
	"math/big"
	"math/bits"
	"strings"

	"gopkg.in/inf.v0"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/model"
)

// total is a sum of amounts. However many pods there are, it does not wrap.
type total struct{ hi, lo uint64 }

func (t total) plus(b total) total {
	lo, carry := bits.Add64(t.lo, b.lo, 0)
	hi, _ := bits.Add64(t.hi, b.hi, carry)
	return total{hi, lo}
}

// minus is for what is in the sum.
func (t total) minus(b total) total {
	lo, borrow := bits.Sub64(t.lo, b.lo, 0)
	hi, _ := bits.Sub64(t.hi, b.hi, borrow)
	return total{hi, lo}
}

// times is for an amount of one pod.
func (t total) times(n int64) total {
	hi, lo := bits.Mul64(t.lo, uint64(n))
	return total{hi, lo}
}

func (t total) more(b total) bool { return t.hi > b.hi || t.hi == b.hi && t.lo > b.lo }

func (t total) big() *big.Int {
	n := new(big.Int).SetUint64(t.hi)
	return n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(t.lo))
}

// quantity is the total in the API's form; of thousandths, if they are.
func (t total) quantity(milli bool, format resource.Format) resource.Quantity {
	scale := resource.Scale(0)
	if milli {
		scale = resource.Milli
	}
	if t.hi == 0 && t.lo < 1<<63 {
		q := resource.NewScaledQuantity(int64(t.lo), scale)
		q.Format = format
		return *q
	}
	return *resource.NewDecimalQuantity(*inf.NewDecBig(t.big(), -inf.Scale(scale)), format)
}

// totalOf is a quantity as a total, rounded down: what is not above it is not above the
// quantity.
func totalOf(q resource.Quantity, milli bool) total {
	scale := inf.Scale(0)
	if milli {
		scale = 3
	}
	q = q.DeepCopy()
	n := new(inf.Dec).Round(q.AsDec(), scale, inf.RoundDown).UnscaledBig()
	switch {
	case n.Sign() <= 0:
		return total{}
	case n.BitLen() > 128:
		return total{^uint64(0), ^uint64(0)}
	}
	lo := new(big.Int).And(n, new(big.Int).SetUint64(^uint64(0)))
	return total{new(big.Int).Rsh(n, 64).Uint64(), lo.Uint64()}
}

// amount is how much there is of one resource, by the name that it has here.
type amount struct {
	name string
	n    total
}

// amounts are sorted by name, hold no zero, and are never changed in place.
type amounts []amount

func (a amounts) get(name string) total {
	for i := range a {
		if a[i].name == name {
			return a[i].n
		}
	}
	return total{}
}

func (a amounts) plus(b amounts) amounts { return join(a, b, total.plus) }

// minus is for what is in the sum.
func (a amounts) minus(b amounts) amounts { return join(a, b, total.minus) }

func join(a, b amounts, f func(x, y total) total) amounts {
	if len(b) == 0 {
		return a
	}
	out := make(amounts, 0, max(len(a), len(b)))
	put := func(name string, n total) {
		if n != (total{}) {
			out = append(out, amount{name, n})
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case j == len(b) || i < len(a) && a[i].name < b[j].name:
			put(a[i].name, a[i].n)
			i++
		case i == len(a) || b[j].name < a[i].name:
			put(b[j].name, f(total{}, b[j].n))
			j++
		default:
			put(a[i].name, f(a[i].n, b[j].n))
			i, j = i+1, j+1
		}
	}
	return out
}

// Names of what is counted of pods. Those of requests are the resources' own; the
// other names that quotas have for them are aliases.
const (
	pods     = "pods"
	allPods  = "count/pods"
	requests = corev1.DefaultResourceRequestsPrefix
	limits   = "limits."
	counts   = "count/"
	// native are the domains of resources that are Kubernetes' own.
	native = "kubernetes.io/"
)

// podResource is the name here of a resource that pods use, as a quota names it.
func podResource(name string) (own string, ok bool) {
	switch bare := strings.TrimPrefix(name, requests); bare {
	case "cpu", "memory", "ephemeral-storage":
		return bare, true
	}
	switch name {
	case pods, allPods, "limits.cpu", "limits.memory", "limits.ephemeral-storage":
		return name, true
	}
	if bare := strings.TrimPrefix(name, requests); strings.HasPrefix(bare, corev1.ResourceHugePagesPrefix) {
		return bare, true
	}
	return name, strings.HasPrefix(name, requests) && extended(strings.TrimPrefix(name, requests))
}

// extended says whether a resource is neither Kubernetes' own nor a quota's name.
func extended(name string) bool {
	return strings.Contains(name, "/") && !strings.Contains(name, native) && !strings.HasPrefix(name, requests)
}

func inThousandths(name string) bool { return name == "cpu" || name == "limits.cpu" }

// counted is the name here of the number of objects that a quota names.
func counted(name string) (own string, ok bool) {
	switch name {
	case "configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services":
		return counts + name, true
	case ServicesNodePorts, ServicesLoadBalancers:
		return name, true
	}
	if name == RequestsStorage || strings.Contains(name, ofStorageClass) {
		return name, true
	}
	return name, strings.HasPrefix(name, counts) && name != allPods
}

// What is counted of services beside their number.
const (
	ServicesNodePorts     = "services.nodeports"
	ServicesLoadBalancers = "services.loadbalancers"
)

// What is counted of volume claims beside their number: the bytes that they ask for, and both
// of those of one class, whose name comes before.
const (
	RequestsStorage = string(corev1.ResourceRequestsStorage)
	ofStorageClass  = ".storageclass.storage.k8s.io/"
)

// CountClaim adds what is counted of a volume claim beside its number, by versions of the rules below 26: in a number that
// may wrap, whatever the claim's status says. Later ones have VolumeClaim.
func CountClaim(c *corev1.PersistentVolumeClaim, to map[string]int64) {
	asked := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if given, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && given.Cmp(asked) > 0 {
		asked = given
	}
	bytes := max(asked.Value(), 0)
	to[RequestsStorage] = bytes
	if class := model.ClaimClass(c); class != "" {
		to[class+ofStorageClass+RequestsStorage] = bytes
		to[class+ofStorageClass+"persistentvolumeclaims"] = 1
	}
}

// CountService adds what is counted of a service beside its number: the node ports that
// it has or is to get, as Kubernetes counts them.
func CountService(s *corev1.Service, to map[string]int64) {
	ports := int64(len(s.Spec.Ports))
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		to[ServicesNodePorts] = ports
	case corev1.ServiceTypeLoadBalancer:
		to[ServicesLoadBalancers] = 1
		to[ServicesNodePorts] = ports
		if allocate := s.Spec.AllocateLoadBalancerNodePorts; allocate != nil && !*allocate {
			to[ServicesNodePorts] = 0
			for i := range s.Spec.Ports {
				if s.Spec.Ports[i].NodePort != 0 {
					to[ServicesNodePorts]++
				}
			}
		}
	}
}

// Count is the name of the number of objects of a resource.
func Count(group, resource string) string {
	if group == "" {
		return counts + resource
	}
	return counts + resource + "." + group
}
