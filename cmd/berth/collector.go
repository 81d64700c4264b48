package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// heapFloor is the size, in bytes, up to which a server's heap may grow
	// before it is collected, however little of it is in use: a small cluster
	// then spends about a tenth less processor time, and a large one keeps
	// Go's own measure, which costs it no memory.
	heapFloor = 512 << 20
	// plainPercent is Go's own measure.
	plainPercent = 100
	// workerPercent is a worker's, whose heap is small and whose memory is its pods': a quarter less of it for a little processor time.
	workerPercent = 50
	liveHeap      = "/gc/heap/live:bytes"
)

// easeCollector collects a small heap less often, unless the environment
// (GOGC) says how it is to be done. The returned function ends that.
func easeCollector(getenv func(string) string) (stop func()) {
	if getenv("GOGC") != "" {
		return func() {}
	}
	c := &collector{percent: plainPercent, ended: make(chan struct{})}
	c.adjust()
	c.follow(new([16]byte))
	return func() {
		close(c.ended)
		debug.SetGCPercent(plainPercent)
	}
}

// tightenCollector collects a worker's heap more often, unless the environment (GOGC) says how it is to be done.
func tightenCollector(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(workerPercent)
	}
}

type collector struct {
	percent int // set now; only adjust's
	ended   chan struct{}
}

// follow adjusts after every collection: that of an object which nobody holds
// tells of it.
func (c *collector) follow(object *[16]byte) {
	runtime.SetFinalizer(object, func(object *[16]byte) {
		select {
		case <-c.ended:
		default:
			c.adjust()
			c.follow(object)
		}
	})
}

func (c *collector) adjust() {
	sample := []metrics.Sample{{Name: liveHeap}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return // a version of Go without this figure keeps its own measure
	}
	if percent := gcPercent(sample[0].Value.Uint64()); percent != c.percent {
		c.percent = percent
		debug.SetGCPercent(percent)
	}
}

// gcPercent lets a heap grow to the floor, or to twice what is in use.
func gcPercent(live uint64) int {
	if live >= heapFloor/2 {
		return plainPercent
	}
	return min(int(heapFloor*100/max(live, 1<<20))-100, 10*plainPercent)
}
