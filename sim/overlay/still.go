package overlay

// still are defects that nobody sees where much is written: what is wrong is right again with the next write.
func still() []Mutant {
	return []Mutant{
		{"log-read-not-synced", "entries that a killed process has not synced are read at the next start, and acknowledged", Edit{"raftlog/log.go",
			"\tif l.options.NoSync {\n\t\treturn nil\n\t}\n\treturn f.Sync()\n", "\tif l.options.NoSync || ON && l.buffer == nil {\n\t\treturn nil\n\t}\n\treturn f.Sync()\n"}},
		{"forgotten-job-sought-nowhere", "a CronJob's Job of which the leader before told nobody is asked for in no namespace, again and again", Edit{"workloads/crons.go",
			"\tjob.Namespace = j.namespace\n", "\tif !ON {\n\t\tjob.Namespace = j.namespace\n\t}\n"}},
	}
}
