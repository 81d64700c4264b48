package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const (
	finalizer = group + "/harvest"
	// harvest is the config map in which the last words of plots are kept. It is owned by nobody.
	harvest = "harvest"
)

// gardener keeps a Deployment and a config map for each plot. A plot that goes is written down first.
type gardener struct {
	client.Client
	events events.EventRecorder
}

func (g *gardener) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	plot := &Plot{}
	if err := g.Get(ctx, r.NamespacedName, plot); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !plot.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, g.finish(ctx, plot)
	}
	if controllerutil.AddFinalizer(plot, finalizer) {
		if err := g.Update(ctx, plot); err != nil {
			return ctrl.Result{}, err
		}
	}
	label := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: plot.Namespace, Name: plot.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, g.Client, label, func() error {
		label.Data = map[string]string{"sort": plot.Spec.Sort}
		return controllerutil.SetControllerReference(plot, label, g.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("its label: %w", err)
	}
	plants := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: plot.Namespace, Name: plot.Name}}
	done, err := controllerutil.CreateOrUpdate(ctx, g.Client, plants, func() error {
		g.plant(plot, plants)
		return controllerutil.SetControllerReference(plot, plants, g.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("its plants: %w", err)
	}
	if done == controllerutil.OperationResultCreated {
		g.events.Eventf(plot, plants, corev1.EventTypeNormal, "Planted", "Plant", "%d plants of %s", plot.Spec.Plants, plot.Spec.Sort)
	}
	return ctrl.Result{}, g.tell(ctx, plot, plants)
}

// plant fills in what of a Deployment is the plot's.
func (g *gardener) plant(plot *Plot, d *appsv1.Deployment) {
	labels := map[string]string{"plot": plot.Name}
	d.Spec.Replicas = &plot.Spec.Plants
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	if len(d.Spec.Template.Spec.Containers) == 0 {
		d.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
	}
	c := &d.Spec.Template.Spec.Containers[0]
	c.Name, c.Image, c.Command = "plant", plot.Spec.Image, []string{"sleep", "36000"}
	grace := int64(1)
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = &grace
}

// tell writes the status, by the subresource.
func (g *gardener) tell(ctx context.Context, plot *Plot, plants *appsv1.Deployment) error {
	before := plot.DeepCopyObject().(*Plot)
	plot.Status.ReadyPlants, plot.Status.ObservedGeneration = plants.Status.ReadyReplicas, plot.Generation
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Growing", ObservedGeneration: plot.Generation,
		Message: fmt.Sprintf("%d of %d plants are ready", plants.Status.ReadyReplicas, plot.Spec.Plants)}
	if plants.Status.ReadyReplicas == plot.Spec.Plants {
		ready.Status, ready.Reason = metav1.ConditionTrue, "Grown"
	}
	meta.SetStatusCondition(&plot.Status.Conditions, ready)
	return g.Status().Patch(ctx, plot, client.MergeFrom(before))
}

// finish writes down a plot that goes, and lets it.
func (g *gardener) finish(ctx context.Context, plot *Plot) error {
	if !controllerutil.ContainsFinalizer(plot, finalizer) {
		return nil
	}
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: plot.Namespace, Name: harvest}}
	if _, err := controllerutil.CreateOrUpdate(ctx, g.Client, book, func() error {
		if book.Data == nil {
			book.Data = map[string]string{}
		}
		book.Data[plot.Name] = fmt.Sprintf("%d %s", plot.Spec.Plants, plot.Spec.Sort)
		return nil
	}); err != nil {
		return err
	}
	controllerutil.RemoveFinalizer(plot, finalizer)
	if err := g.Update(ctx, plot); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
