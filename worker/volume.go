package worker

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// Volumes keeps the pods' volumes as directories of the host: emptyDir below Root, which lives exactly as long as the
// pod (PO9), hostPath where it is, and configMap, secret, downwardAPI and projected written out once at the pod's start.
// Volumes that need a storage system are refused.
type Volumes struct {
	// Root holds one directory a pod, named by its UID.
	Root string
}

// mounts prepares the volumes that the container mounts.
func (v *Volumes) mounts(ctx context.Context, r *resolver, c *corev1.Container, env map[string]string) ([]runtime.Mount, error) {
	var out []runtime.Mount
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		var vol *corev1.Volume
		for j := range r.pod.Spec.Volumes {
			if r.pod.Spec.Volumes[j].Name == m.Name {
				vol = &r.pod.Spec.Volumes[j]
			}
		}
		if vol == nil {
			return nil, fmt.Errorf("container %s mounts volume %q, which the pod does not have", c.Name, m.Name)
		}
		source, err := v.prepare(ctx, r, vol)
		if err != nil {
			return nil, fmt.Errorf("preparing volume %q: %w", vol.Name, err)
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = expand(m.SubPathExpr, func(name string) (string, bool) { s, ok := env[name]; return s, ok })
		}
		if sub != "" {
			if source, err = subPath(source, sub); err != nil {
				return nil, fmt.Errorf("volume %q: %w", vol.Name, err)
			}
		}
		out = append(out, runtime.Mount{Volume: m.Name, Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return out, nil
}

// subPath resolves sub inside dir and makes it a directory where there is nothing. It must not lead out of dir, not
// even over a symbolic link.
func subPath(dir, sub string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(sub); err != nil {
		if !os.IsNotExist(err) {
			return "", fmt.Errorf("sub path %q: %w", sub, err)
		}
		if err := root.MkdirAll(sub, 0o755); err != nil {
			return "", fmt.Errorf("sub path %q: %w", sub, err)
		}
	}
	return filepath.Join(dir, sub), nil
}

func (v *Volumes) prepare(ctx context.Context, r *resolver, vol *corev1.Volume) (string, error) {
	dir := filepath.Join(v.Root, string(r.pod.UID), "volumes", vol.Name)
	switch s := &vol.VolumeSource; {
	case s.HostPath != nil:
		return s.HostPath.Path, hostPath(s.HostPath)
	case s.EmptyDir != nil:
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return "", err
		}
		return dir, os.Chmod(dir, 0o777) // whoever the containers run as
	case s.ConfigMap != nil:
		files, err := r.configMapFiles(ctx, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
		return dir, writeFiles(dir, files, err, s.ConfigMap.DefaultMode)
	case s.Secret != nil:
		files, err := r.secretFiles(ctx, s.Secret.SecretName, s.Secret.Items, s.Secret.Optional)
		return dir, writeFiles(dir, files, err, s.Secret.DefaultMode)
	case s.DownwardAPI != nil:
		files, err := r.downwardFiles(s.DownwardAPI.Items)
		return dir, writeFiles(dir, files, err, s.DownwardAPI.DefaultMode)
	case s.Projected != nil:
		files, err := r.projectedFiles(ctx, s.Projected)
		return dir, writeFiles(dir, files, err, s.Projected.DefaultMode)
	}
	return "", fmt.Errorf("this node has only emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes")
}

func hostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	switch kind {
	case corev1.HostPathDirectoryOrCreate:
		return os.MkdirAll(h.Path, 0o755)
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	}
	fi, err := os.Stat(h.Path)
	if err != nil {
		if kind == corev1.HostPathUnset && os.IsNotExist(err) {
			return os.MkdirAll(h.Path, 0o755)
		}
		return err
	}
	ok := true
	switch kind {
	case corev1.HostPathDirectory:
		ok = fi.IsDir()
	case corev1.HostPathFile:
		ok = fi.Mode().IsRegular()
	case corev1.HostPathSocket:
		ok = fi.Mode()&os.ModeSocket != 0
	case corev1.HostPathCharDev:
		ok = fi.Mode()&os.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		ok = fi.Mode()&os.ModeDevice != 0 && fi.Mode()&os.ModeCharDevice == 0
	}
	if !ok {
		return fmt.Errorf("hostPath %s is not a %s", h.Path, kind)
	}
	return nil
}

// remove deletes what the pod's volumes held, but nothing of a hostPath.
func (v *Volumes) remove(pod types.UID) error {
	dir := filepath.Join(v.Root, string(pod))
	if err := os.RemoveAll(filepath.Join(dir, "volumes")); err != nil {
		return err
	}
	// A runtime may keep its own records in the same place.
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		if entries, rerr := os.ReadDir(dir); rerr != nil || len(entries) == 0 {
			return err
		}
	}
	return nil
}

