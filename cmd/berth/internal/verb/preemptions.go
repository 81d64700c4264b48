package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/cmd/berth/internal/connect"
)

func (e *Env) preemptions() *cobra.Command {
	var f preemptionFlags
	cmd := &cobra.Command{
		Use:   "preemptions",
		Short: "Show who was evicted for whom, when, and at which revision",
		Long: `Show who was evicted for whom, when, and at which revision. MINIMAL is "proven" where no other choice of victims, on
any node, would have cost less, and "unproven" where the search for the proof reached its limit.`,
		Example: `  # The preemptions for pods of all namespaces, as they happen
  berth preemptions -A -w

  # What had been decided by a revision, with what else was considered
  berth preemptions --at 4711 --details`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("at") && f.at <= 0:
				return usagef("--at %d is not a revision", f.at)
			case f.at > 0 && f.follow:
				return usagef("--at looks back and --watch forward: give one of them")
			}
			return e.runPreemptions(cmd.Context(), f)
		},
	}
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "Show the preemptions for pods of all namespaces.")
	cmd.Flags().BoolVarP(&f.follow, "watch", "w", false, "Go on showing what changes.")
	cmd.Flags().Int64Var(&f.at, "at", 0, "Show only what had been decided by this revision.")
	cmd.Flags().BoolVar(&f.details, "details", false, "Show every victim and what else was considered.")
	return e.outputFlag(cmd)
}

type preemptionFlags struct {
	all, follow, details bool
	at                   int64
}

func (e *Env) runPreemptions(ctx context.Context, f preemptionFlags) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(f.all)
	if err != nil {
		return err
	}
	list, err := listPreemptions(ctx, api, ns)
	if err != nil {
		return err
	}
	if f.at > 0 {
		if now, err := strconv.ParseInt(list.ResourceVersion, 10, 64); err == nil && f.at > now {
			return fmt.Errorf("revision %d has not come yet: the state is at %d", f.at, now)
		}
		list.Items = slices.DeleteFunc(list.Items, func(p berthv1.Preemption) bool { return p.Status.Revision > f.at })
	}
	if f.follow {
		return e.followPreemptions(ctx, api, ns, list)
	}
	if len(list.Items) == 0 && e.isTable() {
		by := ""
		if f.at > 0 {
			by = fmt.Sprintf(" by revision %d", f.at)
		}
		fmt.Fprintln(e.ErrOut, "No preemptions are known"+inNamespace(ns)+by+".")
		return nil
	}
	return e.print(list, func(w io.Writer) {
		if f.details {
			for i := range list.Items {
				e.preemptionDetails(w, &list.Items[i])
			}
			return
		}
		row(w, "REVISION", "AGE", "PREEMPTOR", "PRIORITY", "NODE", "STATE", "MINIMAL", "VICTIMS")
		for i := range list.Items {
			e.preemptionRow(w, &list.Items[i])
		}
	})
}

