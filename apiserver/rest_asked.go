package apiserver

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/apiserver/noderights"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
)

// asksAnybody says whether there is a policy or a webhook at all, or whether a node deletes. Where it is not so, nobody is
// asked about a deletion, which is then one command, whatever the object is by then.
func asksAnybody(ctx context.Context, v *fsm.View) bool {
	who, _ := request.UserFrom(ctx)
	if _, isNode := noderights.NodeOf(who); isNode {
		return true
	}
	asks := false
	v.AdmissionRules(func([]admissionv1.RuleWithOperations) bool {
		asks = true
		return false
	})
	return asks
}

// eraseTries is how often a deletion is asked about again whose object has changed meanwhile.
const eraseTries = 5

// eraseAsked asks about the object as it is, and deletes that one and no other.
func (r *served) eraseAsked(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	for try := 1; ; try++ {
		obj, err := r.Store.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, false, err
		}
		m := metaOf(obj)
		uid, revision := m.GetUID(), m.GetResourceVersion()
		if err := validate(ctx, obj); err != nil {
			return nil, false, err
		}
		out, gone, err := r.eraseOne(ctx, name, onlyThis(options, uid, revision, dryRunFrom(ctx) != nil))
		if !apierrors.IsConflict(err) || try == eraseTries || !mayBeAnother(options, uid) {
			return out, gone, err
		}
	}
}

// onlyThis are options by which an object is deleted as it is now. A dry run is on a copy of the
// state, which nobody else changes.
func onlyThis(options *metav1.DeleteOptions, uid types.UID, revision string, dryRun bool) *metav1.DeleteOptions {
	if dryRun {
		return options
	}
	out := options.DeepCopy()
	if out.Preconditions == nil {
		out.Preconditions = &metav1.Preconditions{}
	}
	if out.Preconditions.UID == nil {
		out.Preconditions.UID = &uid
	}
	if out.Preconditions.ResourceVersion == nil {
		out.Preconditions.ResourceVersion = &revision
	}
	return out
}

// mayBeAnother says whether options are also of what the object that was asked about has become.
func mayBeAnother(options *metav1.DeleteOptions, uid types.UID) bool {
	p := options.Preconditions
	return p == nil || p.ResourceVersion == nil && (p.UID == nil || *p.UID == uid)
}

// askAboutEach asks about the deletion of objects, several at a time; the error is of one of them.
func askAboutEach(ctx context.Context, items []runtime.Object, validate rest.ValidateObjectFunc) error {
	errs := make([]error, len(items))
	places := make(chan struct{}, deleteWorkers)
	var asking guard.Group
	for i := range items {
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			errs[i] = validate(ctx, items[i].DeepCopyObject())
		})
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
