package overlay

import "strings"

// Mutant is a defect that the simulation has to find.
type Mutant struct {
	Name string
	What string // is wrong
	Edit
}

// MutantVariable is the environment's variable that has the name of the mutant that
// is at work. All of them are in one build.
const MutantVariable = "BERTH_SIM_MUTANT"

// Mutants are the defects. ON in a text is a condition: that the mutant is at work.
func Mutants() []Mutant {
	return []Mutant{
		{"log-not-synced", "an entry is acknowledged before it is on the disk", Edit{"raftlog/write.go",
			"\t_, err = s.file.WriteAt(l.buffer, s.end)\n\tif err == nil {\n", "\t_, err = s.file.WriteAt(l.buffer, s.end)\n\tif err == nil && !ON {\n"}},
		{"vote-not-kept", "a term and a vote are told before they are on the disk", Edit{"raftnode/promises.go",
			"\tif synced {\n\t\t// Again", "\tif synced && !ON {\n\t\t// Again"}},
		{"read-not-confirmed", "a leader answers a read without asking whether it still leads", Edit{"raftnode/read.go",
			"\t\tif l.Leader {\n", "\t\tif l.Leader && ON {\n\t\t\treturn n.raft.CommitIndex(), nil\n\t\t}\n\t\tif l.Leader {\n"}},
		{"unknown-is-tried-again", "what may have been done is done again", Edit{"server/propose.go",
			"\t\tresults, err := s.proposeOnce(ctx, ps, &encoded)\n\t\tif err == nil || !errors.Is(err, apiserver.ErrNoLeader) {\n",
			"\t\tresults, err := s.proposeOnce(ctx, ps, &encoded)\n\t\tif err == nil || !errors.Is(err, apiserver.ErrNoLeader) && !(ON && errors.Is(err, apiserver.ErrUnknownOutcome)) {\n"}},
		{"unknown-is-no", "what may have been done is told as not done", Edit{"server/propose.go",
			"\t\treturn fmt.Errorf(\"%w: %w\", apiserver.ErrUnknownOutcome, err)\n\tcase is(raftnode.ErrTooLarge):\n",
			"\t\tif ON {\n\t\t\treturn fmt.Errorf(\"%w: %w\", apiserver.ErrBusy, err)\n\t\t}\n" +
				"\t\treturn fmt.Errorf(\"%w: %w\", apiserver.ErrUnknownOutcome, err)\n\tcase is(raftnode.ErrTooLarge):\n"}},
		{"nobody-woken-by-nodes", "who waits for room is not looked for", Edit{"fsm/wake.go",
			"\t\ttx.lookAt(&c.Nodes[i], woken)\n", "\t\tif !ON {\n\t\t\ttx.lookAt(&c.Nodes[i], woken)\n\t\t}\n"}},
		{"too-much-cpu", "a pod fits where there is too little cpu", Edit{"model/check.go",
			"\tif want.MilliCPU > 0 && want.MilliCPU > alloc.MilliCPU-used.MilliCPU {\n", "\tif !ON && want.MilliCPU > 0 && want.MilliCPU > alloc.MilliCPU-used.MilliCPU {\n"}},
		{"never-is-on-failure", "a container that never restarts does when it has failed", Edit{"worker/pod_run.go",
			"\tcase corev1.RestartPolicyNever:\n\t\treturn false\n", "\tcase corev1.RestartPolicyNever:\n\t\treturn ON && code != 0\n"}},
		{"containers-forgotten", "a worker that starts again does not look at what runs", Edit{"worker/core.go",
			"\tpods = slices.Clone(pods)\n", "\tif ON {\n\t\tpods = nil\n\t}\n\tpods = slices.Clone(pods)\n"}},
		{"feed-skips-one", "who follows the changes is not told of one when there are many", Edit{"store/feed.go",
			"\tcopy(out[copied:], f.ring)\n", "\tcopy(out[copied:], f.ring)\n\tif ON && n > 5 {\n\t\tout = append(out[:2], out[3:]...)\n\t}\n"}},
	}
}

// On is the edits with which a build has every mutant, none of which is at work
// unless the environment says so.
func On(mutants []Mutant) []Edit {
	var out []Edit
	imported := map[string]bool{}
	for _, m := range mutants {
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
