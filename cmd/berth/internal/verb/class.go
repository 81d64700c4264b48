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
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (e *Env) class() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "class",
		Short: "List, create and delete priority classes",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(e.classList(), e.classCreate(), e.classDelete(), e.classDrift())
	return cmd
}

// needsSubcommand is what a command does that only groups others.
func needsSubcommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usagef("%s needs one of: %s", cmd.CommandPath(), strings.Join(names, ", "))
}

func (e *Env) classList() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the priority classes, the highest first",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			list, err := api.Scheduling.PriorityClasses().List(cmd.Context(), metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("reading the classes: %w", err)
			}
			list.SetGroupVersionKind(schedulingv1.SchemeGroupVersion.WithKind("PriorityClassList"))
			slices.SortStableFunc(list.Items, func(a, b schedulingv1.PriorityClass) int {
				return cmp.Or(-cmp.Compare(a.Value, b.Value), cmp.Compare(a.Name, b.Name))
			})
			return e.print(list, func(w io.Writer) {
				row(w, "NAME", "VALUE", "DEFAULT", "PREEMPTION", "AGE", "DESCRIPTION")
				for _, c := range list.Items {
					policy := corev1.PreemptLowerPriority
					if c.PreemptionPolicy != nil {
						policy = *c.PreemptionPolicy
					}
					row(w, c.Name, c.Value, c.GlobalDefault, policy, e.age(c.CreationTimestamp.Time), orDash(c.Description))
				}
			})
		},
	})
}

func (e *Env) classCreate() *cobra.Command {
	var (
		class  schedulingv1.PriorityClass
		policy string
	)
	cmd := &cobra.Command{
		Use:   "create NAME --value N",
		Short: "Create a priority class",
		Example: `  berth class create high --value 1000 --description "users wait for it"
  berth class create batch --value 10 --preemption-policy Never --global-default`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("value") {
				return usagef("--value is missing: how important is the class? Higher is more, up to 1000000000")
			}
			class.Name = args[0]
			class.PreemptionPolicy = (*corev1.PreemptionPolicy)(&policy)
			return e.createClass(cmd.Context(), &class)
		},
	}
	f := cmd.Flags()
	f.Int32Var(&class.Value, "value", 0, "The priority of the class's pods; higher is more important.")
	f.BoolVar(&class.GlobalDefault, "global-default", false, "Give the class to pods that name none.")
	f.StringVar(&policy, "preemption-policy", string(corev1.PreemptLowerPriority), "PreemptLowerPriority, or Never: queue before lower pods, but evict none.")
	f.StringVar(&class.Description, "description", "", "What the class is for.")
	return e.outputFlag(cmd)
}

func (e *Env) createClass(ctx context.Context, class *schedulingv1.PriorityClass) error {
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	created, err := api.Scheduling.PriorityClasses().Create(ctx, class, metav1.CreateOptions{FieldManager: "berth"})
	if err != nil {
		return err
	}
	created.SetGroupVersionKind(schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"))
	return e.print(created, func(w io.Writer) {
		fmt.Fprintf(w, "class %s created with value %d\n", created.Name, created.Value)
	})
}

func (e *Env) classDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME...",
		Aliases: []string{"rm"},
		Short:   "Delete priority classes; pods that have them keep their priority",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var failed error
			for _, name := range args {
				err := api.Scheduling.PriorityClasses().Delete(cmd.Context(), name, metav1.DeleteOptions{})
				if err == nil {
					fmt.Fprintf(e.Out, "class %s deleted\n", name)
					continue
				}
				failed = errors.Join(failed, err)
				if !apierrors.IsNotFound(err) {
					return failed // the others would most likely fail as well
				}
			}
			return failed
		},
	}
}
