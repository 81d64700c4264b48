// Package store keeps tables of immutable rows: copy-on-write trees that are
// forked in constant time, a feed of what changed in them, snapshots of them
// that carry their own checksum, and log entries that hold the commands which
// change them.
//
// It knows how a state is kept and not what is in it: no word of pods, no rule
// of scheduling. Like all that decides, it reads no clock, draws no random
// number and starts no goroutine.
package store
