// Package fsm is Berth's deterministic state machine: tables of immutable
// objects, the commands that change them, the scheduling queue and the
// nominations, the change feed, and the snapshot codec.
//
// One log entry goes in (State.Apply), results and changes come out. The same
// entries give the same state, byte for byte, on every server. To keep that
// true the package must never read a clock, draw a random number, start a
// goroutine, touch the network or the disk, log, or let the order of a Go map
// reach the state: time comes from the entry, names and UIDs that Apply makes
// come from the entry and the revision.
//
// The state machine calls nobody. Everything else reads a View, follows the
// Feed, and proposes commands.
package fsm
