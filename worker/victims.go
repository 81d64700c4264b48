package worker

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Whom a critical pod puts out of a node that has no room for it (PR21).
// As Kubernetes' node agent does, it takes as few Guaranteed pods as can be if
// all others went, then as few Burstable ones as can be beside those, then
// BestEffort ones; of as many pods, those that ask for the least memory, and
// then CPU. Kubernetes' agent looks for them by taking, again and again, the
// pod that leaves the least distance to what is missing. Here that is where
// the search begins, and within its bound of steps it ends with the least.

// shortage is what of a resource a pod still misses.
type shortage struct {
	resource string
	amount   int64
}

// candidate is a pod that may have to go.
type candidate struct {
	uid      types.UID
	class    *model.Class
	qos      corev1.PodQOSClass
	priority int32
	start    time.Time
}

// searchSteps bounds the search among the pods of one QoS class.
const searchSteps = 20_000

// chooseVictims says whom of the pods to stop so that nothing is missing any
// more; false if even all of them are too few.
func chooseVictims(missing []shortage, pods []candidate) ([]candidate, bool) {
	if len(remaining(missing, pods)) > 0 {
		return nil, false
	}
	of := map[corev1.PodQOSClass][]candidate{}
	for _, p := range pods {
		of[p.qos] = append(of[p.qos], p)
	}
	best, burst := of[corev1.PodQOSBestEffort], of[corev1.PodQOSBurstable]
	guaranteed := cover(remaining(missing, best, burst), of[corev1.PodQOSGuaranteed])
	burstable := cover(remaining(missing, best, guaranteed), burst)
	bestEffort := cover(remaining(missing, burstable, guaranteed), best)
	return slices.Concat(bestEffort, burstable, guaranteed), true
}

// remaining is what is missing when the pods have gone.
func remaining(missing []shortage, gone ...[]candidate) []shortage {
	var out []shortage
	for _, s := range missing {
		for _, pods := range gone {
			for i := range pods {
				s.amount -= pods[i].class.Request.Get(s.resource)
			}
		}
		if s.amount > 0 {
			out = append(out, s)
		}
	}
	return out
}

// cover finds the fewest pods that together have what is missing, which all of
// them do.
func cover(missing []shortage, pods []candidate) []candidate {
	if len(missing) == 0 {
		return nil
	}
	pods = slices.Clone(pods)
	slices.SortFunc(pods, lessImportant)
	s := search{missing: missing, pods: pods, steps: searchSteps}
	s.groupKinds()
	s.best = s.nearest()
	s.bestCost = s.cost(s.best)
	for n := s.fewest(); n <= len(s.best) && s.steps > 0; n++ {
		s.try(0, n, nil, totals{}, missing)
	}
	out := make([]candidate, len(s.best))
	for i, at := range s.best {
		out[i] = pods[at]
	}
	return out
}

// lessImportant orders pods that ask for the same: who is of lower priority,
// and then who is younger, goes first (PR7).
func lessImportant(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), b.start.Compare(a.start), cmp.Compare(a.uid, b.uid))
}

// search looks for the cheapest pods that have all that is missing. Pods are
// named by their place in pods, the least important one first.
type search struct {
	missing []shortage
	pods    []candidate
	// kinds are pods that ask for the same, of which the less important ones
	// are always the better choice; those that ask for less memory come first.
	kinds [][]int
	// most has for each kind how much of each resource a pod of it or of a
	// later one can have.
	most     [][]int64
	best     []int
	bestCost totals
	steps    int
}

// totals are what pods ask for together.
type totals struct{ memory, cpu int64 }

func (t totals) with(c *model.Class, n int) totals {
	return totals{t.memory + int64(n)*c.Request.MemoryBytes, t.cpu + int64(n)*c.Request.MilliCPU}
}

func (t totals) compare(o totals) int {
	return cmp.Or(cmp.Compare(t.memory, o.memory), cmp.Compare(t.cpu, o.cpu))
}

func (s *search) request(at int) model.Resources { return s.pods[at].class.Request }

func (s *search) groupKinds() {
	for at := range s.pods {
		if !slices.ContainsFunc(s.missing, func(m shortage) bool { return s.request(at).Get(m.resource) > 0 }) {
			continue // its end would help nobody
		}
		i := slices.IndexFunc(s.kinds, func(kind []int) bool { return s.compare(kind[0], at) == 0 })
		if i < 0 {
			s.kinds = append(s.kinds, []int{at})
		} else {
			s.kinds[i] = append(s.kinds[i], at)
		}
	}
	slices.SortFunc(s.kinds, func(a, b []int) int { return s.compare(a[0], b[0]) })
	s.most = make([][]int64, len(s.kinds)+1)
	s.most[len(s.kinds)] = make([]int64, len(s.missing))
	for i := len(s.kinds) - 1; i >= 0; i-- {
		s.most[i] = slices.Clone(s.most[i+1])
		for j, m := range s.missing {
			s.most[i][j] = max(s.most[i][j], s.request(s.kinds[i][0]).Get(m.resource))
		}
	}
}

