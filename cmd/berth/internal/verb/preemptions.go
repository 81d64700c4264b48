package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/cmd/berth/internal/connect"
)

func (e *Env) preemptions() *cobra.Command {
	var all, follow bool
	cmd := &cobra.Command{
		Use:   "preemptions",
		Short: "Show who was evicted for whom, when, and at which revision",
		Example: `  # The preemptions for pods of all namespaces, as they happen
  berth preemptions -A -w`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.runPreemptions(cmd.Context(), all, follow) },
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show the preemptions for pods of all namespaces.")
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "Go on showing what changes.")
	return e.outputFlag(cmd)
}

func (e *Env) runPreemptions(ctx context.Context, all, follow bool) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(all)
	if err != nil {
		return err
	}
	list, err := listPreemptions(ctx, api, ns)
	if err != nil {
		return err
	}
	if follow {
		return e.followPreemptions(ctx, api, ns, list)
	}
	if len(list.Items) == 0 && e.isTable() {
		fmt.Fprintln(e.ErrOut, "No preemptions are known"+inNamespace(ns)+".")
		return nil
	}
	return e.print(list, func(w io.Writer) {
		row(w, "REVISION", "AGE", "PREEMPTOR", "PRIORITY", "NODE", "STATE", "VICTIMS")
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
		s.Node, orDash(state), victimNames(s.Victims))
}

// victimNames lists victims with their priorities.
func victimNames(victims []berthv1.Victim) string {
	var out []string
	for _, v := range victims {
		s := fmt.Sprintf("%s (%d)", qualified(v.Namespace, v.Name), v.Priority)
		if v.ViolatesBudget {
			s += " against its budget"
		}
		out = append(out, s)
	}
	return orDash(strings.Join(out, ", "))
}

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
		row(table, "REVISION", "AGE ", fmt.Sprintf("%-24s", "PREEMPTOR"), "PRIORITY", fmt.Sprintf("%-12s", "NODE"), fmt.Sprintf("%-11s", "STATE"), "VICTIMS")
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
