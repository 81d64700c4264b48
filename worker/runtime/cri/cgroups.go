package cri

import (
	"fmt"
	"maps"
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cgroup"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
)

// podGroups is who makes the pods' cgroups.
type podGroups interface {
	Create(name string, r *specs.LinuxResources) error
	Update(name string, r *specs.LinuxResources) error
	Kill(name string) (int, error)
	RemoveAll(name string) error
	Use(name string) (runtime.Counted, error)
}

// podCgroups is the agent, or systemd where the runtime has it make the containers' cgroups. With cgroups of version 1 nobody makes the
// pods' then, and what a pod's containers have together is not bounded: nil.
func (r *Runtime) podCgroups() podGroups {
	switch systemd := r.known().systemd; {
	case r.cgroups == nil || systemd && !r.cgroups.Unified:
		return nil
	case systemd:
		return &cgroup.Slices{Parent: r.opts.CgroupParent}
	}
	return grown{r.cgroups}
}

// grown are cgroups whose directories are not asked for.
type grown struct{ *cgroup.Tree }

func (g grown) Create(name string, r *specs.LinuxResources) error {
	_, err := g.Tree.Create(name, r)
	return err
}

// podCgroupName is the pod's cgroup below the parent of all, in the kubelet's layout: Guaranteed pods beside the two
// classes of others.
func podCgroupName(pod *corev1.Pod) string {
	name := "pod" + string(pod.UID)
	switch model.QOS(pod) {
	case corev1.PodQOSBurstable:
		return path.Join("burstable", name)
	case corev1.PodQOSBestEffort:
		return path.Join("besteffort", name)
	}
	return name
}

// cgroupParent is what the runtime is told: a path, or the name of a slice where systemd makes them.
func (r *Runtime) cgroupParent(pod *corev1.Pod) string {
	full := path.Join("/", r.opts.CgroupParent, podCgroupName(pod))
	if !r.known().systemd {
		if r.cgroups == nil {
			return ""
		}
		return full
	}
	return cgroup.Slice(full)
}

// podCgroup makes the pod's cgroup, with what the pod may take as a whole.
func (r *Runtime) podCgroup(pod *corev1.Pod) error {
	groups := r.podCgroups()
	if groups == nil {
		return nil
	}
	if qos := path.Dir(podCgroupName(pod)); qos == "besteffort" {
		least := uint64(cgroup.MinShares)
		if err := groups.Create(qos, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &least}, Memory: &specs.LinuxMemory{}}); err != nil {
			return err
		}
	}
	bounds := cgroup.Resources(podResources(pod), r.opts.PIDs)
	if r.cgroups.Hugepages {
		limits := resource.PodLimits(pod, resource.PodResourcesOptions{})
		for _, p := range r.pages {
			bounds.HugepageLimits = append(bounds.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: hugepages.Kernel(p.PageBytes), Limit: pagesOf(p, limits)})
		}
	}
	if err := groups.Create(podCgroupName(pod), bounds); err != nil {
		return err
	}
	return r.weigh(groups, pod)
}

// Hugepages implements runtime.Hugepager. systemd, where it makes the pods' cgroups, has no bound for them; who makes them is not known before the
// runtime has answered.
func (r *Runtime) Hugepages() bool {
	known := r.known()
	return r.cgroups != nil && r.cgroups.Hugepages && known.version != "" && !known.systemd
}

// pagesOf is how many bytes of a pool may be taken, by the first limits that say something of it: none, unless they are asked for.
func pagesOf(p hugepages.Pool, limits ...corev1.ResourceList) uint64 {
	for _, list := range limits {
		if q, ok := list[hugepages.Resource(p.PageBytes)]; ok {
			return uint64(max(q.Value(), 0))
		}
	}
	return 0
}

// weigh counts a pod among those of its class: all Burstable pods together weigh what they ask for, beside the Guaranteed.
func (r *Runtime) weigh(groups podGroups, pod *corev1.Pod) error {
	if model.QOS(pod) != corev1.PodQOSBurstable {
		return nil
	}
	r.mu.Lock()
	r.burstable[pod.UID] = podResources(pod).Requests.Cpu().MilliValue()
	r.mu.Unlock()
	return r.weighBurstable(groups)
}

