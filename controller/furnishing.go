package controller

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

const furnishSeconds = 5

// Furnishing gives namespaces back what every one has from the start, when
// somebody has deleted or changed it: the service account "default", without
// which no pod is admitted, and the config map with the cluster's authority.
type Furnishing struct {
	// RootCA is the PEM of that authority; empty: there is no config map.
	RootCA string

	next int64 // when it looks again
}

// Reconcile returns what is to be made again.
func (f *Furnishing) Reconcile(v *fsm.View, nowUnixNano int64) []fsm.Command {
	if nowUnixNano < f.next {
		return nil
	}
	f.next = nowUnixNano + seconds(furnishSeconds)
	var out []fsm.Command
	v.Namespaces.Scan("", func(name string, ns *corev1.Namespace) bool {
		if ns.DeletionTimestamp != nil || v.Furnished(name, f.RootCA) {
			return true
		}
		revision, err := strconv.ParseInt(ns.ResourceVersion, 10, 64)
		if err == nil {
			out = append(out, &fsm.PutNamespace{
				Namespace: fsm.NamespaceWire{Object: ns.DeepCopy()}, Revision: revision, RootCA: f.RootCA, Furnish: true,
			})
		}
		return len(out) < Batch
	})
	return out
}
