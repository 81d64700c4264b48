package overlay

// consensus are defects of the log, the votes and the disk.
func consensus() []Mutant {
	return []Mutant{
		{"log-not-synced", "an entry is acknowledged before it is on the disk", Edit{"raftlog/write.go",
			"\t_, err = s.file.WriteAt(l.buffer, s.end)\n\tif err == nil {\n", "\t_, err = s.file.WriteAt(l.buffer, s.end)\n\tif err == nil && !ON {\n"}},
		{"vote-not-kept", "a term and a vote are told before they are on the disk", Edit{"raftnode/promises.go",
			"\tif synced {\n\t\t// Again", "\tif synced && !ON {\n\t\t// Again"}},
		{"rename-not-synced", "a file that was replaced may be the old one after a loss of power", Edit{"atomicfile/atomicfile.go",
			"\t\treturn errors.Join(err, d.Disk.Remove(temp))\n\t}\n\treturn disk.SyncDir(d, dir)\n",
			"\t\treturn errors.Join(err, d.Disk.Remove(temp))\n\t}\n\tif ON {\n\t\treturn nil\n\t}\n\treturn disk.SyncDir(d, dir)\n"}},
		{"one-entry-too-many-stays", "of the entries that a new leader replaces one stays", Edit{"raftlog/write.go",
			"\tkeep := int(index - s.first)\n",
			"\tkeep := int(index - s.first)\n\tif ON {\n\t\tkeep++\n\t}\n"}},
		{"acknowledged-not-kept", "what a server has acknowledged is not known beside its log", Edit{"raftnode/promises.go",
			"\t\tif r.Acknowledged.before(at) {\n\t\t\tr.Acknowledged = at\n\t\t}\n\t\tif servers && !at.before(r.Acknowledged) {",
			"\t\tif r.Acknowledged.before(at) && !ON {\n\t\t\tr.Acknowledged = at\n\t\t}\n\t\tif servers && !at.before(r.Acknowledged) {"}},
		{"amnesiac-votes", "a server that has lost its log votes", Edit{"raftnode/gate.go",
			"\t\treturn &raft.RequestVoteResponse{}, g.mayVote()\n\tcase *raft.RequestPreVoteRequest:\n\t\treturn &raft.RequestPreVoteResponse{}, g.mayVote()\n",
			"\t\tif ON {\n\t\t\treturn nil, nil\n\t\t}\n\t\treturn &raft.RequestVoteResponse{}, g.mayVote()\n\tcase *raft.RequestPreVoteRequest:\n\t\tif ON {\n\t\t\treturn nil, nil\n\t\t}\n\t\treturn &raft.RequestPreVoteResponse{}, g.mayVote()\n"}},
		{"amnesiac-leads-alone", "a server that has lost what came after the time when it was alone elects itself", Edit{"raftnode/node.go",
			"\tif n.waits.Load() {\n\t\tconf.Heart", "\tif n.waits.Load() && !ON {\n\t\tconf.Heart"}},
		{"new-leader-reads-early", "a leader answers reads before it knows what its predecessor acknowledged", Edit{"raftnode/read.go",
			"\t\tl, changed := n.office.get()\n\t\tif l.Leader {\n",
			"\t\tif ON && n.IsLeader() {\n\t\t\treturn n.raft.CommitIndex(), nil\n\t\t}\n\t\tl, changed := n.office.get()\n\t\tif l.Leader {\n"}},
		{"vote-read-not-synced", "a term and a vote that a killed process has not synced are read at the next start, and kept", Edit{"raftnode/promises.go",
			"err = p.read(); err == nil && !noSync {", "err = p.read(); err == nil && !noSync && !ON {"}},
		{"heartbeat-sets-term-back", "a heartbeat that comes late is taken beside the main thread whatever its term is", Edit{"raftnode/heartbeat.go",
			"\t\tif c, ok := rpc.Command.(*raft.AppendEntriesRequest); ok",
			"\t\tif ON {\n\t\t\thandle(rpc)\n\t\t\treturn\n\t\t}\n\t\tif c, ok := rpc.Command.(*raft.AppendEntriesRequest); ok"}},
	}
}

