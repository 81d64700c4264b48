package fsm

import (
	"fmt"
	"reflect"
)

// registration gives a command its permanent number. Numbers are never used
// again; Since is the version of the log's vocabulary (see LogVersion) from
// which on a server knows the command.
type registration struct {
	Number uint16
	Since  int
	New    func() Command
}

// LogVersion is the vocabulary that this version of Berth knows. A leader
// proposes a command only when every server's advertised LogVersion is at
// least the command's.
const LogVersion = 1

// commands is the registry: one line a command.
var commands = []registration{
	{1, 1, func() Command { return new(CreatePriorityClass) }},
	{2, 1, func() Command { return new(UpdatePriorityClass) }},
	{3, 1, func() Command { return new(DeletePriorityClass) }},
	{4, 1, func() Command { return new(AdmitPod) }},
	{5, 1, func() Command { return new(AdmitPods) }},
	{6, 1, func() Command { return new(UpdatePod) }},
	{7, 1, func() Command { return new(DeletePod) }},
	{8, 1, func() Command { return new(BindPod) }},
	{9, 1, func() Command { return new(EvictPod) }},
	{10, 1, func() Command { return new(ReportPods) }},
	{11, 1, func() Command { return new(ApplyPlan) }},
	{12, 1, func() Command { return new(RegisterNode) }},
	{13, 1, func() Command { return new(PutNode) }},
	{14, 1, func() Command { return new(DeleteNode) }},
	{15, 1, func() Command { return new(SetNodeHealth) }},
	{16, 1, func() Command { return new(PutNamespace) }},
	{17, 1, func() Command { return new(DeleteNamespace) }},
	{18, 1, func() Command { return new(PutObject) }},
	{19, 1, func() Command { return new(DeleteObject) }},
	{20, 1, func() Command { return new(ConfigureScheduler) }},
	{21, 1, func() Command { return new(ReleaseNominations) }},
	{22, 1, func() Command { return new(PutEvent) }},
	{23, 1, func() Command { return new(DeleteEvents) }},
	{24, 1, func() Command { return new(Checkpoint) }},
	{25, 1, func() Command { return new(PutDisruptionBudget) }},
	{26, 1, func() Command { return new(DeleteDisruptionBudget) }},
	{30, 1, func() Command { return new(ScaleIn) }},
	{31, 1, func() Command { return new(ClaimPods) }},
	{32, 1, func() Command { return new(SetStatus) }},
	{33, 1, func() Command { return new(CollectGarbage) }},
}

var (
	byNumber = func() map[uint16]registration {
		m := make(map[uint16]registration, len(commands))
		for _, r := range commands {
			m[r.Number] = r
		}
		return m
	}()
	byType = func() map[reflect.Type]registration {
		m := make(map[reflect.Type]registration, len(commands))
		for _, r := range commands {
			m[reflect.TypeOf(r.New())] = r
		}
		return m
	}()
)

func newCommand(number uint16) (Command, error) {
	r, ok := byNumber[number]
	if !ok {
		return nil, fmt.Errorf("command %d: %w", number, ErrUnknownCommand)
	}
	return r.New(), nil
}

func numberOf(c Command) (uint16, error) {
	r, ok := byType[reflect.TypeOf(c)]
	if !ok {
		return 0, fmt.Errorf("command %T is not registered", c)
	}
	return r.Number, nil
}

// Since is the LogVersion from which on servers know a command.
func Since(c Command) int { return byType[reflect.TypeOf(c)].Since }
