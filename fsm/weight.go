package fsm

// Weight is how many things a command is about, at least 1: pods, nodes, objects,
// decisions. What it costs grows with that, as far as a command alone can tell.
func Weight(c Command) int {
	n := 1
	switch c := c.(type) {
	case *AdmitPods:
		n = int(c.Count)
	case *ApplyPlan:
		n = len(c.Reservations) + len(c.Bindings) + len(c.Preemptions)
		for i := range c.Preemptions {
			n += len(c.Preemptions[i].Victims)
		}
		for i := range c.Failures {
			n += len(c.Failures[i].Pods)
		}
	case *ReportPods:
		n = len(c.Reports)
	case *SetNodeHealth:
		n = len(c.Nodes)
	case *ScaleIn:
		n = len(c.Victims)
	case *ClaimPods:
		n = len(c.Adopt) + len(c.Release)
	case *CollectGarbage:
		n = len(c.Objects)
	case *ReleaseNominations:
		n = len(c.Pods)
	case *DeleteEvents:
		n = int(c.Limit)
	}
	return max(n, 1)
}