// pods lists the pods that there are directories for.
func (v *Volumes) pods() []types.UID {
	entries, err := os.ReadDir(v.Root)
	if err != nil {
		return nil // nothing was kept yet
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out
}

type volumeFile struct {
	data []byte
	mode *int32
}

func (r *resolver) configMapFiles(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool) (map[string]volumeFile, error) {
	cm, err := r.configMap(ctx, name, optional)
	if err != nil || cm == nil {
		return nil, err
	}
	all := map[string][]byte{}
	for k, v := range cm.Data {
		all[k] = []byte(v)
	}
	maps.Copy(all, cm.BinaryData)
	return pick(all, items, optional, "configmap "+name)
}

func (r *resolver) secretFiles(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool) (map[string]volumeFile, error) {
	s, err := r.secret(ctx, name, optional)
	if err != nil || s == nil {
		return nil, err
	}
	return pick(s.Data, items, optional, "secret "+name)
}

func pick(all map[string][]byte, items []corev1.KeyToPath, optional *bool, what string) (map[string]volumeFile, error) {
	out := map[string]volumeFile{}
	if items == nil {
		for k, v := range all {
			out[k] = volumeFile{data: v}
		}
		return out, nil
	}
	for _, item := range items {
		v, ok := all[item.Key]
		if !ok {
			if optional != nil && *optional {
				continue
			}
			return nil, fmt.Errorf("%s has no key %q", what, item.Key)
		}
		out[item.Path] = volumeFile{data: v, mode: item.Mode}
	}
	return out, nil
}

func (r *resolver) downwardFiles(items []corev1.DownwardAPIVolumeFile) (map[string]volumeFile, error) {
	out := map[string]volumeFile{}
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = r.field(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = r.resourceField(&r.pod.Spec.Containers[0], item.ResourceFieldRef)
		}
		if err != nil {
			return nil, err
		}
		out[item.Path] = volumeFile{data: []byte(text), mode: item.Mode}
	}
	return out, nil
}

func (r *resolver) projectedFiles(ctx context.Context, p *corev1.ProjectedVolumeSource) (map[string]volumeFile, error) {
	out := map[string]volumeFile{}
	for i := range p.Sources {
		var files map[string]volumeFile
		var err error
		switch s := &p.Sources[i]; {
		case s.ConfigMap != nil:
			files, err = r.configMapFiles(ctx, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
		case s.Secret != nil:
			files, err = r.secretFiles(ctx, s.Secret.Name, s.Secret.Items, s.Secret.Optional)
		case s.DownwardAPI != nil:
			files, err = r.downwardFiles(s.DownwardAPI.Items)
		default:
			err = fmt.Errorf("projected source %d is of a kind that this node does not have", i)
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(out, files)
	}
	return out, nil
}

// writeFiles writes the files of a volume below dir.
func writeFiles(dir string, files map[string]volumeFile, err error, defaultMode *int32) error {
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		mode := os.FileMode(0o644)
		if defaultMode != nil {
			mode = os.FileMode(*defaultMode) & os.ModePerm
		}
		if f.mode != nil {
			mode = os.FileMode(*f.mode) & os.ModePerm
		}
		if i := strings.LastIndexByte(path, '/'); i > 0 {
			if err := root.MkdirAll(path[:i], 0o755); err != nil {
				return err
			}
		}
		// Not in place: another container of the pod may be reading it.
		tmp := path + ".tmp"
		if err := root.WriteFile(tmp, f.data, mode); err != nil {
			return err
		}
		if err := root.Chmod(tmp, mode); err != nil {
			return err
		}
		if err := root.Rename(tmp, path); err != nil {
			return err
		}
	}
	return nil
}
