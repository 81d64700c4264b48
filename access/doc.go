// Package access is the table of who may do what: at the API by verb and
// resource or path, at the servers' RPC by method. Both doors ask it, and
// docs/security.md prints it.
//
// It must never know more of a caller than its groups, nor of a request than
// what stands in its first line: a decision costs no reading of a body. It keeps
// no state, and what no row allows is refused.
package access
