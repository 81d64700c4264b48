package model

import (
	"fmt"
	"slices"
	"strings"
)

// Fails returns the rules by which the node is barred, as bits of TopologyFailures; 0 for a node that it does not know.
//
// NM4, and beyond it: checked once with all nominations of at least the class's priority, on whatever node, counted as if
// those pods ran there already, and once without; both must pass. The pod's own nomination has to be taken out by the
// caller (Unnominate, and Nominate afterwards).
func (j *Judge) Fails(node string) Failures {
	if len(j.terms) == 0 {
		return 0
	}
	slot, ok := j.t.slots[node]
	if !ok || j.t.spots[slot].node == nil {
		return 0
	}
	return j.verdict(j.see(slot))
}

// FailsGroup is Fails for all nodes of a group.
func (j *Judge) FailsGroup(group int32) Failures {
	if len(j.terms) == 0 {
		return 0
	}
	return j.verdict(j.seeGroup(group))
}

func (j *Judge) verdict(s *sight) Failures {
	f := j.pass(s, false)
	if j.nominated {
		f |= j.pass(s, true)
	}
	return f
}

// layer is what a pass counts in.
func (k *judged) layer(nominations bool) *layer {
	if nominations {
		return k.with
	}
	return &k.counter.base
}

func (c count) pods(nominations bool) int64 {
	if nominations {
		return int64(c.with)
	}
	return int64(c.base)
}

// pass checks all rules, with or without nominations.
func (j *Judge) pass(s *sight, nominations bool) Failures {
	var f Failures
	together, first := true, true
	for i := range j.terms {
		k := &j.terms[i]
		missing, pods := s.domains[i] == noDomain, s.counts[i].pods(nominations)
		switch k.role {
		case hardSpread:
			switch {
			case missing:
				f |= failSpreadMissing // TS4
			case k.skewed(pods, nominations):
				f |= failSpread
			}
		case ownAffinity:
			if missing {
				f |= failPodAffinity
			}
			together = together && pods > 0
			first = first && k.layer(nominations).total == 0
		case ownAntiAffinity:
			if pods > 0 {
				f |= failPodAntiAffinity
			}
		case theirAntiAffinity:
			if pods > 0 {
				f |= failExistingAntiAffinity
			}
		}
	}
	if j.attracts > 0 && !together && !(first && j.attracted) {
		// AF2: all keys must have a pod that matches all terms, unless there is none anywhere and this is one itself.
		f |= failPodAffinity
	}
	return f
}

// skewed says whether one more pod would be too many where so many are (TS2, TS8).
func (k *judged) skewed(pods int64, nominations bool) bool { return k.over(pods, nominations) > 0 }

// over is by how many the pods where so many are go beyond the greatest skew with one more. As many leaving make room,
// for their domain stays above the least.
func (k *judged) over(pods int64, nominations bool) int64 {
	self := int64(0)
	if k.spread.matchesSelf {
		self = 1
	}
	return pods + self - k.least(nominations) - k.spread.maxSkew
}

// least is the global minimum (TS3).
func (k *judged) least(nominations bool) int64 {
	if k.counter.existing < k.spread.minDomains {
		return 0
	}
	return k.layer(nominations).rank.least()
}

// Reasons is Fails with a Detail for every reason: the domain and the counts, the term in the way.
func (j *Judge) Reasons(node string) []Reason {
	f := j.Fails(node)
	if f == 0 {
		return nil
	}
	slot := j.t.slots[node]
	s := j.see(slot)
	now := j.pass(s, false).Reasons(j.class)
	out := f.Reasons(j.class)
	for i := range out {
		// What the pods that run there do not bar by themselves, the nominated ones do.
		nominations := !slices.ContainsFunc(now, func(r Reason) bool { return r.Kind == out[i].Kind })
		var details []string
		for at := range j.terms {
			if d := j.detail(out[i].Kind, at, s, nominations); d != "" {
				details = append(details, d)
			}
		}
		out[i].Detail = strings.Join(details, "; ")
	}
	return out
}

// detail says what a term has to do with a reason, "" for nothing.
func (j *Judge) detail(kind ReasonKind, at int, s *sight, nominations bool) string {
	k := &j.terms[at]
	label, d, pods := k.counter.key.label, s.domains[at], s.counts[at].pods(nominations)
	where := "the node has no label " + label
	if d != noDomain {
		where = label + "=" + k.counter.key.domains[d].value
	}
	nominated := ""
	if nominations && k.with != &k.counter.base {
		nominated = " with nominated pods"
	}
	switch {
	case kind == TopologyMissing && k.role == hardSpread && d == noDomain:
		return where
	case kind == TopologySpread && k.role == hardSpread && d != noDomain && k.skewed(pods, nominations):
		more := ""
		if k.counter.existing < k.spread.minDomains {
			more = fmt.Sprintf(" while there are fewer than %d domains", k.spread.minDomains)
		}
		return fmt.Sprintf("%s has %d%s, at most %d more than the least (%d)%s",
			where, pods, nominated, k.spread.maxSkew, k.least(nominations), more)
	case kind == PodAffinity && k.role == ownAffinity && d == noDomain:
		return where
	case kind == PodAffinity && k.role == ownAffinity && pods <= 0:
		return fmt.Sprintf("%s has no pod%s that matches %s", where, nominated, k.counter.selectors())
	case kind == PodAntiAffinity && k.role == ownAntiAffinity && pods > 0:
		return fmt.Sprintf("%s has %d%s that match %s", where, pods, nominated, k.counter.selectors())
	case kind == ExistingAntiAffinity && k.role == theirAntiAffinity && pods > 0:
		return fmt.Sprintf("%s has %d%s that keep away %s", where, pods, nominated, k.counter.selectors())
	}
	return ""
}

// selectors writes which pods the counter is about.
func (c *counter) selectors() string {
	out := make([]string, len(c.match))
	for i, m := range c.match {
		if out[i] = describeSelector(m.selector); out[i] == "" {
			out[i] = "all pods"
		}
	}
	return strings.Join(out, " and ")
}
