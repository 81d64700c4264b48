package worker

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/worker/runtime"
)

// madeOf is what of the pod's spec a run of a container goes by.
type madeOf struct {
	image string // the name of its image
	// actual is what the run has of resources, as far as is known.
	actual *corev1.ResourceRequirements
	// whole is what the pod as a whole had when the run was started: its limits bind a container that has none of its own.
	whole *corev1.ResourceRequirements
}

// made is what a run of the container is of that is started now.
func (p *podState) made(c *ctr) madeOf {
	return madeOf{image: c.spec.Image, actual: &c.spec.Resources, whole: p.pod.Spec.Resources}
}

// assign takes a newer object of the pod.
func (p *podState) assign(pod *corev1.Pod, now time.Time) {
	pod = p.given(pod)
	p.pod = pod
	for i := range p.ctrs {
		c := &p.ctrs[i]
		spec := containerByName(pod, c.spec.Name)
		if spec == nil {
			continue
		}
		p.respec(c, spec)
		p.replaceOld(c, now)
	}
	p.addEphemeral()
}

// respec lets a container go by its spec as it is now. Its back-off is that of its image and its resources, as with a kubelet: where they are
// others it begins anew, and a start that failed is tried again at once.
func (p *podState) respec(c *ctr, spec *corev1.Container) {
	otherImage := spec.Image != c.spec.Image
	if otherImage {
		p.otherImage(c)
	}
	if otherImage || !equality.Semantic.DeepEqual(spec.Resources, c.spec.Resources) {
		c.backoff, c.backedOff = backoff{most: c.backoff.most}, false
		if c.pullFailedAt.IsZero() { // the image is fetched again at its own time
			c.retryAt = time.Time{}
		}
	}
	c.spec = spec
}

// replaceOld ends a running container whose spec has another image by now (PO5), to be started again; T7: but never an init container.
func (p *podState) replaceOld(c *ctr, now time.Time) {
	again := c.role == roleApp || c.role == roleSidecar
	if again && c.image != c.spec.Image && !c.replacedBy && (c.state == ctrRunning || c.state == ctrHooking) {
		if c.replacedBy = true; c.condemned.IsZero() {
			c.condemned = now
		}
		p.tellKilling(c, fmt.Sprintf("Container %s definition changed, will be restarted", c.spec.Name))
	}
}

func containerByName(pod *corev1.Pod, name string) (found *corev1.Container) {
	runtime.EachContainer(pod, func(c *corev1.Container, _ string) {
		if c.Name == name {
			found = c
		}
	})
	return found
}