// upgrades are defects of clusters whose servers are of several versions.
func upgrades() []Mutant {
	return []Mutant{
		{"rules-too-new", "an entry is carried out by rules that not every server knows", Edit{"raftnode/proposer.go",
			"\t\tlowest = min(lowest, p.c.MinServerVersion())\n", "\t\tif !ON {\n\t\t\tlowest = min(lowest, p.c.MinServerVersion())\n\t\t}\n"}},
	}
}

// state are defects of what is replicated.
func state() []Mutant {
	return []Mutant{
		{"map-order", "reports are taken in the order of a map", Edit{"fsm/cmd_report_pods.go",
			"\tfor i := range c.Reports {\n",
			"\tif ON {\n\t\tany := map[int]bool{}\n\t\tfor i := range c.Reports {\n\t\t\tany[i] = true\n\t\t}\n\t\tfor i := range any {\n\t\t\tr := &c.Reports[i]\n\t\t\ttx.part(r.Key, func() { tx.reportPod(c.Node, r) })\n\t\t}\n\t\treturn Result{}\n\t}\n\tfor i := range c.Reports {\n"}},
		{"snapshot-lacks-a-table", "a snapshot is without its last table", Edit{"store/snapshot.go",
			"\ttables = inhabited(tables)\n\theader",
			"\ttables = inhabited(tables)\n\tif ON {\n\t\ttables = tables[:max(len(tables)-1, 0)]\n\t}\n\theader"}},
		{"revision-not-compared", "an update of what somebody else has changed is taken", Edit{"fsm/resource.go",
			"\tcase p.Revision != 0 &&",
			"\tcase !ON && p.Revision != 0 &&"}},
		{"finalizer-skipped", "an object goes although a finalizer holds it", Edit{"fsm/ownership.go",
			"\tif len(finalizers) == 0 {\n\t\tremove(tx, tx.view.Objects, key)\n",
			"\tif len(finalizers) == 0 || ON {\n\t\tremove(tx, tx.view.Objects, key)\n"}},
		{"time-is-the-wall-clock", "the state's time is what the wall clock shows", Edit{"clock/clock.go",
			"\treturn c.advance(c.source())\n}\n\n// Time is",
			"\tif ON {\n\t\treturn c.source().WallUnixNano\n\t}\n\treturn c.advance(c.source())\n}\n\n// Time is"}},
		{"budget-gives-one-more", "a budget allows one disruption too many", Edit{"budgets/health.go",
			"\t\th.Allowed = max(0, h.Current-h.Desired)\n",
			"\t\th.Allowed = max(0, h.Current-h.Desired)\n\t\tif ON {\n\t\t\th.Allowed++\n\t\t}\n"}},
		{"evicted-twice", "who is on its way out is evicted again", Edit{"fsm/disrupt.go",
			"\tcondition := disruptionTarget(tx, by.reason, by.message)\n",
			"\tcondition := disruptionTarget(tx, by.reason, by.message)\n\tif ON {\n\t\tif next, gone := tx.deletePod(key, pod, by.graceSeconds, nil); !gone {\n\t\t\tpod = next\n\t\t}\n\t}\n"}},
		{"claim-of-two-pods", "two pods use a claim that one at a time may use", Edit{"fsm/volumes.go",
			"\t\tif !ok || !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {\n", "\t\tif ON || !ok || !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {\n"}},
		{"devices-not-in-use", "a pod is bound, and its claims of devices do not say that it uses them", Edit{"fsm/devices.go",
			"\t\tif !ok || resourceclaim.IsReservedForPod(pod, old, false) {\n\t\t\tcontinue\n", "\t\tif ON || !ok || resourceclaim.IsReservedForPod(pod, old, false) {\n\t\t\tcontinue\n"}},
		{"devices-wake-nobody", "whoever waits for devices is not told that it has some", Edit{"fsm/devices.go",
			"\tif was == nil || is == nil || !sameOffer(was, is) {\n\t\tw.Claims", "\tif !ON && (was == nil || is == nil || !sameOffer(was, is)) {\n\t\tw.Claims"}},
		{"devices-given-twice", "devices of which nothing is left are given again, and nobody refuses it", Edit{"fsm/devices.go",
			"\tif other == \"\" {\n\t\treturn Result{}, true\n", "\tif ON || other == \"\" {\n\t\treturn Result{}, true\n"}},
		{"devices-given-twice", "devices are given that others have", Edit{"workloads/devices/offer.go",
			"func(c *resourcev1.ResourceClaim) { o.take(c.Status.Allocation) })\n", "func(c *resourcev1.ResourceClaim) {\n\t\tif !ON {\n\t\t\to.take(c.Status.Allocation)\n\t\t}\n\t})\n"}},
		{"volume-not-let-go", "a volume that nobody claims any more stays", Edit{"controller/local_volumes.go",
			"\t\tcase volume.DeletionTimestamp != nil && model.IsLetGo(volume)", "\t\tcase !ON && volume.DeletionTimestamp != nil && model.IsLetGo(volume)"}},
		{"quota-charged-twice", "a pod is charged to its quota twice", Edit{"quotas/index.go",
			"\t\t\tmore = is.uses()\n", "\t\t\tif more = is.uses(); ON && was == nil {\n\t\t\t\tmore = more.plus(more)\n\t\t\t}\n"}},
		{"revisions-given-again", "who goes on without a quorum gives out revisions that others have given out", Edit{"raftnode/recovery.go",
			"\tscratch.skipped = lostRevisions\n", "\tif !ON {\n\t\tscratch.skipped = lostRevisions\n\t}\n"}},
		{"feed-skips-one", "who follows the changes is not told of one when there are many", Edit{"store/feed.go",
			"\treturn changes[from:to:to], nil\n",
			"\tif ON && to-from > 5 {\n\t\treturn append(append([]Change(nil), changes[from:from+2]...), changes[from+3:to]...), nil\n\t}\n\treturn changes[from:to:to], nil\n"}},
		{"restore-told-in-two", "what an entry makes after it has replaced the state comes after the state", Edit{"fsm/state.go",
			"\t\t\ts.feed.Reset(tx.replaced, changes, publish)\n",
			"\t\t\tif ON {\n\t\t\t\ts.feed.Reset(tx.replaced, nil, publish)\n" +
				"\t\t\t\ttime.Sleep(1) // others run meanwhile\n\t\t\t\ts.feed.Append(changes, publish)\n\t\t\t\treturn\n\t\t\t}\n\t\t\ts.feed.Reset(tx.replaced, changes, publish)\n"}},
	}
}

