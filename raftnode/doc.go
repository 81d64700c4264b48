// Package raftnode is the consensus of Berth: it carries proposals through a
// log that hashicorp/raft replicates over the servers, and applies the entries
// to an fsm.State.
//
// A Node batches the proposals of many callers into entries, several of which
// are on their way at a time; tells which entry a read must have seen to be
// linearizable; says who leads, and since when a leader is ready; changes the
// servers of the cluster; and takes and restores snapshots.
//
// What it must never do:
//   - acknowledge what is not kept: a proposal whose fate is not known ends in
//     ErrUnknownOutcome, never in success and never in plain failure;
//   - skip an entry: what can not be applied stops the node (Fatal);
//   - know what a command means: that is the fsm's business alone;
//   - put anything into the log that is not a change of the state, but for the
//     empty entries that a new leader, a barrier and a restore need.
package raftnode
