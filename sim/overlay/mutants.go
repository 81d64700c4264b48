package overlay

import (
	"slices"
	"strings"
)

// Mutant is a defect that the simulation has to find.
type Mutant struct {
	Name string
	What string // is wrong
	Edit
}

// MutantVariable is the environment's variable that has the name of the mutant that
// is at work. All of them are in one build.
const MutantVariable = "BERTH_SIM_MUTANT"

// Mutants are the defects.
func Mutants() []Mutant {
	return slices.Concat(consensus(), upgrades(), state(), scheduling(), service(), workloads(), nodes(), stormy(), still())
}

// Pace is that of the worlds that are to find the mutant.
func (m *Mutant) Pace() string {
	is := func(o Mutant) bool { return o.Name == m.Name }
	switch {
	case slices.ContainsFunc(stormy(), is):
		return "stormy"
	case slices.ContainsFunc(still(), is):
		return "still"
	}
	return "dense"
}

// On is the edits with which a build has every mutant, none of which is at work
// unless the environment says so.
func On() []Edit {
	var out []Edit
	imported := map[string]bool{}
	for _, m := range append(Mutants(), covers()...) {
		if !imported[m.File] {
			imported[m.File] = true
			out = append(out, Edit{m.File, "import (\n", "import (\n\tmutantenv \"os\"\n\n"})
		}
		e := m.Edit
		e.New = strings.ReplaceAll(e.New, "ON", "mutantenv.Getenv(\""+MutantVariable+"\") == \""+m.Name+"\"")
		e.New = strings.ReplaceAll(e.New, "!mutantenv.Getenv(\""+MutantVariable+"\") ==", "mutantenv.Getenv(\""+MutantVariable+"\") !=")
		out = append(out, e)
	}
	return out
}
