package fsm

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/berthv1"
)

// woken are those who are tried, of the pods that a transcript has let wait.
func (s *transcript) woken() string {
	var names []string
	s.view().Queue.Scan("", func(_ string, e *QueueEntry) bool {
		if e.State == berthv1.QueueActive {
			names = append(names, e.Name)
		}
		return true
	})
	return strings.Join(names, " ")
}

// wakeStep is a line, and who is to be tried after it. Who was woken finds no place again before the next one.
type wakeStep struct{ line, woken string }

func wakesAsTold(t *testing.T, world string, steps []wakeStep) {
	t.Helper()
	s := newTranscript(t)
	s.quiet = true
	for _, l := range strings.Split(strings.TrimSpace(world), "\n") {
		s.line(strings.TrimSpace(l))
	}
	for _, step := range steps {
		s.line("advance 1h")
		s.line(step.line)
		if got := s.woken(); got != step.woken {
			t.Errorf("%s: woken are %q, want %q", step.line, got, step.woken)
		}
		if names := strings.Fields(s.woken()); len(names) > 0 {
			s.line("plan fail " + strings.Join(names, ",") + " cpu:1")
		}
	}
}

// TestABudgetWakesWhoCanEvictOfIt (QU8): a budget that allows more, protects fewer or is gone wakes those who may evict somebody
// whom it covers: of higher priority, and with room on his node without those whom they may evict.
func TestABudgetWakesWhoCanEvictOfIt(t *testing.T) {
	const world = `
		configure budgets=Strict
		node n1 cpu=2 labels=disk:ssd
		node n2 cpu=2 labels=disk:hdd
		pod web-1 labels=app:web node=n1 cpu=2 priority=5
		pod db-1 labels=app:db node=n2 cpu=2
		pod idle labels=app:idle node=n1 cpu=0
		report n1 web-1 Running ready
		report n2 db-1 Running ready
		budget web selector=app:web min=1
		budget db selector=app:db min=1
		budget none selector=app:nobody min=1
		pod onto-n1 priority=10 cpu=2 selector=disk:ssd
		pod onto-n2 priority=10 cpu=2 selector=disk:hdd
		pod lower priority=5 cpu=2 selector=disk:ssd
		pod anywhere priority=10 cpu=2
		pod too-large priority=10 cpu=3
		plan fail onto-n1,onto-n2,lower,anywhere,too-large cpu:1
		`
	wakesAsTold(t, world, []wakeStep{
		{"budget web update selector=app:web min=0", "anywhere onto-n1"},
		{"budget db update selector=app:db min=0", "anywhere onto-n2"},
		{"budget none update selector=app:nobody min=0", ""},
		{"budget web update selector=app:web min=1", "anywhere onto-n1"}, // whom it covers may be others
		{"budget web update selector=app:web min=1 unhealthy=AlwaysAllow", "anywhere onto-n1"},
		{"report n1 web-1 Running", "anywhere onto-n1"},
		{"report n1 idle Running", ""},
		{"update-pod db-1 labels=app:other", "anywhere onto-n2"},
		{"delete-budget web", "anywhere onto-n1"},
	})
}

// TestABudgetOnManyNodesWakesByPriority: where it covers pods on more nodes than each group is asked about, priority alone says who
// may gain.
func TestABudgetOnManyNodesWakesByPriority(t *testing.T) {
	var world strings.Builder
	world.WriteString("configure budgets=Strict\n")
	for i := range 20 {
		n := string(rune('a' + i))
		world.WriteString("node " + n + " cpu=1\npod web-" + n + " labels=app:web cpu=1 priority=5 node=" + n + "\nreport " + n + " web-" + n + " Running ready\n")
	}
	world.WriteString("pod least cpu=0 node=a\nbudget web selector=app:web min=20\n" +
		"pod high priority=10 cpu=1\npod large priority=10 cpu=2\npod low priority=5 cpu=1\nplan fail high,large,low cpu:1")
	wakesAsTold(t, world.String(), []wakeStep{{"budget web update selector=app:web min=0", "high large"}})
}

// TestALabelThatNobodyLooksAtWakesNobody (QU8): of nodes, of pods on them, and of namespaces. One that somebody's rules look at wakes him.
func TestALabelThatNobodyLooksAtWakesNobody(t *testing.T) {
	const world = `
		node n1 cpu=4 labels=zone:a,disk:ssd
		node n2 cpu=4 labels=zone:b,disk:hdd
		pod web-1 labels=app:web node=n1 cpu=1
		pod noise-1 labels=app:noise node=n1 cpu=1
		pod noise-2 labels=app:noise node=n2 cpu=1
		pod spread labels=app:web cpu=1 selector=disk:ssd spread=zone:1:app:web
		pod quiet labels=app:quiet priority=10 cpu=1 anti=zone:app:noise
		namespace other labels=team:x
		pod loud-1 ns=other labels=app:loud node=n1 cpu=0
		pod loud-2 ns=other labels=app:loud node=n2 cpu=0
		pod far labels=app:far cpu=1 anti=zone:app:loud:*team:x
		plan fail spread,quiet,far spread:1 apart:1
		`
	wakesAsTold(t, world, []wakeStep{
		{"update-node n2 labels=zone:b,disk:hdd,colour:blue", ""},
		{"update-node n2 labels=zone:b,disk:hdd", ""},
		{"update-pod noise-1 labels=app:noise,colour:blue", ""},
		{"update-pod noise-1 labels=app:noise", ""},
		{"update-node n1 labels=zone:a,disk:ssd,colour:blue", ""},
		{"update-namespace other labels=team:x,colour:blue", ""},
		{"update-namespace other labels=team:y,colour:blue", "far"},
		{"update-pod noise-1 labels=app:other", "quiet"},
		{"update-node n2 labels=zone:b,disk:ssd", "spread"},
		{"update-node n2 labels=zone:c,disk:ssd", "far quiet spread"},
	})
}
