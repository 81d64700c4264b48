package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/sched/replay"
)

type replayFlags struct {
	dataDir  string
	from, to uint64
	verbose  bool
	output   string
}

func (a *app) replayCommand() *cobra.Command {
	f := replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay --data-dir DIR",
		Short: "Decide again what a stopped server's log says was decided, and compare",
		Long: `Decide again what a server's log says was decided: read a snapshot and the entries after it, let the scheduler
make every plan once more on the state that it was made on, and compare each decision with the recorded one. Nothing is
changed. The server must be stopped, or DIR be a copy. DIR is the agent's data_dir, or the directory "server" in it.

The exit status is 0 if every decision is the same, and 1 if one is not; the first that differ are shown.`,
		Example: `  berth replay --data-dir /var/lib/berth
  berth replay --data-dir copy --from 120000 --to 130000 -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if f.dataDir == "" {
				return &verb.UsageError{Message: "--data-dir is missing: whose log is to be replayed?"}
			}
			if f.to != 0 && f.to < f.from {
				return &verb.UsageError{Message: fmt.Sprintf("--to %d is before --from %d", f.to, f.from)}
			}
			if !slices.Contains([]string{"", "table", "json"}, f.output) {
				return &verb.UsageError{Message: fmt.Sprintf("-o %s: a replay is shown as table or json", f.output)}
			}
			return a.runReplay(f)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.dataDir, "data-dir", "", "The server's data_dir, or a copy of it.")
	fs.Uint64Var(&f.from, "from", 0, "The first log index to look at; 0: as early as the directory allows.")
	fs.Uint64Var(&f.to, "to", 0, "The last log index to look at; 0: the end of the log.")
	fs.BoolVar(&f.verbose, "plans", false, "Show every plan.")
	fs.StringVarP(&f.output, "output", "o", "", "Output format: table or json.")
	return cmd
}

// keptDifferences is how many differences are shown.
const keptDifferences = 10

// replayResult is what -o json prints.
type replayResult struct {
	DataDir string `json:"dataDir"`
	// From is the first entry that was replayed, To the last.
	From    uint64  `json:"from"`
	To      uint64  `json:"to"`
	Seconds float64 `json:"seconds"`
	replay.Report
}

func (a *app) runReplay(f replayFlags) error {
	dir := f.dataDir
	if server := agent.ServerDir(dir); isDir(server) {
		dir = server
	}
	archive, err := raftnode.OpenArchive(dir)
	if err != nil {
		return errors.Join(err, dataDirsIn(f.dataDir))
	}
	defer archive.Close()
	if archive.Last() == 0 {
		return fmt.Errorf("the log in %s is empty", f.dataDir)
	}
	to := f.to
	if to == 0 || to > archive.Last() {
		to = archive.Last()
	}
	if f.from > to {
		return fmt.Errorf("the log in %s ends at entry %d", f.dataDir, archive.Last())
	}
	state, err := archive.StateBefore(f.from)
	if err != nil {
		return err
	}
	r := &replay.Replayer{State: state, Log: archive, From: f.from, Keep: keptDifferences}
	if f.verbose && f.output != "json" {
		r.Compared = a.showPlan
	}
	start := time.Now()
	out := replayResult{DataDir: f.dataDir, From: max(f.from, state.View().Index()+1), To: to}
	if err := r.Run(to); err != nil {
		return fmt.Errorf("replaying: %w", err)
	}
	out.Seconds, out.Report = time.Since(start).Seconds(), r.Report
	if err := a.showReplay(&out, f.output); err != nil {
		return err
	}
	if out.Different > 0 {
		return verb.ErrFailed
	}
	return nil
}

// dataDirsIn says which directories of one may have been meant, as those that a
// development cluster keeps its servers in; nil if there are none.
func dataDirsIn(dir string) error {
	servers, err := filepath.Glob(agent.ServerDir(filepath.Join(dir, "*")))
	if err != nil || len(servers) == 0 {
		return nil
	}
	for i := range servers {
		servers[i] = filepath.Dir(servers[i])
	}
	return fmt.Errorf("give one of the data directories in it: %s", strings.Join(servers, ", "))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func (a *app) showPlan(p replay.Plan) {
	outcome := "equal"
	if p.Different > 0 {
		outcome = fmt.Sprintf("%d DIFFERENT", p.Different)
	}
	fmt.Fprintf(a.out, "entry %d (term %d), plan %d at revision %d: %d decisions, %s\n", p.Index, p.Term, p.Number, p.Revision, p.Decisions, outcome)
}

func (a *app) showReplay(r *replayResult, format string) error {
	if format == "json" {
		b, err := marshalJSON(r)
		if err != nil {
			return fmt.Errorf("writing JSON: %w", err)
		}
		_, err = a.out.Write(b)
		return err
	}
	w := printers.GetNewTabWriter(a.out)
	line := func(name, format string, values ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, values...))
	}
	line("Entries:", "%d to %d; %d read in %.1f s, %.0f/s", r.From, r.To, r.Entries, r.Seconds, float64(r.Entries)/max(r.Seconds, 1e-6))
	line("Plans:", "%d", r.Plans)
	line("Decisions:", "%d: %d bindings, %d preemptions, %d reservations, %d without a place", r.Decisions, r.Bindings, r.Preemptions, r.Reservations, r.Failures)
	for _, skipped := range []struct {
		n   int
		why string
	}{
		{r.SkippedAtStart, "lie over plans from before the first entry"},
		{r.SkippedUnknown, "lie over a plan that never came into the log, or that came out otherwise"},
		{r.SkippedOld, "do not say what they depend on"},
	} {
		if skipped.n > 0 {
			line("Not decided again:", "%d plans, which %s", skipped.n, skipped.why)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return a.verdict(r)
}

func (a *app) verdict(r *replayResult) (err error) {
	say := func(format string, values ...any) {
		if err == nil {
			_, err = fmt.Fprintf(a.out, format, values...)
		}
	}
	switch {
	case r.Different > 0:
		say("\n%d DECISIONS CAME OUT OTHERWISE\n", r.Different)
		for _, d := range r.Differences {
			say("\nentry %d, plan %d of term %d, made at revision %d:\n  recorded: %s\n  replayed: %s\n", d.Index, d.Number, d.Term, d.Revision, d.Recorded, d.Decided)
		}
		if more := r.Different - len(r.Differences); more > 0 {
			say("\nand %d more\n", more)
		}
	case r.Plans == 0:
		say("\nthere was no plan to decide again\n")
	default:
		say("\nall decisions are equal\n")
	}
	return err
}
