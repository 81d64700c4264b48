package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// imageError says why a container cannot have its image, or that of a volume.
type imageError struct {
	image string // its name
	wait  string // reason of the waiting state
	event string // reason of the event
	err   error
}

func (e *imageError) Error() string { return e.err.Error() }
func (e *imageError) Unwrap() error { return e.err }

// beginPull has the images of the container's next attempt looked for, and fetched where their policies say so.
func (p *podState) beginPull(c *ctr) {
	c.state, c.pullFailedAt, c.pullCut = ctrPulling, time.Time{}, false
	p.act(Action{Kind: ActionPull, Container: c.spec, Timeout: pullTimeout,
		ID: runtime.ID{Container: c.spec.Name, Attempt: c.attempt + 1}})
}

// endPull ends that, where nobody waits for it any more: an image that does not come would take the turn of others.
func (p *podState) endPull(c *ctr) {
	if c.state == ctrPulling && !c.pullCut {
		c.pullCut = true
		p.act(Action{Kind: ActionPullEnd, Container: c.spec, ID: runtime.ID{Container: c.spec.Name, Attempt: c.attempt + 1}})
	}
}

// pulled takes the outcome.
func (p *podState) pulled(c *ctr, o Outcome, now time.Time) {
	if c.state != ctrPulling || o.ID.Attempt != c.attempt+1 {
		return
	}
	c.rest()
	if c.pullCut || o.Container.Image != c.spec.Image {
		return // it is another one by now, or none
	}
	if o.Err == nil {
		c.images, c.pull = o.Found, backoff{}
		c.wait, c.waitMessage = "", ""
		return
	}
	wait, event, name := waitErrImagePull, "Failed", c.spec.Image
	var ie *imageError
	if errors.As(o.Err, &ie) {
		wait, event, name = ie.wait, ie.event, ie.image
	}
	again := c.wait == wait
	c.wait, c.waitMessage, c.pulls = wait, o.Err.Error(), name
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
	p.emit(corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.pulls))
	p.emit(corev1.EventTypeWarning, "Failed", "Error: "+waitImagePullBackOff)
	c.waitMessage = fmt.Sprintf("Back-off pulling image %q: %s: %s", c.pulls, waitErrImagePull, c.waitMessage)
	c.wait = waitImagePullBackOff
}

// otherImage: the container is to run another image than the one that was looked for.
func (p *podState) otherImage(c *ctr) {
	p.endPull(c)
	c.images, c.pull = imageRefs{}, backoff{}
	switch c.wait {
	case waitErrImagePull, waitImagePullBackOff, waitErrNeverPull, waitInvalidName, waitErrInspect:
		c.wait, c.waitMessage, c.retryAt, c.pullFailedAt = "", "", time.Time{}, time.Time{}
	}
}

// The errors of images begin as Kubernetes words them.

// pull sees to it that the image of the action's container is here, and those of its volumes before, as their policies say, and
// returns what it is to be started with. It tells of it by events, as it may take long.
func (c *caller) pull(ctx context.Context, a Action) (refs imageRefs, err error) {
	store, ok := c.runtime.(runtime.ImageStore)
	if !ok {
		return refs, fmt.Errorf("the runtime %s has no images", c.runtime.Name())
	}
	if refs.volumes, err = c.volumeImages(ctx, a.Pod, a.Container); err != nil {
		return imageRefs{}, err
	}
	refs.container, err = c.fetch(ctx, store, a.Pod, a.Container.Image, a.Container.ImagePullPolicy)
	return refs, err
}

// volumeImages are those of the volumes that a container mounts. What a volume shows stays the same for as long as the pod is there.
func (c *caller) volumeImages(ctx context.Context, pod *corev1.Pod, spec *corev1.Container) (map[string]string, error) {
	var refs map[string]string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		mounted := slices.ContainsFunc(spec.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
		if v.Image == nil || !mounted {
			continue
		}
		store, ok := c.runtime.(runtime.ImageVolumer)
		if !ok {
			return nil, fmt.Errorf("the runtime %s has no volumes of images", c.runtime.Name())
		}
		ref, err := store.VolumeImage(ctx, pod.UID, v.Name)
		if err != nil {
			return nil, &imageError{v.Image.Reference, waitErrInspect, "InspectFailed", fmt.Errorf("Failed to inspect what volume %q shows: %w", v.Name, err)}
		}
		if ref == "" {
			ref, err = c.fetch(ctx, store, pod, v.Image.Reference, v.Image.PullPolicy)
		}
		if err != nil {
			return nil, err
		}
		if refs == nil {
			refs = map[string]string{}
		}
		refs[v.Name] = ref
	}
	return refs, nil
}

