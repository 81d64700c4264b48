package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// Volumes keeps the pods' volumes as directories of the host: emptyDir below Root, which lives exactly as long as the
// pod (PO9), hostPath where it is, and configMap, secret, downwardAPI and projected written out when a container starts
// and again when what they show has changed; and those that outlive a pod (persistent.go).
//
// Root is for the agent's eyes only. Within it, modes and owners are those that a container is to see: it sees its
// volumes where a runtime mounts them, and those of others nowhere.
type Volumes struct {
	// Root holds one directory a pod, named by its UID.
	Root string
	// Kept holds one directory for each volume of model.LocalProvisioner that is on this node; empty: no volume has one.
	Kept string
	// MountPatience is how long a server of nfs has to let itself be mounted; 0: 30 s.
	MountPatience time.Duration

	mu       sync.Mutex
	kept     map[types.UID]*podVolumes
	reaching map[string]int // what may not answer, and has not yet, by whose it is
	reclaims removals       // of volumes that are to go
}

// podVolumes is what is remembered of the volumes of one pod.
type podVolumes struct {
	// gone ends when the pod's volumes are removed: what is prepared then is for nobody.
	gone context.Context
	end  context.CancelFunc
	// writing holds a token while somebody writes files of the pod's volumes below Root, or removes them: none of them is another machine's.
	writing chan struct{}
	// reaching holds a token while somebody prepares a volume that is not below Root, and may wait for it for good.
	reaching chan struct{}
	// given are the volumes that were made the pod's fsGroup's; who has the token may use it.
	given map[string]bool

	freeing sync.Mutex
	told    map[string]bool // of what was freed; guarded by freeing

	mu     sync.Mutex // guards tokens
	tokens map[tokenSource]heldToken
}

// write takes the token of who writes, and returns how to give it back. While the volumes are being removed that may take long: who waits for it does
// so aside. What was remembered of them is forgotten then: it is the token of the new ones that is taken.
func (v *Volumes) write(ctx context.Context, pod types.UID) (over func(), err error) {
	defer stepAside(ctx)()
	for {
		p := v.of(pod)
		select {
		case p.writing <- struct{}{}:
			over := func() {
				<-p.writing
				v.leave(pod, p)
			}
			now := v.of(pod)
			if now == p && ctx.Err() == nil {
				return over, nil
			}
			over()
			p = now
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			v.leave(pod, p)
			return nil, fmt.Errorf("waiting for who writes or removes the pod's volumes: %w", context.Cause(ctx))
		}
	}
}

// leave forgets what is remembered of a pod's volumes where it is nothing, and nobody has one of its tokens. Who comes when the pod is gone leaves nothing
// by that.
func (v *Volumes) leave(pod types.UID, p *podVolumes) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.kept[pod] == p && p.isNothing() {
		delete(v.kept, pod)
	}
}

// isNothing: it is as if it was just made.
func (p *podVolumes) isNothing() bool {
	for _, token := range [...]chan struct{}{p.writing, p.reaching} {
		select {
		case token <- struct{}{}:
			defer func() { <-token }()
		default:
			return false
		}
	}
	if !p.freeing.TryLock() {
		return false
	}
	defer p.freeing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.given) == 0 && len(p.told) == 0 && len(p.tokens) == 0
}

func (p *podVolumes) held(s tokenSource) (heldToken, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.tokens[s]
	return t, ok
}

func (p *podVolumes) hold(s tokenSource, t heldToken) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[s] = t
}

func (v *Volumes) of(pod types.UID) *podVolumes {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.kept == nil {
		v.kept = map[types.UID]*podVolumes{}
	}
	if v.kept[pod] == nil {
		p := &podVolumes{writing: make(chan struct{}, 1), reaching: make(chan struct{}, 1), given: map[string]bool{},
			told: map[string]bool{}, tokens: map[tokenSource]heldToken{}}
		p.gone, p.end = context.WithCancel(context.Background())
		v.kept[pod] = p
	}
	return v.kept[pod]
}

// refuse says which volume of the pod this node does not have.
func (v *Volumes) refuse(pod *corev1.Pod) *runtime.Refusal {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if field, why := unsupported(pod, vol); why != "" {
			return &runtime.Refusal{Reason: "FailedMount",
				Message: fmt.Sprintf("spec.volumes[%d].%s: volume %q cannot be served on this node: %s", i, field, vol.Name, why)}
		}
	}
	return nil
}

