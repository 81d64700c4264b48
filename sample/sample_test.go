package sample

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func drawn(t *rapid.T) *Node {
	amount := rapid.Custom(func(t *rapid.T) Amount {
		return Amount{NanoCPU: rapid.Int64Range(0, MaxAmount).Draw(t, "cpu"), MemoryBytes: rapid.Int64Range(0, MaxAmount).Draw(t, "memory")}
	})
	name := rapid.StringMatching(`[a-z0-9-]{1,40}`)
	containers := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Container {
		return Container{Name: name.Draw(t, "name"), Used: amount.Draw(t, "used")}
	}), 1, 4, func(c Container) string { return c.Name })
	pods := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Pod {
		return Pod{UID: name.Draw(t, "uid"), Containers: containers.Draw(t, "containers")}
	}), 1, 20, func(p Pod) string { return p.UID })
	return &Node{WindowNano: rapid.Int64Range(1, int64(MaxWindow)).Draw(t, "window"), Used: amount.Draw(t, "node"), Pods: pods.Draw(t, "pods")}
}

func TestSamplesTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawn(t)
		b, err := n.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(n, got) {
			t.Fatalf("%v: %+v is not %+v", err, got, n)
		}
	})
}

// What no honest worker says is not believed, and cannot be said.
func TestLies(t *testing.T) {
	honest := func() *Node {
		return &Node{WindowNano: 1e9, Pods: []Pod{{UID: "a", Containers: []Container{{Name: "c"}}}}}
	}
	for name, lie := range map[string]func(n *Node){
		"less than nothing":       func(n *Node) { n.Pods[0].Containers[0].Used.MemoryBytes = -1 },
		"more than there can be":  func(n *Node) { n.Pods[0].Containers[0].Used.NanoCPU = MaxAmount + 1 },
		"of the node, too":        func(n *Node) { n.Used.NanoCPU = -5 },
		"no window":               func(n *Node) { n.WindowNano = 0 },
		"a window of years":       func(n *Node) { n.WindowNano = 1 << 62 },
		"a pod twice":             func(n *Node) { n.Pods = append(n.Pods, n.Pods[0]) },
		"a container twice":       func(n *Node) { n.Pods[0].Containers = append(n.Pods[0].Containers, n.Pods[0].Containers[0]) },
		"a pod without a UID":     func(n *Node) { n.Pods[0].UID = "" },
		"a name that is too long": func(n *Node) { n.Pods[0].Containers[0].Name = strings.Repeat("x", 254) },
		"too many pods":           func(n *Node) { n.Pods = make([]Pod, MaxPods+1) },
		"too many containers":     func(n *Node) { n.Pods[0].Containers = make([]Container, MaxContainers+1) },
	} {
		n := honest()
		if _, err := n.Encode(); err != nil {
			t.Fatal(err)
		}
		lie(n)
		if _, err := n.Encode(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Decode(make([]byte, MaxBytes+1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("more bytes than a sample may have: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	n := &Node{WindowNano: 1e9, Pods: []Pod{{UID: "a", Containers: []Container{{Name: "c", Used: Amount{NanoCPU: 1, MemoryBytes: 2}}}}}}
	b, err := n.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := Decode(b)
		if err != nil {
			return
		}
		if err := n.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// A store agrees with a dumb one that keeps every word, and never holds more than it may.
func TestStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewStore()
		s.max = rapid.IntRange(400, 4000).Draw(t, "bytes")
		now := time.Unix(1000, 0)
		body := func(i int64) []byte {
			b, err := (&Node{WindowNano: i}).Encode()
			if err != nil {
				t.Fatal(err)
			}
			return append(b, make([]byte, 0)...)
		}
		told := map[string]time.Time{}
		names := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			node := names.Draw(t, "node")
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "later")) * time.Second)
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if s.Tell(node, body(now.Unix()), now) {
					told[node] = now
				}
			case 1:
				at := now.Add(-time.Duration(rapid.IntRange(0, 200).Draw(t, "age")) * time.Second)
				var b []byte
				if rapid.Bool().Draw(t, "has one") {
					b = body(at.Unix())
				}
				s.Learn(node, b, at, now)
			case 2:
				s.Forget(node)
				delete(told, node)
			case 3:
				s.Keep(func(n string) bool { return n != node }, now)
				delete(told, node)
			}
			bytes := 0
			for n, e := range s.nodes {
				bytes += len(n) + len(e.body) + entryBytes
			}
			if bytes != s.bytes || bytes > s.max {
				t.Fatalf("it holds %d bytes, counts %d and may hold %d", bytes, s.bytes, s.max)
			}
			for _, n := range []string{"a", "b", "c", "d", "e"} {
				got, ok := s.Get(n, now)
				if ok && (now.Sub(got.At) > MaxAge || got.WindowNano != got.At.Unix()) {
					t.Fatalf("of %s at %s it shows one of %s, %d", n, now, got.At, got.WindowNano)
				}
				if at, known := told[n]; known && now.Sub(at) <= MaxAge && (!ok || got.At.Before(at)) {
					t.Fatalf("of %s it has forgotten what its worker said", n)
				}
			}
		}
	})
}

// Who was asked a moment ago is not asked again, nor of whom the worker has told.
func TestWhoIsAskedFor(t *testing.T) {
	s, now := NewStore(), time.Unix(1000, 0)
	b, err := (&Node{WindowNano: 1}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.Tell("told", b, now)
	s.Learn("learnt", b, now, now)
	s.Learn("unknown", nil, time.Time{}, now)
	all := []string{"learnt", "new", "told", "unknown"}
	if got := s.Missing(all, now, now.Add(-time.Second)); !reflect.DeepEqual(got, []string{"new"}) {
		t.Errorf("now %q are asked for", got)
	}
	later := now.Add(5 * time.Second)
	if got := s.Missing(all, later, later.Add(-time.Second)); !reflect.DeepEqual(got, []string{"learnt", "new", "unknown"}) {
		t.Errorf("later %q are asked for", got)
	}
	var told []string
	s.Told(all, now, func(r Raw) bool { told = append(told, r.Node); return true })
	if !reflect.DeepEqual(told, []string{"told"}) {
		t.Errorf("others are told of %q", told)
	}
}
