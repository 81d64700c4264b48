// Package apiserver serves the Kubernetes-compatible HTTPS API: upstream's
// generic server, registries, strategies and printers, over a storage.Interface
// of our own.
//
// Reads come from views of the state machine, watches from its change feed.
// Each write becomes a semantic command (AdmitPod, BindPod, …) that is proposed
// to the log; what needs only the object itself (defaults, validation, names)
// is done here before, what depends on other objects is the state machine's.
//
// The package must never keep state that matters: every server answers from its
// own copy of the replicated state, and a client may change servers between two
// requests. It must never change an object that it read from a view, and never
// decide what belongs to Apply.
package apiserver
