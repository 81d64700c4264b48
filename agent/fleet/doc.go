// Package fleet runs agents as separate processes of this machine: it makes
// their certificates, configurations and ports, starts them, kills them, and
// asks the servers how they are. The demonstration and the end-to-end tests are
// built on it.
//
// It must never reach into a process: what it knows of one comes through its
// API, its log and its exit status, as for any operator.
package fleet
