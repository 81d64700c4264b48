package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/berth-dev/berth/fsm"
)

// TestRestoreState: the state of a whole cluster goes back to what was saved,
// asked of any server; whatever is cut off leaves it as it was.
func TestRestoreState(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect = 3 })
	}
	leader := c.leader()
	eventually(t, "all servers to have told their version", func() bool { return leader.versionNow(t.Context()) == fsm.LogVersion })
	c.propose(leader, namespace("kept"))
	var saved bytes.Buffer
	if err := leader.View().Write(&saved); err != nil {
		t.Fatal(err)
	}
	c.propose(leader, namespace("later"))
	asked := c.followers()[0]
	unchanged := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, errNothingRestored) {
			t.Errorf("%s: %v", what, err)
		}
		for _, s := range c.servers {
			// Reads go on, whatever became of the restore.
			if err := s.ReadIndex(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, ok := s.View().Namespaces.Get("later"); !ok {
				t.Errorf("%s: %s has changed", what, s.Name())
			}
			if id, _ := s.View().StagedSnapshot(); id != "" {
				t.Errorf("%s: %s still has what was staged", what, s.Name())
			}
		}
	}

	damaged := bytes.Clone(saved.Bytes())
	damaged[len(damaged)/2] ^= 1
	_, err := asked.RestoreState(t.Context(), bytes.NewReader(damaged))
	unchanged("a damaged snapshot", err)

	_, err = asked.RestoreState(t.Context(), io.MultiReader(bytes.NewReader(saved.Bytes()[:saved.Len()/2]), brokenReader{}))
	unchanged("a client that goes away while it sends", err)

	gone, cancel := context.WithCancel(t.Context())
	_, err = asked.RestoreState(gone, io.MultiReader(&saved, onEnd{cancel}))
	unchanged("a client that goes away before anything is staged", err)

	var again bytes.Buffer
	if err := leader.View().Write(&again); err != nil {
		t.Fatal(err)
	}
	given, before := leader.View().Revision(), leader.begin(t.Context())
	defer before.end(nil)
	c.propose(leader, namespace("last"))
	result, err := asked.RestoreState(t.Context(), &again)
	if err != nil {
		t.Fatal(err)
	}
	if result.Revision <= given {
		t.Errorf("restored at revision %d, and %d was given out", result.Revision, given)
	}
	for _, s := range c.servers {
		await(t, s, "the restore", func(v *fsm.View) bool { return v.Revision() >= result.Revision })
		v := s.View()
		_, kept := v.Namespaces.Get("kept")
		_, last := v.Namespaces.Get("last")
		if !kept || last {
			t.Errorf("%s: kept %t, last %t", s.Name(), kept, last)
		}
	}
	if v, err := leader.Verify(t.Context()); err != nil || !v.Equal {
		t.Errorf("the servers differ: %+v, %v", v, err)
	}
	c.propose(asked, namespace("afterwards"))

	// What controllers have decided before it is no more.
	results, _, err := leader.proposeEntered(t.Context(), true, leader.decided(before.seen, namespace("late")))
	if err != nil || results[0].Code != http.StatusConflict {
		t.Errorf("what was under way is answered by %v, %v", results, err)
	}
	if _, _, err := leader.newFence(before).enter(t.Context()); !errors.Is(err, errRestored) {
		t.Errorf("who goes on by the state before is let through: %v", err)
	}
	if err := context.Cause(before.lasting); !errors.Is(err, errRestored) {
		t.Errorf("it ends with %v", err)
	}
	now := leader.begin(t.Context())
	defer now.end(nil)
	results, _, err = leader.proposeEntered(t.Context(), true, leader.decided(now.seen, namespace("timely")))
	if err != nil || results[0].Refused() {
		t.Errorf("what is decided since is answered by %v, %v", results, err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// onEnd calls f when it is read, and is at its end.
type onEnd struct{ f func() }

func (o onEnd) Read([]byte) (int, error) { o.f(); return 0, io.EOF }
