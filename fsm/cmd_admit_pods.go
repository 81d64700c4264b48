package fsm

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxAdmitPods bounds how long one command can keep the others waiting.
const maxAdmitPods = 1000

// AdmitPods stores many new pods of one template. Their names are the
// template's GenerateName with a suffix made from the revision; their UIDs and
// creation times come from the entry.
//
// With an Owner they are the pods of a workload, which becomes their
// controller, and there are never more of them than it wants by now: whoever
// proposes the same twice, or has missed a change, makes none too many. Where each
// costs much fewer are made than Count: the rest is to be asked for again. Of the pods
// of a workload those are made that quotas allow, and the refusal is for the next.
//
// Refuses the whole for what AdmitPod would refuse of one, and 400 for a count
// out of range. With an owner: 404 if it is gone, 409 if it is another one by
// now, is being deleted, or has another specification than the template was
// made from.
type AdmitPods struct {
	Template PodWire `msgpack:"template"`
	Count    int32   `msgpack:"count"`
	// Owner is the workload that the pods are for, as it was at Generation.
	Owner      *ObjectRef `msgpack:"owner,omitempty"`
	Generation int64      `msgpack:"generation,omitempty"`
}

// Apply implements Command.
func (c *AdmitPods) Apply(tx *Tx) Result {
	template := c.Template.Object
	if template == nil || template.GenerateName == "" {
		return refuseBadRequest("AdmitPods needs a template with metadata.generateName")
	}
	if c.Count < 1 || c.Count > maxAdmitPods {
		return refuseBadRequest(fmt.Sprintf("AdmitPods takes 1 to %d pods, not %d", maxAdmitPods, c.Count))
	}
	if r, ok := tx.view.checkNamespace(template.Namespace, podResource, template.GenerateName); !ok {
		return r
	}
	count := c.Count
	var owner *workload
	if c.Owner != nil {
		var r Result
		if owner, r = tx.workload(*c.Owner); owner == nil {
			return r
		}
		if r, ok := owner.takes(template, c.Generation); !ok {
			return r
		}
		if count = min(count, owner.missing(&tx.view.View)); count <= 0 {
			return Result{}
		}
	}
	if r, ok := tx.view.checkNamedNode(template, int64(count)); !ok {
		return r
	}
	if r, ok := tx.resolveClasses(&c.Template, owner); !ok {
		return r
	}
	count, r, ok := tx.view.checkManyPods(template, count, owner != nil)
	if !ok {
		return r
	}
	template.CreationTimestamp = tx.now()
	class := tx.finishNewPod(&c.Template)
	var made names
	var from int64 // names up to it are taken
	for range count {
		if tx.enough() {
			break
		}
		pod := *template
		pod.UID = tx.newUID()
		pod.Name, from = tx.generateName(template.Namespace, template.GenerateName, from)
		tx.storeNewPod(PodKey(pod.Namespace, pod.Name), &pod, class)
		made.add(pod.Name)
	}
	if owner != nil {
		tx.event(eventSource, owner.ref.Namespace, eventName(owner.ref.Name, uint64(tx.view.Revision()+1)), owner.about(),
			corev1.EventTypeNormal, "SuccessfulCreate", "Created "+made.String())
	}
	return Result{}
}

// maxGeneratedName keeps generated names usable as host names, as Kubernetes
// does.
const maxGeneratedName = 63

// SinceNamesCharged is the LogVersion from which on names that are stepped over cost something.
const SinceNamesCharged = 29

// generateName makes a name that no pod has: names made at different revisions
// differ, and one that somebody chose by hand is stepped over. Those of before from, which it gives for the next one of the
// same prefix, are known to be taken.
func (tx *Tx) generateName(namespace, prefix string, from int64) (name string, next int64) {
	for n := max(tx.view.Revision()+1, from); ; n++ {
		suffix := strconv.FormatInt(n, 36)
		suffix = strings.Repeat("0", max(0, 5-len(suffix))) + suffix
		name = prefix[:min(len(prefix), maxGeneratedName-len(suffix))] + suffix
		if _, taken := tx.view.Pods.Get(PodKey(namespace, name)); !taken {
			return name, n + 1
		}
		if tx.view.Version() >= SinceNamesCharged {
			tx.view.billUnits(costName)
		}
	}
}
