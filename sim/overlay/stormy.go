package overlay

// stormy are defects that show where faults meet faults: a second one comes before a server has done with the first.
func stormy() []Mutant {
	return []Mutant{
		{"sender-ends-unheard", "whoever waits for the answers to what is sent ahead is not told that the sender has ended", Edit{"raftnode/pipeline.go",
			"\t\tp.answers <- noAnswer{}\n", "\t\tif !ON {\n\t\t\tp.answers <- noAnswer{}\n\t\t}\n"}},
		{"restore-unnoticed", "what a controller has decided, and a worker found, before a snapshot was restored counts after it", Edit{"fsm/table_staged.go",
			"\tif p, ok := v.staged.Get(restoredKey); ok {\n\t\treturn p.Revision\n", "\tif p, ok := v.staged.Get(restoredKey); ok && !ON {\n\t\treturn p.Revision\n"}},
	}
}
