package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/quota"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// Volumes that outlive a pod: local and hostPath where they are, nfs mounted for each pod, and those of
// model.LocalProvisioner as directories below Kept, made when they are first mounted and removed when the servers say
// that their volume goes. What claims and volumes there are the servers say, and nobody on this node.

// VolumeKeeper is what keeping volumes needs of the servers.
type VolumeKeeper interface {
	// VolumesToGo are the names of the volumes whose directories are to be removed from this node, also of those that have
	// none here.
	VolumesToGo(ctx context.Context) ([]string, error)
	// PersistentVolume is one whose directory is on this node, as it is now.
	PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	// VolumeGone says that nothing of a volume is on this node any more.
	VolumeGone(ctx context.Context, name string) error
}

// claimed is the volume that a claim of the pod has.
func (r *resolver) claimed(ctx context.Context, vol *corev1.Volume) (*corev1.PersistentVolume, error) {
	if r.getter == nil {
		return nil, errors.New("nobody says which volume the claim has")
	}
	claim, pv, err := r.getter.VolumeOf(ctx, r.pod.Namespace, model.ClaimOf(r.pod, vol))
	switch {
	case err != nil:
		return nil, err
	case vol.Ephemeral != nil && ephemeral.VolumeIsForPod(r.pod, claim) != nil:
		return nil, ephemeral.VolumeIsForPod(r.pod, claim)
	case pv == nil:
		return nil, fmt.Errorf("persistentvolumeclaim %q has no volume yet", claim.Name)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, fmt.Errorf("persistentvolume %q is not that of the persistentvolumeclaim %q", pv.Name, claim.Name)
	case pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return nil, fmt.Errorf("persistentvolume %q: spec.volumeMode: this node has no block devices for pods", pv.Name)
	}
	return pv, nil
}

// persistent prepares the volume that a claim of the pod has, and says whether it may only be read. What it does to the volume ends when the pod is
// gone.
func (v *Volumes) persistent(ctx context.Context, r *resolver, vol *corev1.Volume, pv *corev1.PersistentVolume, kept *podVolumes) (source string, readOnly bool, err error) {
	// Whatever the policy, of a pod that runs nothing is given away again that another container was given already.
	rootDecides := onMismatch(r.pod) || kept.given[vol.Name]
	readOnly = vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly
	refuse := func(field, why string) (string, bool, error) {
		return "", false, fmt.Errorf("persistentvolume %q: spec.%s: %s", pv.Name, field, why)
	}
	if len(pv.Spec.MountOptions) > 0 && pv.Spec.NFS == nil {
		return refuse("mountOptions", "only volumes of nfs are mounted with options here")
	}
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.Local != nil:
		if fi, err := os.Stat(s.Local.Path); err != nil || !fi.IsDir() {
			return refuse("local.path", fmt.Sprintf("%s is no directory of this node: devices are not mounted here", s.Local.Path))
		}
		return s.Local.Path, readOnly, giveWhole(kept.gone, s.Local.Path, fsGroup(r.pod), rootDecides, readOnly)
	case s.HostPath != nil:
		return s.HostPath.Path, readOnly, hostPath(s.HostPath)
	case s.NFS != nil:
		readOnly = readOnly || s.NFS.ReadOnly
		source, err = v.nfs(ctx, r, vol.Name, s.NFS, pv.Spec.MountOptions, readOnly)
		return source, readOnly, err
	case s.CSI != nil && s.CSI.Driver == model.LocalDriver:
		if node := model.LocalVolumeNode(pv); node != r.pod.Spec.NodeName {
			return refuse("nodeAffinity", fmt.Sprintf("the volume is on node %q", node))
		}
		if s.CSI.VolumeHandle != pv.Name { // else two volumes were one directory, and what removes the one the other
			return refuse("csi.volumeHandle", fmt.Sprintf("%q is not the volume's name", s.CSI.VolumeHandle))
		}
		dir, err := v.keep(kept.gone, pv, fsGroup(r.pod), rootDecides)
		if err != nil {
			return "", false, fmt.Errorf("persistentvolume %q: %w", pv.Name, err)
		}
		return dir, readOnly || s.CSI.ReadOnly, nil
	case s.CSI != nil:
		return refuse("csi.driver", fmt.Sprintf("this node has no driver %q", s.CSI.Driver))
	}
	return refuse("persistentVolumeSource", "this node has only local, hostPath, nfs and "+model.LocalProvisioner)
}

