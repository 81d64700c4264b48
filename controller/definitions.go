package controller

import (
	"slices"
	"strconv"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// Definitions ends the custom kinds whose definitions are deleted: first their objects
// go, and when the last one is gone so does what holds the definition.
func Definitions(v *fsm.View, nowUnixNano int64) []fsm.Command {
	var out []fsm.Command
	v.Definitions(func(d *apiextensionsv1.CustomResourceDefinition) bool {
		if d.DeletionTimestamp == nil || !slices.Contains(d.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
			return true
		}
		inUse := false
		v.CustomObjects(d.Name, func(o *codec.CustomObject) bool {
			inUse = true
			if o.DeletionTimestamp == nil { // else its finalizers are somebody else's to take away
				out = append(out, &fsm.DeleteObject{
					Resource: d.Name, Namespace: o.Namespace, Name: o.Name, Precondition: fsm.Precondition{UID: string(o.UID)},
				})
			}
			return len(out) < Batch
		})
		if c := endOf(d, inUse, nowUnixNano); c != nil {
			out = append(out, c)
		}
		return len(out) < Batch
	})
	return out
}

// endOf is what a definition is to say of its end; nil if it says so already.
func endOf(d *apiextensionsv1.CustomResourceDefinition, inUse bool, nowUnixNano int64) fsm.Command {
	next := d.DeepCopy()
	if inUse {
		conditions := &next.Status.Conditions
		*conditions = slices.DeleteFunc(*conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Terminating && c.Status != apiextensionsv1.ConditionTrue
		})
		if slices.ContainsFunc(*conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Terminating
		}) {
			return nil
		}
		*conditions = append(*conditions, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, Reason: "InstanceDeletionInProgress",
			Message:            "CustomResource deletion is in progress",
			LastTransitionTime: metav1.NewTime(time.Unix(0, nowUnixNano).UTC().Truncate(time.Second)),
		})
	} else {
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == apiextensionsv1.CustomResourceCleanupFinalizer })
	}
	raw, err := next.Marshal()
	if err != nil {
		return nil // every row has bytes
	}
	revision, err := strconv.ParseInt(d.ResourceVersion, 10, 64)
	if err != nil {
		return nil // every row has a revision
	}
	return &fsm.PutObject{Resource: fsm.CustomResourceDefinitions, Raw: raw, Revision: revision}
}
