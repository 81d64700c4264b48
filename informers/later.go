package informers

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A controller's queue has no order but that of what comes into it. When it begins it is told of everything, and what somebody asks
// for then waits behind all of that, though for most of it nothing is left to do. So its handlers are told of what rests a little
// at a time, beside what changes. What was changed last comes first, the first of it at once: of that the controllers of before may not
// have seen all, and of a Service its status does not tell.

const (
	// laterAtOnce is how many objects of each kind are told of at a time, laterEvery how often, and laterAfter when the first are: a look
	// at one takes some tenths of a millisecond of a processor, of which others have need when a leader begins.
	laterAtOnce = 16
	laterEvery  = 50 * time.Millisecond
	laterAfter  = 5 * time.Second
)

// later is what handlers are told of later.
type later struct {
	keys    []string
	objects map[string]any
}

func (l *later) add(key string, o any) {
	if l.objects == nil {
		l.objects = map[string]any{}
	}
	l.keys, l.objects[key] = append(l.keys, key), o
}

// order has what was changed last come first, and what was changed at once by its keys.
func (l *later) order() {
	type keyAt struct {
		key      string
		revision uint64
	}
	all := make([]keyAt, len(l.keys))
	for n, key := range l.keys {
		all[n].key = key
		if o, ok := l.objects[key].(metav1.Object); ok {
			all[n].revision, _ = strconv.ParseUint(o.GetResourceVersion(), 10, 64)
		}
	}
	slices.SortStableFunc(all, func(a, b keyAt) int { return cmp.Compare(b.revision, a.revision) })
	for n := range all {
		l.keys[n] = all[n].key
	}
}

// take gives the object of a key, if it waits, and forgets it.
func (l *later) take(key string) (o any, ok bool) {
	if o, ok = l.objects[key]; ok {
		delete(l.objects, key)
	}
	return o, ok
}

// next gives and forgets the next objects.
func (l *later) next(most int) (out []any) {
	for len(l.keys) > 0 && len(out) < most {
		key := l.keys[0]
		l.keys = l.keys[1:]
		if o, ok := l.take(key); ok {
			out = append(out, o)
		}
	}
	if len(l.keys) == 0 {
		*l = later{}
	}
	return out
}

// tellLater tells the handlers of the next objects that rest, and whether there are more.
func (i *Informer) tellLater() (more bool) {
	for _, o := range i.later.next(laterAtOnce) {
		i.tellOf(o)
	}
	return len(i.later.keys) > 0
}

// tellLater does so for each kind.
func (f *Feed) tellLater() (more bool) {
	for _, i := range f.informers {
		more = i.tellLater() || more
	}
	return more
}
