package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched"
)

const (
	// nodesBeyond is how many nodes are asked after one that has devices, for those that a claim likes better.
	nodesBeyond = 32
	// nodesAtOnce is of how many nodes the one with most room is taken, if there is one: others are asked after them.
	nodesAtOnce = 500
	// maxErrorText is how much is told of an error.
	maxErrorText = 512
	// nodesInError is how many nodes may have devices that a claim's expressions cannot be applied to, before others are asked no more.
	nodesInError = 16
)

// search looks for a node for a pod, where there are devices for its claims.
type search struct {
	a     *Allocator
	view  *fsm.View
	wants *wants
	// bare is the pod as if its devices were there, and class its class.
	bare  *corev1.Pod
	class *model.Class
	held  map[string]bool
	waits bool // one that is held could be its

	offer   *offer
	counts  map[string]int // why nodes are none: how many
	errs    []error        // of nodes
	victims map[string]int // of nodes that would have room by preemption
}

// found is where there are devices, one result for each claim without.
type found struct {
	node    string
	results []resourcev1.AllocationResult
}

func (a *Allocator) searchFor(v *fsm.View, w *wants) *search {
	bare := *w.pod
	bare.Spec.ResourceClaims = nil
	return &search{a: a, view: v, wants: w, bare: &bare, class: v.EffectiveClass(model.ClassOf(&bare), &bare)}
}

// kind is equal for pods that are given devices on the same nodes, if on any.
func (s *search) kind() string {
	var b strings.Builder
	b.WriteString(s.bare.Namespace + "\x00" + s.class.Signature)
	for _, c := range s.wants.given {
		b.WriteString("\x00given " + string(c.UID))
	}
	for _, c := range s.wants.without {
		text, err := c.Spec.Marshal()
		if err != nil {
			text = []byte(c.UID)
		}
		b.WriteString("\x00" + string(text))
	}
	return b.String()
}

// find gives the best node with room, or else one that has room by preemption for the fewest victims; nil where there is none.
// Nobody is preempted for while a node with room is held.
func (s *search) find(ctx context.Context) (*found, error) {
	most := podTime
	if s.ruled() {
		most = ruledTime
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, errTooLong)
	defer cancel()
	s.offer = s.a.offerOf(s.view)
	may, held, err := s.reachable()
	if err != nil {
		return nil, err
	}
	var preempting []string
	for _, some := range s.portions(may) {
		room, beside, err := s.places(ctx, some)
		if err != nil {
			return nil, cause(ctx, err)
		}
		if best, err := s.best(ctx, room); best != nil || err != nil {
			return best, err
		}
		preempting = append(preempting, beside...)
	}
	if len(held) > 0 {
		room, _, err := s.places(ctx, held)
		if err != nil {
			return nil, cause(ctx, err)
		}
		best, err := s.best(ctx, room)
		if s.waits = best != nil; s.waits || err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(preempting, func(a, b string) int { return cmp.Compare(s.victims[a], s.victims[b]) })
	return s.best(ctx, preempting)
}

// portions are the nodes, so many at once as are worth it, beginning with others each time. Where pods ask where others are, all nodes
// have to be looked at for each.
func (s *search) portions(nodes []string) [][]string {
	if len(nodes) <= nodesAtOnce || s.ruled() {
		return [][]string{nodes}
	}
	s.a.turn = (s.a.turn + nodesAtOnce) % len(nodes)
	return slices.Collect(slices.Chunk(slices.Concat(nodes[s.a.turn:], nodes[:s.a.turn]), nodesAtOnce))
}

func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ruled says whether pods may be in the pod's way on other nodes than their own.
func (s *search) ruled() bool { return s.view.HasRulesFor(s.class) }

// places are those of some nodes that have room for the pod, most room first, and those that would have it by preemption.
func (s *search) places(ctx context.Context, of []string) (room, preempting []string, err error) {
	asked := make(map[string]bool, len(of))
	for _, name := range of {
		asked[name] = true
	}
	verdicts, err := sched.ExplainOn(ctx, s.view, s.bare, func(node string) bool { return asked[node] }, nil)
	if err != nil {
		return nil, nil, err
	}
	for i := range verdicts {
		switch v := &verdicts[i]; {
		case len(v.Reasons) == 0:
			room = append(room, v.Node)
		case len(v.Victims)+len(v.Ending) > 0:
			preempting = append(preempting, v.Node)
			s.victims[v.Node] = len(v.Victims) + len(v.Ending)
		default:
			for _, r := range v.Reasons {
				s.counts[r.Text()]++
			}
		}
	}
	free := map[string]int64{}
	for _, node := range room {
		free[node] = freeShare(s.view, node)
	}
	slices.SortStableFunc(room, func(a, b string) int { return cmp.Compare(free[b], free[a]) })
	return room, preempting, nil
}

// reachable are the nodes that may have devices for the claims without, and from which those that others have been given can be used,
// by name; held are those of them on which others are being placed.
func (s *search) reachable() (may, held []string, _ error) {
	var selectors []*nodeaffinity.NodeSelector
	for _, c := range s.wants.given {
		if c.Status.Allocation.NodeSelector != nil {
			selector, err := nodeaffinity.NewNodeSelector(c.Status.Allocation.NodeSelector)
			if err != nil {
				return nil, nil, fmt.Errorf("resourceclaim %q: %w", c.Name, err)
			}
			selectors = append(selectors, selector)
		}
	}
	needs := slices.ContainsFunc(s.wants.without, func(c *resourcev1.ResourceClaim) bool { return len(c.Spec.Devices.Requests) > 0 })
	s.counts, s.victims = map[string]int{}, map[string]int{}
	s.view.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		switch {
		case !model.HasDrivers(n):
			s.counts[model.Reason{Kind: model.DeviceDrivers}.Text()]++
		case slices.ContainsFunc(selectors, func(sel *nodeaffinity.NodeSelector) bool { return !sel.Match(n) }):
			s.counts[model.Reason{Kind: model.DeviceNode}.Text()]++
		case needs && !s.offer.has(name):
			s.counts["node(s) have no devices"]++
		case s.held[name]:
			held = append(held, name)
		default:
			may = append(may, name)
		}
		return true
	})
	return may, held, nil
}

