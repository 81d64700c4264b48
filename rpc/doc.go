// Package rpc is how servers talk to each other and workers to servers:
// msgpack messages over gRPC, with mutual TLS.
//
// Three ways lead through it:
//
//   - A server calls another one (Pool → Server → ServerHandler): it forwards
//     proposals to the leader, asks for a read index, reports which workers it
//     holds.
//   - A worker keeps one stream to one server (WorkerClient ↔ Server →
//     WorkerHandler). Assignments come down as deltas by revision, statuses go
//     up in batches that are acknowledged once committed, heartbeats never
//     leave this package.
//   - A tunnel carries bytes from a server to a worker, for logs and whatever
//     needs a connection. The worker opens it when the server asks for it on
//     the worker's stream, so that workers need no open port. A server that does
//     not hold the stream reaches it through the one that does.
//
// What is forwarded travels one hop: a server that gets a forwarded request
// carries it out or refuses it, and never passes it on.
//
// The package must never decide anything about the cluster, look into a
// proposal, retry a request that may have been carried out, or let one slow
// peer hold up another.
package rpc
