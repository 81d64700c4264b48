package fsm

import "github.com/berth-dev/berth/store"

// LogVersion is the newest version of the log's rules that this version of Berth
// knows: which commands there are, and what each of them does. Every entry says
// by which version it is to be carried out, the lowest that all voting servers
// have told; a leader proposes no command of a later one, and a rule that is
// changed asks the state's Version which way it goes.
const LogVersion = 32

// commands is the registry: one line a command.
var commands = []store.Registration[Command]{
	{Number: 1, Since: 1, New: func() Command { return new(CreatePriorityClass) }},
	{Number: 2, Since: 1, New: func() Command { return new(UpdatePriorityClass) }},
	{Number: 3, Since: 1, New: func() Command { return new(DeletePriorityClass) }},
	{Number: 4, Since: 1, New: func() Command { return new(AdmitPod) }},
	{Number: 5, Since: 1, New: func() Command { return new(AdmitPods) }},
	{Number: 6, Since: 1, New: func() Command { return new(UpdatePod) }},
	{Number: 7, Since: 1, New: func() Command { return new(DeletePod) }},
	{Number: 8, Since: 1, New: func() Command { return new(BindPod) }},
	{Number: 9, Since: 1, New: func() Command { return new(EvictPod) }},
	{Number: 10, Since: 1, New: func() Command { return new(ReportPods) }},
	{Number: 11, Since: 1, New: func() Command { return new(ApplyPlan) }},
	{Number: 12, Since: 1, New: func() Command { return new(RegisterNode) }},
	{Number: 13, Since: 1, New: func() Command { return new(PutNode) }},
	{Number: 14, Since: 1, New: func() Command { return new(DeleteNode) }},
	{Number: 15, Since: 1, New: func() Command { return new(SetNodeHealth) }},
	{Number: 16, Since: 1, New: func() Command { return new(PutNamespace) }},
	{Number: 17, Since: 1, New: func() Command { return new(DeleteNamespace) }},
	{Number: 18, Since: 1, New: func() Command { return new(PutObject) }},
	{Number: 19, Since: 1, New: func() Command { return new(DeleteObject) }},
	{Number: 20, Since: 1, New: func() Command { return new(ConfigureScheduler) }},
	{Number: 21, Since: 1, New: func() Command { return new(ReleaseNominations) }},
	{Number: 22, Since: 1, New: func() Command { return new(PutEvent) }},
	{Number: 23, Since: 1, New: func() Command { return new(DeleteEvents) }},
	{Number: 24, Since: 1, New: func() Command { return new(Checkpoint) }},
	{Number: 25, Since: 1, New: func() Command { return new(PutDisruptionBudget) }},
	{Number: 26, Since: 1, New: func() Command { return new(DeleteDisruptionBudget) }},
	{Number: 30, Since: 1, New: func() Command { return new(ScaleIn) }},
	{Number: 31, Since: 1, New: func() Command { return new(ClaimPods) }},
	{Number: 32, Since: 1, New: func() Command { return new(SetStatus) }},
	{Number: 33, Since: 1, New: func() Command { return new(CollectGarbage) }},
	{Number: 34, Since: 2, New: func() Command { return new(StageSnapshot) }},
	{Number: 35, Since: 2, New: func() Command { return new(AbandonSnapshot) }},
	{Number: 36, Since: 2, New: func() Command { return new(RestoreSnapshot) }},
	{Number: 37, Since: 4, New: func() Command { return new(AddSigningKey) }},
	{Number: 38, Since: SinceRelease, New: func() Command { return new(ReleasePod) }},
}

var registry = store.NewRegistry(LogVersion, commands)

// laterCommand is a command that may need a later version than it was introduced by,
// for what it carries.
type laterCommand interface{ since() int }

// Since is the LogVersion from which on servers know a command.
func Since(c Command) int {
	if l, ok := c.(laterCommand); ok {
		return max(registry.Since(c), l.since())
	}
	return registry.Since(c)
}
