package model

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawPorts(t *rapid.T, label string) []HostPort {
	out := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) HostPort {
		return HostPort{
			IP: rapid.SampledFrom([]string{AnyHostIP, "10.0.0.1", "10.0.0.2"}).Draw(t, "ip"), Protocol: rapid.SampledFrom([]string{"TCP", "UDP"}).Draw(t, "protocol"),
			Port: rapid.Int32Range(1, 5).Draw(t, "port"),
		}
	}), 0, 12).Draw(t, label)
	slices.SortFunc(out, compareHostPorts)
	return out
}

// TestPorts holds what is done with sorted lists of ports against looking at all pairs.
func TestPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used, more, wanted := drawPorts(t, "used"), drawPorts(t, "more"), drawPorts(t, "wanted")
		all := slices.Concat(used, more)
		slices.SortFunc(all, compareHostPorts)
		if got := addPorts(used, more); !slices.Equal(got, all) {
			t.Fatalf("with more: %v, want %v", got, all)
		}
		if got := removePorts(all, more); !slices.Equal(got, used) {
			t.Fatalf("without more: %v, want %v", got, used)
		}
		conflict := func(p HostPort) bool { return slices.ContainsFunc(wanted, p.Conflicts) }
		want := slices.DeleteFunc(slices.Clone(used), func(p HostPort) bool { return !conflict(p) })
		if got := contending(used, wanted); !slices.Equal(got, want) {
			t.Fatalf("contending: %v, want %v", got, want)
		}
		a, b := &Class{Ports: used}, &Class{Ports: wanted}
		if got := a.TakesPortOf(b); got != (len(want) > 0) || got != b.TakesPortOf(a) {
			t.Fatalf("takes a port: %v, want %v", got, len(want) > 0)
		}
		var taken []string
		for _, w := range wanted {
			if slices.ContainsFunc(used, w.Conflicts) {
				taken = append(taken, w.String())
			}
		}
		if got := takenPorts(wanted, used); !slices.Equal(got, taken) {
			t.Fatalf("taken: %v, want %v", got, taken)
		}
		// What conflicts with the wanted is the same, whether the others were left out before or after.
		left := contending(removePorts(all, more), wanted)
		if got := removePorts(contending(all, wanted), more); !slices.Equal(got, left) {
			t.Fatalf("without more, of those that conflict: %v, want %v", got, left)
		}
	})
}

// BenchmarkPorts: a pod with a hundred host ports comes to a node that has thirty thousand.
func BenchmarkPorts(b *testing.B) {
	var u Usage
	var c Class
	for i := range 300 {
		c.Ports = nil
		for j := range 100 {
			c.Ports = append(c.Ports, HostPort{AnyHostIP, "TCP", int32(i*100 + j)})
		}
		u = u.With(&c)
	}
	for _, name := range []string{"With", "Toward"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if name == "With" {
					u.With(&c)
				} else {
					u.Toward(&c)
				}
			}
		})
	}
}
