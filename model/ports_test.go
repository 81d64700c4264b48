package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawPorts(t *rapid.T, label string) []HostPort {
	many := rapid.Int32Range(0, 1).Draw(t, "many")
	out := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) HostPort {
		return HostPort{
			IP: rapid.SampledFrom([]string{AnyHostIP, "10.0.0.1", "10.0.0.2"}).Draw(t, "ip"), Protocol: rapid.SampledFrom([]string{"TCP", "UDP"}).Draw(t, "protocol"),
			Port: rapid.Int32Range(1, 5+100*many).Draw(t, "port"),
		}
	}), 0, 12+int(200*many)).Draw(t, label)
	slices.SortFunc(out, compareHostPorts)
	return out
}

// TestPorts holds what is done with sorted ports against looking at all pairs.
func TestPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used, more, wanted := drawPorts(t, "used"), drawPorts(t, "more"), drawPorts(t, "wanted")
		list := func(ports []HostPort) string {
			counts := map[HostPort]int{}
			for _, p := range ports {
				counts[p]++
			}
			var out []string
			for _, p := range slices.SortedFunc(maps.Keys(counts), compareHostPorts) {
				out = append(out, fmt.Sprintf("%v*%d", p, counts[p]))
			}
			return strings.Join(out, " ")
		}
		same := func(what string, got UsedPorts, want []HostPort) {
			if got.String() != list(want) || (got.Len() == 0) != (len(want) == 0) ||
				slices.ContainsFunc(got.chunks, func(c []usedPort) bool { return len(c) == 0 }) {
				t.Fatalf("%s: %v, want %v", what, got, list(want))
			}
		}
		set := UsedPorts{}.With(used)
		all := set.With(more)
		same("used", set, used)
		same("with more", all, slices.Concat(used, more))
		both := set.Plus(UsedPorts{}.With(more))
		same("both", both, slices.Concat(used, more))
		same("without more", all.Without(more), used)
		same("both without more", both.Without(more), used)
		same("both and more", both.With(more), slices.Concat(used, more, more))
		same("as it was", all, slices.Concat(used, more))
		conflict := func(p HostPort) bool { return slices.ContainsFunc(wanted, conflictsWith(p)) }
		want := slices.DeleteFunc(slices.Clone(used), func(p HostPort) bool { return !conflict(p) })
		same("of those that conflict", set.Toward(wanted), want)
		a, b := &Class{Ports: used}, &Class{Ports: wanted}
		if got := a.TakesPortOf(b); got != (len(want) > 0) || got != b.TakesPortOf(a) {
			t.Fatalf("takes a port: %v, want %v", got, len(want) > 0)
		}
		var taken []string
		for _, w := range wanted {
			if slices.ContainsFunc(used, conflictsWith(w)) {
				taken = append(taken, w.String())
			}
		}
		if got := takenPorts(wanted, set); !slices.Equal(got, taken) {
			t.Fatalf("taken: %v, want %v", got, taken)
		}
		if got, want := takenPorts(wanted, both), takenPorts(wanted, all); !slices.Equal(got, want) {
			t.Fatalf("taken of both: %v, want %v", got, want)
		}
		same("of both that conflict", both.Toward(wanted),
			slices.DeleteFunc(slices.Concat(used, more), func(p HostPort) bool { return !conflict(p) }))
		// What conflicts with the wanted is the same, whether the others were left out before or after.
		if got, want := all.Toward(wanted).Without(more).String(), all.Without(more).Toward(wanted).String(); got != want {
			t.Fatalf("without more, of those that conflict: %v, want %v", got, want)
		}
	})
}

// BenchmarkPorts: a pod with 128 host ports comes to a node where so many pods have as many, on addresses of their own.
func BenchmarkPorts(b *testing.B) {
	for _, pods := range []int{10, 500, 8000} {
		var u Usage
		var c Class
		for i := range pods {
			c.Ports = nil
			for j := range 128 {
				c.Ports = append(c.Ports, HostPort{fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250), "TCP", int32(1000 + j)})
			}
			u = u.With(&c)
		}
		for name, f := range map[string]func(){
			"With": func() { u.With(&c) }, "Without": func() { u.Without(&c) }, "Toward": func() { u.Toward(&c) },
			"UsageFailures": func() { UsageFailures(&c, &Resources{}, &u) },
		} {
			b.Run(fmt.Sprintf("%s/pods=%d", name, pods), func(b *testing.B) {
				for b.Loop() {
					f()
				}
			})
		}
	}
}

// conflictsWith says whether a pod cannot have a port on the host of one that has p: same protocol and port, and the same address or
// one of the two on all addresses. It is the rule that sets of ports are compared with.
func conflictsWith(p HostPort) func(b HostPort) bool {
	return func(b HostPort) bool {
		return p.Port == b.Port && p.Protocol == b.Protocol && (p.IP == b.IP || p.IP == AnyHostIP || b.IP == AnyHostIP)
	}
}
