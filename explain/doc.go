// Package explain answers questions about a state: why a pod is where it is or
// has no place, what would become of pods that are not there yet, whose priority
// is not his class's any more.
//
// Each answer is read from one view, and knows who asks only by what he may
// read. The package must never change a state, propose, or wait for one to come.
package explain
