package server

import (
	"io/fs"
	"testing"
	"testing/fstest"
)

func TestDefaultMaxState(t *testing.T) {
	const gib = 1 << 30
	files := func(texts map[string]string) fs.FS {
		out := fstest.MapFS{}
		for name, text := range texts { // order does not matter: it fills a map
			out[name] = &fstest.MapFile{Data: []byte(text)}
		}
		return out
	}
	machine := "MemFree: 1 kB\nMemTotal:       67108864 kB\n" // 64 GiB
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing is known", nil, leastState},
		{"the machine", map[string]string{"proc/meminfo": machine}, 16 * gib},
		{"a small machine", map[string]string{"proc/meminfo": "MemTotal: 524288 kB\n"}, leastState},
		{"a garbled one", map[string]string{"proc/meminfo": "MemTotal: much kB\n"}, leastState},
		{"a cgroup", map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "8589934592\n"}, 2 * gib},
		{"one without a bound", map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 16 * gib},
		{"the one above it", map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "4294967296\n"}, gib},
		{"a container", map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4294967296\n"}, gib},
		{"version 1", map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4294967296\n"}, gib},
		{"version 1 without a bound", map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16 * gib},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := defaultMaxState(files(tt.files)); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}