// compare orders pods by what they ask for; those that are equal are of a kind.
func (s *search) compare(a, b int) int {
	x, y := s.request(a), s.request(b)
	order := cmp.Or(cmp.Compare(x.MemoryBytes, y.MemoryBytes), cmp.Compare(x.MilliCPU, y.MilliCPU))
	for _, m := range s.missing {
		order = cmp.Or(order, cmp.Compare(x.Get(m.resource), y.Get(m.resource)))
	}
	return order
}

// nearest takes the pods one by one, each time the one that leaves the least
// distance, and puts back those that turn out not to be needed.
func (s *search) nearest() []int {
	var taken []int
	missing := s.missing
	for len(missing) > 0 {
		best, distance := -1, math.Inf(1)
		for _, kind := range s.kinds {
			i := slices.IndexFunc(kind, func(at int) bool { return !slices.Contains(taken, at) })
			if i < 0 {
				continue
			}
			if d := s.distance(kind[i], missing); d < distance {
				best, distance = kind[i], d
			}
		}
		taken = append(taken, best)
		missing = remaining(missing, s.pods[best:best+1])
	}
	// Places tell importance, so the most important one is let off first.
	for _, at := range slices.Backward(slices.Sorted(slices.Values(taken))) {
		without := slices.DeleteFunc(slices.Clone(taken), func(o int) bool { return o == at })
		if s.suffices(without) {
			taken = without
		}
	}
	slices.Sort(taken)
	return taken
}

// distance sums, over what is missing, the square of the share that the pod
// leaves missing: each resource weighs the same, whatever it is counted in.
func (s *search) distance(at int, missing []shortage) float64 {
	sum := 0.0
	for _, m := range missing {
		if left := m.amount - s.request(at).Get(m.resource); left > 0 {
			share := float64(left) / float64(m.amount)
			sum += share * share
		}
	}
	return sum
}

func (s *search) suffices(taken []int) bool {
	missing := s.missing
	for _, at := range taken {
		missing = remaining(missing, s.pods[at:at+1])
	}
	return len(missing) == 0
}

// fewest is a number of pods below which nothing suffices.
func (s *search) fewest() int {
	n := 1
	for j, m := range s.missing {
		most := s.most[0][j]
		n = max(n, int((m.amount+most-1)/most))
	}
	return n
}

func (s *search) cost(taken []int) totals {
	var t totals
	for _, at := range taken {
		t = t.with(s.pods[at].class, 1)
	}
	return t
}

// try chooses n more pods, of the kinds from one on, beside those taken.
func (s *search) try(from, n int, taken []int, cost totals, missing []shortage) {
	if s.steps--; s.steps <= 0 {
		return
	}
	if len(missing) == 0 {
		s.take(taken, cost)
		return
	}
	if n == 0 || from == len(s.kinds) {
		return
	}
	for _, m := range missing {
		j := slices.IndexFunc(s.missing, func(o shortage) bool { return o.resource == m.resource })
		if s.most[from][j]*int64(n) < m.amount {
			return
		}
	}
	kind := s.kinds[from]
	class := s.pods[kind[0]].class
	if len(taken)+n == len(s.best) && cost.with(class, 1).compare(s.bestCost) > 0 {
		return // no later kind asks for less
	}
	for k := range min(n, len(kind)) + 1 {
		left := missing
		for _, at := range kind[:k] {
			left = remaining(left, s.pods[at:at+1])
		}
		s.try(from+1, n-k, slices.Concat(taken, kind[:k]), cost.with(class, k), left)
		if len(left) == 0 {
			return
		}
	}
}

// take keeps the choice if it is better than the best so far.
func (s *search) take(taken []int, cost totals) {
	taken = slices.Sorted(slices.Values(taken))
	order := cmp.Or(cmp.Compare(len(taken), len(s.best)), cost.compare(s.bestCost))
	if order == 0 {
		order = slices.CompareFunc(reversed(taken), reversed(s.best), cmp.Compare[int])
	}
	if order < 0 {
		s.best, s.bestCost = taken, cost
	}
}

// reversed has the most important pod first.
func reversed(taken []int) []int {
	out := slices.Clone(taken)
	slices.Reverse(out)
	return out
}
