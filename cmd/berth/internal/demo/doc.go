// Package demo is the story that `berth demo` tells: a cluster of separate
// processes, a preemption, and the leader killed in its middle. Everything it
// shows is read from the running cluster, and every claim is checked.
package demo
