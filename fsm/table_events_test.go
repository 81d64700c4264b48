package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func eventOf(name string, at time.Time, padding int) *PutEvent {
	return &PutEvent{Create: true, Event: EventWire{Object: &corev1.Event{
		ObjectMeta:    metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(at)},
		LastTimestamp: metav1.NewTime(at), EventTime: metav1.NewMicroTime(at), Message: strings.Repeat("x", padding),
	}}}
}

// TestEventsGoByTheirArrival: whatever times events claim, those that came before
// a time go, within ten seconds, and no others; also after a restore.
func TestEventsGoByTheirArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, index, now := NewState(), uint64(0), int64(worldStart.UnixNano())
		apply := func(c Command) Result {
			index++
			entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: now}, []Proposal{{User: "admin", Command: c}})
			if err != nil {
				t.Fatal(err)
			}
			rs, err := s.Apply(index, 1, entry)
			if err != nil {
				t.Fatal(err)
			}
			return rs[0]
		}
		apply(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}, Create: true})
		came := map[string]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += int64(rapid.IntRange(0, 15).Draw(t, "seconds")) * 1e9
			name := fmt.Sprintf("e%d", rapid.IntRange(0, 20).Draw(t, "event"))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				before := now - int64(rapid.IntRange(0, 60).Draw(t, "age"))*1e9
				if r := apply(&DeleteEvents{BeforeUnixNano: before, Limit: 1000}); r.Refused() {
					t.Fatal(r.Message)
				}
				for name, at := range came {
					_, there := s.View().Events.Get("default/" + name)
					if there && at < before || !there && at >= before+arrivalGrain {
						t.Fatalf("an event that came at %d is there: %t, after those before %d went", at-now, there, before-now)
					}
					if !there {
						delete(came, name)
					}
				}
			case 1:
				s = restoredFrom(t, s.View())
			case 2:
				apply(&DeleteEvents{Key: "default/" + name})
				delete(came, name)
			default:
				year := rapid.SampledFrom([]int{-3000, 1, 1969, 2026, 2100, 9999}).Draw(t, "year")
				put := eventOf(name, time.Date(year, 1, 1, 0, 0, 0, 5, time.UTC), 0)
				_, known := came[name]
				put.Create = !known
				if r := apply(put); r.Refused() {
					t.Fatal(r.Message)
				}
				came[name] = now
			}
			if n := s.View().Events.Len(); n != len(came) {
				t.Fatalf("%d events, want %d", n, len(came))
			}
			if n := s.View().arrivals.Len(); (n == 0) != (len(came) == 0) {
				t.Fatalf("%d arrivals of %d events are kept", n, len(came))
			}
		}
	})
}

// TestEventsAreBoundedByBytes: one event, and all of them.
func TestEventsAreBoundedByBytes(t *testing.T) {
	m := newMemory(t)
	r := eventOf("big", worldStart, maxEventBytes).Apply(&Tx{view: m.state.live})
	if r.Code != 413 || !strings.Contains(r.Message, "default/big") || !strings.Contains(r.Message, fmt.Sprint(maxEventBytes)) {
		t.Errorf("a big event: %+v", r)
	}
	for i := range maxEventsBytes/maxEventBytes + 20 {
		m.apply(eventOf(fmt.Sprintf("e%d", i), worldStart, maxEventBytes-200))
	}
	v, bytes := m.state.View(), 0
	v.Events.Scan("", func(_ string, e *corev1.Event) bool { bytes += e.Size(); return true })
	if bytes != v.eventBytes || bytes > maxEventsBytes || bytes < maxEventsBytes-2*maxEventBytes {
		t.Errorf("%d bytes of events, counted %d, want nearly %d", bytes, v.eventBytes, maxEventsBytes)
	}
	if _, there := v.Events.Get("default/e0"); there {
		t.Error("the oldest is there")
	}
}
