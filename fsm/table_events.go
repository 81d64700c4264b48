package fsm

import (
	"fmt"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/store"
)

// Events are bounded by their number (the configuration's eventLimit), and by
// what they hold: one, and all.
const (
	maxEventBytes  = 64 << 10
	maxEventsBytes = 64 << 20
)

var eventTable = func() *tableDef[*corev1.Event] {
	def := protoTable("events", func(v *live, key string, old, now *corev1.Event, hadOld, hasNow bool) {
		if hadOld {
			was, _ := v.eventOrder.Delete(store.RevisionKey(parseRevision(old.ResourceVersion)))
			v.eventBytes -= was.bytes
			v.eventShares.count(old.Namespace, parseRevision(old.ResourceVersion), was, -1)
		}
		if hasNow {
			is := keptEvent{key, now.Size()}
			v.eventOrder.Set(store.RevisionKey(parseRevision(now.ResourceVersion)), is)
			v.eventBytes += is.bytes
			v.eventShares.count(now.Namespace, parseRevision(now.ResourceVersion), is, 1)
		}
	})
	def.Size = eventBytes
	def.Bytes = nil // maxEventsBytes
	return def
}()

// keptEvent is the key of an event, and what it holds.
type keptEvent struct {
	key   string
	bytes int
}

// checkEventSize refuses an event that holds too much.
func checkEventSize(e *corev1.Event) (Result, bool) {
	if size := e.Size(); size > maxEventBytes {
		return Result{Code: http.StatusRequestEntityTooLarge, Reason: metav1.StatusReasonRequestEntityTooLarge,
			Message: fmt.Sprintf("event %s/%s has %d bytes, and an event may have %d", e.Namespace, e.Name, size, maxEventBytes)}, false
	}
	return Result{}, true
}

// eventArrival tells when the events from a revision on came, or changed: what
// they say of their times themselves is their reporter's. There is one for every
// few seconds in which events came, as long as there are any of them.
type eventArrival struct {
	TimeUnixNano int64 `msgpack:"time_unix_nano"`
}

// arrivalGrain is how exactly arrivals are known, in nanoseconds.
const arrivalGrain = 10_000_000_000

var eventArrivalTable = &tableDef[*eventArrival]{
	Name:      "eventarrivals",
	Marshal:   packRow[eventArrival],
	Unmarshal: unpackRow[eventArrival],
}

func arrivalKey(revision int64) string {
	return string(appendHex(make([]byte, 0, 16), uint64(revision)))
}

// putEvent stores an event, and lets those go that are too many.
func (tx *Tx) putEvent(e *corev1.Event, limit int) {
	v := tx.view
	if _, last, ok := v.arrivals.Max(); !ok || v.TimeUnixNano()-last.TimeUnixNano >= arrivalGrain {
		put(tx, v.arrivals, arrivalKey(v.Revision()+1), &eventArrival{v.TimeUnixNano()})
	}
	oldest, _, _ := v.eventOrder.Min()
	put(tx, v.Events, e.Namespace+"/"+e.Name, e)
	tx.trimEvents(limit)
	if is, _, _ := v.eventOrder.Min(); is != oldest {
		tx.forgetArrivals()
	}
}

// maxTrimmed bounds how many events, or records, go at once when fewer are to be
// kept; the others go as new ones come.
const maxTrimmed = 10_000

// trimEvents lets events go that are too many; what is known of them stays until forgetArrivals.
func (tx *Tx) trimEvents(limit int) {
	v := tx.view
	for n := 0; n < maxTrimmed && (v.Events.Len() > limit || v.eventBytes > maxEventsBytes); n++ {
		remove(tx, v.Events, v.eventToGo().key)
	}
}

// removeEventsBefore removes at most so many events that came before a time, and
// have not changed since.
func (tx *Tx) removeEventsBefore(unixNano int64, most int32) {
	for range most {
		came, ok := tx.view.OldestEventUnixNano()
		if !ok || came >= unixNano {
			break
		}
		_, oldest, _ := tx.view.eventOrder.Min()
		remove(tx, tx.view.Events, oldest.key)
		tx.forgetArrivals()
	}
}

// forgetArrivals drops what is known of events that are gone: the first arrival
// is that of the oldest event.
func (tx *Tx) forgetArrivals() {
	v := tx.view
	for v.arrivals.Len() > 0 {
		first, second := v.firstArrivals()
		if oldest, _, some := v.eventOrder.Min(); some && (second == "" || second > arrivalKey(store.RevisionOf(oldest))) {
			return
		}
		remove(tx, v.arrivals, first)
	}
}

// firstArrivals are the keys of the first two arrivals, "" where there is none.
func (v *View) firstArrivals() (first, second string) {
	v.arrivals.Scan("", func(key string, _ *eventArrival) bool {
		if first == "" {
			first = key
			return true
		}
		second = key
		return false
	})
	return first, second
}

func formatRevision(revision int64) string { return strconv.FormatInt(revision, 10) }

// parseRevision reads a resourceVersion that the state itself has stamped.
func parseRevision(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
