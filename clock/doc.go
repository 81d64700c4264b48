// Package clock is the one clock of a leadership: it tells the state's time.
//
// The state's time is what entries are stamped with and what every deadline in
// the state is measured by. It begins where the state stands, runs with this
// machine's monotonic clock, and never asks what the wall clock says but to lean
// towards it: by a tenth of the time that passes, at most. So a wall clock that is
// wrong, or is set, moves no deadline by more than that, and one that is put
// right is followed.
//
// There is one exception. After an outage of all servers no process is left that
// knows how long the state was without entries. Then, and only then, the first
// leadership puts the state's time forward at once, to what the majority's wall
// clocks show, by any amount. As long as a server that has lived with the state
// can be asked, its word is taken instead, which is by monotonic clocks.
//
// Whoever needs the state's time asks a Clock: what stamps entries, the leader's
// loops, the heartbeats and their rates. Nobody compares a wall clock with it.
//
// The package must never sleep, log, or read a clock that was not given to it.
package clock
