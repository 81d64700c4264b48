package model

// Judge is what one class can see of the pods on the nodes: the verdicts of its own topology spread constraints and
// inter-pod terms and of the terms that placed pods carry against it, and the raw scores of kube-scheduler's
// PodTopologySpread and InterPodAffinity.
//
// Ask the Topology for the Judge again (Topology.Judge, a map look-up) before every decision: a Judge is right until the
// next change of the Topology, and one that was not asked for in a long time is forgotten.
//
// # Groups
//
// A scheduler with many nodes keeps them in groups that the class cannot tell apart: Group gives a node's group as a small
// number. Nodes of one group have the same verdict (FailsGroup) and raw scores (RawSpread, RawAffinity), so a decision
// costs O(groups) and not O(nodes). A group is made of, for every topology key that matters to the class, the node's
// *domain* if some domain of that key has several nodes (zones), and the node's own *counts* if each has one (host
// names). It follows that
//
//   - a node changes its group only when that node itself is touched: PutNode with other labels, taints or cordon, and
//     AddPod, RemovePod, Nominate, Unnominate on that very node. What happens elsewhere in its zone changes the verdict of
//     its group, never its group.
//   - verdicts and scores of all groups may change with every change of the Topology: ask for them in every decision.
//   - Layout says whether groups asked for before still mean anything. When it differs from what it was, the groups of
//     all nodes must be asked for anew. That is rare: the first pod with a term against the class appears, a second node
//     joins a domain that had one, too many groups were seen.
//
// Group numbers are dense from 0 and say nothing of order.
type Judge struct {
	t     *Topology
	class *Class
}

// Plain says that the class has no terms and no placed pod carries one about it: there is nothing to check or to score,
// and all nodes are in group 0.
func (j *Judge) Plain() bool { return true }

// Fails returns the rules by which the node is barred, as bits of TopologyFailures; 0 for a node that it does not know.
//
// NM4, and beyond it: checked once with all nominations of at least the class's priority, on whatever node, counted as if
// those pods ran there already, and once without; both must pass. The pod's own nomination has to be taken out by the
// caller (Unnominate, and Nominate afterwards).
func (j *Judge) Fails(node string) Failures { return 0 }

// Reasons is Fails with a Detail for every reason: the domain and the counts, the term in the way.
func (j *Judge) Reasons(node string) []Reason { return nil }

// Layout changes when the groups of nodes have to be asked for anew. No two Judges ever have the same Layout.
func (j *Judge) Layout() uint64 { return 0 }

// Group is the node's group.
func (j *Judge) Group(node string) int32 { return 0 }

// FailsGroup is Fails for all nodes of a group.
func (j *Judge) FailsGroup(group int32) Failures { return 0 }

// Scores says whether spread or affinity tell feasible nodes apart at all: Spread is false for a class without soft
// constraints, Affinity where no preferred term and no carried term applies; the plugin then scores 0 everywhere.
func (j *Judge) Scores() (spread, affinity bool) { return false, false }

// SpreadScale weighs the soft constraints against each other: by the number of domains among the feasible nodes. It is
// filled by Scale.
type SpreadScale struct{ weights []float64 }

// Scale prepares s for RawSpread. groups are those that have feasible nodes, nodes how many each has.
func (j *Judge) Scale(s *SpreadScale, groups, nodes []int32) {}

// RawSpread is PodTopologySpread's score of a feasible node before normalisation, less being better:
// round(Σ count·ln(domains+2) + maxSkew−1). scored is false for a node that lacks a key of the constraints (TS4): it takes
// no part in the normalisation and its score in the end is 0. For the others it is 100·(max+min−raw)/max, or 100 where max
// is 0, max and min being those of the scored feasible nodes (TS10).
func (j *Judge) RawSpread(group int32, s *SpreadScale) (raw int64, scored bool) { return 0, true }

// RawAffinity is InterPodAffinity's score of a node before normalisation, more being better: the preferred terms of the
// class about placed pods, those of placed pods about the class, and hardWeight for each required affinity term of a placed
// pod about the class. The score in the end is int64(100·(float64(raw−min)/float64(max−min))), 0 where max is min.
func (j *Judge) RawAffinity(group int32, hardWeight int64) int64 { return 0 }