// scheduling are defects of who goes where, and when.
func scheduling() []Mutant {
	return []Mutant{
		{"nobody-woken-by-nodes", "who waits for room is not looked for", Edit{"fsm/wake.go",
			"\t\ttx.lookAt(&c.Nodes[i], woken)\n", "\t\tif !ON {\n\t\t\ttx.lookAt(&c.Nodes[i], woken)\n\t\t}\n"}},
		{"nobody-woken-by-pods", "who waits for room is not looked for when a pod leaves", Edit{"fsm/wake_rows.go",
			"\t\tw.Freed(from)\n\t\thow",
			"\t\tif !ON {\n\t\t\tw.Freed(from)\n\t\t}\n\t\thow"}},
		{"too-much-cpu", "a pod fits where there is too little cpu", Edit{"model/check.go",
			"\tif want.MilliCPU > 0 && want.MilliCPU > alloc.MilliCPU-used.MilliCPU {\n", "\tif !ON && want.MilliCPU > 0 && want.MilliCPU > alloc.MilliCPU-used.MilliCPU {\n"}},
		{"cordon-ignored", "a pod is bound to a node that takes nobody", Edit{"model/check.go",
			"\tif n.Spec.Unschedulable && !tolerates",
			"\tif !ON && n.Spec.Unschedulable && !tolerates"}},
		{"taints-ignored", "a pod is bound to a node whose taint it does not tolerate", Edit{"model/check.go",
			"if t := &n.Spec.Taints[i]; keepsOut(t) && !tolerates(c.Tolerations, t) {\n\t\t\treturn f |",
			"if t := &n.Spec.Taints[i]; !ON && keepsOut(t) && !tolerates(c.Tolerations, t) {\n\t\t\treturn f |"}},
		{"selector-ignored", "a pod is bound to a node that it did not ask for", Edit{"model/check.go",
			"\tif !matchesAffinity(c, n) {\n",
			"\tif !ON && !matchesAffinity(c, n) {\n"}},
		{"nomination-not-counted", "the room of who is nominated is given to others", Edit{"usage/nomination.go",
			"\treturn claimed >= priority && !model",
			"\treturn !ON && claimed >= priority && !model"}},
		{"room-not-given-back", "the room of a pod that has left is not free", Edit{"usage/index.go",
			"\t\t\tx.used.remove(from, was)\n",
			"\t\t\tif !ON || to != \"\" {\n\t\t\t\tx.used.remove(from, was)\n\t\t\t}\n"}},
	}
}

