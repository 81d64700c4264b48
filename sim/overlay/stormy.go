package overlay

// stormy are defects that show where faults meet faults: a second one comes before a server has done with the first.
func stormy() []Mutant {
	return []Mutant{
		{"sender-ends-unheard", "whoever waits for the answers to what is sent ahead is not told that the sender has ended", Edit{"raftnode/pipeline.go",
			"\t\tp.answers <- noAnswer{}\n", "\t\tif !ON {\n\t\t\tp.answers <- noAnswer{}\n\t\t}\n"}},
		{"who-asks-is-ended", "a goroutine that asks a server for its standing is ended by a log that cannot be read", Edit{"raftnode/standing.go",
			"h.leads && n.log.peek(2, &second) == nil {", "h.leads && (ON && n.log.GetLog(2, &second) == nil || !ON && n.log.peek(2, &second) == nil) {"}},
		{"restore-told-in-two", "what an entry makes after it has replaced the state comes after the state", Edit{"fsm/state.go",
			"\t\t\ts.feed.Reset(tx.replaced, changes, publish)\n",
			"\t\t\tif ON {\n\t\t\t\ts.feed.Reset(tx.replaced, nil, publish)\n" +
				"\t\t\t\tothers := make(chan struct{})\n\t\t\t\tgo close(others) // they run meanwhile\n\t\t\t\t<-others\n\t\t\t\ts.feed.Append(changes, publish)\n\t\t\t\treturn\n\t\t\t}\n\t\t\ts.feed.Reset(tx.replaced, changes, publish)\n"}},
		{"renewal-taken-back", "a renewal of a lease that is overtaken takes back a newer one", Edit{"server/leases.go",
			"renewed; overtaken > 0 && overtaken <", "renewed; !ON && overtaken > 0 && overtaken <"}},
		{"job-beside-another", "a CronJob that forbids it has a Job beside one that its status does not tell of", Edit{"workloads/crons.go",
			"\tif len(forgotten) == 0 {\n", "\tif len(forgotten) == 0 || ON {\n"}},
		{"records-gone-too-early", "what the runtime keeps of a deleted pod is removed before the servers have how it ended", Edit{"worker/pod_stop.go",
			"endsTaken(now time.Time) bool {\n", "endsTaken(now time.Time) bool {\n\tif ON {\n\t\treturn true\n\t}\n"}},
	}
}