func unsupported(pod *corev1.Pod, vol *corev1.Volume) (field, why string) {
	switch s := &vol.VolumeSource; {
	case s.PersistentVolumeClaim != nil, s.Ephemeral != nil: // which volume it is the servers say when it is mounted
	case s.NFS != nil: // whether it can be mounted is found out then
	case s.Image != nil: // the runtime says whether it has such volumes
	case s.EmptyDir != nil:
		if _, _, err := memoryOf(pod, s.EmptyDir, nil); err != nil {
			return "emptyDir.medium", err.Error()
		}
		if s.EmptyDir.Medium != corev1.StorageMediumDefault && os.Geteuid() != 0 {
			return "emptyDir.medium", "memory needs an agent that runs as root"
		}
	case s.Projected != nil:
		for i := range s.Projected.Sources {
			p := &s.Projected.Sources[i]
			if p.ConfigMap == nil && p.Secret == nil && p.DownwardAPI == nil && p.ServiceAccountToken == nil {
				return fmt.Sprintf("projected.sources[%d]", i), "only configMap, secret, downwardAPI and serviceAccountToken are projected"
			}
		}
	case s.HostPath == nil && s.ConfigMap == nil && s.Secret == nil && s.DownwardAPI == nil:
		return "name", "this node has only emptyDir, hostPath, configMap, secret, downwardAPI, projected, nfs, image and claimed volumes"
	}
	return "", ""
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
		var source string
		var err error
		// As in Kubernetes: what is written anew there is the agent's to write.
		readOnly := vol.Image != nil || runtime.ShowsObjects(vol)
		switch {
		case vol.Image != nil:
			if r.images[vol.Name] == "" {
				err = fmt.Errorf("the image %s is not here", vol.Image.Reference)
			}
		case model.ClaimOf(r.pod, vol) != "", vol.NFS != nil, vol.HostPath != nil:
			source, readOnly, err = v.outside(ctx, r, vol)
		default:
			source, err = v.inside(ctx, r, vol)
		}
		if err != nil {
			return nil, fmt.Errorf("preparing volume %q: %w", vol.Name, err)
		}
		sub, err := subPath(m, env)
		if err != nil {
			return nil, err
		}
		out = append(out, runtime.Mount{Volume: m.Name, Source: source, Image: r.images[m.Name], SubPath: sub, Target: m.MountPath, ReadOnly: m.ReadOnly || readOnly,
			Recursive: recursive(m),
			Follow:    m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer,
			Share:     m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional})
	}
	return out, nil
}

// subPath is what of its volume a mount shows. One that is none with the variables as they are is a *runtime.ConfigError.
func subPath(m *corev1.VolumeMount, env map[string]string) (string, error) {
	sub, missing := m.SubPath, ""
	if m.SubPathExpr != "" {
		sub = expand(m.SubPathExpr, func(name string) (string, bool) {
			s, ok := env[name]
			if !ok {
				missing = name
			}
			return s, ok
		})
	}
	switch {
	case missing != "":
		return "", &runtime.ConfigError{Err: fmt.Errorf("volume %q: sub path %q names the variable %s, which the container does not have", m.Name, m.SubPathExpr, missing)}
	case sub != "" && !filepath.IsLocal(sub):
		return "", &runtime.ConfigError{Err: fmt.Errorf("volume %q: sub path %q leads out of the volume", m.Name, sub)}
	}
	return sub, nil
}

// inside prepares a volume below Root.
func (v *Volumes) inside(ctx context.Context, r *resolver, vol *corev1.Volume) (string, error) {
	over, err := v.write(ctx, r.pod.UID)
	if err != nil {
		return "", err
	}
	defer over()
	return v.prepare(ctx, r, vol)
}

