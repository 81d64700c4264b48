package fsm

import (
	"encoding/binary"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

var eventTable = protoTable("events", func(v *live, key string, old, new *corev1.Event, hadOld, hasNew bool) {
	if hadOld {
		v.eventOrder.Delete(revisionKey(parseRevision(old.ResourceVersion)))
	}
	if hasNew {
		v.eventOrder.Set(revisionKey(parseRevision(new.ResourceVersion)), key)
	}
})

// revisionKey sorts as revisions do.
func revisionKey(revision int64) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(revision)))
}

func formatRevision(revision int64) string { return strconv.FormatInt(revision, 10) }

// parseRevision reads a resourceVersion that the state itself has stamped.
func parseRevision(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
