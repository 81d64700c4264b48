package apiserver

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// moment is one kind's rows as they were at a revision. Where the view is a
// newer one, what has changed since is undone while the rows are read; what a
// row is shown with beside itself is the view's.
type moment struct {
	view     *fsm.View
	revision int64
	rows     rows
}

// undoBatch is how many changes are read from the feed at once.
const undoBatch = 4096

// momentAt finds the rows of a revision whose keys begin so: on any server, for as long as the
// change feed goes back to it, and where a list was begun for some time longer.
func (t *tables) momentAt(ctx context.Context, prefix string, revision int64) (moment, error) {
	v, err := t.viewNotOlder(ctx, revision)
	if err != nil {
		return moment{}, err
	}
	m := moment{v, revision, t.kind.rows}
	if v.Revision() == revision {
		return m, nil
	}
	if kept, ok := t.pins.get(revision); ok {
		m.view = kept
		return m, nil
	}
	before, err := t.rowsBefore(ctx, prefix, revision, v.Revision())
	if errors.Is(err, store.ErrCompacted) {
		return moment{}, listExpired()
	}
	m.rows = before.over(t.kind.rows)
	return m, err
}

// momentToGoOn is momentAt for a list whose first part was of a revision. As in Kubernetes it is of one state for some
// minutes, whatever the feed holds: who takes longer is told to go on with what is there by then.
func (t *tables) momentToGoOn(ctx context.Context, prefix string, revision int64) (moment, error) {
	if _, kept := t.pins.get(revision); !kept {
		next, err := t.backend.Feed().After(revision, 1)
		if err == nil && len(next) > 0 && t.backend.View().TimeUnixNano()-next[0].TimeUnixNano > int64(pinTTL) {
			return moment{}, listExpired()
		}
	}
	return t.momentAt(ctx, prefix, revision)
}

// undone holds, by key, the rows that changes were made to: nil where there was
// none.
type undone map[string]any

// rowsBefore collects what the changes after a revision, up to another, were
// made to. It may go through the whole feed, in turns as lists of many rows are made.
func (t *tables) rowsBefore(ctx context.Context, prefix string, revision, upTo int64) (undone, error) {
	before, answer := undone{}, answerFrom(ctx)
	for first := true; revision < upTo; first = false {
		if !first {
			if err := answer.goOn(ctx); err != nil {
				return nil, err
			}
		}
		changes, err := t.backend.Feed().After(revision, undoBatch)
		if err != nil {
			return nil, err
		}
		if len(changes) == 0 {
			return nil, store.ErrCompacted // the state was replaced meanwhile
		}
		for i := range changes {
			c := &changes[i]
			if revision = c.Revision; revision > upTo {
				break
			}
			key, ours := strings.CutPrefix(c.Key, t.kind.rows.keyPrefix)
			if c.Table != t.kind.rows.table || !ours || !strings.HasPrefix(key, prefix) {
				continue
			}
			if _, known := before[key]; !known {
				before[key] = c.Old
			}
		}
	}
	return before, nil
}

// over reads rows as if the changes had not been made.
func (u undone) over(r rows) rows {
	keys := make([]string, 0, len(u))
	for key := range u {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	out := r
	out.get = func(v *fsm.View, key string) (any, bool) {
		if row, ok := u[key]; ok {
			return row, row != nil
		}
		return r.get(v, key)
	}
	out.scan = func(v *fsm.View, prefix, from string, f func(key string, row any) bool) {
		next, _ := slices.BinarySearch(keys, max(prefix, from))
		goOn := true
		// undo gives the rows that changed, up to a key; limited says that there is one.
		undo := func(key string, limited bool) {
			for ; goOn && next < len(keys) && strings.HasPrefix(keys[next], prefix) && (!limited || keys[next] < key); next++ {
				if row := u[keys[next]]; row != nil {
					goOn = f(keys[next], row)
				}
			}
		}
		r.scan(v, prefix, from, func(key string, row any) bool {
			undo(key, true)
			if _, changed := u[key]; goOn && !changed {
				goOn = f(key, row)
			}
			return goOn
		})
		undo("", false)
	}
	if r.onNode != nil {
		out.onNode = func(v *fsm.View, node string, f func(key string, row any) bool) {
			out.scan(v, "", "", func(key string, row any) bool { return r.nodeOf(row) != node || f(key, row) })
		}
	}
	return out
}
