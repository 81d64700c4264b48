package rpc

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

// TestReportsReachTheServer drives reports with random statuses, lost streams
// and refusals: what the server committed last is in the end what was reported
// last, no status follows a newer one of its pod, and what is told to be taken is
// what was reported last and is committed; in the end all of it was told.
func TestReportsReachTheServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newReports()
		now := time.Unix(0, 0)
		last, committed, told := map[string]int{}, map[string]int{}, map[string]int{}
		var flying *StatusBatch
		n := 0
		commit := func(b *StatusBatch) {
			for _, p := range b.Pods {
				var v int
				if _, err := fmt.Sscan(string(p.Status), &v); err != nil {
					t.Fatal(err)
				}
				if v < committed[p.UID] {
					t.Fatalf("%s went back from %d to %d", p.UID, committed[p.UID], v)
				}
				committed[p.UID] = v
			}
		}
		ack := func(a Ack) {
			for _, p := range r.ack(a, now) {
				if n := int(p.Number); n != last[p.UID] || n != committed[p.UID] {
					t.Fatalf("%s: %d counts as taken, committed %d, reported %d", p.UID, n, committed[p.UID], last[p.UID])
				}
				told[p.UID] = int(p.Number)
			}
		}
		next := func() {
			if b, _ := r.next(now); b != nil {
				if flying != nil {
					t.Fatal("two batches are in flight")
				}
				flying = b
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"report": func(t *rapid.T) {
				n++
				uid := fmt.Sprint("u", rapid.IntRange(0, 4).Draw(t, "uid"))
				pad := rapid.SampledFrom([]int{0, batchBytes / 2, model.MaxPodStatusBytes - 8}).Draw(t, "size")
				last[uid] = n
				r.put(PodReport{UID: uid, Status: fmt.Appendf(nil, "%d %*s", n, pad, ""), Number: uint64(n)})
			},
			"send": func(*rapid.T) { next() },
			"answer": func(t *rapid.T) {
				if flying == nil {
					return
				}
				a := Ack{BatchID: flying.ID}
				if rapid.Bool().Draw(t, "refused") {
					a.Error = "no"
				} else {
					taken := *flying
					taken.Pods = nil
					for _, p := range flying.Pods {
						if rapid.IntRange(0, 3).Draw(t, "broke") == 0 {
							a.Failed = append(a.Failed, p.UID)
						} else {
							taken.Pods = append(taken.Pods, p)
						}
					}
					commit(&taken)
				}
				flying = nil
				ack(a)
			},
			"lose the stream": func(t *rapid.T) {
				if flying != nil && rapid.Bool().Draw(t, "but committed") {
					commit(flying)
				}
				flying = nil
				r.reset()
			},
			"time": func(*rapid.T) { now = now.Add(retryAfter / 2) },
		})
		for i := 0; r.waiting() > 0 || flying != nil; i++ {
			if i > 100 {
				t.Fatalf("%d statuses are stuck", r.waiting())
			}
			now = now.Add(retryAtMost)
			next()
			if flying != nil {
				commit(flying)
				ack(Ack{BatchID: flying.ID})
				flying = nil
			}
		}
		for uid, want := range last {
			if committed[uid] != want {
				t.Fatalf("%s: committed %d, reported %d", uid, committed[uid], want)
			}
			if told[uid] != want {
				t.Fatalf("%s: told that %d is taken, reported %d", uid, told[uid], want)
			}
		}
	})
}

// TestABatchIsAMessage: whatever is reported, the batch is a message that a worker may send; of a status that none may have the rest is said.
func TestABatchIsAMessage(t *testing.T) {
	now := time.Unix(0, 0)
	for _, n := range []int{1, model.MaxPodStatusBytes, model.MaxPodStatusBytes + 1, 3 * MaxWorkerMessageBytes} {
		r := newReports()
		if r.putNode(make([]byte, n)) != (n <= batchBytes) {
			t.Errorf("a status of the node of %d bytes is queued: %t", n, n > batchBytes)
		}
		r.putEvent(make([]byte, n))
		first, _ := r.next(now)
		if first != nil {
			if raw, err := encode(&WorkerMessage{Status: first}); err != nil || len(raw) > MaxWorkerMessageBytes {
				t.Errorf("a batch of %d bytes: %v", len(raw), err)
			}
			r.ack(Ack{BatchID: first.ID}, now)
		}
		for r.waitingEvents() > 0 {
			b, _ := r.next(now)
			if raw, err := encode(&WorkerMessage{Status: b}); err != nil || len(raw) > MaxWorkerMessageBytes {
				t.Fatalf("a batch of %d bytes: %v", len(raw), err)
			}
			r.ack(Ack{BatchID: b.ID}, now)
		}
		whole := r.put(PodReport{Namespace: "n", Name: "p", UID: "uid", Status: make([]byte, n), Removed: true})
		b, _ := r.next(now)
		if b == nil || len(b.Pods) != 1 || !b.Pods[0].Removed {
			t.Fatalf("%d bytes: %+v", n, b)
		}
		raw, err := encode(&WorkerMessage{Status: b})
		if err != nil {
			t.Fatal(err)
		}
		if fits := n <= model.MaxPodStatusBytes; len(raw) > MaxWorkerMessageBytes || whole != fits || (len(b.Pods[0].Status) == n) != fits {
			t.Errorf("a status of %d bytes is sent with %d, in a message of %d; it counts as whole: %t", n, len(b.Pods[0].Status), len(raw), whole)
		}
	}
}

