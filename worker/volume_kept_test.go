package worker

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// Of a pod that is gone nothing is remembered, whoever comes late for its volumes.
func TestNothingIsKeptOfWhoIsGone(t *testing.T) {
	const pod types.UID = "gone"
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	none := func() (string, error) { return "path /none", nil }
	for name, come := range map[string]func(v *Volumes) error{
		"who writes": func(v *Volumes) error {
			over, err := v.write(t.Context(), pod)
			if err == nil {
				over()
			}
			return err
		},
		"who reaches":            func(v *Volumes) error { return v.reach(t.Context(), pod, none, func(*podVolumes) error { return nil }) },
		"who frees":              func(v *Volumes) error { return v.free(t.Context(), testPod("gone"), nil) },
		"who writes for nobody":  func(v *Volumes) error { _, err := v.write(cut, pod); return not(err, context.Canceled) },
		"who reaches for nobody": func(v *Volumes) error { return not(v.reach(cut, pod, none, nil), context.Canceled) },
		"who does not know for whom": func(v *Volumes) error {
			return not(v.reach(t.Context(), pod, func() (string, error) { return "", errBroke }, nil), errBroke)
		},
		"who waits while it is going": whoWaits,
	} {
		t.Run(name, func(t *testing.T) {
			v := &Volumes{Root: t.TempDir()}
			for range 20 { // whether there is a token, or nobody waits, is decided by chance
				if err := come(v); err != nil {
					t.Error(err)
				}
			}
			if len(v.kept) > 0 {
				t.Errorf("there is left %v", v.kept)
			}
		})
	}
	v := &Volumes{Root: t.TempDir()}
	if err := v.reach(t.Context(), pod, none, func(kept *podVolumes) error { kept.given["v"] = true; return nil }); err != nil || !v.of(pod).given["v"] {
		t.Errorf("what was done is forgotten: %v", err)
	}
	if err := v.remove(t.Context(), pod); err != nil || len(v.kept) > 0 {
		t.Errorf("of a pod that was removed there is left %v, %v", v.kept, err)
	}
}

func not(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return errors.Join(errors.New("it went well, or otherwise wrong"), err)
}

// whoWaits is in line for the token while the volumes are removed.
func whoWaits(v *Volumes) error {
	over, err := v.write(context.Background(), "gone")
	if err != nil {
		return err
	}
	waits := make(chan error)
	go func() {
		over, err := v.write(context.Background(), "gone")
		if err == nil {
			over()
		}
		waits <- err
	}()
	over()
	return errors.Join(v.remove(context.Background(), "gone"), <-waits)
}

// One at a time writes a pod's volumes, or removes them, however often what is remembered of them is forgotten meanwhile.
func TestOneWritesAtATime(t *testing.T) {
	v := &Volumes{Root: t.TempDir()}
	var writing atomic.Int32
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for range 200 {
				switch {
				case i < 3:
					over, err := v.write(t.Context(), "p")
					if err != nil {
						t.Error(err)
						return
					}
					if writing.Add(1) > 1 {
						t.Error("two write")
					}
					dir := v.dir("p", "v")
					err = os.MkdirAll(dir, 0o700)
					if _, serr := os.Stat(dir); err != nil || serr != nil {
						t.Errorf("one writes while the volumes are removed: %v, %v", err, serr)
					}
					writing.Add(-1)
					over()
				case i < 5:
					if err := v.reach(t.Context(), "p", func() (string, error) { return "path /p", nil }, func(*podVolumes) error { return nil }); err != nil {
						t.Error(err)
					}
				default:
					if err := v.remove(t.Context(), "p"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	if len(v.kept) > 0 {
		t.Errorf("there is left %v", v.kept)
	}
}
