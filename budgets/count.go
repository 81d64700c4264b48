package budgets

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/model"
)

// The pods of a budget that is new, or covers others now, are counted part by
// part. A pod that changes meanwhile counts if it was reached; a budget whose
// pods are being counted allows nothing, and its status stays behind its
// generation.

// Pods calls f for the pods of a namespace from a name on, by name, until f
// returns false.
type Pods func(namespace, from string, f func(pod *corev1.Pod) bool)

// Count goes on with counting a budget's pods for as long as mayGoOn, which is
// given what the next one costs, in units of work (fsm/work.go), says so. It
// returns the key of the last that was looked at, and whether all were.
func (x *Index) Count(s State, key string, pods Pods, mayGoOn func(units int) bool) (upTo string, done bool) {
	c, ok := x.coverages.Get(key)
	if !ok || !c.counting {
		return "", true
	}
	x.touch(key)
	next, sum := *c, sumOfPods{}
	namespace, _, _ := strings.Cut(key, "/")
	from := ""
	if c.upTo != "" {
		from = strings.TrimPrefix(c.upTo, namespace+"/") + "\x00" // the one after it
	}
	done = true
	pods(namespace, from, func(pod *corev1.Pod) bool {
		if done = mayGoOn(c.rule.cost); !done {
			return false
		}
		next.upTo = pod.Namespace + "/" + pod.Name
		if c.rule.selector.Matches(labels.Set(pod.Labels)) {
			sum.add(pod)
		}
		return true
	})
	x.add(s, &next, &sum)
	upTo = next.upTo
	if done {
		next.counting, next.upTo = false, ""
	}
	x.set(&next)
	return upTo, done
}

// Resume is for a budget of a state that is restored, which was put a moment ago:
// all of its pods are put one by one afterwards, and those count whose keys are not
// above upTo; with counted all do.
func (x *Index) Resume(key, upTo string, counted bool) {
	c, ok := x.coverages.Get(key)
	if !ok || !c.counting {
		return
	}
	next := *c
	if next.upTo = upTo; counted {
		next.counting, next.upTo = false, ""
	}
	x.coverages.Set(key, &next)
}

// sumOfPods is what some of the pods add up to that a new rule covers.
type sumOfPods struct {
	pods, healthy, unmanaged int64
	owners                   map[Owner]int32
}

func (s *sumOfPods) add(pod *corev1.Pod) {
	s.pods++
	s.healthy += one(model.Healthy(pod))
	owner, managed := controllerOf(pod)
	if !managed {
		s.unmanaged++
		return
	}
	if s.owners == nil {
		s.owners = map[Owner]int32{}
	}
	s.owners[owner]++
}

// add is count for many pods at once.
func (x *Index) add(s State, c *Coverage, sum *sumOfPods) {
	c.pods += sum.pods
	c.healthy += sum.healthy
	if !c.rule.scaled {
		return
	}
	c.unmanaged += sum.unmanaged
	// order does not matter: each owner by itself, and sums.
	for owner, pods := range sum.owners {
		if !x.countOwner(c.rule.key, owner.key(), pods) {
			continue
		}
		if scale, known := s.Scale(owner); known {
			c.scale += int64(scale)
		} else {
			c.strays++
		}
	}
}
