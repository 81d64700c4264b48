package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

// search looks for a node for a pod, where there are devices for its claims.
type search struct {
	a     *Allocator
	view  *fsm.View
	wants *wants
	held  map[string]bool
	waits bool // one that is held may be its

	offer   *offer
	asked   int // nodes that may have devices
	noRoom  map[string]int
	without map[string]int // why nodes that have room gave none: how many
}

// found is where there are devices, one result for each claim without.
type found struct {
	node    string
	results []resourcev1.AllocationResult
}

// find gives the best node with room, or else one that has room by preemption for the fewest victims; nil where there is none.
func (s *search) find(ctx context.Context) (*found, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, podTime, errTooLong)
	defer cancel()
	s.offer = offerOf(s.view)
	room, preempting, err := s.places(ctx)
	if err != nil {
		return nil, cause(ctx, err)
	}
	allocator, err := s.offer.allocator(ctx, s.view, s.a.compiled)
	if err != nil {
		return nil, cause(ctx, err)
	}
	for _, nodes := range [][]string{room, preempting} {
		best, err := s.best(ctx, allocator, nodes)
		if err != nil || best != nil {
			return best, cause(ctx, err)
		}
	}
	return nil, nil
}

func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// places are the nodes that have room for the pod, most room first, and those that would have it by preemption, fewest victims
// first, of those that its devices can be used from as far as it has some.
func (s *search) places(ctx context.Context) (room, preempting []string, err error) {
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
	may := map[string]bool{}
	s.view.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		switch {
		case !model.HasDrivers(n), needs && !s.offer.has(name),
			slices.ContainsFunc(selectors, func(sel *nodeaffinity.NodeSelector) bool { return !sel.Match(n) }):
		case s.held[name]:
			s.waits = true
		default:
			may[name] = true
		}
		return true
	})
	s.asked, s.noRoom = len(may), map[string]int{}
	bare := *s.wants.pod // as if its devices were there
	bare.Spec.ResourceClaims = nil
	verdicts, err := sched.ExplainOn(ctx, s.view, &bare, func(node string) bool { return may[node] }, nil)
	if err != nil {
		return nil, nil, err
	}
	victims := map[string]int{}
	for i := range verdicts {
		switch v := &verdicts[i]; {
		case len(v.Reasons) == 0:
			room = append(room, v.Node)
		case len(v.Victims)+len(v.Ending) > 0:
			preempting = append(preempting, v.Node)
			victims[v.Node] = len(v.Victims) + len(v.Ending)
		default:
			for _, r := range v.Reasons {
				s.noRoom[r.Text()]++
			}
		}
	}
	free := map[string]int64{}
	for _, node := range room {
		free[node] = freeShare(s.view, node)
	}
	slices.SortStableFunc(room, func(a, b string) int { return cmp.Compare(free[b], free[a]) })
	slices.SortStableFunc(preempting, func(a, b string) int { return cmp.Compare(victims[a], victims[b]) })
	return room, preempting, nil
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

// best is the node where the claims are given the alternatives that they like most; of equal ones the first.
func (s *search) best(ctx context.Context, allocator structured.Allocator, nodes []string) (best *found, err error) {
	if s.without == nil {
		s.without = map[string]int{}
	}
	most, liking := mostLiked(s.wants.without), -1
	for _, name := range nodes {
		node, ok := s.view.Nodes.Get(name)
		if !ok {
			continue
		}
		results, err := allocator.Allocate(ctx, node, s.wants.without)
		switch {
		case errors.Is(err, structured.ErrFailedAllocationOnNode):
			s.without[err.Error()]++
			continue
		case err != nil:
			return nil, err
		case len(results) != len(s.wants.without):
			s.without["cannot allocate all claims"]++
			continue
		}
		if l := likedOf(s.wants.without, results); l > liking {
			best, liking = &found{name, results}, l
		}
		if liking >= most {
			break
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
	if s.asked == 0 {
		return fmt.Sprintf("0/%d nodes are available: no node has devices, of those that the pod may go to.", s.view.Nodes.Len())
	}
	counts := map[string]int{}
	maps.Copy(counts, s.noRoom)
	for text, n := range s.without { // order does not matter: they are sums
		counts[text] += n
	}
	if others := s.view.Nodes.Len() - s.asked; others > 0 {
		counts["node(s) have no devices"] = others
	}
	texts := make([]string, 0, len(counts))
	for text, n := range counts { // order does not matter: they are sorted
		texts = append(texts, fmt.Sprintf("%d %s", n, text))
	}
	slices.Sort(texts)
	return fmt.Sprintf("0/%d nodes are available: %s.", s.view.Nodes.Len(), strings.Join(texts, ", "))
}
