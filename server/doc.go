// Package server joins the state machine, consensus, gossip, RPC and the API
// into one Berth server, and runs the loops of the one that leads: the
// scheduler, the controllers and the care for the cluster's membership.
//
// It holds no truth of its own: what it knows beyond the replicated state (who
// is connected, when somebody was last heard of) can be lost at any time.
package server
