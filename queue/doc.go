// Package queue keeps the pods that wait for a place: in which order they are
// tried, what holds each of them back, and under what those stand who wait for a
// change, so that a change finds whom it can help. What one outcome makes of an
// entry is a function of the entry; what a change means for those who wait is a
// function of the rows before and after it.
//
// The package knows rows by Put, and of the rest of a state what State says.
// Nothing here writes to a table.
package queue
