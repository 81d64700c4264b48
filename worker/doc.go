// Package worker is the node agent: it registers its node, runs the pods that are assigned to it through a container
// runtime, and reports what became of them.
//
// The heart is pure: podState is one pod's state machine and Core the node's pods together. Both take inputs (an
// assignment, a runtime event, the outcome of a call) and the time, and return actions and statuses; they do no I/O,
// start no goroutine and read no clock. Agent drives a Core with one goroutine and a bounded number of calls under way,
// so that ten thousand agents fit into one process.
//
// The package must never know how it is connected (Uplink hides it), and must never decide where a pod runs or whether
// its object is deleted: it runs what is assigned, and confirms what has ended.
package worker