// service are defects of requests, watches and streams.
func service() []Mutant {
	return []Mutant{
		{"leader-of-before-writes", "a controller writes for a leader that leads no longer", Edit{"server/propose.go",
			"(*seat); ok {\n\t\treturn s.proposeHere", "(*seat); ok && !ON {\n\t\treturn s.proposeHere"}},
		{"who-asks-is-ended", "a goroutine that asks a server for its standing is ended by a log that cannot be read", Edit{"raftnode/standing.go",
			"h.leads && n.log.peek(2, &second) == nil {", "h.leads && (ON && n.log.GetLog(2, &second) == nil || !ON && n.log.peek(2, &second) == nil) {"}},
		{"job-beside-another", "a CronJob that forbids it has a Job beside one that its status does not tell of", Edit{"workloads/crons.go",
			"\tif len(forgotten) == 0 {\n", "\tif len(forgotten) == 0 || ON {\n"}},
		{"unknown-is-tried-again", "what may have been done is done again", Edit{"server/propose.go",
			"\t\tresults, err := s.proposeOnce(ctx, ps, &encoded)\n\t\tif err == nil || !errors.Is(err, apiserver.ErrNoLeader) {\n",
			"\t\tresults, err := s.proposeOnce(ctx, ps, &encoded)\n\t\tif err == nil || !errors.Is(err, apiserver.ErrNoLeader) && !(ON && errors.Is(err, apiserver.ErrUnknownOutcome)) {\n"}},
		{"unknown-is-no", "what may have been done is told as not done", Edit{"server/propose.go",
			"\t\treturn fmt.Errorf(\"%w: %w\", apiserver.ErrUnknownOutcome, err)\n\tcase is(raftnode.ErrTooLarge, rpc.ErrTooLarge):\n",
			"\t\tif ON {\n\t\t\treturn fmt.Errorf(\"%w: %w\", apiserver.ErrBusy, err)\n\t\t}\n" +
				"\t\treturn fmt.Errorf(\"%w: %w\", apiserver.ErrUnknownOutcome, err)\n\tcase is(raftnode.ErrTooLarge, rpc.ErrTooLarge):\n"}},
		{"follower-reads-alone", "a follower answers a read without asking the leader", Edit{"server/propose.go",
			"\tif errors.As(err, &elsewhere) {\n\t\taddr",
			"\tif errors.As(err, &elsewhere) {\n\t\tif ON {\n\t\t\treturn nil\n\t\t}\n\t\taddr"}},
		{"renewal-forgotten", "the renewal of a lease is taken and not remembered", Edit{"server/leases.go",
			"\th.held[r.Node] = renewal{", "\tif ON {\n\t\treturn true\n\t}\n\th.held[r.Node] = renewal{"}},
		{"renewal-taken-back", "a renewal of a lease that is overtaken takes back a newer one", Edit{"server/leases.go",
			"renewed; overtaken > 0 && overtaken <", "renewed; !ON && overtaken > 0 && overtaken <"}},
		{"renewal-kept-too-long", "a lease counts as renewed some minutes after it was", Edit{"server/leases.go",
			"\tknown, ok := h.held[node]\n", "\tknown, ok := h.held[node]\n\tif ON {\n\t\tknown.seenUnixNano += storeRenewal.Nanoseconds()\n\t}\n"}},
		{"right-outlives-its-binding", "a right is found by a binding that is deleted", Edit{"fsm/kind_roles.go",
			"\t\tgrantsOf(old, func(at string) { v.grants.Delete(at) })\n", "\t\tif !ON {\n\t\t\tgrantsOf(old, func(at string) { v.grants.Delete(at) })\n\t\t}\n"}},
		{"right-comes-late", "a server refuses by roles that are not the newest", Edit{"apiserver/roles/authorizer.go",
			"|| !allowed && sure.Load() {", "|| !allowed && (ON || sure.Load()) {"}},
		{"watch-misses-one", "of many changes at once watches are not told of the first", Edit{"apiserver/hub.go",
			"\tfor i := range changes {\n\t\tc := &changes[i]\n\t\tkinds,",
			"\tfor i := range changes {\n\t\tif ON && i == 0 && len(changes) > 3 {\n\t\t\tcontinue\n\t\t}\n\t\tc := &changes[i]\n\t\tkinds,"}},
		{"streams-not-reported", "the leader does not hear which workers other servers hear", Edit{"server/heartbeats.go",
			"\taddr, ok := s.serverAddr(id)\n\tif !ok {\n",
			"\taddr, ok := s.serverAddr(id)\n\tif !ok || ON {\n"}},
		{"stream-misses-some", "a worker that comes back is not told what changed at once", Edit{"rpc/outbox.go",
			"\t\tif u := o.updates[uid]; u.Revision <= o.floor {\n",
			"\t\tif u := o.updates[uid]; u.Revision <= o.floor || ON {\n"}},
		{"refused-report-forgotten", "a report that no server took is forgotten", Edit{"rpc/reports.go",
			"\tif a.Error != \"\" {\n",
			"\tif a.Error != \"\" && !ON {\n"}},
		{"newer-report-forgotten", "a report that is newer than what was acknowledged is forgotten", Edit{"rpc/reports.go",
			"\t\tcase r.pods[uid].seq != seq:\n",
			"\t\tcase !ON && r.pods[uid].seq != seq:\n"}},
		{"report-lost-with-its-stream", "a report whose stream broke is not sent again", Edit{"rpc/reports.go",
			"\tr.flight, r.hold = nil, time.Time{}\n",
			"\tif !ON {\n\t\tr.flight = nil\n\t}\n\tr.hold = time.Time{}\n"}},
	}
}