// prepare is inside for who writes already.
func (v *Volumes) prepare(ctx context.Context, r *resolver, vol *corev1.Volume) (string, error) {
	dir := v.dir(r.pod.UID, vol.Name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	group := fsGroup(r.pod)
	switch s := &vol.VolumeSource; {
	case s.EmptyDir != nil:
		kind, options, err := memoryOf(r.pod, s.EmptyDir, r.alloc)
		if err != nil {
			return "", err
		}
		return dir, emptyDir(dir, kind, options, group)
	case s.ConfigMap != nil:
		files, err := r.configMapFiles(ctx, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
		return dir, published(dir, files, err, s.ConfigMap.DefaultMode, group)
	case s.Secret != nil:
		files, err := r.secretFiles(ctx, s.Secret.SecretName, s.Secret.Items, s.Secret.Optional)
		return dir, published(dir, files, err, s.Secret.DefaultMode, group)
	case s.DownwardAPI != nil:
		files, err := r.downwardFiles(s.DownwardAPI.Items)
		return dir, published(dir, files, err, s.DownwardAPI.DefaultMode, group)
	case s.Projected != nil:
		files, err := r.projectedFiles(ctx, s.Projected, v.of(r.pod.UID))
		return dir, published(dir, files, err, s.Projected.DefaultMode, group)
	}
	_, why := unsupported(r.pod, vol)
	return "", errors.New(why)
}

func published(dir string, files map[string]volumeFile, err error, defaultMode *int32, group *int64) error {
	if err != nil {
		return err
	}
	return publish(dir, files, defaultMode, group)
}

// refresh writes those volumes of the pod anew that a container has mounted and whose contents have changed. It goes on
// after a failure; subPath mounts show what they showed.
func (v *Volumes) refresh(ctx context.Context, r *resolver) error {
	if _, err := os.Lstat(filepath.Join(v.Root, string(r.pod.UID))); err != nil {
		return nil // no container has asked for any yet, or the pod is gone
	}
	over, err := v.write(ctx, r.pod.UID)
	if err != nil {
		return err
	}
	defer over()
	var errs []error
	for i := range r.pod.Spec.Volumes {
		vol := &r.pod.Spec.Volumes[i]
		if !runtime.ShowsObjects(vol) {
			continue
		}
		if _, err := os.Lstat(v.dir(r.pod.UID, vol.Name)); err != nil {
			continue // no container has asked for it yet
		}
		if _, err := v.prepare(ctx, r, vol); err != nil {
			errs = append(errs, fmt.Errorf("refreshing volume %q: %w", vol.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (v *Volumes) dir(pod types.UID, volume string) string {
	return filepath.Join(v.Root, string(pod), "volumes", volume)
}

func hostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	switch kind {
	case corev1.HostPathDirectoryOrCreate:
		return os.MkdirAll(h.Path, 0o755) // #nosec G301 -- as Kubernetes makes a hostPath that is not there
	case corev1.HostPathFileOrCreate:
		// What is there is not opened: a pipe would wait for its other end, and a device might do something.
		if _, err := os.Stat(h.Path); os.IsNotExist(err) {
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o644) // #nosec G302 -- as Kubernetes makes a hostPath that is not there
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	fi, err := os.Stat(h.Path)
	if err != nil {
		if kind == corev1.HostPathUnset && os.IsNotExist(err) {
			return os.MkdirAll(h.Path, 0o755) // #nosec G301 -- as Kubernetes makes a hostPath that is not there
		}
		return err
	}
	ok := true
	switch kind {
	case corev1.HostPathDirectory:
		ok = fi.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
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

// remove deletes what the pod's volumes held, but nothing of a hostPath. It does not wait for who prepares one that does not answer: no
// call does any more, and what comes of it is undone then. What it has begun it ends, whether anybody still waits for it or not: a pod that is
// taken back finds its volumes whole or not at all.
func (v *Volumes) remove(ctx context.Context, pod types.UID) error {
	kept := v.of(pod)
	for {
		kept.end()
		kept.writing <- struct{}{} // who writes files writes no more after this
		now := v.of(pod)
		if now == kept {
			break
		}
		<-kept.writing // nobody had it meanwhile
		kept = now
	}
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.kept, pod)
		<-kept.writing // and who has waited for it finds that it is another's now
	}()
	dir := filepath.Join(v.Root, string(pod))
	if err := mounts.RemoveAll(context.WithoutCancel(ctx), filepath.Join(dir, "volumes")); err != nil {
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

func (r *resolver) projectedFiles(ctx context.Context, p *corev1.ProjectedVolumeSource, kept *podVolumes) (map[string]volumeFile, error) {
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
		case s.ServiceAccountToken != nil:
			files, err = r.tokenFile(ctx, s.ServiceAccountToken, kept)
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
