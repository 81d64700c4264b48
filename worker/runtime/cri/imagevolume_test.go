package cri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

func TestImageMountsOf(t *testing.T) {
	for _, c := range []struct {
		name, version string
		want          imageMounts
	}{
		{"containerd", "1.6.20~ds1", imagesByView}, {"containerd", "v1.7.28", imagesByView}, {"containerd", "v2.1.4", imagesByView},
		{"containerd", "2.2.0-rc.1", imagesByInterface}, {"containerd", "v10.0.1", imagesByInterface}, {"containerd", "v3.0", imagesByInterface},
		{"containerd", "abcdef0.m", imagesByView}, {"containerd", "", imagesByView}, {"containerd", "22", imagesByView},
		{"containerd", "99999999999999999999.1", imagesByView},
		{"cri-o", "1.32.9", noImageMounts}, {"cri-o", "1.33.0", imagesByInterface}, {"cri-o", "1.36.1+dev", imagesByInterface}, {"cri-o", "?", noImageMounts},
		{"docker", "28.0.1", noImageMounts}, {"", "", noImageMounts},
	} {
		if got := imageMountsOf(c.name, c.version); got != c.want {
			t.Errorf("%s %s: %d, want %d", c.name, c.version, got, c.want)
		}
	}
}

// data is an image that is nothing but files, in two layers.
func data(t *testing.T, name, text string, over ...imagepack.File) *imagepack.Image {
	t.Helper()
	i := &imagepack.Image{Names: []string{name}, Files: []imagepack.File{{Path: "dir", Mode: 0o755, Dir: true}, {Path: "dir/old", Mode: 0o644, Data: []byte("below")},
		{Path: "dir/file", Mode: 0o644, Data: []byte(text)}, {Path: "link", Mode: 0o777, Link: "/dir"}, {Path: "out", Mode: 0o777, Link: "/../../etc"},
		{Path: "run", Mode: 0o755, Data: []byte("#!/bin/sh\necho ran\n")}}}
	if len(over) > 0 {
		i.Over = [][]imagepack.File{over}
	}
	return i
}

// showing is the spec of a container that mounts an image.
func (h *harness) showing(p *corev1.Pod, attempt int32, image string, mounts ...runtime.Mount) runtime.Spec {
	h.t.Helper()
	spec := h.spec(p, attempt)
	var ref string
	h.until("the image to be here", func() (ok bool) {
		var err error
		ref, err = h.rt.FindImage(h.t.Context(), image)
		return err == nil && ref != ""
	})
	if len(p.Spec.Volumes) == 0 {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}}}}
	}
	for _, m := range mounts {
		m.Volume, m.Image, m.ReadOnly = "data", ref, true
		spec.Mounts = append(spec.Mounts, m)
	}
	return spec
}

func (h *harness) viewsLeft() []string {
	h.t.Helper()
	if ofCRIO() {
		return nil // it mounts images itself
	}
	ctx, cancel := ofContainerd(h.t.Context())
	defer cancel()
	all, err := h.rt.views(ctx, "")
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for key := range all {
		out = append(out, key)
	}
	return out
}