// keptName says whether a volume of this name can be a directory here.
func keptName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("spec.csi.volumeHandle %q: %s", name, problems[0])
	}
	return nil
}

// keep gives the directory of a volume, and makes it if there is none. It holds as much as the volume, where the file
// system bounds directories.
func (v *Volumes) keep(ctx context.Context, pv *corev1.PersistentVolume, group *int64, rootDecides bool) (string, error) {
	if err := keptName(pv.Name); err != nil {
		return "", err
	}
	if err := os.MkdirAll(v.Kept, 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(v.Kept, pv.Name)
	if err := unix.Mkdir(dir, unfinished); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	// It is there for good before anybody writes into it.
	if err := finish(dir, everybodys, nil, func() error { return syncDir(v.Kept) }); errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return "", fmt.Errorf("%s is no directory", dir)
	} else if err != nil {
		return "", err
	}
	if size := pv.Spec.Capacity.Storage().Value(); size > 0 {
		if err := quota.Limit(dir, size); err != nil && !errors.Is(err, quota.ErrNone) {
			return "", err
		}
	}
	return dir, giveWhole(ctx, dir, group, rootDecides, false)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// onMismatch says whether the pod wants its volumes left as they are where their roots are its fsGroup's already
// (fsGroupChangePolicy: OnRootMismatch); else all that is in them becomes the group's when the pod mounts them first.
func onMismatch(pod *corev1.Pod) bool {
	s := pod.Spec.SecurityContext
	return s != nil && s.FSGroupChangePolicy != nil && *s.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch
}

// giveWhole makes all that a volume holds the pod's fsGroup's, where the root decides only unless its root is so already.
func giveWhole(ctx context.Context, dir string, group *int64, rootDecides, readOnly bool) error {
	if group == nil || readOnly {
		return nil
	}
	root, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written
	var is unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &is); err != nil || rootDecides && is.Mode&unix.S_ISGID != 0 && int64(is.Gid) == *group {
		return err
	}
	return giveToGroup(ctx, root, group, writableBits) // the root is last: it says that all is done
}

// nfs gives the directory at which a file system of another host is mounted for a pod.
func (v *Volumes) nfs(ctx context.Context, r *resolver, volume string, s *corev1.NFSVolumeSource, options []string, readOnly bool) (string, error) {
	patience := v.MountPatience
	if patience == 0 {
		patience = mountPatience
	}
	giveUp := r.giveUp // the next volume has another one
	timer := time.AfterFunc(patience, func() {
		giveUp(fmt.Errorf("spec.nfs: mounting %s:%s: the server has not answered for %s", s.Server, s.Path, patience))
	})
	defer timer.Stop()
	dir := v.dir(r.pod.UID, volume)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, mountNFS(ctx, dir, s, options, readOnly)
}

// mountPatience is how long a server of nfs has to let itself be mounted.
const mountPatience = 30 * time.Second

// mountNFS mounts a file system of another host, if that is not done yet; else it asks whether it is there. What it calls may not come back.
func mountNFS(ctx context.Context, dir string, s *corev1.NFSVolumeSource, options []string, readOnly bool) error {
	mounted, err := mounts.At(dir)
	if err != nil {
		return err
	}
	if mounted {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st); err != nil {
			return fmt.Errorf("spec.nfs: asking %s:%s: %w", s.Server, s.Path, err)
		}
		return nil
	}
	if _, err := exec.LookPath("mount.nfs"); err != nil {
		return errors.New("spec.nfs: this node has no mount.nfs")
	}
	cmd := exec.CommandContext(ctx, "mount", nfsArguments(dir, s, options, readOnly)...)
	// What mount has begun ends with it, and does not mount anything when nobody waits for it any more.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a daemon that it has started may have its output
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if ctx.Err() != nil { // nobody waits for it any more
		return errors.Join(context.Cause(ctx), mounts.Unmount(dir))
	}
	if err == nil {
		if mounted, err = mounts.At(dir); err == nil && !mounted {
			err = errors.New("nothing is mounted")
		}
	}
	if err != nil {
		err = fmt.Errorf("spec.nfs: mounting %s:%s: %w", s.Server, s.Path, err)
		if said := strings.TrimSpace(string(out)); said != "" {
			err = fmt.Errorf("%w: %.512s", err, said)
		}
		return errors.Join(err, mounts.Unmount(dir)) // it may have been done in the last moment
	}
	return nil
}

