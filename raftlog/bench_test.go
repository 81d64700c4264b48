package raftlog

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkStoreLogs measures synced writes of single entries, and what the
// process gives the disk for a byte of them.
//
//	go test ./raftlog -run - -bench StoreLogs -benchtime 12000x
func BenchmarkStoreLogs(b *testing.B) {
	for _, size := range []int{512, 2048, 32 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := open(b, b.TempDir(), Options{})
			data := make([]byte, size)
			before := bytesWritten()
			b.ResetTimer()
			for i := range b.N {
				if err := l.StoreLog(&raft.Log{Index: uint64(i + 1), Term: 1, Data: data}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bytesWritten()-before)/float64(b.N*size), "written/byte")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

// bytesWritten is what this process has given to disks, by the kernel's count.
func bytesWritten() (n int64) {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64) // the kernel formats it
		}
	}
	return n
}
