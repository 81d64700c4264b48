package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// volumeOf is a volume of a claim, on node n1 where it is one of the node's directories.
func volumeOf(claim string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + claim}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: source, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		ClaimRef: &corev1.ObjectReference{Name: claim, UID: types.UID("uid-" + claim)},
	}}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}},
	}}}}
	return v
}

func localVolume(handle string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: model.LocalDriver, VolumeHandle: handle}}
}

func claimant(t *testing.T, claim string, v *corev1.PersistentVolume) *resolver {
	r := testResolver(t, "volumes: [{name: v, persistentVolumeClaim: {claimName: "+claim+"}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]")
	r.pod.Spec.NodeName = "n1"
	r.getter = objects{volumes: map[string]*corev1.PersistentVolume{claim: v}}
	return r
}

// A directory of the node is made once, and what is in it stays for the next pod.
func TestKeptVolume(t *testing.T) {
	v := &Volumes{Root: t.TempDir(), Kept: filepath.Join(t.TempDir(), "volumes")}
	r := claimant(t, "c", volumeOf("c", localVolume("pvc-c")))
	for range 2 {
		m, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil)
		if err != nil || len(m) != 1 || m[0].Source != filepath.Join(v.Kept, "pvc-c") || m[0].ReadOnly {
			t.Fatalf("%+v, %v", m, err)
		}
		f, err := os.OpenFile(filepath.Join(m[0].Source, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("started\n"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := v.remove(context.Background(), r.pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(v.Kept, "pvc-c", "log")); err != nil || string(b) != "started\nstarted\n" {
		t.Errorf("%q, %v", b, err)
	}
	if fi, err := os.Stat(v.Kept); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the directory above: %v, %v", fi, err)
	}
	r.pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	if m, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil); err != nil || !m[0].ReadOnly {
		t.Errorf("%+v, %v", m, err)
	}
}

// What a volume is that this node does not have is told by its field, and no name leads out of
// where volumes are.
func TestVolumesOfClaimsRefuse(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	foreign := volumeOf("c", localVolume("pvc-c"))
	foreign.Spec.ClaimRef.UID = "another"
	device := volumeOf("c", localVolume("pvc-c"))
	device.Spec.VolumeMode = &block
	elsewhere := volumeOf("c", localVolume("pvc-c"))
	elsewhere.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchFields[0].Values = []string{"n2"}
	options := volumeOf("c", localVolume("pvc-c"))
	options.Spec.MountOptions = []string{"noexec"}
	for name, c := range map[string]struct {
		v    *corev1.PersistentVolume
		says string
	}{
		"none yet":       {nil, "has no volume yet"},
		"another's":      {foreign, `is not that of the persistentvolumeclaim "c"`},
		"a device":       {device, "spec.volumeMode: "},
		"of a node":      {elsewhere, `spec.nodeAffinity: the volume is on node "n2"`},
		"options":        {options, "spec.mountOptions: "},
		"out of it":      {volumeOf("c", localVolume("../pods")), "spec.csi.volumeHandle"},
		"itself":         {volumeOf("c", localVolume(".")), "spec.csi.volumeHandle"},
		"of another":     {volumeOf("c", localVolume("pvc-d")), `spec.csi.volumeHandle: "pvc-d" is not the volume's name`},
		"another driver": {volumeOf("c", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d"}}), `spec.csi.driver: this node has no driver "d"`},
		"no directory":   {volumeOf("c", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/dev/null"}}), "spec.local.path: "},
		"unknown":        {volumeOf("c", corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}), "spec.persistentVolumeSource: "},
	} {
		v := &Volumes{Root: t.TempDir(), Kept: filepath.Join(t.TempDir(), "volumes")}
		r := claimant(t, "c", c.v)
		if m, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if got := nfsArguments("/d", &corev1.NFSVolumeSource{Server: "s", Path: "/p"}, []string{"vers=4"}, true); !slices.Equal(got,
		[]string{"-t", "nfs", "-o", "nosuid,nodev,retry=0,vers=4,fg,ro", "--", "s:/p", "/d"}) {
		t.Errorf("%q", got)
	}
	if got := nfsArguments("/d", &corev1.NFSVolumeSource{Server: "fd00::1", Path: "/p"}, nil, false); got[len(got)-2] != "[fd00::1]:/p" {
		t.Errorf("%q", got)
	}
}

// What is in a volume becomes the group's, but nothing that a link in it leads to.
func TestKeptVolumeOfAGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("files are given away by root alone")
	}
	v := &Volumes{Root: t.TempDir(), Kept: filepath.Join(t.TempDir(), "volumes")}
	dir, err := v.keep(t.Context(), volumeNamed("pvc-c"), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	for _, err := range []error{
		os.WriteFile(outside, nil, 0o600), os.WriteFile(filepath.Join(dir, "inside"), nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	group := int64(4711)
	if _, err := v.keep(t.Context(), volumeNamed("pvc-c"), &group, false); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{dir: 4711, filepath.Join(dir, "inside"): 4711, outside: 0} {
		fi, err := os.Lstat(path)
		if err != nil || ownerGroup(fi) != want {
			t.Errorf("%s: %v, %v", path, fi, err)
		}
	}
	// What somebody makes there that is not the group's becomes so at the next mount, unless the pod says that the root decides.
	later := filepath.Join(dir, "later")
	if err := os.WriteFile(later, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(later, 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		onMismatch bool
		want       uint32
	}{{true, 0}, {false, 4711}} {
		if _, err := v.keep(t.Context(), volumeNamed("pvc-c"), &group, step.onMismatch); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Lstat(later); err != nil || ownerGroup(fi) != step.want {
			t.Errorf("on mismatch %v: %v, %v", step.onMismatch, fi, err)
		}
	}
	if fi, err := os.Stat(outside); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("outside: %v, %v", fi, err)
	}
}

// keeper are the servers' words about volumes.
type keeper struct {
	volumes map[string]*corev1.PersistentVolume
	gone    []string
	deaf    bool // what it is told is lost
}

func (k *keeper) VolumesToGo(context.Context) ([]string, error) {
	var out []string
	for name, v := range k.volumes {
		if model.MayRemove(v) && !slices.Contains(k.gone, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (k *keeper) PersistentVolume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	if v, ok := k.volumes[name]; ok {
		return v, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, name)
}

func (k *keeper) VolumeGone(_ context.Context, name string) error {
	if k.deaf {
		return errors.New("deaf")
	}
	k.gone = append(k.gone, name)
	return nil
}

// Directories go whose volumes are to go, and no others.
func TestReclaim(t *testing.T) {
	now := metav1.Now()
	going := volumeOf("going", localVolume("pvc-going"))
	going.DeletionTimestamp, going.Finalizers = &now, []string{model.LocalFinalizer}
	held := going.DeepCopy()
	held.Finalizers = append(held.Finalizers, model.VolumeProtection)
	retained := going.DeepCopy()
	retained.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	k := &keeper{volumes: map[string]*corev1.PersistentVolume{
		"pvc-going": going, "pvc-held": held, "pvc-retained": retained, "pvc-used": volumeOf("used", localVolume("pvc-used")),
	}}
	v := &Volumes{Kept: filepath.Join(t.TempDir(), "volumes")}
	for _, name := range []string{"pvc-going", "pvc-held", "pvc-retained", "pvc-used", "pvc-unknown"} {
		if _, err := v.keep(t.Context(), volumeNamed(name), nil, false); err != nil {
			t.Fatal(err)
		}
		if err := v.reclaim(t.Context(), k, name); (name == "pvc-unknown") != apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(v.Kept, name)); os.IsNotExist(err) != (name == "pvc-going") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !slices.Equal(k.gone, []string{"pvc-going"}) {
		t.Errorf("told of %q", k.gone)
	}
}

// A volume that was never mounted goes, and one of whose end the servers did not hear, though neither has a directory.
func TestReclaimWithoutDirectory(t *testing.T) {
	now := metav1.Now()
	going := func(claim string) *corev1.PersistentVolume {
		v := volumeOf(claim, localVolume("pvc-"+claim))
		v.DeletionTimestamp, v.Finalizers = &now, []string{model.LocalFinalizer}
		return v
	}
	v := &Volumes{Kept: filepath.Join(t.TempDir(), "volumes")}
	k := &keeper{volumes: map[string]*corev1.PersistentVolume{"pvc-bare": going("bare")}}
	if err := v.reclaimAll(t.Context(), k); err != nil || !slices.Equal(k.gone, []string{"pvc-bare"}) {
		t.Fatalf("told of %q, %v", k.gone, err)
	}
	k.volumes["pvc-told"], k.deaf = going("told"), true
	if _, err := v.keep(t.Context(), volumeNamed("pvc-told"), nil, false); err != nil {
		t.Fatal(err)
	}
	if err := v.reclaimAll(t.Context(), k); err == nil {
		t.Error("nobody heard of it")
	}
	if _, err := os.Stat(filepath.Join(v.Kept, "pvc-told")); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
	k.deaf = false
	if err := v.reclaimAll(t.Context(), k); err != nil || !slices.Equal(k.gone, []string{"pvc-bare", "pvc-told"}) {
		t.Errorf("told of %q, %v", k.gone, err)
	}
	k.volumes["../out"] = going("out")
	if err := v.reclaimAll(t.Context(), k); err == nil || slices.Contains(k.gone, "../out") {
		t.Errorf("a name that leads out: told of %q, %v", k.gone, err)
	}
}

// Where no volume has a directory, as on a node whose runtime runs nothing, a volume that is to go is said to be gone, and nothing is
// touched.
func TestReclaimWhereNothingIsKept(t *testing.T) {
	t.Chdir(t.TempDir())
	now := metav1.Now()
	going := volumeOf("bare", localVolume("pvc-bare"))
	going.DeletionTimestamp, going.Finalizers = &now, []string{model.LocalFinalizer}
	k := &keeper{volumes: map[string]*corev1.PersistentVolume{"pvc-bare": going}}
	if err := os.Mkdir("pvc-bare", 0o700); err != nil { // somebody else's
		t.Fatal(err)
	}
	v := &Volumes{}
	if err := v.reclaimAll(t.Context(), k); err != nil || !slices.Equal(k.gone, []string{"pvc-bare"}) {
		t.Errorf("told of %q, %v", k.gone, err)
	}
	if _, err := os.Stat("pvc-bare"); err != nil {
		t.Error(err)
	}
}

// One that is being removed for long keeps none of the others waiting, and is not told to be gone before it is.
func TestReclaimsThatTakeLong(t *testing.T) {
	now := metav1.Now()
	v := &Volumes{Kept: filepath.Join(t.TempDir(), "volumes")}
	k := &keeper{volumes: map[string]*corev1.PersistentVolume{}}
	for _, claim := range []string{"large", "small"} {
		pv := volumeOf(claim, localVolume("pvc-"+claim))
		pv.DeletionTimestamp, pv.Finalizers = &now, []string{model.LocalFinalizer}
		k.volumes[pv.Name] = pv
	}
	// As many as may be at a time, and all of them for hours.
	large := []types.UID{"volume pvc-large"}
	for i := range removalsAtOnce - 1 {
		large = append(large, types.UID(fmt.Sprint(i)))
	}
	var enough atomic.Bool
	over := make(chan error, len(large))
	v.reclaims.turn = time.Nanosecond
	for _, of := range large {
		go func() {
			over <- v.reclaims.apart(t.Context(), of, 0, func(ctx context.Context) error {
				for !enough.Load() {
					if err := mounts.RemoveAll(ctx, filepath.Join(v.Kept, "nothing")); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	if err := os.MkdirAll(v.Kept, 0o700); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "all places are taken", func() bool { return v.reclaims.ended(large[0]) != nil && v.reclaims.underWay() == len(large) })
	if err := v.reclaimAll(t.Context(), k); err == nil || !slices.Equal(k.gone, []string{"pvc-small"}) {
		t.Errorf("told of %q, %v", k.gone, err)
	}
	enough.Store(true)
	for range large {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
	if err := v.reclaimAll(t.Context(), k); err != nil || !slices.Equal(k.gone, []string{"pvc-small", "pvc-large"}) || v.reclaims.underWay() > 0 {
		t.Errorf("told of %q, %v", k.gone, err)
	}
}

func volumeNamed(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
	}}
}
