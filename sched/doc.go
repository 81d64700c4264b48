// Package sched decides where waiting pods go and who has to leave for them. It reads the replicated state, lays its
// own undecided plans over it, and returns the next plan; the state machine checks every decision again before it
// holds.
//
// What kube-scheduler does with samples of nodes and random ties is done here over all nodes and without chance. Three
// structures make that cheap, and each has a plain counterpart in the tests that must agree with it on every decision:
//
//   - View keeps the nodes in dense slots, up to date from the change feed, with a log of which node changed last.
//   - A board keeps, for one class of pods, every node's verdict and score; it looks again only at nodes in that log.
//     Nodes that have alike what does not depend on their usage are one group: the raw scores of the node object, the
//     images they hold, and what the class sees of the pods around them (model.Judge). A decision is a walk over the
//     groups.
//   - An evictions tree keeps, for one class, what preempting on each node would cost. Who has to leave a node is a
//     problem (problem.go), which package victims solves.
//
// What is asked of it lies above it: package whatif tells what placing pods would do, package replay decides a log again.
//
// The package must never read a clock (time is Step's argument), draw a random number, start a goroutine, do I/O, log,
// or let the order of a Go map reach a decision.
package sched
