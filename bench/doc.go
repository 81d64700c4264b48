// Package bench measures Berth: workloads of a given size against a real
// cluster, its servers' logs on the disk with fsync, and what came of them.
//
// A workload verifies what it measured: every pod bound to a node that is
// there, no node with more than it offers, the states of all servers equal. A
// figure whose outcome does not hold is an error and no figure. The package
// must never make a cluster faster than a user's: it weakens no durability and
// switches no check off.
package bench
