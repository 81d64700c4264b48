package clustertest

// Next has a scheduler make its next plan, by as many steps as that takes; nil: there is nothing to decide.
func Next[P any](s interface {
	Step(nowUnixNano int64, weight int) *P
	Behind() bool
}, nowUnixNano int64, weight int) *P {
	for {
		if p := s.Step(nowUnixNano, weight); p != nil || !s.Behind() {
			return p
		}
	}
}
