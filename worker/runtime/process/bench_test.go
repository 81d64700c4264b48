package process

import (
	"context"
	"fmt"
	"testing"

	"github.com/berth-dev/berth/worker/runtime"
)

// BenchmarkStart is a container from its start to its end: on the host's file system as it is, and in a root of its own.
func BenchmarkStart(b *testing.B) {
	for _, mode := range []MountMode{MountEnv, MountAuto} {
		name := "host's root"
		if mode == MountAuto {
			name = "own root"
		}
		b.Run(name, func(b *testing.B) {
			events := make(chan runtime.Event, 2)
			rt, err := New(Options{Root: b.TempDir(), Mounts: mode, CgroupParent: "none"})
			if err != nil {
				b.Fatal(err)
			}
			defer rt.Close()
			if _, err := rt.Open(func(ev runtime.Event) { events <- ev }); err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				p := pod(fmt.Sprintf("p%d", i), shell("true"))
				c := &p.Spec.Containers[0]
				spec := runtime.Spec{ID: runtime.ID{Pod: p.UID, Container: c.Name}, Pod: p, Container: c, Command: c.Command}
				if err := rt.Start(context.Background(), spec); err != nil {
					b.Fatal(err)
				}
				<-events
				<-events
				if err := rt.Remove(context.Background(), p.UID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
