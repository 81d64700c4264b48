package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/model"
)

const (
	// restPass is how long it rests between two passes at least, and lookAgain how long at most while pods wait that no event
	// it is told of may have helped.
	restPass  = 20 * time.Millisecond
	lookAgain = 5 * time.Second
	// passTime is how long a pass takes at most, beyond what a pod takes that is under way; the next goes on where it ended. longestRest
	// is the longest rest behind one.
	passTime, longestRest = 5 * time.Second, time.Second
	// podTime is how long it looks for devices for one pod, and namespaceTime for those of one namespace before others have
	// their turn: a claim can be written so that finding devices takes as long as one likes.
	// ruledTime is podTime where pods may be in each other's way on other nodes: then all are counted first.
	podTime       = 2 * time.Second
	ruledTime     = 20 * time.Second
	namespaceTime = 2 * time.Second
	// patience is how long a pod may have devices that are ready, and no node, nor a nomination to one, when it has been tried;
	// longPatience where nobody has tried it.
	patience, longPatience = 30 * time.Second, 2 * time.Minute
	// readyTime is how long devices may take to get ready, and volumes to be made (kube-scheduler's bindingTimeout).
	readyTime = 10 * time.Minute
	// toldAgain is how long it is until a pod is told once more why it gets none.
	// Something else is told no sooner than after toldAtLeast.
	toldAgain, toldAtLeast = 5 * time.Minute, 10 * time.Second
	// placingTime is how long others leave a node alone on which a pod has been given devices: until it is bound there,
	// they would count on the same room.
	placingTime = 5 * time.Second
	// firstPause is how long a pod rests for which it did not go well, doubled each time up to longestPause.
	firstPause, longestPause = time.Second, time.Minute
)

// Allocator gives devices to the claims of pods that wait. It belongs to the goroutine that runs it, but for Poke and Renewed.
type Allocator struct {
	view     func() *fsm.View
	claims   resourceclient.ResourceClaimsGetter
	events   record.EventRecorder
	now      func() time.Time
	compiled *cel.Cache
	poked    chan struct{}
	renewed  atomic.Bool             // there are other devices or classes than before
	pods     map[types.UID]*progress // of those that wait
	// next is with which of a namespace's pods the next pass begins, by their place in the queue: for those before it there was time.
	// from is where the next pass begins, "" for the first.
	next map[string]string
	from string
	// unrest: those who rest are looked at in the next pass, since devices have been renewed during the last one.
	unrest bool
	// offer is what drivers offer, as of when it was renewed last, and left what of it is given away by now; nil: that has to be counted.
	offer, left *offer
	turn        int // with which node the next search begins
}

// progress is what it knows of a pod that waits.
type progress struct {
	// placing is the node on which it was given devices, at that time.
	placing   string
	placingAt time.Time
	// pause is how long it rested last, and rests until when.
	pause time.Duration
	rests time.Time
	// released: it rests since what it had was taken from it, whatever becomes of devices.
	released bool
	// ready is since when its devices have been; zero: they are not, or it has none.
	ready time.Time
	// told is why it was given none, and toldAt when that was said last.
	told   string
	toldAt time.Time
	seen   bool // in this pass
}

// New gives an allocator that writes claims, and tells pods why they get no devices. now is the state's clock.
func New(view func() *fsm.View, claims resourceclient.ResourceClaimsGetter, events record.EventRecorder, now func() time.Time) *Allocator {
	return &Allocator{
		view: view, claims: claims, events: events, now: now, compiled: newCELCache(), poked: make(chan struct{}, 1),
		pods: map[types.UID]*progress{}, next: map[string]string{},
	}
}

// Poke has it look again soon. Any goroutine may.
func (a *Allocator) Poke() {
	select {
	case a.poked <- struct{}{}:
	default:
	}
}

// Renewed has it look again soon, also for those who rest: there are other devices or classes than before. Any goroutine may.
func (a *Allocator) Renewed() {
	a.renewed.Store(true)
	a.Poke()
}

