package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// imageUser is whom an image runs as: a number, or a name that only the image can tell a number of.
type imageUser struct {
	uid  *int64
	name string
}

// fullName is an image's name with its registry and tag.
func fullName(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", &runtime.ImageNameError{Name: name, Err: err}
	}
	return reference.TagNameOnly(named).String(), nil
}

// FindImage implements runtime.ImageStore.
func (r *Runtime) FindImage(ctx context.Context, name string) (string, error) {
	full, err := fullName(name)
	if err != nil {
		return "", err
	}
	i, err := r.image(ctx, full)
	if err != nil || i == nil {
		return "", err
	}
	r.use(i.Id)
	return i.Id, nil
}

// image is nil where there is none of that name.
func (r *Runtime) image(ctx context.Context, name string) (*criv1.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := r.images.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: name}})
	if err != nil {
		return nil, fmt.Errorf("looking for the image: %w", asked(err))
	}
	return s.GetImage(), nil
}

// userOf is whom an image runs as; it is root's where it does not say.
func (r *Runtime) userOf(ctx context.Context, ref string) (imageUser, error) {
	r.mu.Lock()
	u, ok := r.users[ref]
	r.mu.Unlock()
	if ok {
		return u, nil
	}
	i, err := r.image(ctx, ref)
	if err != nil {
		return u, err
	}
	if i == nil {
		return u, fmt.Errorf("the image %s is not here any more", ref)
	}
	switch {
	case i.Uid != nil:
		u.uid = &i.Uid.Value
	case i.Username != "":
		u.name = i.Username
	default:
		u.uid = new(int64)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users[ref] = u
	return u, nil
}

// ImageKeys implements runtime.ImageStore.
func (r *Runtime) ImageKeys(name string, secrets []*corev1.Secret) ([]runtime.ImageKey, error) {
	full, err := fullName(name)
	if err != nil {
		return nil, err
	}
	found, err := credentials(full, secrets)
	if err != nil {
		return nil, err
	}
	var out []runtime.ImageKey
	for _, c := range found {
		out = append(out, *c.key)
	}
	return out, nil
}

// PullImage implements runtime.ImageStore.
func (r *Runtime) PullImage(ctx context.Context, name string, secrets []*corev1.Secret, begin func() error) (runtime.Pulled, error) {
	full, err := fullName(name)
	if err != nil {
		return runtime.Pulled{}, err
	}
	keys, err := credentials(full, secrets)
	if err != nil {
		return runtime.Pulled{}, err
	}
	begun := time.Now()
	select {
	case r.pulls <- struct{}{}:
		defer func() { <-r.pulls }()
	case <-ctx.Done():
		return runtime.Pulled{}, fmt.Errorf("waiting for other images to be pulled: %w", ctx.Err())
	}
	waited := time.Since(begun)
	if err := begin(); err != nil {
		return runtime.Pulled{}, err
	}
	var failed []error
	for _, key := range append(keys, credential{}) {
		res, err := r.images.PullImage(ctx, &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: full}, Auth: key.auth})
		if err != nil {
			failed = append(failed, asked(err))
			if key.auth == nil || errors.Is(failed[len(failed)-1], runtime.ErrUnavailable) {
				return runtime.Pulled{}, failed[0]
			}
			continue
		}
		p := runtime.Pulled{Ref: res.ImageRef, Key: key.key, Took: time.Since(begun), Waited: waited}
		if i, err := r.image(ctx, res.ImageRef); err == nil && i != nil {
			p.Ref, p.SizeBytes = i.Id, int64(i.Size)
		}
		r.use(p.Ref)
		return p, nil
	}
	return runtime.Pulled{}, errors.Join(failed...)
}

// Images implements runtime.ImageLister. One that does not answer yet has none.
func (r *Runtime) Images() ([]runtime.Image, error) {
	list, err := r.listImages(r.ctx)
	if err != nil {
		return nil, err
	}
	var out []runtime.Image
	for _, i := range list {
		out = append(out, runtime.Image{Ref: i.Id, Names: append(append([]string(nil), i.RepoTags...), i.RepoDigests...), SizeBytes: int64(i.Size)})
	}
	return out, nil
}

func (r *Runtime) listImages(ctx context.Context) ([]*criv1.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	list, err := r.images.ListImages(ctx, &criv1.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", asked(err))
	}
	return list.Images, nil
}

// use takes note that an image is wanted now.
func (r *Runtime) use(ref string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastUsed[ref] = time.Now()
}
