package fsm

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

var eventTable = protoTable("events", func(v *View, key string, old, new *corev1.Event, hadOld, hasNew bool) {
	if hadOld {
		v.eventOrder.Delete(parseRevision(old.ResourceVersion))
	}
	if hasNew {
		v.eventOrder.Set(parseRevision(new.ResourceVersion), key)
	}
})

func formatRevision(revision int64) string { return strconv.FormatInt(revision, 10) }

// parseRevision reads a resourceVersion that the state itself has stamped.
func parseRevision(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
