package controller_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
)

func (w *world) node(a args) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.name(0), UID: types.UID("uid-" + a.name(0)), Labels: map[string]string{}}}
	if zone, ok := a.get("zone"); ok {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	room := corev1.ResourceList{"cpu": resource.MustParse("4"), "pods": resource.MustParse("1000")}
	n.Status.Capacity, n.Status.Allocatable = room, room
	for _, t := range a.list("taints") {
		key, effect, _ := strings.Cut(t, ":")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
	}
	return n
}

// post stores a node's Ready condition as whoever made the node writes it.
func (w *world) post(a args) string {
	old, ok := w.state.View().Nodes.Get(a.name(0))
	if !ok {
		return "no such node"
	}
	n := old.DeepCopy()
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionStatus(a.name(1)), Reason: "Posted", Message: "as its maker says"}
	if skew, ok := a.get("heartbeat"); ok {
		c.LastHeartbeatTime = metav1.NewTime(w.skewed(skew))
	}
	i := slices.IndexFunc(n.Status.Conditions, func(o corev1.NodeCondition) bool { return o.Type == corev1.NodeReady })
	if i < 0 {
		n.Status.Conditions = append(n.Status.Conditions, c)
	} else {
		n.Status.Conditions[i] = c
	}
	return w.apply(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
}

// renew stores a node's lease.
func (w *world) renew(a args) string {
	key := fsm.ObjectKey("leases", corev1.NamespaceNodeLease, a.name(0))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: a.name(0), UID: types.UID("lease-" + a.name(0))}}
	if skew := a.or("at", "0s"); skew != "never" {
		at := metav1.NewMicroTime(w.skewed(skew))
		lease.Spec.RenewTime = &at
	}
	raw, err := lease.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	_, known := w.state.View().Objects.Get(key)
	return w.apply(&fsm.PutObject{Resource: "leases", Raw: raw, Create: !known})
}

// skewed is the time by another clock.
func (w *world) skewed(by string) time.Time {
	d, err := time.ParseDuration(by)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.now.Add(d)
}

// pod makes a pod, bound to a node if one is given, and brings it into the
// phase that is asked for.
func (w *world) pod(a args) string {
	ns, name, ok := strings.Cut(a.name(0), "/")
	if !ok {
		ns, name = "default", a.name(0)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, UID: types.UID("uid-" + ns + "-" + name), CreationTimestamp: metav1.NewTime(w.now), Finalizers: a.list("finalizers"),
		},
		Spec: corev1.PodSpec{NodeName: a.or("node", ""), Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	pod.Labels = pairsOf(a.list("labels"))
	if a.has("high") {
		pod.Spec.PriorityClassName = "high"
	}
	if cpu, ok := a.get("cpu"); ok {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
	}
	if grace, ok := a.get("grace"); ok {
		n, _ := strconv.ParseInt(grace, 10, 64)
		pod.Spec.TerminationGracePeriodSeconds = &n
	}
	for _, t := range a.list("tolerate") {
		key, seconds, limited := strings.Cut(t, ":")
		toleration := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
		if limited {
			n, err := strconv.ParseInt(seconds, 10, 64)
			if err != nil {
				w.t.Fatal(err)
			}
			toleration.TolerationSeconds, toleration.Effect = &n, corev1.TaintEffectNoExecute
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
	}
	answer := w.apply(&fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
	phase, ok := a.get("phase")
	if answer != "ok" || !ok {
		return answer
	}
	return w.apply(&fsm.ReportPods{Node: pod.Spec.NodeName, Reports: []fsm.PodReport{{
		Key: fsm.PodKey(ns, name), UID: string(pod.UID),
		Status: fsm.PodStatusWire{Object: &corev1.PodStatus{Phase: corev1.PodPhase(phase), Reason: a.or("reason", "")}},
	}}})
}

func (w *world) nominate(a args) string {
	view := w.state.View()
	pod, _ := view.Pods.Get("default/" + a.name(0))
	victim, _ := view.Pods.Get("default/" + a.or("victim", ""))
	return w.apply(&fsm.ApplyPlan{Revision: view.Revision(), Preemptions: []fsm.PreemptDecision{{
		Key: "default/" + pod.Name, UID: string(pod.UID), Node: a.or("node", ""), Diagnosis: &fsm.Diagnosis{Message: "no room"},
		Victims: []fsm.PlannedVictim{{Key: "default/" + victim.Name, UID: string(victim.UID)}},
	}}})
}

func (w *world) show(what string) string {
	v := w.state.View()
	var out []string
	switch what {
	case "nodes":
		v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
			line := name
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					line += " Ready=" + string(c.Status)
				}
			}
			for _, t := range n.Spec.Taints {
				line += " " + strings.TrimPrefix(t.Key, "node.kubernetes.io/") + ":" + string(t.Effect)
			}
			out = append(out, line)
			return true
		})
	case "pods":
		v.Pods.Scan("", func(key string, p *corev1.Pod) bool {
			line := key + describeOwner(p)
			if p.DeletionTimestamp != nil {
				line += fmt.Sprintf(" ends (grace %d)", *p.DeletionGracePeriodSeconds)
			}
			out = append(out, line)
			return true
		})
	case "namespaces":
		v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
			out = append(out, name+" "+string(ns.Status.Phase))
			for _, c := range ns.Status.Conditions {
				if c.Status == corev1.ConditionTrue {
					out = append(out, "  "+c.Message)
				}
			}
			return true
		})
	case "replicasets":
		out = w.describeSets()
	case "events":
		v.Events.Scan("", func(_ string, e *corev1.Event) bool {
			if e.InvolvedObject.Kind != "Pod" {
				out = append(out, fmt.Sprintf("%s %s %s: %s (%d times)", e.Type, e.Reason, e.InvolvedObject.Name, e.Message, e.Count))
			}
			return true
		})
	case "counts":
		out = append(out, fmt.Sprintf("pods=%d events=%d objects=%d", v.Pods.Len(), v.Events.Len(), v.Objects.Len()))
	default:
		w.t.Fatalf("there are no %s", what)
	}
	if len(out) == 0 {
		return "none"
	}
	if len(out) > 12 {
		out = append(slices.Clone(out[:3]), fmt.Sprintf("… %d in all", len(out)))
	}
	return strings.Join(out, "\n")
}
