package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

const (
	// front is the service of the Deployment's pods.
	front = "front"
	// misled is for how long a service may lead elsewhere than to the pods that are ready, while one leads who could change that: a
	// controller that could not write tries again after one, two and four seconds. Leadership is handed over about twice a minute.
	misled = 15 * time.Second
)

// serve makes a service. Its pods are those of the Deployment.
func (u *user) serve(ctx context.Context) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Services(space).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: front}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{keptBy: deployment}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		return err
	})
	u.world.story.tell(u.name, "has made service %s", front)
}

// endpoint is a pod to which a service leads, or should.
type endpoint struct {
	pod     types.UID
	address string
	node    string
}

// strays are the endpoints that the service lacks and those that it has and should not: it is to lead to the ready pods of its
// selector, and to no other ready endpoint.
func strays(v *fsm.View) map[endpoint]string {
	if _, ok := v.Objects.Get(fsm.ObjectKey("services", space, front)); !ok {
		return nil
	}
	out := map[endpoint]string{}
	v.Pods.Scan(space+"/", func(_ string, p *corev1.Pod) bool {
		if p.Labels[keptBy] == deployment && model.Ready(p) && p.DeletionTimestamp == nil && !ended(p) {
			out[endpoint{p.UID, p.Status.PodIP, p.Spec.NodeName}] = "ready, and service " + front + " does not lead to it"
		}
		return true
	})
	v.Objects.Scan(fsm.ObjectKey("endpointslices", space, ""), func(_ string, o *fsm.Object) bool {
		slice, ok := o.Value.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != front || slice.DeletionTimestamp != nil {
			return true
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Conditions.Ready == nil || !*e.Conditions.Ready || e.TargetRef == nil || e.NodeName == nil || len(e.Addresses) != 1 {
				continue
			}
			to := endpoint{e.TargetRef.UID, e.Addresses[0], *e.NodeName}
			if _, wanted := out[to]; wanted {
				delete(out, to)
			} else {
				out[to] = "not ready, and service " + front + " leads to it"
			}
		}
		return true
	})
	return out
}

// lookAtServices: while one leads, services lead to the pods that are ready, and to no others, after a while.
func (w *World) lookAtServices(m *machine, v *fsm.View) {
	if !m.server.IsLeader() {
		m.strays = nil
		return
	}
	since := map[endpoint]time.Time{}
	for e, what := range strays(v) {
		at, known := m.strays[e]
		if !known || at.Before(m.serves()) {
			at = time.Now()
		}
		since[e] = at
		if time.Since(at) > misled {
			w.checker.violated("server %s leads with a right clock since %s, and since %s pod %s with address %q on %s is %s",
				m.name, m.serves().UTC().Format("15:04:05"), at.UTC().Format("15:04:05"), e.pod, e.address, e.node, what)
		}
	}
	m.strays = since
}

// served: services lead where they should.
func served(v *fsm.View) (unsettled []string) {
	for e, what := range strays(v) {
		unsettled = append(unsettled, fmt.Sprintf("pod %s with address %q on %s is %s", e.pod, e.address, e.node, what))
	}
	slices.Sort(unsettled)
	return unsettled
}

// addresses are those of the pods of a node. An address that is given back is given out again next.
type addresses struct {
	network string // of which they are: "10.1.0"
	mu      sync.Mutex
	of      map[types.UID]int
}

// take is the address of a pod.
func (a *addresses) take(pod types.UID) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, ok := a.of[pod]
	if !ok {
		taken := map[int]bool{}
		for _, n := range a.of {
			taken[n] = true
		}
		for n = 1; taken[n]; n++ {
		}
		a.of[pod] = n
	}
	return fmt.Sprintf("%s.%d", a.network, n)
}

// has is the address of a pod; "": it has none.
func (a *addresses) has(pod types.UID) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n, ok := a.of[pod]; ok {
		return fmt.Sprintf("%s.%d", a.network, n)
	}
	return ""
}

func (a *addresses) giveBack(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, pod)
}
