package sim

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/server"
)

// tie is what joins a worker to a server, as long as it is the same and nothing is wrong with it.
type tie struct {
	server *server.Server // nil: the worker is tied to none
	conns  uint64         // a sum over the connections
	term   uint64         // in which somebody leads
	lives  int            // of the worker
	// waits are pods of the node in the state of that server which the worker has never tried to start, and since when.
	waits map[types.UID]time.Time
	// doubts are pods of the node that are said to be unready there because the node was lost, and since when.
	doubts map[types.UID]time.Time
}

// heedless is for how long a worker may do nothing about a pod of its node, with a server that knows the pod at its other end.
const heedless = 15 * time.Second

// silent is for how long a worker may let it stand that one of its pods is unready because its node was lost: it objects every half a
// minute, after two minutes in which somebody else has insisted.
const silent = 3 * time.Minute

// lookAtTies: a worker hears of every pod that its server has for it.
func (w *World) lookAtTies() {
	var leader *machine
	for _, m := range w.servers {
		if m.leads() && !m.dying && (leader == nil || m.server.Term() > leader.server.Term()) {
			leader = m
		}
	}
	for _, n := range w.workers {
		n.lookAtTie(leader)
	}
}

func (n *node) lookAtTie(leader *machine) {
	now := n.tied(leader)
	if t := &n.tie; now.server != t.server || now.conns != t.conns || now.term != t.term || now.lives != t.lives {
		*t = now
	}
	if n.tie.server == nil {
		return
	}
	waits, doubts := map[types.UID]time.Time{}, map[types.UID]time.Time{}
	n.tie.server.View().PodsOnNode(n.name, func(p *corev1.Pod) bool {
		if isDoubted(p) {
			if since := lasting(p.UID, n.tie.doubts, doubts); time.Since(since) > silent {
				n.world.checker.violated("worker %s has been tied to server %s, which says since %s that pod %s is unready as its node was lost, and has not objected",
					n.name, n.tie.server.Name(), since.UTC().Format("15:04:05"), p.Name)
			}
		}
		if ended(p) || p.DeletionTimestamp != nil || n.world.checker.truth.wasTried(p.UID) {
			return true
		}
		if since := lasting(p.UID, n.tie.waits, waits); time.Since(since) > heedless {
			n.world.checker.violated("worker %s has been tied to server %s, which has pod %s for it since %s, and has not tried to start it",
				n.name, n.tie.server.Name(), p.Name, since.UTC().Format("15:04:05"))
		}
		return true
	})
	n.tie.waits, n.tie.doubts = waits, doubts
}

// lasting is since when a pod is among those that were found, by those of the last look, and adds it to those of the present one.
func lasting(pod types.UID, before, found map[types.UID]time.Time) time.Time {
	since, known := before[pod]
	if !known {
		since = time.Now()
	}
	found[pod] = since
	return since
}

// isDoubted: a pod runs, and is said to be unready because its node was lost.
func isDoubted(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && c.Reason == "NodeNotReady"
	})
}

// tied is what joins a worker to a server now, which may have to ask the leader.
func (n *node) tied(leader *machine) tie {
	if n.worker == nil || leader == nil {
		return tie{}
	}
	ip, conns := n.world.network.between(n.ip, rpcPort)
	for _, m := range n.world.servers {
		if m.ip == ip && m.server != nil && !m.dying && n.world.network.areCalm(n.ip, ip) && (m == leader || n.world.network.areCalm(ip, leader.ip)) {
			return tie{server: m.server, conns: conns, term: leader.server.Term(), lives: n.lives}
		}
	}
	return tie{}
}

// between is to which machine's port a machine is connected, and a sum over the connections; "": to none or to several.
func (n *network) between(from string, port int) (to string, sum uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	several := false
	for c := range n.conns {
		at, ok := c.remote.(*net.TCPAddr)
		if c.host.ip != from || !ok || at.Port != port {
			continue
		}
		ip := c.other.host.ip
		several = several || to != "" && to != ip
		to, sum = ip, sum^c.number
	}
	if several {
		return "", 0
	}
	return to, sum
}

// areCalm says whether nothing is wrong with the links between two machines.
func (n *network) areCalm(one, other string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of(one, other) == calm() && n.of(other, one) == calm()
}

// What weigh puts on one node.
const (
	weights     = 6
	weightBytes = 200 << 10 // of each; of all together two messages are needed
)

// weigh keeps pods on one node that are too large for one message to its worker, and lets others come and go there, while the node's
// connections break now and then and its links are slow: so that things change while a worker that comes back is told what there is.
func (u *user) weigh(ctx context.Context) {
	node, ip := u.world.workers[0].name, u.world.workers[0].ip
	weight := strings.Repeat("w", weightBytes)
	n := 0
	u.every(ctx, 500*time.Millisecond, func() {
		pod := podOf(fmt.Sprintf("errand-%d", n), "high", 10, 1)
		if n%40 < weights {
			pod = podOf(fmt.Sprintf("weight-%d", n%40), "high", 10, -1)
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "WEIGHT", Value: weight}}
		}
		if n++; n%50 == 0 {
			u.world.network.reset(ip)
			for _, m := range u.world.servers {
				u.world.link(m.name, node, link{delay: 300 * time.Millisecond}, 3*time.Second)
			}
		}
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		go func() {
			_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				_, err := c.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}()
	})
}