// TestARefusedNodeHoldsUpNoAnswer: the statuses of pods in the same batch are taken, and the node's is sent again, a little later.
func TestARefusedNodeHoldsUpNoAnswer(t *testing.T) {
	r := newReports()
	now := time.Unix(0, 0)
	r.put(PodReport{UID: "pod"})
	r.putNode([]byte("full"))
	b, _ := r.next(now)
	if taken := r.ack(Ack{BatchID: b.ID, NodeFailed: true}, now); len(taken) != 1 || taken[0].UID != "pod" {
		t.Errorf("taken: %+v", taken)
	}
	if b, wait := r.next(now); b != nil || wait != retryAfter {
		t.Errorf("it is sent again after %v: %+v", wait, b)
	}
	b, _ = r.next(now.Add(retryAfter))
	if b == nil || string(b.NodeStatus) != "full" || len(b.Pods) != 0 {
		t.Fatalf("got %+v", b)
	}
	r.ack(Ack{BatchID: b.ID}, now)
	if b, wait := r.next(now.Add(retryAfter)); b != nil || wait != 0 {
		t.Errorf("sent once more: %+v", b)
	}
}

// TestABrokenStatusWaitsLonger: what the servers broke over is said again, later each time, and holds up no other's.
func TestABrokenStatusWaitsLonger(t *testing.T) {
	r := newReports()
	now := time.Unix(0, 0)
	r.put(PodReport{UID: "poison"})
	want := retryAfter
	for range 12 {
		b, _ := r.next(now)
		if b == nil || len(b.Pods) != 1 {
			t.Fatalf("got %+v", b)
		}
		r.ack(Ack{BatchID: b.ID, Failed: []string{"poison"}}, now)
		if again, wait := r.next(now); again != nil || wait != want {
			t.Fatalf("it is sent again after %v, want %v", wait, want)
		}
		r.put(PodReport{UID: "other"})
		r.put(PodReport{UID: "poison"}) // a newer one waits as long
		b, _ = r.next(now)
		if b == nil || len(b.Pods) != 1 || b.Pods[0].UID != "other" {
			t.Fatalf("got %+v", b)
		}
		r.ack(Ack{BatchID: b.ID}, now)
		now, want = now.Add(want), min(2*want, retryAtMost)
	}
	if want != retryAtMost {
		t.Errorf("it waits for %v at most", want)
	}
}

func TestNodeStatusIsKeptUntilCommitted(t *testing.T) {
	r := newReports()
	now := time.Unix(0, 0)
	r.putNode([]byte("a"))
	b, _ := r.next(now)
	r.putNode([]byte("b")) // while a is in flight
	r.ack(Ack{BatchID: b.ID}, now)
	if b, _ = r.next(now); b == nil || string(b.NodeStatus) != "b" {
		t.Fatalf("got %+v", b)
	}
	r.ack(Ack{BatchID: b.ID, Error: "no"}, now)
	if again, wait := r.next(now); again != nil || wait != retryAfter {
		t.Errorf("a refused batch is sent again after %v", wait)
	}
	b, _ = r.next(now.Add(retryAfter))
	r.ack(Ack{BatchID: b.ID}, now)
	if b, _ = r.next(now.Add(retryAfter)); b != nil || r.waiting() != 0 {
		t.Errorf("got %+v", b)
	}
}

func (r *reports) waitingEvents() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

// waiting is how many statuses are not acknowledged.
func (r *reports) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.pods)
	if r.nodeSeq != 0 {
		n++
	}
	return n
}

// TestLateReports: of what was of a state that is gone the worker hears, once, and nothing of it is kept to be said again.
func TestLateReports(t *testing.T) {
	r, now := newReports(), time.Now()
	r.put(PodReport{UID: "early", Number: 1})
	r.put(PodReport{UID: "newer", Number: 2})
	r.put(PodReport{UID: "other", Number: 3})
	b, _ := r.next(now)
	r.put(PodReport{UID: "newer", Number: 4})
	taken := r.ack(Ack{BatchID: b.ID, Late: []string{"early", "newer"}, Failed: []string{"early"}}, now)
	want := []PodReport{{UID: "early", Number: 1, Late: true}, {UID: "other", Number: 3}}
	if !reflect.DeepEqual(taken, want) {
		t.Errorf("taken are %+v", taken)
	}
	if b, wait := r.next(now); b != nil || wait != retryAfter {
		t.Errorf("at once %+v is sent, or in %s", b, wait)
	}
	if b, _ := r.next(now.Add(retryAfter)); b == nil || len(b.Pods) != 1 || b.Pods[0].Number != 4 {
		t.Errorf("a while later %+v is sent", b)
	}
}