// A container sees the files of an image, all of them or those of a sub path, and nobody can change them; they stay when the image is
// removed and collected, which CRI-O does not let anybody do, and its agent and daemon are killed; and nothing of it is left.
func TestImageVolume(t *testing.T) {
	h := open(t)
	ctx := t.Context()
	for _, c := range []struct {
		name string
		over []imagepack.File
		want string
	}{{"one", nil, "below"}, {"two", []imagepack.File{{Path: "dir/old", Mode: 0o644, Data: []byte("above")}}, "above"}} {
		t.Run(c.name, func(t *testing.T) {
			h.t = t
			image := "registry.test/data-" + c.name + ":1"
			if err := daemon(t).Import(ctx, data(t, image, "hello", c.over...)); err != nil {
				t.Fatal(err)
			}
			mounts := []runtime.Mount{{Target: "/v"}, {Target: "/sub", SubPath: "dir"}, {Target: "/linked", SubPath: "link"}}
			one := "/sub/file" // CRI-O mounts no single file
			if !ofCRIO() {
				one, mounts = "/one", append(mounts, runtime.Mount{Target: "/one", SubPath: "dir/file"})
			}
			p := pod("shows-"+c.name, shell(`cat /v/dir/file /v/dir/old /sub/file /linked/file `+one+`; echo; touch /v/x /v/dir/file /sub/x; ls /; sleep 1000`))
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
			h.sandbox(p)
			spec := h.showing(p, 0, image, mounts...)
			id := h.startSpec(spec)
			var out string
			h.until("what the container sees", func() bool {
				out = h.logs(id, runtime.LogOptions{})
				return strings.Contains(out, "tmp\n")
			})
			if !strings.Contains(out, "hello"+c.want+"hellohellohello\n") || strings.Count(out, "Read-only file system") != 3 {
				t.Errorf("it sees %q", out)
			}
			// Not even who may mount can write to it.
			x, err := h.rt.Exec(ctx, id, []string{"sh", "-c", "mount -o remount,rw,bind /v; touch /v/x"})
			if err != nil || x.Code == 0 || !strings.Contains(string(x.Output), "Read-only") {
				t.Errorf("writing to what was mounted anew: %+v, %v", x, err)
			}
			h.rt.Close()
			daemon(t).Kill()
			if err := daemon(t).Run(ctx); err != nil {
				t.Fatal(err)
			}
			switch err := daemon(t).RemoveImage(ctx, image, spec.Mounts[0].Image); {
			case ofCRIO() && (err == nil || !strings.Contains(err.Error(), "the image is in use")):
				t.Errorf("removing an image that is shown: %v", err)
			case !ofCRIO() && err != nil:
				t.Fatal(err)
			}
			h.start()
			if x, err := h.rt.Exec(ctx, id, []string{"cat", "/v/dir/old", "/sub/file"}); err != nil || string(x.Output) != c.want+"hello" {
				t.Errorf("after the image was removed it sees %+v, %v", x, err)
			}
			if ref, err := h.rt.VolumeImage(ctx, p.UID, "data"); err != nil || ref != spec.Mounts[0].Image {
				t.Errorf("it shows %q, %v", ref, err)
			}
			if err := h.rt.Signal(ctx, id, runtime.Kill); err != nil {
				t.Fatal(err)
			}
			h.exit(id)
			// Another run sees the same.
			again := h.spec(p, 1)
			again.Mounts = spec.Mounts
			h.startSpec(again)
			if x, err := h.rt.Exec(ctx, again.ID, []string{"cat", "/v/dir/old", one}); err != nil || string(x.Output) != c.want+"hello" {
				t.Errorf("the next run sees %+v, %v", x, err)
			}
			if err := h.rt.Signal(ctx, again.ID, runtime.Kill); err != nil {
				t.Fatal(err)
			}
			h.exit(again.ID)
			if err := h.rt.Remove(ctx, p.UID); err != nil {
				t.Fatal(err)
			}
			if left := h.viewsLeft(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	h.t = t
}

// What cannot be mounted is said, and nothing runs.
func TestImageVolumeRefused(t *testing.T) {
	h := open(t)
	const image = "registry.test/data-refused:1"
	if err := daemon(t).Import(t.Context(), data(t, image, "x")); err != nil {
		t.Fatal(err)
	}
	p := pod("refused", shell("true"))
	h.sandbox(p)
	for _, sub := range []string{"none", "out/passwd", "dir/none/deeper"} {
		err := h.rt.Start(t.Context(), h.showing(p, 0, image, runtime.Mount{Target: "/v", SubPath: sub}))
		if err == nil || !strings.Contains(err.Error(), sub) {
			t.Errorf("sub path %s: %v", sub, err)
		}
	}
	other := pod("gone", shell("true"))
	h.sandbox(other)
	spec := h.showing(other, 0, image, runtime.Mount{Target: "/v"})
	gone, text := "sha256:"+strings.Repeat("0", 64), "not here any more"
	if ofCRIO() {
		gone, text = strings.Repeat("0", 64), "does not exist locally"
	}
	spec.Mounts[0].Image = gone
	if err := h.rt.Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("an image that went: %v", err)
	}
	if ref, err := h.rt.VolumeImage(t.Context(), other.UID, "data"); ref != "" || err != nil {
		t.Errorf("and it is %q now, %v", ref, err) // it would never be fetched again
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "a"}, {Name: "b", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}}}}
	if x := h.rt.Refuse(p); x != nil {
		t.Errorf("containerd: %+v", x)
	}
	h.rt.mu.Lock()
	before := h.rt.about
	h.rt.about = about{name: "cri-o", version: "1.30.0"}
	h.rt.mu.Unlock()
	x := h.rt.Refuse(p)
	h.rt.mu.Lock()
	h.rt.about = before
	h.rt.mu.Unlock()
	if x == nil || !strings.Contains(x.Message, "spec.volumes[1].image") || !strings.Contains(x.Message, "cri-o 1.30.0") {
		t.Errorf("a runtime that passes over them: %+v", x)
	}
}

