package overlay

// stormy are defects that show where faults meet faults: a second one comes before a server has done with the first.
func stormy() []Mutant {
	return []Mutant{
		{"sender-ends-unheard", "whoever waits for the answers to what is sent ahead is not told that the sender has ended", Edit{"raftnode/pipeline.go",
			"\t\tp.answers <- noAnswer{}\n", "\t\tif !ON {\n\t\t\tp.answers <- noAnswer{}\n\t\t}\n"}},
		{"who-asks-is-ended", "a goroutine that asks a server for its standing is ended by a log that cannot be read", Edit{"raftnode/standing.go",
			"h.leads && n.log.peek(2, &second) == nil {", "h.leads && (ON && n.log.GetLog(2, &second) == nil || !ON && n.log.peek(2, &second) == nil) {"}},
		{"job-beside-another", "a CronJob that forbids it has a Job beside one that its status does not tell of", Edit{"workloads/crons.go",
			"\tif len(forgotten) == 0 {\n", "\tif len(forgotten) == 0 || ON {\n"}},
	}
}
