// Package cluster keeps the gossip pool: servers find each other in it, workers
// find servers through any member's address, and losses are suspected.
//
// A member is a hint, never truth. Nothing here may decide that a node is lost,
// who is a voter, or who leads: memberlist's view differs from member to member
// and from moment to moment. The package must never block gossip: its callbacks
// run under memberlist's lock, so they copy, queue and return.
//
// The pool holds up to some 10,000 workers. The settings are memberlist's for a
// LAN: a probe a second, suspicion for 4·log10(n) seconds (4 s for ten members,
// 16 s for 10,000), gossip to three members every 200 ms, and a full exchange
// every 30 s, which memberlist stretches with the pool's size (about 5 min at
// 10,000, some 3 MB each). Only the queue of received packets is deeper than
// its default, so that many members may come at once.
package cluster