// heldImages has every image until they are gone.
type heldImages struct {
	criv1.ImageServiceClient
	gone bool
}

func (h *heldImages) ImageStatus(_ context.Context, r *criv1.ImageStatusRequest, _ ...grpc.CallOption) (*criv1.ImageStatusResponse, error) {
	if h.gone {
		return &criv1.ImageStatusResponse{}, nil
	}
	return &criv1.ImageStatusResponse{Image: &criv1.Image{Id: r.Image.Image}}, nil
}

// A runtime that mounts images itself is asked to.
func TestImageVolumeByInterface(t *testing.T) {
	images := &heldImages{}
	r := &Runtime{opts: Options{Root: t.TempDir()}, images: images, about: about{name: containerd, version: "2.2.0", images: imagesByInterface}}
	p := pod("asks", shell("true"))
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "web:1"}}}}
	spec := runtime.Spec{ID: runtime.ID{Pod: p.UID, Container: "main"}, Pod: p, Container: &p.Spec.Containers[0],
		Mounts: []runtime.Mount{{Volume: "data", Image: "sha256:1", SubPath: "a/b", Target: "/v", ReadOnly: true}}}
	for i, want := range []string{"sha256:1", "sha256:1", "sha256:2"} {
		out, err := r.mounts(t.Context(), &spec)
		if err != nil {
			t.Fatal(err)
		}
		asked := &criv1.Mount{ContainerPath: "/v", Readonly: true, ImageSubPath: "a/b", Image: &criv1.ImageSpec{Image: want, UserSpecifiedImage: "web:1"}}
		if got := out[0]; got.String() != asked.String() {
			t.Errorf("asked for %v, want %v", got, asked)
		}
		spec.Mounts[0].Image = "sha256:2" // the name means something else by now; the volume does not, while the image is there
		images.gone = i > 0
	}
	if entries, err := os.ReadDir(filepath.Join(r.podDir(p.UID), "containers")); err == nil {
		t.Errorf("mounted by the agent: %v", entries)
	}
	used := map[string]bool{}
	if err := r.pinnedImages(used); err != nil || !used["sha256:2"] || len(used) != 1 {
		t.Errorf("in use: %v, %v", used, err)
	}
}

// An image that a volume shows is not collected, and what an agent left of a pod whose directory somebody removed is.
func TestImageVolumeCollected(t *testing.T) {
	h := open(t)
	const image = "registry.test/data-kept:1"
	if err := daemon(t).Import(t.Context(), data(t, image, "kept")); err != nil {
		t.Fatal(err)
	}
	p := pod("keeps", shell("true"))
	h.sandbox(p)
	spec := h.showing(p, 0, image, runtime.Mount{Target: "/v"})
	h.exit(h.startSpec(spec))
	ref := spec.Mounts[0].Image
	h.rt.mu.Lock()
	h.rt.lastUsed[ref] = time.Now().Add(-time.Hour)
	h.rt.mu.Unlock()
	if _, err := h.rt.freeImages(t.Context(), 1<<60, time.Now()); err != nil {
		t.Error(err)
	}
	if found, err := h.rt.FindImage(t.Context(), image); err != nil || found != ref {
		t.Errorf("the image: %q, %v", found, err)
	}
	if !ofCRIO() {
		h.viewsCollected(t, p, image, ref)
	}
}

