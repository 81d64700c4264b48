// Package controller holds Berth's reconcilers as pure functions: the state and
// the time go in, commands come out. The server that leads runs them in a loop
// and proposes what they return.
//
// A reconciler must never read a clock, start a goroutine, do I/O or log, and
// it keeps no truth of its own: what it remembers between two calls can be
// lost at any time without harm.
package controller

import "time"

// Batch bounds how many commands a reconciler returns at once; the rest
// follows in its next round.
const Batch = 500

func seconds(s int64) int64 { return s * int64(time.Second) }