// freeShare is how much of a node's CPU and memory is free, in thousandths of both.
func freeShare(v *fsm.View, node string) (share int64) {
	n, ok := v.Nodes.Get(node)
	if !ok {
		return 0
	}
	has, used := model.Allocatable(n), v.Usage(node).Requested
	of := func(has, used int64) int64 {
		if has <= 0 || used >= has {
			return 0
		}
		return int64(1000 * (1 - float64(used)/float64(has)))
	}
	return of(has.MilliCPU, used.MilliCPU) + of(has.MemoryBytes, used.MemoryBytes)
}

// best is the node where the claims are given the alternatives that they like most, of those that it looks at; of equal ones the first.
// What one node has nobody else has to suffer for: an expression that fails at it is a reason against it.
func (s *search) best(ctx context.Context, nodes []string) (best *found, err error) {
	most, liking, beyond := mostLiked(s.wants.without), -1, 0
	for _, name := range nodes {
		if liking >= most || best != nil && beyond >= nodesBeyond {
			break
		}
		node, ok := s.view.Nodes.Get(name)
		if !ok {
			continue
		}
		if best != nil {
			beyond++
		}
		results, err := s.offer.allocate(ctx, s.view, s.a.compiled, node, s.wants.without)
		switch {
		case ctx.Err() != nil && best != nil:
			return best, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, structured.ErrFailedAllocationOnNode):
			s.counts[err.Error()]++
		case err != nil:
			s.counts["node(s) have devices that the claims cannot be applied to"]++
			if s.errs = append(s.errs, err); best == nil && len(s.errs) >= nodesInError {
				return nil, err
			}
		case len(results) != len(s.wants.without):
			s.counts["cannot allocate all claims"]++
		default:
			if l := likedOf(s.wants.without, results); l > liking {
				best, liking = &found{name, results}, l
			}
		}
	}
	return best, nil
}

// mostLiked is likedOf where each request with alternatives is given its first.
func mostLiked(claims []*resourcev1.ResourceClaim) (sum int) {
	for _, c := range claims {
		for i := range c.Spec.Devices.Requests {
			if len(c.Spec.Devices.Requests[i].FirstAvailable) > 0 {
				sum += resourcev1.FirstAvailableDeviceRequestMaxSize
			}
		}
	}
	return sum
}

// likedOf says how much claims like what they are given, as kube-scheduler counts: the first alternatives most.
func likedOf(claims []*resourcev1.ResourceClaim, results []resourcev1.AllocationResult) (sum int) {
	for i, c := range claims {
		given := map[string]bool{}
		for _, r := range results[i].Devices.Results {
			given[r.Request] = true
		}
		for _, request := range c.Spec.Devices.Requests {
			for at, alternative := range request.FirstAvailable {
				if given[resourceclaim.CreateSubRequestRef(request.Name, alternative.Name)] {
					sum += resourcev1.FirstAvailableDeviceRequestMaxSize - at
				}
			}
		}
	}
	return sum
}

// why says why there is no node, as kube-scheduler would.
func (s *search) why() string {
	texts := make([]string, 0, len(s.counts))
	for text, n := range s.counts { // order does not matter: they are sorted
		texts = append(texts, fmt.Sprintf("%d %s", n, text))
	}
	slices.Sort(texts)
	why := fmt.Sprintf("0/%d nodes are available: %s.", s.view.Nodes.Len(), strings.Join(texts, ", "))
	if len(s.errs) > 0 {
		text := s.errs[0].Error()
		why += " Of one of them: " + strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
	}
	return why
}