// viewsCollected tests the agent's views of an image, of which a pod shows one.
func (h *harness) viewsCollected(t *testing.T, p *corev1.Pod, image, ref string) {
	if _, err := h.rt.view(t.Context(), "lost", "data", ref, false); err != nil {
		t.Fatal(err)
	}
	if left := h.viewsLeft(); len(left) != 2 {
		t.Errorf("views: %v", left)
	}
	// An agent that was killed after it had made a view and mounted it, and before it took note.
	killed := pod("killed", shell("true"))
	h.sandbox(killed)
	if _, err := h.rt.mountView(t.Context(), killed.UID, "data", ref, false); err != nil {
		t.Fatal(err)
	}
	h.restart()
	h.exit(h.startSpec(h.showing(killed, 0, image, runtime.Mount{Target: "/v"})))
	if err := h.rt.Remove(t.Context(), killed.UID); err != nil {
		t.Fatal(err)
	}
	// What is mounted no more, since the machine was started again, is mounted again; and where somebody removed the view, too, it is not
	// settled any more what the volume shows.
	if err := mounts.Unmount(filepath.Join(h.rt.podDir(p.UID), imagesDir)); err != nil {
		t.Fatal(err)
	}
	if at, err := h.rt.VolumeImage(t.Context(), p.UID, "data"); at != ref || err != nil {
		t.Errorf("it shows %q, %v", at, err)
	}
	again := h.showing(p, 1, image, runtime.Mount{Target: "/v"})
	h.exit(h.startSpec(again))
	if err := mounts.Unmount(filepath.Join(h.rt.podDir(p.UID), imagesDir)); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.removeViews(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if at, err := h.rt.VolumeImage(t.Context(), p.UID, "data"); at != "" || err != nil {
		t.Errorf("without a view it shows %q, %v", at, err)
	}
	h.exit(h.startSpec(h.showing(p, 2, image, runtime.Mount{Target: "/v"})))
	if left := h.viewsLeft(); len(left) != 1 || !strings.HasSuffix(left[0], "/"+string(p.UID)+"/data") {
		t.Errorf("views: %v", left)
	}
}

// Layers are mounted however long their paths are, and too many are refused, not cut off.
func TestMountManyLayers(t *testing.T) {
	daemon(t) // where nobody may mount this is left out
	root := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	at := filepath.Join(root, "at")
	var below []string
	for i := range 120 {
		dir := filepath.Join(root, "layers", fmt.Sprint(i), "fs")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		below = append(below, dir)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	from, names := relative(below)
	if from != filepath.Join(root, "layers") || names[7] != "7/fs" {
		t.Errorf("from %s: %v", from, names)
	}
	if err := mountOverlay(from, at, names, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.RemoveAll(context.Background(), at); err != nil {
			t.Error(err)
		}
	})
	entries, err := os.ReadDir(at)
	if err != nil || len(entries) != len(below) {
		t.Errorf("%d files, %v", len(entries), err)
	}
	m, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(at))
	if err != nil || len(m) != 1 {
		t.Fatal(m, err)
	}
	options := strings.Split(m[0].Options, ",")
	for _, want := range []string{"ro", "nosuid", "nodev", "noexec"} {
		if !slices.Contains(options, want) {
			t.Errorf("mounted with %s, without %s", m[0].Options, want)
		}
	}
	if now, err := os.Getwd(); err != nil || now != before {
		t.Errorf("the process is at %s, %v", now, err)
	}
	if err := mountOverlay(from, at, slices.Repeat(names, 20), nil); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("2400 layers: %v", err)
	}
}
