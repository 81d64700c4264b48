package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// What is written on a static pod, and on its mirror in the API, as by Kubernetes' node agent; ManifestAnnotation is the file
// that it is from.
const (
	ConfigHashAnnotation   = "kubernetes.io/config.hash"
	ConfigSourceAnnotation = "kubernetes.io/config.source"
	ManifestAnnotation     = "berth.dev/manifest"
)

// Manifests is what the node's folder of static pods holds (SP1).
type Manifests struct {
	Pods []*corev1.Pod
	// Broken are files that hold nothing which can be run: what runs of them goes on.
	Broken []string
}

// MirrorChange is a mirror pod that is to be made, or that is to go.
type MirrorChange struct {
	Create *corev1.Pod
	Delete *corev1.Pod
}

// Mirrors makes and removes the mirrors of static pods: objects that show them in the API.
type Mirrors interface {
	Mirror(ctx context.Context, change MirrorChange) error
}

// statics are the pods that come with the node and not from the servers.
type statics struct {
	wanted  map[string]*corev1.Pod // by namespace/name
	broken  []string               // files that cannot be read
	mirrors map[string]*corev1.Pod // the servers' objects, whether there is still such a pod or not
}

// isStatic tells the UID of a static pod, which is a hash, from those that the servers give.
func isStatic(uid types.UID) bool { return len(uid) == 32 && !strings.Contains(string(uid), "-") }

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

func fullName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// SetStatic says which pods the node has of its own. They need no word of a server.
func (c *Core) SetStatic(m Manifests, now time.Time) {
	c.statics.wanted, c.statics.broken = make(map[string]*corev1.Pod, len(m.Pods)), m.Broken
	wanted := make(map[types.UID]bool, len(m.Pods))
	for _, pod := range m.Pods {
		c.statics.wanted[fullName(pod)] = pod
		wanted[pod.UID] = true
	}
	for _, uid := range c.uids() {
		p := c.pods[uid]
		if p != nil && p.static && !wanted[uid] && !p.unseen {
			c.unwanted(p, now)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.statics.wanted)) {
		c.runStatic(name, now)
	}
}

// unwanted ends a static pod that no file describes any more; one from before, whose file cannot be read, goes on.
func (c *Core) unwanted(p *podState, now time.Time) {
	file := p.pod.Annotations[ManifestAnnotation]
	if p.adopted && file != "" && slices.Contains(c.statics.broken, file) {
		p.adopted = false
	} else {
		p.gone = true
	}
	c.step(p, now)
}

// foundStatic goes on with a static pod of which it was not known before what it is.
func (c *Core) foundStatic(p *podState, now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(c.statics.wanted)) {
		if c.statics.wanted[name].UID == p.pod.UID {
			c.runStatic(name, now)
			return
		}
	}
	if c.statics.wanted == nil { // it is not known yet
		c.step(p, now)
		return
	}
	c.unwanted(p, now)
}

// runStatic begins the static pod of a name, once the one that had the name before is gone.
func (c *Core) runStatic(name string, now time.Time) {
	pod := c.statics.wanted[name]
	if pod == nil {
		return
	}
	p := c.pods[pod.UID]
	if p == nil && c.staticNamed(name) != nil {
		return
	}
	switch {
	case p == nil:
		p = newPodState(pod, c.classes.Of(pod), &c.env, now)
		c.pods[pod.UID] = p
		c.admit(p)
	case p.unseen:
		c.await(p, pod, now)
		return
	case p.lost:
		p = c.replaceLost(p, pod, now)
		p.adopted = false
	case p.adopted:
		p.adopted = false
		p.outdated(now)
	case p.gone: // it ends, and is begun again after that
		return
	}
	if m := c.mirrorOf(p); m != nil && m != p.mirror {
		p.mirrored(m, now)
	}
	c.step(p, now)
	c.stopPreempted(now)
}

// staticNamed is the static pod that has the name now.
func (c *Core) staticNamed(name string) *podState {
	for _, p := range c.pods {
		if p.static && fullName(p.pod) == name {
			return p
		}
	}
	return nil
}

// takeMirrors takes the mirrors out of what the servers assign: they are not to be run.
func (c *Core) takeMirrors(a Assignment, now time.Time) (pods []*corev1.Pod) {
	if a.Full || c.statics.mirrors == nil {
		c.statics.mirrors = map[string]*corev1.Pod{}
	}
	maps.DeleteFunc(c.statics.mirrors, func(_ string, m *corev1.Pod) bool { return slices.Contains(a.Gone, m.UID) })
	for _, pod := range a.Pods {
		if !isMirror(pod) {
			pods = append(pods, pod)
			continue
		}
		c.statics.mirrors[fullName(pod)] = pod
	}
	for _, uid := range c.uids() {
		if p := c.pods[uid]; p != nil && p.static {
			m := c.mirrorOf(p)
			if m == nil {
				p.mirror = nil
			} else if m != p.mirror {
				p.mirrored(m, now)
				c.step(p, now)
			}
		}
	}
	return pods
}

