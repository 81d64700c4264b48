// Package services is a node's part in services: it carries what is sent to their
// addresses to the pods behind them (Proxy, Kubernetes' own proxy over nftables) and
// answers for their names (Resolver). Both read a Table, which follows what
// the servers say.
//
// The package must never ask a server for anything, and never take away what
// is carried because nobody answers.
package services
