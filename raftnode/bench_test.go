package raftnode

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/fsm"
)

// BenchmarkPropose measures proposals through three servers in one process,
// over TCP, with every write synced to the disk.
//
//	go test ./raftnode -run - -bench Propose -benchtime 5s
func BenchmarkPropose(b *testing.B) {
	for _, commands := range []int{1, 100} {
		for _, callers := range []int{1, 64, 1024} {
			if commands*callers > 65536 {
				continue // more than the queue takes
			}
			b.Run(fmt.Sprintf("commands=%d/callers=%d", commands, callers), func(b *testing.B) {
				benchmarkPropose(b, callers, commands)
			})
		}
	}
}

func benchmarkCluster(b *testing.B) *Node {
	var nodes []*Node
	var servers []Server
	for _, id := range []string{"a", "b", "c"} {
		n, err := Open(Config{ID: id, DataDir: b.TempDir(), BindAddr: "127.0.0.1:0"}, fsm.NewState())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := n.Shutdown(); err != nil {
				b.Error(err)
			}
		})
		nodes = append(nodes, n)
		servers = append(servers, Server{ID: id, Address: n.Addr()})
	}
	for _, n := range nodes {
		if err := n.Bootstrap(servers); err != nil {
			b.Fatal(err)
		}
	}
	var leader *Node
	eventually(b, "a leader", func() bool {
		for _, n := range nodes {
			if n.Leadership().Leader {
				leader = n
				return true
			}
		}
		return false
	})
	if _, _, err := leader.Propose(testContext(b), namespace()); err != nil {
		b.Fatal(err)
	}
	return leader
}

func benchmarkPropose(b *testing.B, callers, commands int) {
	leader := benchmarkCluster(b)
	ctx := b.Context()
	first := leader.AppliedIndex()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	for range callers {
		wg.Go(func() {
			ps := make([]fsm.Proposal, commands)
			for {
				upTo := next.Add(int64(commands))
				if upTo > int64(b.N*commands) {
					return
				}
				for i := range ps {
					ps[i] = create(fmt.Sprintf("m%d", upTo-int64(i)), "a value of some length, as a small object has")
				}
				if _, _, err := leader.Propose(ctx, ps...); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	entries := float64(leader.AppliedIndex() - first)
	b.ReportMetric(float64(b.N*commands)/time.Since(start).Seconds(), "commands/s")
	b.ReportMetric(float64(b.N*commands)/entries, "commands/entry")
	b.ReportMetric(entries/time.Since(start).Seconds(), "entries/s")
}

// BenchmarkReadIndex measures confirmed reads on the leader of three servers.
func BenchmarkReadIndex(b *testing.B) {
	for _, callers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			leader := benchmarkCluster(b)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if _, err := leader.ReadIndex(b.Context()); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
