package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/server"
)

const (
	// snapshotEntries and snapshotInterval make servers keep a snapshot soon.
	snapshotEntries  = 16
	snapshotInterval = time.Second
)

// restart: the servers keep a snapshot of many pods, stop, and start from it.
func restart(ctx context.Context, r *run) error {
	digest, err := r.fillAndSnapshot(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	c, err := r.startServers(ctx, server.Consensus{})
	if err != nil {
		return err
	}
	err = func() error {
		if err := c.await(ctx, "the servers to have their state", func(v *fsm.View) (bool, int) {
			return bound(v) == r.Pods, bound(v)
		}); err != nil {
			return err
		}
		if err := c.servers[0].ReadIndex(ctx); err != nil {
			return err
		}
		r.figure("from the start to a state that answers reads, all servers at once", time.Since(began).Seconds(), "s")
		// The one more pod shows that they are of use.
		if _, err := c.bindBulk(ctx, "more-", 1, r.Pods+1); err != nil {
			return err
		}
		r.figure("from the start to the first new binding", time.Since(began).Seconds(), "s")
		m, err := measureMemory()
		if err != nil {
			return err
		}
		r.figure("heap after the restart, each server", float64(m.heap)/float64(r.Servers)/(1<<20), "MiB")
		r.figure("resident after the restart, each server", float64(m.resident)/float64(r.Servers)/(1<<20), "MiB")
		if err := c.verify(ctx, r.Pods+1); err != nil {
			return err
		}
		return nil
	}()
	if err == nil && digest == "" {
		err = errors.New("the state before the restart has no digest")
	}
	return errors.Join(err, c.stop(ctx))
}

// fillAndSnapshot binds the pods, measures what they take, waits until every
// server has kept a snapshot of them, and stops the servers.
func (r *run) fillAndSnapshot(ctx context.Context) (digest string, err error) {
	c, err := r.startServers(ctx, server.Consensus{SnapshotInterval: snapshotInterval, SnapshotThreshold: snapshotEntries})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	if err := r.addNodes(ctx, c); err != nil {
		return "", err
	}
	// A few first, so that what every cluster has once is not counted.
	warm := min(1_000, r.Pods/2)
	if _, err := c.bindBulk(ctx, "warm-", warm, warm); err != nil {
		return "", err
	}
	before, err := measureMemory()
	if err != nil {
		return "", err
	}
	for inAll := warm; inAll < r.Pods; {
		n := min(maxAdmit, r.Pods-inAll)
		inAll += n
		if _, err := c.bindBulk(ctx, "kept-", n, inAll); err != nil {
			return "", err
		}
	}
	after, err := measureMemory()
	if err != nil {
		return "", err
	}
	copies := float64((r.Pods - warm) * r.Servers)
	r.figure("heap a bound pod, each server", (float64(after.heap)-float64(before.heap))/copies, "bytes")
	r.figure("resident a bound pod, each server", (float64(after.resident)-float64(before.resident))/copies, "bytes")
	index := c.servers[0].View().Index()
	if err := c.awaitSnapshots(ctx, r.DataDir, index); err != nil {
		return "", err
	}
	size, err := snapshotSize(r.DataDir)
	if err != nil {
		return "", err
	}
	r.figure("snapshot", float64(size)/(1<<20), "MiB")
	return c.servers[0].View().Digest(), c.verify(ctx, r.Pods)
}

// awaitSnapshots gives the log entries until every server has kept a snapshot
// of at least the index.
func (c *cluster) awaitSnapshots(ctx context.Context, dir string, index uint64) error {
	give := time.Now().Add(stallTimeout)
	for {
		if err := c.propose(ctx, []fsm.Command{&fsm.Checkpoint{}}); err != nil {
			return err
		}
		snapshots, err := readSnapshots(dir)
		if err != nil {
			return err
		}
		newest := map[string]uint64{}
		for _, s := range snapshots {
			newest[s.store] = max(newest[s.store], s.Index)
		}
		done := len(newest) == len(c.servers)
		for _, at := range newest {
			done = done && at >= index
		}
		switch {
		case done:
			return nil
		case time.Now().After(give):
			return fmt.Errorf("no snapshot of index %d was kept within %s: %v", index, stallTimeout, newest)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * poll):
		}
	}
}

// keptSnapshot is what Raft writes about a snapshot.
type keptSnapshot struct {
	Index uint64
	Size  int64
	store string
}

func readSnapshots(dir string) ([]keptSnapshot, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "server", "raft", "snapshots", "*", "meta.json"))
	if err != nil {
		return nil, err
	}
	var out []keptSnapshot
	for _, file := range files {
		if filepath.Ext(filepath.Dir(file)) == ".tmp" {
			continue
		}
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // an older one that was just removed
		}
		s := keptSnapshot{store: filepath.Dir(filepath.Dir(file))}
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err != nil {
			return nil, fmt.Errorf("read what is said of snapshot %s: %w", filepath.Dir(file), err)
		}
		out = append(out, s)
	}
	return out, nil
}

func snapshotSize(dir string) (int64, error) {
	snapshots, err := readSnapshots(dir)
	var size int64
	for _, s := range snapshots {
		size = max(size, s.Size)
	}
	return size, err
}
