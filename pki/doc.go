// Package pki makes and loads the certificates of a Berth cluster: a private
// CA, certificates for servers, workers and clients, and the *tls.Config that
// mutual TLS needs.
//
// Who a certificate speaks for is in its subject, so that a peer and the API
// read it in the same way:
//
//	kind    CN                   O
//	server  berth:server:NAME    berth:servers
//	worker  berth:worker:NAME    berth:workers
//	worker  system:node:NAME     system:nodes, of one that has asked for it
//	client  the user             the user's groups
//
// Names and groups that begin with "berth:" are therefore never given to a
// client. Every server certificate carries the DNS name ServerDNSName, and no
// other kind of certificate may: a peer that was found by gossip is verified
// by that name, whatever its address is.
//
// The package must never log, keep state of its own, start a goroutine, or
// write a private key that others than its owner can read.
package pki