// listPreemptions reads the preemptions of a namespace, or of all, oldest first.
func listPreemptions(ctx context.Context, api *connect.API, ns string) (*berthv1.PreemptionList, error) {
	list := &berthv1.PreemptionList{}
	if err := api.List(ctx, berthv1.ResourcePreemptions, ns, list); err != nil {
		return nil, fmt.Errorf("reading the preemptions: %w", err)
	}
	list.SetGroupVersionKind(berthv1.GroupVersion.WithKind("PreemptionList"))
	slices.SortStableFunc(list.Items, func(a, b berthv1.Preemption) int {
		return cmp.Or(cmp.Compare(a.Status.Revision, b.Status.Revision), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

func (e *Env) preemptionRow(w io.Writer, p *berthv1.Preemption) {
	s := &p.Status
	state := string(s.State)
	if s.State == berthv1.PreemptionReleased && s.ReleasedReason != "" {
		state += " (" + s.ReleasedReason + ")"
	}
	row(w, s.Revision, e.age(s.Time.Time), qualified(s.Preemptor.Namespace, s.Preemptor.Name), s.Preemptor.Priority,
		s.Node, orDash(state), minimal(s), victimNames(s.Victims))
}

// minimal says whether the choice of victims was proven to be the least.
func minimal(s *berthv1.PreemptionStatus) string {
	switch {
	case s.Minimal == nil:
		return "-"
	case *s.Minimal:
		return "proven"
	}
	return "unproven"
}

// preemptionDetails is one preemption with all that is known of it.
func (e *Env) preemptionDetails(w io.Writer, p *berthv1.Preemption) {
	s := &p.Status
	fmt.Fprintf(w, "Revision %d, entry %d, %s, decided on revision %d: %s (priority %d) on %s, %s\n", s.Revision, s.RaftIndex, clock(s.Time.Time),
		s.DecidedAtRevision, podNamed(s.Preemptor.Namespace, s.Preemptor.Name, s.Preemptor.UID), s.Preemptor.Priority, s.Node, s.State)
	if s.ReleasedReason != "" {
		fmt.Fprintf(w, "  released: %s\n", s.ReleasedReason)
	}
	for _, line := range append(victimLines(s), considered(s)...) {
		fmt.Fprintln(w, "  "+line)
	}
}

// evictions counts the victims that are not ending anyway, and those that are.
func evictions(victims []berthv1.Victim) (evicted, awaited int) {
	for _, v := range victims {
		if v.WaitedFor {
			awaited++
		}
	}
	return len(victims) - awaited, awaited
}

// victimNames lists victims with their priorities.
func victimNames(victims []berthv1.Victim) string {
	var out []string
	for _, v := range victims {
		s := fmt.Sprintf("%s (%d)", podNamed(v.Namespace, v.Name, v.UID), v.Priority)
		if v.WaitedFor {
			s += " ending before"
		}
		if v.ViolatesBudget {
			s += " against its budget"
		}
		out = append(out, s)
	}
	return orDash(strings.Join(out, ", "))
}

// watchAgain is how long a watch that broke is left alone.
const watchAgain = time.Second

// followPreemptions prints what is there and then every change, until the
// command is interrupted. A watch that ends is taken up again where it was, with
// any server.
func (e *Env) followPreemptions(ctx context.Context, api *connect.API, ns string, list *berthv1.PreemptionList) error {
	conn, err := e.Client.Connection()
	if err != nil {
		return err
	}
	table := printers.GetNewTabWriter(e.Out)
	show := func(p *berthv1.Preemption) error {
		if conn.Output != "table" {
			p.SetGroupVersionKind(berthv1.GroupVersion.WithKind("Preemption"))
			return e.printAs(conn.Output, p, nil)
		}
		e.preemptionRow(table, p)
		return table.Flush()
	}
	if conn.Output == "table" {
		// Rows come one by one: give the columns room before the widths are known.
		row(table, "REVISION", "AGE ", fmt.Sprintf("%-24s", "PREEMPTOR"), "PRIORITY", fmt.Sprintf("%-12s", "NODE"), fmt.Sprintf("%-11s", "STATE"), fmt.Sprintf("%-8s", "MINIMAL"), "VICTIMS")
	}
	revision := list.ResourceVersion
	for i := range list.Items {
		if err := show(&list.Items[i]); err != nil {
			return err
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		w, err := api.Watch(ctx, berthv1.ResourcePreemptions, ns, revision)
		if err == nil {
			revision, err = drain(ctx, w, revision, show)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			// Too far behind: begin again from what is there now.
			if list, err = listPreemptions(ctx, api, ns); err != nil {
				return err
			}
			fmt.Fprintln(e.ErrOut, "some changes were missed")
			revision = list.ResourceVersion
		case apierrors.HasStatusCause(err, connect.WatchBroke):
			fmt.Fprintln(e.ErrOut, err)
			select {
			case <-ctx.Done():
			case <-time.After(watchAgain):
			}
		case err != nil:
			return fmt.Errorf("watching the preemptions: %w", err)
		}
	}
	return nil
}

// drain shows the events of one watch until it ends, and returns the revision to
// go on from.
func drain(ctx context.Context, w watch.Interface, revision string, show func(*berthv1.Preemption) error) (string, error) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return revision, nil
		case event, open := <-w.ResultChan():
			if !open {
				return revision, nil
			}
			if event.Type == watch.Error {
				return revision, apierrors.FromObject(event.Object)
			}
			p, ok := event.Object.(*berthv1.Preemption)
			if !ok {
				return revision, errors.New("the server sent something that is not a preemption")
			}
			revision = p.ResourceVersion
			if event.Type != watch.Added && event.Type != watch.Modified {
				continue
			}
			if err := show(p); err != nil {
				return revision, err
			}
		}
	}
}