// workloads are defects of what Kubernetes' controllers hear of, and of when they run.
func workloads() []Mutant {
	return []Mutant{
		{"running-not-told", "controllers are not told that a pod has begun to run", Edit{"informers/interest.go",
			"\tif i == nil {\n\t\treturn true\n\t}\n",
			"\tif i == nil {\n\t\treturn true\n\t}\n\tif pod, ok := now.(*corev1.Pod); ON && ok && old != nil && pod.Status.Phase == corev1.PodRunning {\n\t\treturn false\n\t}\n"}},
		{"times-pass-at-the-begin", "who leads anew leaves out the times at which Jobs were to be made for a minute", Edit{"workloads/controllers.go",
			"\t\t\treturn cronjob.NewControllerV2(ctx, f.Batch().V1().Jobs(), f.Batch().V1().CronJobs(), withKnownJobs{c, f.Batch()})\n",
			"\t\t\tmade, err := cronjob.NewControllerV2(ctx, f.Batch().V1().Jobs(), f.Batch().V1().CronJobs(), withKnownJobs{c, f.Batch()})\n\t\t\tif ON {\n\t\t\t\treturn mutantLate{made}, err\n\t\t\t}\n" +
				"\t\t\treturn made, err\n"}},
	}
}

// covers are what would cover a defect, taken away with it, and what one needs beside.
func covers() []Mutant {
	return []Mutant{
		{"acknowledged-not-kept", "nobody tells it what it has acknowledged", Edit{"raftnode/reach.go",
			"\tif known == nil || known.Incarnation", "\tif ON || known == nil || known.Incarnation"}},
		{"amnesiac-votes", "its votes are kept", Edit{"raftnode/promises.go",
			"\tcase keyLastVoteCand:\n", "\tcase keyLastVoteCand:\n\t\tif ON {\n\t\t\treturn p.change(true, func(r *promisesRecord) { r.Vote = append([]byte(nil), val...) })\n\t\t}\n"}},
		{"amnesiac-leads-alone", "its own vote counts", Edit{"raftnode/promises.go",
			"was told what it lacks.\n\t\tif err := p.mayVote(); err != nil {\n", "was told what it lacks.\n\t\tif err := p.mayVote(); err != nil && !ON {\n"}},
		{"amnesiac-leads-alone", "it writes what it likes", Edit{"raftnode/seal.go",
			"\tif s.making() {\n\t\tif err := s.mayMake(); err != nil {\n", "\tif s.making() {\n\t\tif err := s.mayMake(); err != nil && !ON {\n"}},
		{"amnesiac-leads-alone", "it does not wait when it is told", Edit{"raftnode/waiting.go",
			"\t\tif lacks != nil {\n\t\t\tc.Heart", "\t\tif lacks != nil && !ON {\n\t\t\tc.Heart"}},
		{"times-pass-at-the-begin", "a controller that begins late", Edit{"workloads/controllers.go",
			"// controller is one of Kubernetes' controllers.\n",
			"type mutantLate struct{ controller }\n\nfunc (l mutantLate) Run(ctx context.Context, workers int) {\n\tselect {\n\tcase <-time.After(time.Minute):\n\t\tl.controller.Run(ctx, workers)\n" +
				"\tcase <-ctx.Done():\n\t}\n}\n\n// controller is one of Kubernetes' controllers.\n"}},
		{"leader-of-before-writes", "what is under way does not end with the leadership", Edit{"server/fence.go",
			"\tif err := f.check(); err != nil {\n\t\treturn nil, nil, err\n\t}\n\tat :=",
			"\tif ON {\n\t\tlate := *f\n\t\tctx, late.lasting, f = context.WithoutCancel(ctx), context.WithoutCancel(f.lasting), &late\n\t}\n" +
				"\tif err := f.check(); err != nil {\n\t\treturn nil, nil, err\n\t}\n\tat :="}},
	}
}