// Run works until ctx ends.
func (a *Allocator) Run(ctx context.Context) {
	for {
		began := time.Now()
		waits := a.pass(ctx)
		rest := min(max(restPass, time.Since(began)), longestRest) // no more than half of a core, unless it takes long
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
		var again <-chan time.Time
		if waits {
			again = time.After(lookAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.poked:
		case <-again:
		}
	}
}

// candidate is a pod that may be given devices.
type candidate struct {
	place, key, namespace string
	of                    *progress
}

// pass looks once at all pods that wait, in the order of the queue, and says whether some still do.
func (a *Allocator) pass(ctx context.Context) (waits bool) {
	renewed := a.renew() || a.unrest
	a.left, a.unrest = nil, false
	v := a.view()
	if v.Version() < fsm.SinceDevices {
		return true
	}
	var all []candidate
	v.PodsAwaitingDevices(func(key string, pod *corev1.Pod) bool {
		e, ok := v.Queue.Get(key)
		if !ok || e.State == berthv1.QueueGated || pod.DeletionTimestamp != nil {
			return true
		}
		p := a.pods[pod.UID]
		if p == nil {
			p = new(progress)
			a.pods[pod.UID] = p
		}
		p.seen = true
		if renewed && !p.released {
			p.rests = time.Time{}
		}
		all = append(all, candidate{v.QueueSortKey(e), key, pod.Namespace, p})
		return true
	})
	// order does not matter: each is looked at by itself.
	for uid, p := range a.pods {
		if !p.seen {
			delete(a.pods, uid)
		}
		p.seen = false
	}
	slices.SortFunc(all, func(a, b candidate) int { return strings.Compare(a.place, b.place) })
	spent, failed, next := map[string]time.Duration{}, map[string]string{}, map[string]string{}
	began, from := time.Now(), a.from
	a.from = ""
	for _, c := range all {
		switch {
		case ctx.Err() != nil:
			return false
		case c.place < from, a.now().Before(c.of.rests), c.place < a.next[c.namespace], next[c.namespace] != "":
			continue
		case spent[c.namespace] > namespaceTime:
			next[c.namespace] = c.place
			continue
		}
		if time.Since(began) > passTime {
			a.from = c.place
			break
		}
		a.unrest = a.renew() || a.unrest
		began := time.Now()
		if err := guard.Caught(func() error { return a.consider(ctx, c, failed) }); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Devices are given later", "pod", c.key, "err", err)
			a.tell(c.of, c.key, "looking for devices: "+whatOf(err))
			c.of.rest(a.now(), false)
		}
		spent[c.namespace] += time.Since(began)
	}
	a.next = next
	if len(next) > 0 || a.from != "" {
		a.Poke()
	}
	return len(all) > 0
}

// renew looks anew at what drivers offer, if that is something else than before.
func (a *Allocator) renew() bool {
	renewed := a.renewed.Swap(false)
	if renewed || a.offer == nil {
		a.offer, a.left = shownOf(a.view()), nil // a view of after the word
	}
	return renewed
}

// whatOf is what a pod's owner is told of an error. A panic is nothing that he knows about.
func whatOf(err error) string {
	if p := (*guard.Panic)(nil); errors.As(err, &p) {
		return "a mistake in the allocator, which its log tells"
	}
	return err.Error()
}

// tell tells a pod why it gets no devices, unless it has been told lately.
func (a *Allocator) tell(of *progress, key, why string) {
	if ago := a.now().Sub(of.toldAt); of.told == why && ago < toldAgain || of.told != "" && ago < toldAtLeast {
		return
	}
	if pod, ok := a.view().Pods.Get(key); ok {
		of.told, of.toldAt = why, a.now()
		a.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", why)
	}
}

// consider looks at a pod as it is by now, and does what is to be done about its claims.
func (a *Allocator) consider(ctx context.Context, c candidate, failed map[string]string) error {
	v := a.view()
	pod, ok := v.Pods.Get(c.key)
	if !ok || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || len(pod.Spec.ResourceClaims) > fsm.MaxDeviceClaims {
		return nil
	}
	w := wantsOf(v, pod)
	switch {
	case len(w.own) == 0 || w.unready || len(w.without) > 0:
		c.of.ready = time.Time{}
	case c.of.ready.IsZero():
		c.of.ready = a.now()
	}
	switch {
	case w.unusable: // why is in its condition
		if len(w.own) > 0 {
			return a.release(ctx, c.of, w, "another of its claims cannot be used")
		}
	case w.broken(a.now()):
		return a.release(ctx, c.of, w, "its devices did not get ready")
	case len(w.without) > 0:
		return a.supply(ctx, v, c, w, failed)
	default:
		if why := a.stranded(ctx, v, c, w); why != "" {
			return a.release(ctx, c.of, w, why)
		}
	}
	return nil
}

func (p *progress) rest(now time.Time, released bool) {
	p.released = released
	p.pause = min(max(2*p.pause, firstPause), longestPause)
	p.rests = now.Add(p.pause)
}

