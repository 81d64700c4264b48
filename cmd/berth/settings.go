package main

import (
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/worker"
)

// schedulerConfiguration is the replicated configuration that a cluster founded
// by this agent starts with.
func schedulerConfiguration(s *config.Scheduler) *berthv1.SchedulerConfiguration {
	seconds := func(d config.Duration) *int32 {
		n := int32(d.Value() / time.Second) // validated: a day at most
		return &n
	}
	limit := int32(s.EventLimit)
	c := berthv1.Default()
	c.Spec = berthv1.SchedulerConfigurationSpec{
		Preemption:               berthv1.PreemptionConfiguration{Enabled: &s.Preemption.Enabled},
		Queue:                    berthv1.QueueOrder(s.Queue),
		PodInitialBackoffSeconds: seconds(s.PodInitialBackoff),
		PodMaxBackoffSeconds:     seconds(s.PodMaxBackoff),
		NominationSlackSeconds:   seconds(s.NominationSlack),
		SystemClasses:            &berthv1.SystemClasses{Users: s.SystemClassUsers, Groups: s.SystemClassGroups},
		NodeGraceSeconds:         seconds(s.NodeGrace),
		EventLimit:               &limit,
	}
	return c
}

// nodeConfig is how the agent's node presents itself.
func nodeConfig(c *config.Config, address string) (worker.NodeConfig, error) {
	w := c.Worker
	n := worker.NodeConfig{
		Name: c.Name, Addresses: []string{address}, Labels: w.Labels, Version: version,
		Capacity: amounts(w.Capacity.CPU, w.Capacity.Memory, w.Capacity.EphemeralStorage),
		Reserved: amounts(w.Reserved.CPU, w.Reserved.Memory, w.Reserved.EphemeralStorage),
	}
	n.Capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(w.MaxPods), resource.DecimalSI)
	for name, amount := range w.Capacity.Extended {
		n.Capacity[corev1.ResourceName(name)] = amount.Value()
	}
	for _, t := range w.Taints {
		taint, err := config.ParseTaint(t)
		if err != nil {
			return worker.NodeConfig{}, err
		}
		n.Taints = append(n.Taints, taint)
	}
	return n, nil
}

// amounts lists the amounts that are set.
func amounts(cpu, memory, storage config.Quantity) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range map[corev1.ResourceName]config.Quantity{
		corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory, corev1.ResourceEphemeralStorage: storage,
	} {
		if q != "" {
			out[name] = q.Value()
		}
	}
	return out
}

// joinAddresses completes the members to join with the usual port of gossip.
func joinAddresses(join []string) []string {
	out := make([]string, len(join))
	for i, addr := range join {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			addr = net.JoinHostPort(addr, strconv.Itoa(config.DefaultGossipPort))
		}
		out[i] = addr
	}
	return out
}
