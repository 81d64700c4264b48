// Package peers knows the servers of the cluster: who they are by Raft's
// configuration, and what each has said of itself over RPC, where it has to show
// the certificate of a server.
//
// Whoever asks which servers there are, which version they have, whether they
// answer, how far they are and what their clocks show, asks the Room. Gossip only
// brings addresses to try: nothing that it says is believed.
//
// The package must never decide anything, and never write into the log.
package peers