// mirrorOf is the object that shows a static pod; nil: there is none, or it is to go.
func (c *Core) mirrorOf(p *podState) *corev1.Pod {
	m := c.statics.mirrors[fullName(p.pod)]
	if m == nil || m.DeletionTimestamp != nil || m.Annotations[corev1.MirrorPodAnnotationKey] != string(p.pod.UID) {
		return nil
	}
	return m
}

// mirrored takes the servers' newest object of a static pod.
func (p *podState) mirrored(m *corev1.Pod, now time.Time) {
	sum := digest(&m.Status, false)
	if p.mirror == nil || p.mirror.UID != m.UID {
		p.sum = sum // what is another thing is reported
		p.rememberConditions(m.Status.Conditions)
		p.recallIPs(&m.Status)
	} else {
		p.dispute.compare(sum == p.sum, now)
	}
	p.mirror = m
}

// object is the servers' object of the pod; nil: they have none.
func (p *podState) object() *corev1.Pod {
	if p.static {
		return p.mirror
	}
	return p.pod
}

// generation is that of the servers' object.
func (p *podState) generation() int64 {
	if o := p.object(); o != nil {
		return o.Generation
	}
	return 0
}

// MirrorChanges are the mirrors that are missing, and those that are to go. Nothing is known of them before the first
// assignment.
func (c *Core) MirrorChanges() []MirrorChange {
	var out []MirrorChange
	if !c.synced {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.statics.mirrors)) {
		m := c.statics.mirrors[name]
		if p := c.staticNamed(name); p == nil || c.mirrorOf(p) == nil {
			out = append(out, MirrorChange{Delete: m})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.statics.wanted)) {
		pod := c.statics.wanted[name]
		if p := c.pods[pod.UID]; p != nil && !p.gone && c.statics.mirrors[name] == nil {
			out = append(out, MirrorChange{Create: pod})
		}
	}
	return out
}

// local is what the runtime calls a pod that the API calls uid.
func (c *Core) local(uid types.UID) types.UID {
	for _, m := range c.statics.mirrors {
		if m.UID == uid {
			if hash := types.UID(m.Annotations[corev1.MirrorPodAnnotationKey]); c.pods[hash] != nil {
				return hash
			}
		}
	}
	return uid
}

// PublicUID is what the API calls a pod of this node.
func (a *Agent) PublicUID(uid types.UID) types.UID {
	if !isStatic(uid) {
		return uid
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.core.pods[uid]; p != nil && p.mirror != nil {
		return p.mirror.UID
	}
	return uid
}

// SetStatic says which pods the node has of its own. It does not block.
func (a *Agent) SetStatic(m Manifests) {
	a.inputs.put(func(now time.Time) { a.core.SetStatic(m, now) })
}

// mirrorInterval is how long the servers are given to tell of a mirror that was made.
const mirrorInterval = time.Second

// mirror has mirrors made and removed, all that is due at a time.
func (a *Agent) mirror(ctx context.Context, now time.Time) {
	if a.opts.Mirrors == nil {
		return
	}
	var changes []MirrorChange
	a.locked(func() { changes = a.core.MirrorChanges() })
	a.mirroring.wanted = len(changes) > 0
	if !a.mirroring.due(now) {
		return
	}
	a.mirroring.underWay = true
	a.spawn(func() {
		var failed error
		for _, change := range changes {
			failed = errors.Join(failed, a.opts.Mirrors.Mirror(ctx, change))
		}
		if failed != nil && ctx.Err() == nil {
			a.log.Warn("static pods cannot be shown in the API as they are; they run all the same", "error", failed)
		}
		a.inputs.put(func(now time.Time) {
			a.mirroring.underWay = false
			if a.mirroring.settle(failed, now); failed == nil {
				a.mirroring.at = now.Add(mirrorInterval)
			}
		})
	})
}

// critical says whether a pod is one that the node makes room for, as it does for every static pod.
func (p *podState) critical() bool {
	return p.static || p.class.Priority >= model.SystemCriticalPriority
}

// outranked says whether the pod may have to go for a critical one: a static pod only where it says what its priority is.
func (p *podState) outranked(by *podState) bool {
	return !p.critical() || p.class.Priority < by.class.Priority && (!p.static || p.pod.Spec.Priority != nil)
}