// fetch sees to it that an image is here, as the policy says, and returns what the store calls it.
func (c *caller) fetch(ctx context.Context, store runtime.ImageStore, pod *corev1.Pod, name string, policy corev1.PullPolicy) (string, error) {
	ref, err := store.FindImage(ctx, name)
	var ne *runtime.ImageNameError
	switch {
	case errors.As(err, &ne):
		return "", &imageError{name, waitInvalidName, "InspectFailed", fmt.Errorf("Failed to apply default image tag %q: %w", name, err)}
	case err != nil:
		return "", &imageError{name, waitErrInspect, "InspectFailed", fmt.Errorf("Failed to inspect image %q: %w", name, err)}
	}
	secrets := sync.OnceValue(func() []*corev1.Secret { return c.pullSecrets(ctx, pod) })
	policy = pullPolicy(name, policy)
	switch {
	case ref != "" && policy != corev1.PullAlways && c.mayUse(store, name, ref, secrets):
		c.tell(pod, corev1.EventTypeNormal, "Pulled",
			fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", name))
		return ref, nil
	case policy == corev1.PullNever: // whether it is here is not told to whom it is not for
		return "", &imageError{name, waitErrNeverPull, waitErrNeverPull,
			fmt.Errorf("Container image %q is not present with pull policy of Never", name)}
	}
	c.tell(pod, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", name))
	pulled, err := c.pullNoted(ctx, store, name, secrets())
	if err != nil {
		return "", &imageError{name, waitErrImagePull, "Failed", fmt.Errorf("Failed to pull image %q: %w", name, err)}
	}
	c.meters.pulled(pulled.SizeBytes, pulled.Took-pulled.Waited)
	c.tell(pod, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
		name, (pulled.Took-pulled.Waited).Truncate(time.Millisecond), pulled.Took.Truncate(time.Millisecond), pulled.SizeBytes))
	return pulled.Ref, nil
}

// PullRecords are which images a node has fetched, and by whose credentials.
type PullRecords interface {
	// MayUse says whether a pod may use the image that is here without asking its registry. name is what the pod calls it, ref what the ImageStore does; keys are
	// the pod's credentials for it, and are asked for where they count.
	MayUse(name, ref string, keys func() ([]runtime.ImageKey, error)) bool
	// Begin notes that an image is going to be fetched; with an error it must not be. Pulled or Failed follows: by whose credentials it was (nil: anybody's), and whether
	// it is over or may come yet.
	Begin(name string) error
	Pulled(name, ref string, by *runtime.ImageKey)
	Failed(name string, over bool)
	// Listing is called before the runtime's images are listed, and Listed with what that said.
	Listing() uint64
	Listed(listing uint64, images []runtime.Image)
}

// mayUse says whether a pod may use an image that is here without asking its registry.
func (c *caller) mayUse(store runtime.ImageStore, name, ref string, secrets func() []*corev1.Secret) bool {
	return c.pulls == nil || c.pulls.MayUse(name, ref, func() ([]runtime.ImageKey, error) { return store.ImageKeys(name, secrets()) })
}

// pullNoted fetches an image, and has noted whose it is.
func (c *caller) pullNoted(ctx context.Context, store runtime.ImageStore, name string, secrets []*corev1.Secret) (runtime.Pulled, error) {
	begun := false
	pulled, err := store.PullImage(ctx, name, secrets, func() error {
		if c.pulls == nil {
			return nil
		}
		err := c.pulls.Begin(name)
		begun = err == nil
		return err
	})
	switch {
	case !begun:
	case err != nil:
		c.pulls.Failed(name, ctx.Err() == nil && !errors.Is(err, runtime.ErrUnavailable))
	default:
		c.pulls.Pulled(name, pulled.Ref, pulled.Key)
	}
	return pulled, err
}

func (c *caller) tell(pod *corev1.Pod, eventType, reason, message string) {
	if c.event != nil {
		c.event(pod, eventType, reason, message)
	}
}

// pullPolicy is what the pod says, and else Kubernetes' default: what is called latest, or by no tag, is fetched each time.
func pullPolicy(image string, said corev1.PullPolicy) corev1.PullPolicy {
	if said != "" {
		return said
	}
	_, digest := splitDigest(image)
	tag := image[strings.LastIndexByte(image, '/')+1:]
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
