package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	mounttypes "github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/types"
)

// Views of images are snapshots of containerd's that nobody can write to. They have the label that keeps them, and the layers that they
// show, from containerd's own collector, and those by which the agent finds them again.

const (
	// criNamespace is where containerd has what it has by the container runtime interface.
	criNamespace = "k8s.io"
	labelKeep    = "containerd.io/gc.root"
	// defaultSnapshotter is containerd's, where it does not tell.
	defaultSnapshotter = "overlayfs"
)

// ofContainerd bounds a call of containerd's own API, which is on the same socket, and leads it to what the interface shows.
func ofContainerd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace), askTimeout)
}

func (r *Runtime) snapshotter() string {
	if name := r.known().snapshotter; name != "" {
		return name
	}
	return defaultSnapshotter
}

func (r *Runtime) viewKey(pod types.UID, volume string) string {
	return fmt.Sprintf("berth/%s/%s/%s", r.opts.Node, pod, volume)
}

// hasView says whether there is a view for a volume.
func (r *Runtime) hasView(ctx context.Context, pod types.UID, volume string) (bool, error) {
	ctx, cancel := ofContainerd(ctx)
	defer cancel()
	_, err := snapshots.NewSnapshotsClient(r.conn).Stat(ctx, &snapshots.StatSnapshotRequest{Snapshotter: r.snapshotter(), Key: r.viewKey(pod, volume)})
	if notFound(err) {
		return false, nil
	}
	return err == nil, asked(err)
}

// view is how a view of an image is mounted that is there, or else made anew.
func (r *Runtime) view(ctx context.Context, pod types.UID, volume, ref string, there bool) ([]*mounttypes.Mount, error) {
	ctx, cancel := ofContainerd(ctx)
	defer cancel()
	client, in, key := snapshots.NewSnapshotsClient(r.conn), r.snapshotter(), r.viewKey(pod, volume)
	if there {
		m, err := client.Mounts(ctx, &snapshots.MountsRequest{Snapshotter: in, Key: key})
		return m.GetMounts(), asked(err)
	}
	chain, err := r.chainOf(ctx, ref)
	if err == nil {
		err = r.removeView(ctx, key) // of an agent that was killed
	}
	if err != nil {
		return nil, err
	}
	made, err := client.View(ctx, &snapshots.ViewSnapshotRequest{Snapshotter: in, Key: key, Parent: chain,
		Labels: map[string]string{labelKeep: time.Now().UTC().Format(time.RFC3339), labelNode: r.opts.Node, labelPodUID: string(pod)}})
	if notFound(err) {
		return nil, fmt.Errorf("its layers are not unpacked in containerd's snapshotter %s: %w", in, unwrapped(err))
	}
	return made.GetMounts(), asked(err)
}

// views lists the agent's by their keys, with the pods that they are of; those of one pod where it has a name.
func (r *Runtime) views(ctx context.Context, pod types.UID) (map[string]types.UID, error) {
	filter := fmt.Sprintf("labels.%q==%s", labelNode, strconv.Quote(r.opts.Node))
	if pod != "" {
		filter += fmt.Sprintf(",labels.%q==%s", labelPodUID, strconv.Quote(string(pod)))
	}
	stream, err := snapshots.NewSnapshotsClient(r.conn).List(ctx, &snapshots.ListSnapshotsRequest{Snapshotter: r.snapshotter(), Filters: []string{filter}})
	out := map[string]types.UID{}
	for err == nil {
		var some *snapshots.ListSnapshotsResponse
		if some, err = stream.Recv(); err == nil {
			for _, s := range some.Info {
				out[s.Name] = types.UID(s.Labels[labelPodUID])
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("listing views of images: %w", asked(err))
	}
	return out, nil
}

// removeViews removes those of a pod.
func (r *Runtime) removeViews(ctx context.Context, pod types.UID) error {
	ctx, cancel := ofContainerd(ctx)
	defer cancel()
	all, err := r.views(ctx, pod)
	for key := range all {
		err = errors.Join(err, r.removeView(ctx, key))
	}
	return err
}

func (r *Runtime) removeView(ctx context.Context, key string) error {
	_, err := snapshots.NewSnapshotsClient(r.conn).Remove(ctx, &snapshots.RemoveSnapshotRequest{Snapshotter: r.snapshotter(), Key: key})
	if err != nil && !notFound(err) {
		return fmt.Errorf("removing view %s of an image: %w", key, asked(err))
	}
	return nil
}

// sweepViews removes those whose pods have no directory any more: somebody has removed it.
func (r *Runtime) sweepViews(ctx context.Context) error {
	if r.known().name != containerd {
		return nil
	}
	ctx, cancel := ofContainerd(ctx)
	defer cancel()
	all, err := r.views(ctx, "")
	for key, pod := range all {
		if _, serr := os.Stat(r.podDir(pod)); os.IsNotExist(serr) {
			err = errors.Join(err, r.removeView(ctx, key))
		}
	}
	return err
}

// mountLayers mounts what a snapshotter has given read-only at a directory. dir has the directory without anything.
func mountLayers(layers []*mounttypes.Mount, dir, at string) error {
	if len(layers) != 1 {
		return fmt.Errorf("the snapshotter wants %d mounts for it", len(layers))
	}
	m := layers[0]
	var below, options []string
	for _, o := range m.Options {
		switch paths, ok := strings.CutPrefix(o, "lowerdir="); {
		case ok:
			below = strings.Split(paths, ":")
		case o == "ro", o == "rbind", o == "bind":
		default:
			options = append(options, o)
		}
	}
	switch {
	case m.Type == "bind" && len(options) == 0:
		// One layer: mounted as it is, whoever may mount could make it writable, for everybody who has it.
		return mountOverlay(dir, at, []string{emptyLayer, m.Source}, nil)
	case m.Type == "overlay" && len(below) > 1:
		from, names := relative(below)
		return mountOverlay(from, at, names, options)
	}
	return fmt.Errorf("the snapshotter wants it mounted as %s with %s, which this agent does not do", m.Type, strings.Join(m.Options, ","))
}

// relative are paths as seen from a directory that all of them are below.
func relative(paths []string) (from string, names []string) {
	from = filepath.Dir(paths[0])
	for from != "/" && slices.ContainsFunc(paths, func(p string) bool { return !strings.HasPrefix(p, from+"/") }) {
		from = filepath.Dir(from)
	}
	for _, p := range paths {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(p, from), "/"))
	}
	return from, names
}

// mountOverlay mounts layers, the topmost first, so that nobody can write to them. They are named as seen from a directory: the kernel
// reads no more than a page of options, and cuts off the rest.
func mountOverlay(from, at string, below, options []string) error {
	data := strings.Join(append(slices.Clone(options), "lowerdir="+strings.Join(below, ":")), ",")
	if len(data) >= os.Getpagesize() {
		return fmt.Errorf("it has %d layers, which are too many for this kernel's options of a mount", len(below))
	}
	done := make(chan error, 1)
	go func() {
		// The thread has a working directory of its own, and ends with this goroutine: it is not unlocked.
		goruntime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("a working directory of its own: %w", err)
			}
			if err := unix.Chdir(from); err != nil {
				return fmt.Errorf("going to %s: %w", from, err)
			}
			return unix.Mount("overlay", at, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data)
		}()
	}()
	return <-done
}
