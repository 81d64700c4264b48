// Package config reads Berth's HCL files: the agent's (Load) and the command
// line's (LoadCLI). What comes out is complete, with defaults filled in, and
// valid; a mistake is reported with file, line and a hint.
//
// Only cmd imports it: everything below gets plain values and never knows where
// they were written. The package must never open a socket, start anything or
// log.
package config