// nfsArguments are those of mount. It tries once, for this pod is tried again, and never by itself after that.
func nfsArguments(dir string, s *corev1.NFSVolumeSource, options []string, readOnly bool) []string {
	all := append([]string{"nosuid", "nodev", "retry=0"}, options...)
	if all = append(all, "fg"); readOnly {
		all = append(all, "ro")
	}
	server := s.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") { // of IPv6
		server = "[" + server + "]"
	}
	return []string{"-t", "nfs", "-o", strings.Join(all, ","), "--", server + ":" + s.Path, dir}
}

// reclaimInterval is how often it is asked whether volumes are to go, and askUnknown in which rounds whether the servers know
// those that are here.
const reclaimInterval, askUnknown = 2 * time.Second, 64

// reclaimPatience is how long the removal of one volume keeps the others waiting.
const reclaimPatience = 10 * time.Second

// Reclaim removes the directories of volumes that the servers say are to go, until ctx ends. Of one that they do not know
// nothing is removed: they may have been restored to what they were before it.
func (v *Volumes) Reclaim(ctx context.Context, servers VolumeKeeper, log hclog.Logger) {
	v.tellOfQuotas(log)
	unknown := map[string]bool{} // volumes that the servers did not know
	ticker := time.NewTicker(reclaimInterval)
	defer ticker.Stop()
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := v.reclaimAll(ctx, servers); err != nil && ctx.Err() == nil {
			log.Debug("it is not known which volumes are to go, or some could not be removed; it is tried again", "error", err)
		}
		if round%askUnknown == 0 {
			v.findUnknown(ctx, servers, unknown, log)
		}
	}
}

// tellOfQuotas says whether volumes hold no more than their size.
func (v *Volumes) tellOfQuotas(log hclog.Logger) {
	if v.Kept == "" {
		return
	}
	err := os.MkdirAll(v.Kept, 0o700)
	if err == nil {
		err = quota.Has(v.Kept)
	}
	if err != nil {
		log.Info("the sizes of local volumes are not enforced on this node", "directory", v.Kept, "because", err)
	}
}

// reclaimAll removes the directories of all volumes that are to go. The servers name them, and not the directories
// that there are: one that was never mounted has none, nor has one of which the servers were not told that it is removed.
func (v *Volumes) reclaimAll(ctx context.Context, servers VolumeKeeper) error {
	names, err := servers.VolumesToGo(ctx)
	for _, name := range names {
		err = errors.Join(err, v.reclaim(ctx, servers, name))
	}
	return err
}

// reclaim removes the directory of a volume if it is to go.
func (v *Volumes) reclaim(ctx context.Context, servers VolumeKeeper, name string) error {
	if err := keptName(name); err != nil {
		return err
	}
	volume, err := servers.PersistentVolume(ctx, name)
	if err != nil || !model.MayRemove(volume) {
		return err
	}
	if err := v.removeKept(ctx, name); err != nil {
		return err
	}
	return servers.VolumeGone(ctx, name)
}

// removeKept removes the directory of a volume. How long that takes its pods have decided: after a while it is gone on with alone, in turn with
// others, and asked for again.
func (v *Volumes) removeKept(ctx context.Context, name string) error {
	if v.Kept == "" {
		return nil
	}
	of := types.UID("volume " + name)
	if v.reclaims.ended(of) != nil {
		return fmt.Errorf("volume %s is being removed already", name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reclaimPatience, fmt.Errorf("volume %s is still being removed", name))
	defer cancel()
	return v.reclaims.apart(ctx, of, 0, func(ctx context.Context) error {
		if err := mounts.RemoveAll(context.WithoutCancel(ctx), filepath.Join(v.Kept, name)); err != nil {
			return err
		}
		if err := syncDir(v.Kept); err != nil && !os.IsNotExist(err) { // nothing was kept yet
			return err
		}
		return nil
	})
}

// findUnknown tells, once, of the directories of volumes that the servers do not know.
func (v *Volumes) findUnknown(ctx context.Context, servers VolumeKeeper, unknown map[string]bool, log hclog.Logger) {
	entries, err := os.ReadDir(v.Kept)
	if err != nil {
		return // nothing was kept yet
	}
	for _, e := range entries {
		name := e.Name()
		if ctx.Err() != nil || keptName(name) != nil || unknown[name] {
			continue
		}
		if _, err := servers.PersistentVolume(ctx, name); apierrors.IsNotFound(err) {
			log.Warn("there is a directory of a volume that the servers do not know; it stays", "directory", filepath.Join(v.Kept, name))
			unknown[name] = true
		}
	}
}
