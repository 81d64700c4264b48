package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// imageMounts is how images become volumes of containers.
type imageMounts uint8

const (
	noImageMounts imageMounts = iota
	// imagesByInterface: the runtime mounts them itself, as Mount.image asks it to.
	imagesByInterface
	// imagesByView: the agent mounts a view of their layers, which it has containerd's own API make.
	imagesByView
)

const containerd = "containerd" // as it calls itself

var majorMinor = regexp.MustCompile(`^v?(\d+)\.(\d+)([.~+-].*)?$`)

// imageMountsOf goes by name and version: nothing in the interface says whether a runtime looks at Mount.image, and one that does
// not would run the container with nothing there. With sub paths containerd has it since 2.2, CRI-O since 1.33. All versions of
// containerd make views.
func imageMountsOf(name, version string) imageMounts {
	switch {
	case name == containerd && since(version, 2, 2), name == crio && since(version, 1, 33):
		return imagesByInterface
	case name == containerd:
		return imagesByView
	}
	return noImageMounts
}

// Below images/<volume>/ of a pod's directory: which image the volume shows, kept for as long as the pod is there, and, where the
// agent mounts it, the mount and a directory without anything in it.
const (
	imagesDir  = "images"
	pinnedFile = "image"
	viewDir    = "view"
	emptyLayer = "empty"
)

func (r *Runtime) imageVolumeDir(pod types.UID, volume string) string {
	return filepath.Join(r.podDir(pod), imagesDir, volume)
}

// VolumeImage implements runtime.ImageVolumer.
func (r *Runtime) VolumeImage(ctx context.Context, pod types.UID, volume string) (string, error) {
	dir := r.imageVolumeDir(pod, volume)
	b, err := os.ReadFile(filepath.Join(dir, pinnedFile))
	if os.IsNotExist(err) {
		return "", nil
	}
	ref, there := string(b), false
	switch r.known().images {
	case imagesByInterface:
		var i *criv1.Image
		if err == nil {
			i, err = r.image(ctx, ref)
		}
		there = i != nil
	default:
		if err == nil {
			there, err = mountinfo.Mounted(filepath.Join(dir, viewDir))
		}
		if err == nil && !there { // after the machine was started again
			there, err = r.hasView(ctx, pod, volume)
		}
	}
	if err != nil || !there {
		return "", err
	}
	return ref, nil
}

// pinnedImages adds the images that volumes show.
func (r *Runtime) pinnedImages(used map[string]bool) error {
	files, err := filepath.Glob(filepath.Join(globbed(r.opts.Root), "*", imagesDir, "*", pinnedFile))
	for _, file := range files {
		b, rerr := os.ReadFile(file)
		if rerr != nil && !os.IsNotExist(rerr) {
			err = errors.Join(err, rerr)
		}
		used[string(b)] = true
	}
	if err != nil {
		return fmt.Errorf("looking for the images of volumes: %w", err)
	}
	return nil
}

var special = regexp.MustCompile(`[*?\[\\]`)

// globbed is a path as a pattern that matches it alone.
func globbed(path string) string { return special.ReplaceAllString(path, `\$0`) }

// mountImage has a mount show the volume's image: by the runtime, where it mounts images, and else by m.Source, where the agent
// has mounted it. Only then is it settled what the volume shows.
func (r *Runtime) mountImage(ctx context.Context, pod *corev1.Pod, m *runtime.Mount, out *criv1.Mount) error {
	r.imageVolumes.Lock() // two containers of a pod may be started at a time
	defer r.imageVolumes.Unlock()
	ref, err := r.VolumeImage(ctx, pod.UID, m.Volume)
	if err != nil {
		return fmt.Errorf("looking for what it shows: %w", err)
	}
	settled := ref != ""
	if !settled {
		ref = m.Image
	}
	dir := r.imageVolumeDir(pod.UID, m.Volume)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	out.Readonly = true
	switch known := r.known(); known.images {
	case imagesByInterface:
		out.Image, out.ImageSubPath = &criv1.ImageSpec{Image: ref, UserSpecifiedImage: referenceOf(pod, m.Volume)}, m.SubPath
	case imagesByView:
		if m.Source, err = r.mountView(ctx, pod.UID, m.Volume, ref, settled); err != nil {
			return err
		}
	default:
		return &runtime.ConfigError{Err: fmt.Errorf("%s %s has no volumes of images", known.name, known.version)}
	}
	if settled {
		return nil
	}
	return atomicfile.Write(filepath.Join(dir, pinnedFile), []byte(ref), 0o600)
}

func referenceOf(pod *corev1.Pod, volume string) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == volume && v.Image != nil {
			return v.Image.Reference
		}
	}
	return ""
}

// mountView mounts an image read-only in the pod's directory, and returns where. Where it is settled that the volume shows it, it may be
// mounted already.
func (r *Runtime) mountView(ctx context.Context, pod types.UID, volume, ref string, settled bool) (string, error) {
	dir := r.imageVolumeDir(pod, volume)
	at := filepath.Join(dir, viewDir)
	for _, d := range [...]string{at, filepath.Join(dir, emptyLayer)} {
		if err := os.MkdirAll(d, 0o755); err != nil { // #nosec G301 -- whoever the containers run as has to get there
			return "", err
		}
	}
	mounted, err := mountinfo.Mounted(at)
	if err == nil && mounted && !settled { // by an agent that was killed, or of a view that somebody removed
		mounted, err = false, mounts.Unmount(at)
	}
	if err != nil || mounted {
		return at, err
	}
	layers, err := r.view(ctx, pod, volume, ref, settled)
	if err != nil {
		return "", fmt.Errorf("having containerd make a view of image %s: %w", ref, err)
	}
	if err := mountLayers(layers, dir, at); err != nil {
		return "", fmt.Errorf("mounting image %s: %w", ref, err)
	}
	return at, nil
}

// chainOf is what containerd calls the layers of an image, one upon the other.
func (r *Runtime) chainOf(ctx context.Context, ref string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := r.images.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: ref}, Verbose: true})
	if err != nil {
		return "", fmt.Errorf("looking for the image: %w", asked(err))
	}
	if s.Image == nil {
		return "", fmt.Errorf("the image %s is not here any more", ref)
	}
	var info struct {
		ChainID string `json:"chainID"`
	}
	if err := json.Unmarshal([]byte(s.Info["info"]), &info); err != nil || info.ChainID == "" {
		return "", fmt.Errorf("containerd does not say what the layers of image %s are", ref)
	}
	return info.ChainID, nil
}

// removeImageVolumes unmounts what is mounted of images for a pod, and removes the views.
func (r *Runtime) removeImageVolumes(ctx context.Context, pod types.UID) error {
	r.imageVolumes.Lock()
	defer r.imageVolumes.Unlock()
	dir := filepath.Join(r.podDir(pod), imagesDir)
	if !exists(dir) {
		return nil
	}
	err := mounts.Unmount(dir)
	if err == nil && r.known().name == containerd { // also one that mounts images itself by now
		err = r.removeViews(ctx, pod)
	}
	if err == nil {
		err = os.RemoveAll(dir) // what is pinned goes last
	}
	if err != nil {
		return fmt.Errorf("removing its volumes of images: %w", err)
	}
	return nil
}
