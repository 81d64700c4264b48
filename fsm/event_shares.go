package fsm

import "github.com/berth-dev/berth/store"

// When there are too many events, the namespace that has most of them loses its oldest:
// nobody pushes out those of others with his own.

// SinceEventShares is the version of the rules from which on it is so; before, the oldest of all went.
const SinceEventShares = 30

// eventShares says how much of the events each namespace has.
type eventShares struct {
	// inNamespace are the events by namespace and revision, shares what each namespace has, and
	// largest the namespaces, those with most last.
	inNamespace store.Tree[keptEvent]
	shares      store.Tree[int64]
	largest     store.Tree[string]
}

func (x *eventShares) fork() eventShares {
	return eventShares{inNamespace: x.inNamespace.Fork(), shares: x.shares.Fork(), largest: x.largest.Fork()}
}

// eventWeight is what an event counts, beside its bytes.
const eventWeight = 512

// count takes an event in, or out (by is -1).
func (x *eventShares) count(namespace string, revision int64, e keptEvent, by int64) {
	at := namespace + "\x00" + store.RevisionKey(revision)
	if by > 0 {
		x.inNamespace.Set(at, e)
	} else {
		x.inNamespace.Delete(at)
	}
	old, _ := x.shares.Get(namespace)
	x.largest.Delete(shareKey(old, namespace))
	now := old + by*int64(e.bytes+eventWeight)
	if now == 0 {
		x.shares.Delete(namespace)
		return
	}
	x.shares.Set(namespace, now)
	x.largest.Set(shareKey(now, namespace), namespace)
}

func shareKey(share int64, namespace string) string { return store.RevisionKey(share) + namespace }

// eventToGo is the event that goes when there are too many.
func (v *View) eventToGo() keptEvent {
	if v.Version() >= SinceEventShares {
		if _, namespace, some := v.eventShares.largest.Max(); some {
			if _, oldest, some := v.eventShares.inNamespace.First(namespace + "\x00"); some {
				return oldest
			}
		}
	}
	_, oldest, _ := v.eventOrder.Min()
	return oldest
}
