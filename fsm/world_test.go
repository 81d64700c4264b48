package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/berth-dev/berth/store"
)

// failer is what testing.T, testing.F and rapid.T have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// begin begins an entry, by the rules of its version.
func (s *State) begin(index, term uint64, h Header) *Tx {
	tx := s.open(index, term, h)
	tx.goBy(tx.version)
	return tx
}

// world is a state with a clock and a replica that is fed the same entries.
// Every entry goes through its bytes, as in the log, and everything that must
// always hold is checked after it.
type world struct {
	t       failer
	state   *State
	replica *State
	now     time.Time
	index   uint64

	user    string
	groups  []string
	decided int64                     // the revision by which commands are; 0: whichever
	shadow  map[string]map[string]any // what the feed's changes add up to
	version int                       // of the rules by which its entries are
	seen    int64                     // revision up to which the shadow is
	log     [][]byte

	restored string            // the last restore, see RestoreSnapshot
	saved    map[string][]byte // snapshots by name, compressed
}

var worldStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t failer) *world {
	return &world{
		t: t, state: NewState(), replica: NewState(), now: worldStart, version: LogVersion,
		user: "admin", groups: []string{"system:masters"}, shadow: map[string]map[string]any{},
	}
}

func (w *world) view() *View { return w.state.View() }

// apply puts commands into one entry and applies it to both replicas.
func (w *world) apply(commands ...Command) []Result {
	w.t.Helper()
	ps := make([]Proposal, len(commands))
	for i, c := range commands {
		ps[i] = Proposal{User: w.user, Groups: w.groups, Seen: w.decided, Command: c}
	}
	entry, err := EncodeEntry(Header{Version: w.version, TimeUnixNano: w.now.UnixNano(), Server: "s1"}, ps)
	if err != nil {
		w.t.Fatalf("encode %T: %v", commands[0], err)
	}
	return w.applyEntry(entry)
}

func (w *world) applyEntry(entry []byte) []Result {
	w.t.Helper()
	before := w.view()
	w.index++
	w.log = append(w.log, entry)
	results, err := w.state.Apply(w.index, 1, entry)
	if err != nil {
		w.t.Fatalf("apply entry %d: %v", w.index, err)
	}
	if _, err := w.replica.Apply(w.index, 1, entry); err != nil {
		w.t.Fatalf("apply entry %d to the replica: %v", w.index, err)
	}
	w.check(before, results)
	return results
}

// check holds after every entry, whatever it was.
func (w *world) check(before *View, results []Result) {
	w.t.Helper()
	v := w.view()
	if a, b := v.Digest(), w.replica.View().Digest(); a != b {
		w.t.Fatalf("entry %d: the replicas differ: %s, %s", w.index, a, b)
	}
	allRefused := true
	for _, r := range results {
		allRefused = allRefused && r.Refused() && r.Code != http.StatusInternalServerError // whose record is a change
	}
	if allRefused && len(results) > 0 && before.TimeUnixNano() == v.TimeUnixNano() && before.Digest() != v.Digest() {
		w.t.Fatalf("entry %d: refused, and yet the state changed", w.index)
	}
	if a, b := v.Bytes(), bytesOfRows(w.t, v); a != b {
		w.t.Fatalf("entry %d: the state counts %d bytes, its rows have %d", w.index, a, b)
	}
	restored := v.restoredID() != before.restoredID() && v.Version() >= SinceSeen
	if a, b := before.RestoredAt(), v.RestoredAt(); restored != (a != b) || restored && (b <= before.Revision() || b > v.Revision()) {
		w.t.Fatalf("entry %d: what was decided before %d is refused, and then before %d; revision %d is followed by %d, restored: %t",
			w.index, a, b, before.Revision(), v.Revision(), restored)
	}
	w.followFeed()
}

// allAfter is all that a feed has after a revision.
func allAfter(f *store.Feed, revision int64) (all []store.Change, err error) {
	for {
		part, err := f.After(revision, 1<<20)
		if err != nil || len(part) == 0 {
			return all, err
		}
		all = append(all, part...)
		revision = part[len(part)-1].Revision
	}
}

