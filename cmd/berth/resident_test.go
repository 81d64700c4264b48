package main

import (
	"os"
	"strings"
	"testing"
)

// Only what is as it is in the file is given back.
func TestMappings(t *testing.T) {
	const text = `00400000-02a00000 r-xp 00000000 fd:01 42                                /opt/my berth
Size:              38912 kB
Rss:               20000 kB
Private_Clean:     19000 kB
Private_Dirty:      1000 kB
Anonymous:             0 kB
Swap:                  0 kB
Locked:                0 kB
VmFlags: rd ex mr mw me sd
02a00000-05000000 r--p 02600000 fd:01 42                                /opt/my berth
Rss:               30000 kB
Private_Dirty:         4 kB
Anonymous:             4 kB
05000000-05100000 r--p 02600000 fd:01 42                                /opt/my berth
Rss:                 100 kB
05100000-05200000 rw-p 04c00000 fd:01 42                                /opt/my berth
Rss:                 300 kB
Anonymous:             0 kB
05200000-05300000 r--p 04c00000 fd:01 42                                /opt/my berth
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  8 kB
7f0000000000-7f0000001000 r-xp 00000000 fd:01 43                         /usr/lib/libc.so
Rss:                   4 kB
Private_Dirty:         0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Rss:                4096 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  20 kB
`
	all, err := mappingsOf(strings.NewReader(text), "/opt/my berth")
	if err != nil || len(all) != 5 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []bool{true, false, false, false, false} {
		if got := all[i].clean(); got != want {
			t.Errorf("mapping %d counts as clean: %v", i, got)
		}
	}
	if m := all[0]; m.from != 0x400000 || m.to != 0x2a00000 || m.residentBytes != 20000<<10 {
		t.Errorf("it is read as %+v", m)
	}
	if _, err := mappingsOf(strings.NewReader("something else\n"), "/"); err == nil {
		t.Error("what is none is read as a mapping")
	}
}

// A program that has given back its pages goes on, with fewer.
func TestUnmapProgram(t *testing.T) {
	resident := func() (sum int64) {
		f, err := os.Open("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		program, err := os.Readlink("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		all, err := mappingsOf(f, program)
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			if all[i].clean() {
				sum += all[i].residentBytes
			}
		}
		return sum
	}
	before := resident()
	given, err := unmapProgram()
	if err != nil {
		t.Fatal(err)
	}
	if after := resident(); given < before/2 || after >= before {
		t.Errorf("%d bytes of %d were given back, and %d are there", given, before, after)
	}
}
