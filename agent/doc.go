// Package agent joins what one process of Berth runs: a server, a worker, or
// both. The binary, the development cluster and the benchmarks start agents in
// the same way.
//
// It opens what a process listens on before it starts anything, and stops in
// the opposite order. It decides nothing about pods or the cluster.
package agent
