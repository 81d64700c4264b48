// Package manifests reads the pods that a node runs from a folder of its own (static pods: SP1, SP2). It says what the
// folder holds; what becomes of it is the worker's to decide. It must never read without a bound, and one file that cannot be
// read must never cost another one its pod.
package manifests
