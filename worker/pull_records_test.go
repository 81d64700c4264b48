package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/pullrecords"
	"github.com/berth-dev/berth/worker/runtime"
)

// askingRegistry is a store of images whose registry gives them to those alone who know a word.
type askingRegistry struct {
	runtime.Runtime
	word  string
	here  map[string]string // refs, by names
	asked int
	err   error // what the runtime says where it does not answer
}

func (r *askingRegistry) Images() (out []runtime.Image, err error) {
	for name, ref := range r.here {
		out = append(out, runtime.Image{Ref: ref, Names: []string{name}})
	}
	return out, nil
}

func (r *askingRegistry) FindImage(_ context.Context, name string) (string, error) {
	return r.here[name], nil
}

func (r *askingRegistry) ImageKeys(_ string, secrets []*corev1.Secret) (out []runtime.ImageKey, err error) {
	for _, s := range secrets {
		out = append(out, runtime.ImageKey{Namespace: "prod", Name: string(s.Data["name"]), UID: s.UID, Hash: string(s.Data["word"])})
	}
	return out, nil
}

func (r *askingRegistry) PullImage(_ context.Context, name string, secrets []*corev1.Secret, begin func() error) (runtime.Pulled, error) {
	if err := begin(); err != nil {
		return runtime.Pulled{}, err
	}
	r.asked++
	keys, _ := r.ImageKeys(name, secrets)
	i := slices.IndexFunc(keys, func(k runtime.ImageKey) bool { return k.Hash == r.word })
	switch {
	case r.word != "" && i < 0:
		return runtime.Pulled{}, errors.New("401 Unauthorized")
	case r.err != nil:
		r.here[name] = "ref of " + name // it comes all the same
		return runtime.Pulled{}, fmt.Errorf("%w: %w", runtime.ErrUnavailable, r.err)
	}
	r.here[name] = "ref of " + name
	p := runtime.Pulled{Ref: r.here[name]}
	if i >= 0 {
		p.Key = &keys[i]
	}
	return p, nil
}

// TestImagesOfOthers: an image that is here is for those who have what its registry took, or what nobody fetched; others ask the registry themselves, or are told that it is
// not here.
func TestImagesOfOthers(t *testing.T) {
	secrets := map[string]map[string][]byte{"right": {"name": []byte("right"), "word": []byte("w")}, "wrong": {"name": []byte("wrong"), "word": []byte("x")}}
	const always, here, never = corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever
	const image, old = "registry.test/app:1", "registry.test/app:0"
	type step struct {
		secret string
		image  string
		policy corev1.PullPolicy
		wait   string // reason of the waiting state; empty: it may be started
		asks   bool   // the registry
	}
	for name, c := range map[string]struct {
		policy pullrecords.Policy
		away   bool // the runtime does not answer when the image is fetched first
		word   string
		steps  []step
	}{
		"": {word: "w", steps: []step{
			{"", old, here, "", false},
			{"", old, never, "", false},
			{"", image, never, waitErrNeverPull, false},
			{"", image, here, waitErrImagePull, true},
			{"right", image, here, "", true},
			{"right", image, here, "", false},
			{"right", image, never, "", false},
			{"right", image, always, "", true},
			{"", image, here, waitErrImagePull, true},
			{"wrong", image, here, waitErrImagePull, true},
			{"wrong", image, never, waitErrNeverPull, false},
			{"", old, here, "", false},
		}},
		"anybody's": {steps: []step{
			{"right", image, here, "", true},
			{"", image, here, "", false},
			{"wrong", image, here, "", false},
			{"", image, never, "", false},
		}},
		"always verified": {policy: pullrecords.AlwaysVerify, word: "w", steps: []step{
			{"", old, never, waitErrNeverPull, false},
			{"right", old, here, "", true},
			{"right", old, never, "", false},
		}},
		"never verified": {policy: pullrecords.NeverVerify, word: "w", steps: []step{
			{"right", image, here, "", true},
			{"", image, here, "", false},
			{"", image, never, "", false},
		}},
		"a runtime that goes away": {word: "w", away: true, steps: []step{
			{"right", image, here, waitErrImagePull, true},
			{"", image, never, waitErrNeverPull, false},
			{"", image, here, waitErrImagePull, true},
			{"", old, here, "", false},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			store := &askingRegistry{word: c.word, here: map[string]string{old: "ref of old"}}
			if c.away {
				store.err = errors.New("away")
			}
			records, err := pullrecords.Open(pullrecords.Options{Dir: t.TempDir(), Policy: c.policy, Images: store.Images})
			if err != nil {
				t.Fatal(err)
			}
			caller := caller{runtime: store, getter: objects{secrets: secrets}, pulls: records}
			for i, s := range c.steps {
				pod := testPod("web")
				if s.secret != "" {
					pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: s.secret}}
				}
				asked := store.asked
				ref, err := caller.fetch(t.Context(), store, pod, s.image, s.policy)
				var ie *imageError
				switch {
				case s.wait == "" && (err != nil || ref != store.here[s.image]):
					t.Errorf("step %d: %q, %v", i, ref, err)
				case s.wait != "" && (!errors.As(err, &ie) || ie.wait != s.wait || ref != ""):
					t.Errorf("step %d: %q, %v", i, ref, err)
				}
				if (store.asked > asked) != s.asks {
					t.Errorf("step %d: the registry was asked: %v", i, !s.asks)
				}
			}
		})
	}
}