// supply finds a node for the pod and gives it what that has, or takes from it what keeps it from finding one.
func (a *Allocator) supply(ctx context.Context, v *fsm.View, c candidate, w *wants, failed map[string]string) error {
	s := a.searchFor(v, w)
	kind := s.kind()
	why, known := failed[kind]
	if !known {
		s.held = a.held(w.pod.UID)
		found, err := s.find(ctx)
		switch {
		case err != nil && len(w.own) > 0:
			a.tell(c.of, c.key, "looking for devices: "+whatOf(err))
			return a.release(ctx, c.of, w, "the rest cannot be found")
		case err != nil:
			return err
		case found != nil:
			for i, claim := range w.without {
				if err := a.give(ctx, w.pod, claim, &found.results[i]); err != nil {
					return fmt.Errorf("resourceclaim %q: %w", claim.Name, err)
				}
				a.left.take(&found.results[i])
			}
			c.of.placing, c.of.placingAt, c.of.told = found.node, a.now(), ""
			return nil
		case !s.waits:
			why = s.why()
		}
		failed[kind] = why
	}
	if why == "" { // it waits for others that have been given devices where it could be, too
		return nil
	}
	a.tell(c.of, c.key, why)
	if len(w.own) > 0 { // what it has keeps it off the nodes that have the rest
		return a.release(ctx, c.of, w, "the node where they are has no others for it")
	}
	return nil
}

// held are the nodes on which others have been given devices, and are not yet.
func (a *Allocator) held(but types.UID) map[string]bool {
	out := map[string]bool{}
	// order does not matter: it is a set.
	for uid, p := range a.pods {
		if uid != but && p.placing != "" && a.now().Sub(p.placingAt) < placingTime {
			out[p.placing] = true
		}
	}
	return out
}

// stranded says why a pod that has all of its devices does not get to where they are; "" while it may.
func (a *Allocator) stranded(ctx context.Context, v *fsm.View, c candidate, w *wants) string {
	e, ok := v.Queue.Get(c.key)
	_, nominated := v.Nominations.Get(c.key)
	if !ok || nominated || len(w.own) == 0 || w.unready {
		return "" // it waits for its victims, or for its devices
	}
	most := patience
	if awaitsVolume(v, w.pod) {
		most = readyTime
	} else if !e.Waits() {
		most = longPatience
	}
	if a.now().Sub(c.of.ready) > most {
		return "it found no place for long"
	}
	if most != patience { // it will be tried, when its volume is there or when it has its turn
		return ""
	}
	s := a.searchFor(v, w)
	may, _, err := s.reachable()
	if err != nil {
		return ""
	}
	for _, some := range s.portions(may) {
		room, preempting, err := s.places(ctx, some)
		if err != nil || len(room)+len(preempting) > 0 {
			return ""
		}
	}
	return "the node where they are has no room for it"
}

// awaitsVolume says whether somebody makes a volume for the pod, on a node that has been chosen.
func awaitsVolume(v *fsm.View, pod *corev1.Pod) bool {
	return slices.ContainsFunc(model.Claims(pod), func(name string) bool {
		claim, ok := v.VolumeClaim(pod.Namespace, name)
		return ok && claim.Spec.VolumeName == "" && claim.Annotations[model.SelectedNode] != ""
	})
}

// wants are a pod's claims of devices: those that have been given some (own: to nobody else), and those without.
type wants struct {
	pod                 *corev1.Pod
	given, own, without []*resourcev1.ResourceClaim
	unusable            bool // something else has to become of one of them first
	unready             bool // devices of own are not ready yet
}

func wantsOf(v *fsm.View, pod *corev1.Pod) *wants {
	w := &wants{pod: pod}
	seen := map[types.UID]bool{}
	for _, c := range model.DeviceClaimsOf(pod) {
		claim, why := v.ClaimOfDevices(pod, c)
		if why != "" {
			w.unusable = true
			if claim, _ = v.ResourceClaim(pod.Namespace, c.Name); claim == nil || claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(pod, claim, false) {
				continue
			}
		}
		if seen[claim.UID] {
			continue
		}
		seen[claim.UID] = true
		if claim.Status.Allocation == nil {
			w.without = append(w.without, claim)
			continue
		}
		w.given = append(w.given, claim)
		if slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod.UID }) {
			continue
		}
		w.own = append(w.own, claim)
		w.unready = w.unready || fsm.UnreadyDevice(claim) != ""
	}
	return w
}

// broken says whether devices of its own will not get ready.
func (w *wants) broken(now time.Time) bool {
	return slices.ContainsFunc(w.own, func(c *resourcev1.ResourceClaim) bool {
		at := c.Status.Allocation.AllocationTimestamp
		return fsm.UnreadyDevice(c) != "" && (fsm.FailedDevice(c) || at != nil && now.Sub(at.Time) > readyTime)
	})
}

var errTooLong = errors.New("it takes too long to find devices for its claims")
