package cri

import (
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

func TestToFree(t *testing.T) {
	for _, c := range []struct {
		total, available int64
		high, low        int
		want             int64
	}{
		{1000, 500, 85, 80, 0}, {1000, 150, 85, 80, 0}, {1000, 149, 85, 80, 51}, {1000, 0, 85, 80, 200},
		{1000, 0, 100, 80, 0}, {0, 0, 85, 80, 0}, {1 << 50, 0, 85, 80, 1<<50 - (1<<50)/100*80},
	} {
		if got := toFree(c.total, c.available, c.high, c.low); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// What nobody uses goes, the longest unused first, and nothing else: not what a container is of, also an ended one, nor
// what was wanted a moment ago, nor what sandboxes are of.
func TestCollectImages(t *testing.T) {
	h := open(t)
	ids := map[string]string{}
	for _, name := range []string{"old", "older", "fresh"} {
		full := "registry.test/" + name + ":1"
		i := imagepack.Image{Names: []string{full}, Files: []imagepack.File{{Path: name, Mode: 0o644, Data: []byte(name)}}}
		if err := daemon(t).Import(t.Context(), &i); err != nil {
			t.Fatal(err)
		}
		h.until("the image to be here", func() bool {
			ref, err := h.rt.FindImage(t.Context(), full)
			ids[name] = ref
			return err == nil && ref != ""
		})
	}
	ended := h.run(pod("ended", shell("true")))
	h.exit(ended)
	long := time.Now().Add(-time.Hour)
	h.rt.mu.Lock()
	h.rt.lastUsed[ids["old"]], h.rt.lastUsed[ids["older"]] = long, long.Add(-time.Hour)
	h.rt.mu.Unlock()
	for name, want := range map[string]string{"busybox": busybox, "pause": "registry.test/pause:1"} {
		ref, err := h.rt.FindImage(t.Context(), want)
		if err != nil || ref == "" {
			t.Fatalf("%s: %q, %v", name, ref, err)
		}
		ids[name] = ref
		h.rt.mu.Lock()
		h.rt.lastUsed[ref] = long.Add(-2 * time.Hour)
		h.rt.mu.Unlock()
	}
	there := func(name string) bool {
		s, err := h.rt.images.ImageStatus(t.Context(), &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: ids[name]}})
		return err == nil && s.Image != nil
	}
	if freed, err := h.rt.freeImages(t.Context(), 1, time.Now()); err != nil || freed == 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if there("older") || !there("old") {
		t.Error("not the one that was unused for longest")
	}
	if freed, err := h.rt.freeImages(t.Context(), 1<<60, time.Now()); err != nil || freed == 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	for name, want := range map[string]bool{"old": false, "fresh": true, "busybox": true, "pause": true} {
		if there(name) != want {
			t.Errorf("%s is there: %v", name, !want)
		}
	}
	if err := h.rt.collectImages(t.Context()); err != nil {
		t.Error(err)
	}
}
