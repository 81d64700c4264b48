package verb

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/berth/internal/connect"
)

// evictFlags are what is asked beside the pods.
type evictFlags struct {
	dryRun bool
	grace  int64
}

func (e *Env) evict() *cobra.Command {
	var f evictFlags
	cmd := &cobra.Command{
		Use:   "evict POD...",
		Short: "Evict pods, or say which disruption budgets do not allow it",
		Long: `Evict pods as a drain does: a pod ends with its grace period if all of its disruption budgets allow it. What a
budget lacks is said, and the exit status is 1.`,
		Example: `  berth evict web-0

  # Ask only
  berth evict web-0 web-1 --dry-run`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return e.runEvict(cmd.Context(), args, f) },
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "Only ask whether each pod could be evicted now.")
	cmd.Flags().Int64Var(&f.grace, "grace-period", -1, "Seconds that the pods have to end; -1: their own.")
	return cmd
}

func (e *Env) runEvict(ctx context.Context, pods []string, f evictFlags) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	ns, err := e.scope(false)
	if err != nil {
		return err
	}
	refused := false
	var failed error
	for _, pod := range pods {
		pod = podName(pod)
		err := evictOne(ctx, api, ns, pod, f)
		switch {
		case err == nil && f.dryRun:
			fmt.Fprintf(e.Out, "pod/%s can be evicted\n", pod)
		case err == nil:
			fmt.Fprintf(e.Out, "pod/%s evicted\n", pod)
		case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
			refused = true
			fmt.Fprintf(e.ErrOut, "pod/%s cannot be evicted now:\n", pod)
			for _, why := range budgetCauses(err) {
				fmt.Fprintf(e.ErrOut, "  %s\n", why)
			}
		default:
			failed = errors.Join(failed, fmt.Errorf("evicting pod %s: %w", qualified(ns, pod), err))
			if !apierrors.IsNotFound(err) {
				return failed // the others would most likely fail as well
			}
		}
	}
	if failed == nil && refused {
		return ErrFailed
	}
	return failed
}

func evictOne(ctx context.Context, api *connect.API, namespace, pod string, f evictFlags) error {
	options := &metav1.DeleteOptions{}
	if f.dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	if f.grace >= 0 {
		options.GracePeriodSeconds = &f.grace
	}
	return api.Core.Pods(namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}, DeleteOptions: options,
	})
}

// budgetCauses is what each budget lacks.
func budgetCauses(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var out []string
	for _, c := range status.Status().Details.Causes {
		if c.Type == policyv1.DisruptionBudgetCause {
			out = append(out, c.Message)
		}
	}
	return out
}
