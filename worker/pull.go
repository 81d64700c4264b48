package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/worker/runtime"
)

// Reasons of a container that waits for its image, as Kubernetes has them.
const (
	waitErrImagePull     = "ErrImagePull"
	waitImagePullBackOff = "ImagePullBackOff"
	waitErrNeverPull     = "ErrImageNeverPull"
	waitInvalidName      = "InvalidImageName"
	waitErrInspect       = "ImageInspectError"
)

const (
	// pullTimeout bounds how long an image is fetched, the wait for its turn included.
	pullTimeout = time.Hour
	// pullErrorShown is how long an image that could not be fetched is shown as that, and not as one that is waited for.
	pullErrorShown = 2 * time.Second
)

// imageError says why a container cannot have its image.
type imageError struct {
	wait  string // reason of the waiting state
	event string // reason of the event
	err   error
}

func (e *imageError) Error() string { return e.err.Error() }
func (e *imageError) Unwrap() error { return e.err }

// beginPull has the image of the container's next attempt looked for, and fetched where its policy says so.
func (p *podState) beginPull(c *ctr) {
	c.state, c.pullFailedAt = ctrPulling, time.Time{}
	p.act(Action{Kind: ActionPull, Container: c.spec, Timeout: pullTimeout,
		ID: runtime.ID{Container: c.spec.Name, Attempt: c.attempt + 1}})
}

// pulled takes the outcome.
func (p *podState) pulled(c *ctr, o Outcome, now time.Time) {
	if c.state != ctrPulling || o.ID.Attempt != c.attempt+1 {
		return
	}
	c.rest()
	if o.Container.Image != c.spec.Image {
		return // it is another one by now
	}
	if o.Err == nil {
		c.image, c.pull = o.Image, backoff{}
		c.wait, c.waitMessage = "", ""
		return
	}
	wait, event := waitErrImagePull, "Failed"
	var ie *imageError
	if errors.As(o.Err, &ie) {
		wait, event = ie.wait, ie.event
	}
	again := c.wait == wait
	c.wait, c.waitMessage = wait, o.Err.Error()
	if wait == waitErrImagePull {
		c.pull.next(now, now)
		c.pullFailedAt, c.retryAt = now, now.Add(c.pull.delay)
	} else {
		c.retryAt = now.Add(retryInterval)
	}
	if !again {
		p.emit(corev1.EventTypeWarning, event, o.Err.Error())
		p.emit(corev1.EventTypeWarning, "Failed", "Error: "+wait)
	}
}

// backOffPull says of a container whose image could not be fetched that the next try is being waited for.
func (p *podState) backOffPull(c *ctr, now time.Time) {
	if c.pullFailedAt.IsZero() || c.wait != waitErrImagePull {
		return
	}
	if shown := c.pullFailedAt.Add(pullErrorShown); now.Before(shown) {
		p.wakeAt(shown)
		return
	}
	p.emit(corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.spec.Image))
	p.emit(corev1.EventTypeWarning, "Failed", "Error: "+waitImagePullBackOff)
	c.waitMessage = fmt.Sprintf("Back-off pulling image %q: %s: %s", c.spec.Image, waitErrImagePull, c.waitMessage)
	c.wait = waitImagePullBackOff
}

// otherImage: the container is to run another image than the one that was looked for.
func (p *podState) otherImage(c *ctr) {
	c.image, c.pull = "", backoff{}
	switch c.wait {
	case waitErrImagePull, waitImagePullBackOff, waitErrNeverPull, waitInvalidName, waitErrInspect:
		c.wait, c.waitMessage, c.retryAt, c.pullFailedAt = "", "", time.Time{}, time.Time{}
	}
}

// The errors of images begin as Kubernetes words them.

// pull sees to it that the image of the action's container is here, as its policy says, and returns what it is to be
// started from. It tells of it by events, as it may take long.
func (c *caller) pull(ctx context.Context, a Action) (string, error) {
	store, ok := c.runtime.(runtime.ImageStore)
	if !ok {
		return "", fmt.Errorf("the runtime %s has no images", c.runtime.Name())
	}
	name := a.Container.Image
	ref, err := store.FindImage(ctx, name)
	var ne *runtime.ImageNameError
	switch {
	case errors.As(err, &ne):
		return "", &imageError{waitInvalidName, "InspectFailed", fmt.Errorf("Failed to apply default image tag %q: %w", name, err)}
	case err != nil:
		return "", &imageError{waitErrInspect, "InspectFailed", fmt.Errorf("Failed to inspect image %q: %w", name, err)}
	}
	switch policy := pullPolicy(a.Container); {
	case ref != "" && policy != corev1.PullAlways:
		c.tell(a.Pod, corev1.EventTypeNormal, "Pulled",
			fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", name))
		return ref, nil
	case policy == corev1.PullNever:
		return "", &imageError{waitErrNeverPull, waitErrNeverPull,
			fmt.Errorf("Container image %q is not present with pull policy of Never", name)}
	}
	c.tell(a.Pod, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", name))
	pulled, err := store.PullImage(ctx, name, c.pullSecrets(ctx, a.Pod))
	if err != nil {
		return "", &imageError{waitErrImagePull, "Failed", fmt.Errorf("Failed to pull image %q: %w", name, err)}
	}
	c.tell(a.Pod, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
		name, (pulled.Took-pulled.Waited).Truncate(time.Millisecond), pulled.Took.Truncate(time.Millisecond), pulled.SizeBytes))
	return pulled.Ref, nil
}

func (c *caller) tell(pod *corev1.Pod, eventType, reason, message string) {
	if c.event != nil {
		c.event(pod, eventType, reason, message)
	}
}

// pullPolicy is what the container says, and else Kubernetes' default: what is called latest, or by no tag, is fetched
// each time.
func pullPolicy(c *corev1.Container) corev1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	_, digest := splitDigest(c.Image)
	tag := c.Image[strings.LastIndexByte(c.Image, '/')+1:]
	_, tag, tagged := strings.Cut(tag, ":")
	if !digest && (!tagged || tag == "latest") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func splitDigest(image string) (name string, ok bool) {
	name, _, ok = strings.Cut(image, "@")
	return name, ok
}

const failedPullSecret = "FailedToRetrieveImagePullSecret"

// pullSecrets are the secrets that the pod names for its images, and else those of its service account. One that cannot be had is told, and done without: the
// image may be anybody's.
func (c *caller) pullSecrets(ctx context.Context, pod *corev1.Pod) []*corev1.Secret {
	var out []*corev1.Secret
	if c.getter == nil {
		return nil
	}
	refs := pod.Spec.ImagePullSecrets
	if len(refs) == 0 && pod.Spec.ServiceAccountName != "" {
		account, err := c.getter.ServiceAccount(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
		switch {
		case err == nil:
			refs = account.ImagePullSecrets
		case !apierrors.IsNotFound(err):
			c.tell(pod, corev1.EventTypeWarning, failedPullSecret, fmt.Sprintf("Unable to read the service account %q, which may have image "+
				"pull secrets; the image is pulled without them: %v", pod.Spec.ServiceAccountName, err))
		}
	}
	for _, ref := range refs {
		if ref.Name == "" {
			continue
		}
		s, err := c.getter.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			why := "the image is pulled without it"
			if !apierrors.IsNotFound(err) {
				why += ": " + err.Error()
			}
			c.tell(pod, corev1.EventTypeWarning, failedPullSecret,
				fmt.Sprintf("Unable to retrieve the image pull secret %q; %s", ref.Name, why))
			continue
		}
		out = append(out, s)
	}
	return out
}
