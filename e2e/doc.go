// Package e2e tests the real binary: it is built once, started as several
// processes with certificates and encrypted gossip, and meets real faults:
// SIGKILL, restarts, lost disks, wrong files.
//
// Every process listens on loopback only. What a test has started it ends, and
// at the end every process is looked for that was missed.
package e2e