// followFeed applies the feed's changes to the shadow and compares it with the
// tables.
func (w *world) followFeed() {
	w.t.Helper()
	changes, err := allAfter(w.state.Feed(), w.seen)
	if id := w.view().restoredID(); id != w.restored {
		if !errors.Is(err, store.ErrCompacted) {
			w.t.Fatalf("feed: goes on over a restore: %v", err)
		}
		w.restored = id
		w.reshadow()
		return
	}
	if err != nil {
		w.t.Fatalf("feed after %d: %v", w.seen, err)
	}
	for _, c := range changes {
		if c.Revision != w.seen+1 {
			w.t.Fatalf("feed: revision %d follows %d", c.Revision, w.seen)
		}
		w.seen = c.Revision
		rows := w.shadow[c.Table]
		if rows == nil {
			rows = map[string]any{}
			w.shadow[c.Table] = rows
		}
		if rows[c.Key] != c.Old {
			w.t.Fatalf("feed: the old row of %s %s at %d is not the one that was there", c.Table, c.Key, c.Revision)
		}
		if c.New == nil {
			delete(rows, c.Key)
		} else {
			rows[c.Key] = c.New
			requireReadBack(w.t, rowCodecs[c.Table], c.Key, c.New)
		}
	}
	if w.seen != w.view().Revision() {
		w.t.Fatalf("feed: ends at %d, the state is at %d", w.seen, w.view().Revision())
	}
	for _, table := range w.view().tables() {
		if !inFeed(table) {
			w.followBookkeeping(table)
			continue
		}
		shadow := w.shadow[table.Name()]
		if len(shadow) != table.Len() {
			w.t.Fatalf("feed: %d rows of %s, the table has %d", len(shadow), table.Name(), table.Len())
		}
		eachRow(table, func(key string, row any) {
			if shadow[key] != row {
				w.t.Fatalf("feed: another row for %s %s than the table has", table.Name(), key)
			}
		})
	}
}

// followBookkeeping looks at the rows of a table whose changes nobody is told.
func (w *world) followBookkeeping(table anyTable) {
	w.t.Helper()
	rows := map[string]any{}
	eachRow(table, func(key string, row any) {
		rows[key] = row
		if w.shadow[table.Name()][key] != row {
			requireReadBack(w.t, table, key, row)
		}
	})
	w.shadow[table.Name()] = rows
}

// eachRow calls f for every row of a table.
func eachRow(t anyTable, f func(key string, row any)) {
	scan := reflect.ValueOf(t).MethodByName("Scan")
	scan.Call([]reflect.Value{reflect.ValueOf(""), reflect.MakeFunc(scan.Type().In(1), func(args []reflect.Value) []reflect.Value {
		f(args[0].String(), args[1].Interface())
		return []reflect.Value{reflect.ValueOf(true)}
	})})
}

// inFeed says whether the changes of a table are in the feed.
func inFeed(t anyTable) bool {
	return !reflect.ValueOf(t).Elem().FieldByName("def").Elem().FieldByName("Revise").IsNil()
}

// restore replaces the state by what its snapshot gives, after comparing the
// two.
func (w *world) restore() {
	w.t.Helper()
	restored := restoredFrom(w.t, w.view())
	compareViews(w.t, fmt.Sprintf("restored at index %d", w.index), w.view(), restored.View())
	w.state = restored
	w.reshadow()
}

// reshadow begins anew after the feed did.
func (w *world) reshadow() {
	w.seen = w.view().Revision()
	w.shadow = map[string]map[string]any{}
	for _, t := range w.view().tables() {
		rows := map[string]any{}
		eachRow(t, func(key string, row any) { rows[key] = row })
		w.shadow[t.Name()] = rows
	}
}

func restoredFrom(t failer, v *View) *State {
	t.Helper()
	var buf bytes.Buffer
	if err := v.Write(&buf); err != nil {
		t.Fatalf("write a snapshot: %v", err)
	}
	s := NewState()
	if err := s.Restore(&buf); err != nil {
		t.Fatalf("restore a snapshot: %v", err)
	}
	return s
}
