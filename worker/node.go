package worker

import (
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
)

// DefaultMaxPods is how many pods a node takes unless its capacity says otherwise.
const DefaultMaxPods = 110

// NodeConfig is what an operator says of a node.
type NodeConfig struct {
	Name        string
	Addresses   []string // IPs, the main one first
	Hostname    string   // default: Name
	Labels      map[string]string
	Annotations map[string]string
	Taints      []corev1.Taint
	// Capacity overrides what the machine shows, resource by resource, and adds extended resources.
	Capacity corev1.ResourceList
	// Reserved is kept back from pods: allocatable = capacity - reserved.
	Reserved corev1.ResourceList
	// Version is Berth's own, Runtime the container runtime's ("process://1.0").
	Version string
	Runtime string
}

// Machine is what a machine says of itself.
type Machine struct {
	Capacity corev1.ResourceList
	Info     corev1.NodeSystemInfo
}

// NewNode builds the object that registers the node. It fails when more is reserved than there is.
func NewNode(cfg NodeConfig, m Machine, now time.Time) (*corev1.Node, error) {
	hostname := cfg.Hostname
	if hostname == "" {
		hostname = cfg.Name
	}
	labels := map[string]string{
		corev1.LabelHostname:   hostname,
		corev1.LabelOSStable:   m.Info.OperatingSystem,
		corev1.LabelArchStable: m.Info.Architecture,
	}
	maps.Copy(labels, cfg.Labels)
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: cfg.Name, Labels: labels, Annotations: maps.Clone(cfg.Annotations)},
		Spec:       corev1.NodeSpec{Taints: cfg.Taints},
	}
	capacity := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(DefaultMaxPods, resource.DecimalSI)}
	maps.Copy(capacity, m.Capacity)
	maps.Copy(capacity, cfg.Capacity)
	allocatable := maps.Clone(capacity)
	for name, q := range cfg.Reserved {
		total, ok := capacity[name]
		if !ok || total.Cmp(q) < 0 {
			return nil, fmt.Errorf("node %s: %s of %s is reserved, but the node has only %s", cfg.Name, q.String(), name, total.String())
		}
		left := total.DeepCopy()
		left.Sub(q)
		allocatable[name] = left
	}
	withoutHugepages(allocatable)
	n.Status.Capacity, n.Status.Allocatable = capacity, allocatable
	for _, a := range cfg.Addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: hostname})
	n.Status.NodeInfo = m.Info
	n.Status.NodeInfo.KubeletVersion = kubeletVersion(cfg.Version)
	n.Status.NodeInfo.ContainerRuntimeVersion = cfg.Runtime
	n.Status.Conditions = NodeConditions(Pressure{}, nil, now)
	return n, nil
}

// withoutHugepages takes what is kept for hugepages from the memory that pods may have of other pages, as in Kubernetes.
func withoutHugepages(allocatable corev1.ResourceList) {
	memory, ok := allocatable[corev1.ResourceMemory]
	if !ok {
		return
	}
	left := memory.DeepCopy()
	// order does not matter: it is a sum.
	for name, q := range allocatable {
		if hugepages.Is(name) {
			left.Sub(q)
		}
	}
	if left.Sign() < 0 {
		left = *resource.NewQuantity(0, resource.BinarySI)
	}
	allocatable[corev1.ResourceMemory] = left
}

// Pressure says what the machine is short of.
type Pressure struct {
	Memory, Disk, PID bool
	// Unready says why no pod can be started; empty: pods can be.
	Unready string
}

// NodeConditions returns the node's conditions; since when each holds is taken over from before where it has not
// changed.
func NodeConditions(p Pressure, before []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	stamp := plainTime(now)
	condition := func(t corev1.NodeConditionType, bad bool, badReason, badText, goodReason, goodText string) corev1.NodeCondition {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: goodReason, Message: goodText,
			LastHeartbeatTime: stamp, LastTransitionTime: stamp}
		if bad {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, badReason, badText
		}
		for i := range before {
			if before[i].Type == t && before[i].Status == c.Status {
				c.LastTransitionTime = before[i].LastTransitionTime
			}
		}
		return c
	}
	return []corev1.NodeCondition{
		condition(corev1.NodeMemoryPressure, p.Memory, "NodeHasInsufficientMemory", "the node has insufficient memory available",
			"NodeHasSufficientMemory", "the node has sufficient memory available"),
		condition(corev1.NodeDiskPressure, p.Disk, "NodeHasDiskPressure", "the node has disk pressure",
			"NodeHasNoDiskPressure", "the node has no disk pressure"),
		condition(corev1.NodePIDPressure, p.PID, "NodeHasInsufficientPID", "the node has insufficient PID available",
			"NodeHasSufficientPID", "the node has sufficient PID available"),
		condition(corev1.NodeReady, p.Unready == "", "NodeReady", "the node agent is posting ready status",
			model.ReasonWorkerUnready, p.Unready),
	}
}