// nodes are defects of the pods' lives on their nodes.
func nodes() []Mutant {
	return []Mutant{
		{"never-is-on-failure", "a container that never restarts does when it has failed", Edit{"worker/pod_run.go",
			"\tcase corev1.RestartPolicyNever:\n\t\treturn false\n", "\tcase corev1.RestartPolicyNever:\n\t\treturn ON && code != 0\n"}},
		{"containers-forgotten", "a worker that starts again does not look at what runs", Edit{"worker/core.go",
			"\tpods = slices.Clone(pods)\n", "\tif ON {\n\t\tpods = nil\n\t}\n\tpods = slices.Clone(pods)\n"}},
		{"never-started-again", "a container that has crashed is not started again", Edit{"worker/pod_run.go",
			"\treturn c.role != roleInit || code != 0\n",
			"\treturn c.role != roleInit && (!ON || code == 0) || c.role == roleInit && code != 0\n"}},
		{"started-twice", "a container is started again while it starts", Edit{"worker/pod_run.go",
			"\tc.state = ctrStarting\n",
			"\tif !ON {\n\t\tc.state = ctrStarting\n\t}\n"}},
		{"grace-cut-short", "a pod gets a third of its grace", Edit{"worker/pod_stop.go",
			"\t\tp.stopAt, p.grace = now, grace\n",
			"\t\tif ON {\n\t\t\tgrace /= 3\n\t\t}\n\t\tp.stopAt, p.grace = now, grace\n"}},
		{"term-sent-once", "TERM that the runtime did not take is not sent again", Edit{"worker/pod.go",
			"\t\tc.termRetryAt = now.Add(time.Second)",
			"\t\tif !ON {\n\t\t\tc.termRetryAt = now.Add(time.Second)\n\t\t}"}},
		{"exit-code-lost", "a container is said to have ended well, however it did", Edit{"worker/status.go",
			"terminated(e *runtime.Exit, id string) *corev1.ContainerStateTerminated {\n",
			"terminated(e *runtime.Exit, id string) *corev1.ContainerStateTerminated {\n\tif ON {\n\t\tcopied := *e\n\t\tcopied.Code, e = 0, &copied\n\t}\n"}},
		{"records-gone-too-early", "what the runtime keeps of a deleted pod is removed before the servers have how it ended", Edit{"worker/pod_stop.go",
			"endsTaken(now time.Time) bool {\n", "endsTaken(now time.Time) bool {\n\tif ON {\n\t\treturn true\n\t}\n"}},
		{"gone-before-its-end", "a pod is said to be gone while its containers end", Edit{"worker/core.go",
			"Removed: p.removal == removalDone && !p.static,",
			"Removed: p.removal == removalDone || ON && !p.stopAt.IsZero(),"}},
	}
}
