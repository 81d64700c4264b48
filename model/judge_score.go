package model

// Scores says whether spread or affinity tell feasible nodes apart at all: spread is false for a class without soft
// constraints, affinity where no preferred term and no carried term applies; the plugin then scores 0 everywhere.
func (j *Judge) Scores() (spread, affinity bool) {
	for i := range j.terms {
		switch j.terms[i].role {
		case softSpread:
			spread = true
		case ownPreference, theirAffinity, theirPreference:
			affinity = true
		}
	}
	return spread, affinity
}

// SpreadScale weighs the soft constraints against each other: by the number of domains among the feasible nodes. Scale
// fills it.
type SpreadScale struct {
	weights []uint64 // by term, in the unit of logOf
	seen    []bool   // by domain, one more for nodes without the label
}

// Scale prepares s for RawSpread. groups are those that have feasible nodes, nodes how many each has.
func (j *Judge) Scale(s *SpreadScale, groups, nodes []int32) {
	s.weights = append(s.weights[:0], make([]uint64, len(j.terms))...)
	for i := range j.terms {
		if k := &j.terms[i]; k.role == softSpread {
			s.weights[i] = logOf(uint64(j.domains(s, k, groups, nodes)) + 2)
		}
	}
}

// domains is how many domains of a soft constraint's key the feasible nodes have. With the cluster's own constraints a
// node without the label is in a domain like any other, that without a name, as in kube-scheduler.
func (j *Judge) domains(s *SpreadScale, k *judged, groups, nodes []int32) int64 {
	var n int64
	s.seen = append(s.seen[:0], make([]bool, len(k.counter.key.domains)+1)...)
	for i, number := range groups {
		if nodes[i] == 0 || j.unscored(number) {
			continue
		}
		d := j.seen[number].domains[k.key]
		switch {
		case k.counter.key.perNode, k.single && d != noDomain:
			n += int64(nodes[i])
		case !s.seen[d+1]:
			s.seen[d+1] = true
			n++
		}
	}
	return n
}

// unscored says whether the group's nodes lack a key of the soft constraints (TS4).
func (j *Judge) unscored(number int32) bool {
	if j.class.terms == nil || j.class.terms.system {
		return false
	}
	g := &j.seen[number]
	for i := range j.terms {
		if k := &j.terms[i]; k.role == softSpread && g.domains[k.key] == noDomain {
			return true
		}
	}
	return false
}

// RawSpread is PodTopologySpread's score of a feasible node before normalisation, less being better:
// round(Σ count·ln(domains+2) + maxSkew−1). scored is false for a node that lacks a key of the constraints (TS4): it takes
// no part in the normalisation and its score in the end is 0. For the others it is 100·(max+min−raw)/max, or 100 where max
// is 0, max and min being those of the scored feasible nodes (TS10).
func (j *Judge) RawSpread(group int32, s *SpreadScale) (raw int64, scored bool) {
	if len(j.terms) == 0 {
		return 0, true
	}
	if j.unscored(group) {
		return 0, false
	}
	seen := j.seeGroup(group)
	var sum logSum
	for i := range j.terms {
		if k := &j.terms[i]; k.role == softSpread && seen.domains[i] != noDomain {
			sum.add(uint64(max(seen.counts[i].base, 0)), s.weights[i])
			sum.add(uint64(max(k.spread.maxSkew-1, 0)), logOne)
		}
	}
	return sum.rounded(), true
}

// RawAffinity is InterPodAffinity's score of a node before normalisation, more being better: the preferred terms of the
// class about placed pods, those of placed pods about the class, and hardWeight for each required affinity term of a placed
// pod about the class. The score in the end is ⌊100·(raw−min)/(max−min)⌋, 0 where max is min.
func (j *Judge) RawAffinity(group int32, hardWeight int64) int64 {
	if len(j.terms) == 0 {
		return 0
	}
	seen := j.seeGroup(group)
	var sum int64
	for i := range j.terms {
		pods := int64(seen.counts[i].base)
		switch k := &j.terms[i]; k.role {
		case ownPreference:
			sum += k.weight * pods
		case theirAffinity:
			sum += hardWeight * pods
		case theirPreference:
			sum += pods
		}
	}
	return sum
}
