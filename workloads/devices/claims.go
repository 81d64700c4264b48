package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// give writes into a claim what it is given, and that it is for the pod. The finalizer keeps it until that is taken back.
func (a *Allocator) give(ctx context.Context, pod *corev1.Pod, claim *resourcev1.ResourceClaim, what *resourcev1.AllocationResult) (err error) {
	client, c := a.claims.ResourceClaims(claim.Namespace), claim.DeepCopy()
	if !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
		c.Finalizers = append(c.Finalizers, resourcev1.Finalizer)
		if c, err = client.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	at := metav1.NewTime(a.now())
	c.Status.Allocation = what.DeepCopy()
	c.Status.Allocation.AllocationTimestamp = &at
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	_, err = client.UpdateStatus(ctx, c, metav1.UpdateOptions{})
	return err
}

// release takes back what no other pod uses, and has the pod rest.
func (a *Allocator) release(ctx context.Context, of *progress, w *wants, why string) error {
	var errs []error
	for _, claim := range w.own {
		c := claim.DeepCopy()
		c.Status.Allocation, c.Status.ReservedFor, c.Status.Devices = nil, nil, nil
		if _, err := a.claims.ResourceClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
			errs = append(errs, fmt.Errorf("resourceclaim %q: %w", c.Name, err))
			continue
		}
		klog.FromContext(ctx).Info("Took devices back", "claim", klog.KObj(c), "pod", klog.KObj(w.pod), "why", why)
	}
	of.placing, of.ready, a.left = "", time.Time{}, nil
	if len(errs) > 0 {
		return errors.Join(errs...) // it rests for that
	}
	of.rest(a.now(), true)
	return nil
}