// weighBurstable has all of them weigh what they ask for now, whoever else does so at the same time.
func (r *Runtime) weighBurstable(groups podGroups) error {
	for {
		sum := r.burstableMilli()
		shares := cgroup.Shares(sum)
		err := groups.Create("burstable", &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{}})
		if err != nil || r.burstableMilli() == sum {
			return err
		}
	}
}

func (r *Runtime) burstableMilli() (sum int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, milli := range r.burstable {
		sum += milli
	}
	return sum
}

// podResources are the requests of a pod and, for what all its containers are limited in, its limits.
func podResources(pod *corev1.Pod) *corev1.ResourceRequirements {
	return &corev1.ResourceRequirements{Requests: resource.PodRequests(pod, resource.PodResourcesOptions{}), Limits: runtime.LimitsOf(pod)}
}

// classes are the directories that pods' cgroups may be in.
func classes() [3]string { return [...]string{"", "burstable", "besteffort"} }

// killLeft ends what still runs of a pod whose sandboxes are all stopped: a container runtime that is killed, or whose shim is, at the wrong moment
// may say that they are and have lost their processes.
func (r *Runtime) killLeft(pod types.UID) error {
	groups := r.podCgroups()
	if groups == nil {
		return nil
	}
	for _, class := range classes() {
		n, err := groups.Kill(path.Join(class, "pod"+string(pod)))
		if n > 0 {
			r.log.Warn("processes that the container runtime had lost were killed", "pod", pod, "processes", n)
		}
		if err != nil {
			return fmt.Errorf("ending what is left of the pod: %w", err)
		}
	}
	return nil
}

// removeCgroup deletes the pod's cgroup, whatever its class was.
func (r *Runtime) removeCgroup(pod types.UID) error {
	groups := r.podCgroups()
	if groups == nil {
		return nil
	}
	for _, class := range classes() {
		if err := groups.RemoveAll(path.Join(class, "pod"+string(pod))); err != nil {
			return fmt.Errorf("removing the pod's cgroup: %w", err)
		}
	}
	r.mu.Lock()
	_, counted := r.burstable[pod]
	delete(r.burstable, pod)
	others := len(r.burstable)
	r.mu.Unlock()
	if !counted || others == 0 {
		return nil
	}
	return r.weighBurstable(groups)
}

// resources are what a container is bounded by, and whom the kernel ends first when memory is short.
func (r *Runtime) resources(pod *corev1.Pod, c *corev1.Container) *criv1.LinuxContainerResources {
	k := cgroup.Resources(bounds(pod, c), 0)
	out := limits(k)
	out.CpuShares, out.OomScoreAdj = int64(*k.CPU.Shares), r.badness(pod, c)
	if r.Hugepages() {
		var all corev1.ResourceList // what a container does not say is the pod's, as with a kubelet
		if s := pod.Spec.Resources; s != nil {
			all = s.Limits
		}
		for _, p := range r.pages {
			out.HugepageLimits = append(out.HugepageLimits, &criv1.HugepageLimit{PageSize: hugepages.Kernel(p.PageBytes), Limit: pagesOf(p, c.Resources.Limits, all)})
		}
	}
	if cgroup.Unified() {
		out.Unified = map[string]string{"memory.oom.group": "1"} // a container ends as a whole, as with a kubelet
	}
	return out
}

// limits are in the words of the container runtime.
func limits(k *specs.LinuxResources) *criv1.LinuxContainerResources {
	out := &criv1.LinuxContainerResources{}
	if k.CPU.Quota != nil {
		out.CpuQuota, out.CpuPeriod = *k.CPU.Quota, int64(*k.CPU.Period)
	}
	if k.Memory.Limit != nil {
		out.MemoryLimitInBytes = *k.Memory.Limit
	}
	return out
}

// bounds are a container's requests and limits. As with a kubelet, one without a limit has its pod's, so that programs find
// in their own cgroup what they can use.
func bounds(pod *corev1.Pod, c *corev1.Container) *corev1.ResourceRequirements {
	if pod.Spec.Resources == nil {
		return &c.Resources
	}
	out := c.Resources
	out.Limits = maps.Clone(out.Limits)
	if out.Limits == nil {
		out.Limits = corev1.ResourceList{}
	}
	for name := range pod.Spec.Resources.Limits {
		if own := out.Limits[name]; own.IsZero() {
			out.Limits[name] = pod.Spec.Resources.Limits[name]
		}
	}
	return &out
}
