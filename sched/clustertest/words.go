package clustertest

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Node is a node in words: its name, RESOURCE=AMOUNT, label=KEY=VALUE, taint=KEY=VALUE:EFFECT, image=NAME@SIZE, cordoned.
func Node(spec string) *corev1.Node {
	n, err := parseNode(strings.Fields(spec))
	if err != nil {
		panic(err)
	}
	return n
}

// Pod is a pod in words: its name, and what AddWord knows of.
func Pod(spec string) *corev1.Pod {
	p, err := parsePod(strings.Fields(spec))
	if err != nil {
		panic(err)
	}
	return p
}

// Put stores what a text says, one object a line: "node" and "pod" with the words of Node and Pod, "budget" with those of
// PutBudget, and namespaces, services and ReplicaSets (putOther).
func (cl *Cluster) Put(text string) error {
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "node":
			n, err := parseNode(words[1:])
			if err != nil {
				return err
			}
			cl.PutNode(n)
		case "pod":
			p, err := parsePod(words[1:])
			if err != nil {
				return err
			}
			cl.AdmitPod(p)
		case "budget":
			cl.PutBudget(words[1:])
		default:
			if err := cl.putOther(words); err != nil {
				return err
			}
		}
	}
	return nil
}

// putOther stores what no longer list of words is about.
func (cl *Cluster) putOther(words []string) error {
	labels := func(key string) map[string]string {
		out := map[string]string{}
		for _, w := range words[2:] {
			if pair, ok := strings.CutPrefix(w, key+"="); ok {
				k, v, _ := strings.Cut(pair, "=")
				out[k] = v
			}
		}
		return out
	}
	switch words[0] {
	case "namespace": // namespace NAME label=K=V...
		cl.PutNamespace(words[1], labels("label"))
	case "service": // service NAME select=K=V...
		cl.PutService(words[1], labels("select"))
	case "replicaset": // replicaset NAME select=K=V...
		cl.PutReplicaSet(words[1], &metav1.LabelSelector{MatchLabels: labels("select")}, 1)
	default:
		return fmt.Errorf("what is %s?", words[0])
	}
	return nil
}

func parseNode(words []string) (*corev1.Node, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: words[0], Labels: map[string]string{}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourcePods: resource.MustParse("110")}}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "cordoned":
			n.Spec.Unschedulable = true
		case "label":
			k, v, _ := strings.Cut(value, "=")
			n.Labels[k] = v
		case "image": // image=name@size
			name, size, _ := strings.Cut(value, "@")
			q := resource.MustParse(size)
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: q.Value()})
		case "taint":
			kv, effect, _ := strings.Cut(value, ":")
			k, v, _ := strings.Cut(kv, "=")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Value: v, Effect: corev1.TaintEffect(effect)})
		default:
			q, err := resource.ParseQuantity(value)
			if err != nil {
				return nil, fmt.Errorf("node %s: %s: %w", n.Name, w, err)
			}
			n.Status.Allocatable[resourceOf(key)] = q
		}
	}
	return n, nil
}

func resourceOf(word string) corev1.ResourceName {
	switch word {
	case "mem":
		return corev1.ResourceMemory
	case "disk":
		return corev1.ResourceEphemeralStorage
	}
	return corev1.ResourceName(word)
}

func parsePod(words []string) (*corev1.Pod, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: words[0]}, Spec: corev1.PodSpec{
		SchedulerName: "default-scheduler",
		Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}}}}
	for _, w := range words[1:] {
		if err := AddWord(p, w); err != nil {
			return nil, fmt.Errorf("pod %s: %s: %w", p.Name, w, err)
		}
	}
	return p, nil
}

// AddWord adds to a pod what a word says of it.
func AddWord(p *corev1.Pod, w string) error {
	c := &p.Spec.Containers[0]
	key, value, _ := strings.Cut(w, "=")
	switch key {
	case "priority":
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		priority := int32(n)
		p.Spec.Priority = &priority
	case "never":
		never := corev1.PreemptNever
		p.Spec.PreemptionPolicy = &never
	case "node":
		p.Spec.NodeName = value
	case "start":
		n, _ := strconv.Atoi(value)
		start := metav1.Unix(int64(n), 0)
		p.Status.StartTime = &start
	case "ready":
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	case "strict":
		p.Annotations = map[string]string{model.DisruptionPolicyAnnotation: model.StrictBudgets}
	case "deadline":
		n, _ := strconv.ParseInt(value, 10, 64)
		p.Spec.ActiveDeadlineSeconds = &n
	case "grace":
		n, _ := strconv.ParseInt(value, 10, 64)
		p.Spec.TerminationGracePeriodSeconds = &n
	case "port":
		ip, port, found := strings.Cut(value, ":")
		if !found {
			ip, port = "", value
		}
		n, _ := strconv.Atoi(port)
		c.Ports = append(c.Ports, corev1.ContainerPort{HostPort: int32(n), ContainerPort: int32(n), HostIP: ip})
	case "select":
		k, v, _ := strings.Cut(value, "=")
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[k] = v
	case "prefer": // prefer=weight:key=value
		weight, kv, _ := strings.Cut(value, ":")
		prefer(p, weight, kv)
	case "tolerate":
		k, effect, _ := strings.Cut(value, ":")
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffect(effect)})
	case "label":
		k, v, _ := strings.Cut(value, "=")
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[k] = v
	case "ns":
		p.Namespace = value
	case "scheduler":
		p.Spec.SchedulerName = value
	case "image":
		if c.Image != "i" {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", len(p.Spec.Containers))})
			c = &p.Spec.Containers[len(p.Spec.Containers)-1]
		}
		c.Image = value
	case "owner":
		yes := true
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: value, UID: types.UID("uid-" + value), Controller: &yes})
	case "spread":
		return addSpread(p, value)
	case "near", "far":
		return addTerm(p, key == "near", value)
	case "gate":
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: value})
	default:
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return err
		}
		c.Resources.Requests[resourceOf(key)] = q
	}
	return nil
}

func prefer(p *corev1.Pod, weight, label string) {
	k, v, _ := strings.Cut(label, "=")
	n, _ := strconv.Atoi(weight)
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	terms := &p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	*terms = append(*terms, corev1.PreferredSchedulingTerm{Weight: int32(n), Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: k, Operator: corev1.NodeSelectorOpIn,
			Values: []string{v}}}}})
}
