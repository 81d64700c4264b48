package fsm

import (
	"fmt"
	"strconv"
	"strings"
)

// maxAdmitPods bounds how long one command can keep the others waiting.
const maxAdmitPods = 10_000

// AdmitPods stores many new pods of one template. Their names are the
// template's GenerateName with a suffix made from the revision; their UIDs and
// creation times come from the entry.
//
// Refuses the whole for what AdmitPod would refuse of one, and 400 for a count
// out of range.
type AdmitPods struct {
	Template PodWire `msgpack:"template"`
	Count    int32   `msgpack:"count"`
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
	if r, ok := tx.resolvePriority(template); !ok {
		return r
	}
	template.CreationTimestamp = tx.now()
	class := tx.finishNewPod(&c.Template)
	for range c.Count {
		pod := *template
		pod.UID = tx.newUID()
		pod.Name = tx.generateName(template.Namespace, template.GenerateName)
		tx.storeNewPod(PodKey(pod.Namespace, pod.Name), &pod, class)
	}
	return Result{}
}

// maxGeneratedName keeps generated names usable as host names, as Kubernetes
// does.
const maxGeneratedName = 63

// generateName makes a name that no pod has: names made at different revisions
// differ, and one that somebody chose by hand is stepped over.
func (tx *Tx) generateName(namespace, prefix string) string {
	for n := tx.view.revision + 1; ; n++ {
		suffix := strconv.FormatInt(n, 36)
		suffix = strings.Repeat("0", max(0, 5-len(suffix))) + suffix
		name := prefix[:min(len(prefix), maxGeneratedName-len(suffix))] + suffix
		if _, taken := tx.view.Pods.Get(PodKey(namespace, name)); !taken {
			return name
		}
	}
}
