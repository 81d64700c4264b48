package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-dev/berth/agent/fleet"
)

const (
	nfsServer = "127.0.0.1"
	nfsSilent = "127.0.0.2" // takes connections, and never says anything
	nfsNobody = "127.0.0.3" // takes none
	nfsExport = "/export"
)

// nfsBegin makes a server of nfs, and nfsServe lets it begin again after `rpc.nfsd 0`.
const nfsBegin = `
set -e
for name in nfsd nfs nfsv4; do busybox modprobe $name; done
mkdir -p /export /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
mount -t tmpfs none /export
chmod 777 /export
mount -t nfsd nfsd /proc/fs/nfsd
: > /var/lib/nfs/etab
: > /var/lib/nfs/rmtab
echo '/export *(rw,no_root_squash,fsid=0,insecure,no_subtree_check,async)' > /etc/exports
exportfs -ra
echo 10 > /proc/fs/nfsd/nfsv4gracetime
echo 10 > /proc/fs/nfsd/nfsv4leasetime
rpc.mountd -N 3
` + nfsServe

const nfsServe = `rpc.nfsd -N 3 -V 4.1 -V 4.2 -H ` + nfsServer + ` 4
`

func shell(t *testing.T, program string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", program).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
}

// Volumes of nfs are mounted, used, and gone with their pods, by both runtimes; a server that does not answer costs its own pods alone.
// TestVM runs this in a machine of its own, whose kernel is the server.
func TestNFSInVM(t *testing.T) {
	if os.Getenv(inVM) == "" {
		t.Skip("`make e2e-vm` runs this in a virtual machine")
	}
	shell(t, nfsBegin)
	silence(t)
	d := realContainers(t)
	process, cri := worker("worker-1", `runtime = "process"`), criWorker(d, "worker-2", "cri")
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), process, cri)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes := []*nfsNode{{grouped: &grouped{cluster: c, node: process.Name}}, {grouped: &grouped{cluster: c, node: cri.Name}}}
	for _, n := range nodes {
		t.Run("volumes by "+n.node, n.volumes)
	}
	t.Run("nobody is there", nodes[0].refused)
	t.Run("nobody answers", nodes[0].silent)
	t.Run("the server goes away", func(t *testing.T) { goesAway(t, nodes) })
}

// silence takes connections until the test ends.
func silence(t *testing.T) {
	l, err := net.Listen("tcp", net.JoinHostPort(nfsSilent, "2049"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		var open []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				for _, conn := range open {
					_ = conn.Close()
				}
				return
			}
			open = append(open, conn)
		}
	}()
}

// nfsNode is a node whose pods have volumes of nfs.
type nfsNode struct{ *grouped }

func ofNFS(name, server, path string, readOnly bool) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: path, ReadOnly: readOnly}}}
}

func ofClaim(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

// claimed makes a volume with options, and a claim that has it.
func (n *nfsNode) claimed(t *testing.T, name string, options ...string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes, class := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, ""
	n.ask(t, "make the volume "+name, func(ctx context.Context, _ typedcorev1.PodInterface) error {
		_, err := n.Reader().Kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes, MountOptions: options,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: nfsServer, Path: "/"}}}}, metav1.CreateOptions{})
		return unlessThere(err)
	})
	n.ask(t, "make the claim "+name, func(ctx context.Context, _ typedcorev1.PodInterface) error {
		_, err := n.Reader().Kube.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: &class,
				VolumeName: name, Resources: corev1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
		return unlessThere(err)
	})
}

func unlessThere(err error) error {
	if apierrors.IsAlreadyExists(err) { // an earlier try was heard
		return nil
	}
	return err
}

// begin makes a pod of this node with volumes, each of which its container has at /NAME; the pod "sub" has a part of each.
func (n *nfsNode) begin(t *testing.T, name, command string, volumes []corev1.Volume, more ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := imaged(name+"-"+n.node, command, append(more, on(n.node), func(p *corev1.Pod) {
		p.Spec.Volumes = volumes
		for _, v := range volumes {
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
		}
	})...)
	for i := range p.Spec.Containers[0].VolumeMounts {
		if name == "sub" {
			p.Spec.Containers[0].VolumeMounts[i].SubPath = p.Name
		}
	}
	create(t, n.Reader().Kube, p)
	return p
}

// mounted is what of nfs is mounted for the node's pods: their options by their places.
func (n *nfsNode) mounted(t *testing.T) map[string]string {
	t.Helper()
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range all {
		if strings.HasPrefix(m.FSType, "nfs") && m.FSType != "nfsd" && strings.HasPrefix(m.Mountpoint, n.process().DataDir+"/") {
			out[m.Mountpoint] = m.Options + "," + m.VFSOptions
		}
	}
	return out
}

func (n *nfsNode) process() *fleet.Process {
	for _, p := range n.Processes() {
		if p.Name == n.node {
			return p
		}
	}
	return nil
}

func (n *nfsNode) nothingMounted(t *testing.T) {
	t.Helper()
	n.eventually(t, "nothing of nfs to be mounted", func(context.Context) error {
		if m := n.mounted(t); len(m) > 0 {
			return fmt.Errorf("there are %v", m)
		}
		return nil
	})
}

func (n *nfsNode) volumes(t *testing.T) {
	claim := "claim-" + n.node
	n.claimed(t, claim, "vers=4.1", "soft", "timeo=50")
	group := int64(4711)
	p := n.begin(t, "uses", `cd / && echo own > /own/$NAME && cat /reads/$NAME && if echo x > /reads/x; then exit 3; fi && echo claimed > /claim/f && exec sleep 1000`,
		[]corev1.Volume{ofNFS("own", nfsServer, "/", false), ofNFS("reads", nfsServer, "/", true), ofClaim("claim", claim)}, func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NAME", Value: n.node}}
		})
	// A sub path is made where there is nothing.
	sub := n.begin(t, "sub", `echo sub > /claim/f && exec sleep 1000`, []corev1.Volume{ofClaim("claim", claim)})
	n.waitRunning(t, "default", p.Name, sub.Name)
	for file, text := range map[string]string{n.node: "own\n", "f": "claimed\n", filepath.Join("sub-"+n.node, "f"): "sub\n"} {
		n.eventually(t, "the server to have "+file, func(context.Context) error {
			b, err := os.ReadFile(filepath.Join(nfsExport, file))
			if err == nil && string(b) != text {
				err = fmt.Errorf("it is %q", b)
			}
			return err
		})
	}
	fi, err := os.Stat(nfsExport)
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || st.Gid != 0 || fi.Mode()&os.ModeSetgid != 0 {
		t.Errorf("the volume became the pod's group's: %v", fi.Mode())
	}
	var seen int
	for at, options := range n.mounted(t) {
		want := []string{"nosuid", "nodev"}
		switch filepath.Base(at) {
		case "reads":
			want = append(want, "ro")
		case "claim":
			want = append(want, "vers=4.1", "soft")
		case "own":
			want = append(want, "hard")
		}
		seen++
		for _, w := range want {
			if !strings.Contains(","+options+",", ","+w+",") {
				t.Errorf("%s is mounted with %s, without %s", at, options, w)
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d are mounted: %v", seen, n.mounted(t))
	}
	n.remove(t, *metav1.NewDeleteOptions(1), p, sub)
	n.nothingMounted(t)
}

// refused: the event says what the machine's mount has said.
func (n *nfsNode) refused(t *testing.T) {
	p := n.begin(t, "refused", "exec sleep 1000", []corev1.Volume{ofNFS("data", nfsNobody, "/", false)})
	n.hasEvent(t, p.Name, "FailedMount", "mounting "+nfsNobody+":/: ")
	n.remove(t, *metav1.NewDeleteOptions(1), p)
	n.nothingMounted(t)
}

// silent: more pods than there are calls at a time wait for a server, and nobody else does: neither another pod, nor the worker's end.
func (n *nfsNode) silent(t *testing.T) {
	var waiting []*corev1.Pod
	for i := range 9 {
		waiting = append(waiting, n.begin(t, fmt.Sprintf("silent-%d", i), "exec sleep 1000", []corev1.Volume{ofNFS("data", nfsSilent, "/", false)}))
	}
	beside := n.begin(t, "beside", "exec sleep 1000", nil)
	n.waitRunning(t, "default", beside.Name)
	n.hasEvent(t, waiting[0].Name, "FailedMount", "mounting "+nfsSilent+":/: the server has not answered for 30s")
	w := n.process()
	w.Signal(syscall.SIGTERM)
	n.eventually(t, "the worker to end", func(context.Context) error {
		if w.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	n.remove(t, *metav1.NewDeleteOptions(1), waiting...)
	after := n.begin(t, "after", "exec sleep 1000", nil)
	n.waitRunning(t, "default", beside.Name, after.Name)
	n.remove(t, *metav1.NewDeleteOptions(1), beside, after)
	n.nothingMounted(t)
}

// goesAway: what is killed waits in the kernel to write what it has, and is freed.
func goesAway(t *testing.T, nodes []*nfsNode) {
	var pods []*corev1.Pod
	dir := t.TempDir()
	for _, n := range nodes {
		claim := "private-" + n.node // who has mounted the same is not to lose what he writes
		n.claimed(t, claim, "nosharecache")
		n.begin(t, "writes", `exec 3> /data/$NAME-one 4> /data/$NAME-two; touch /control/$NAME-ready
			while [ ! -e /control/go ]; do sleep 1; done
			head -c 1000000 /dev/zero >&3; head -c 1000000 /dev/zero >&4; touch /control/$NAME-written; exec sleep 1000`,
			[]corev1.Volume{ofClaim("data", claim), {Name: "control", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}},
			func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NAME", Value: n.node}} })
	}
	is := func(what string) {
		t.Helper()
		for _, n := range nodes {
			n.eventually(t, n.node+" to be "+what, func(context.Context) error {
				_, err := os.Stat(filepath.Join(dir, n.node+"-"+what))
				return err
			})
		}
	}
	is("ready")
	for _, n := range nodes {
		pods = append(pods, n.waitRunning(t, "default", "writes-"+n.node)[0])
	}
	shell(t, "rpc.nfsd 0")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	is("written")
	c := nodes[0].grouped
	for _, p := range pods {
		c.ask(t, "delete "+p.Name, func(ctx context.Context, all typedcorev1.PodInterface) error {
			return all.Delete(ctx, p.Name, *metav1.NewDeleteOptions(1))
		})
	}
	beside := nodes[0].begin(t, "beside-the-dead", "exec sleep 1000", nil)
	c.waitRunning(t, "default", beside.Name)
	for _, p := range pods {
		c.hasEvent(t, p.Name, "FailedKillPod", "which does not answer")
	}
	c.remove(t, *metav1.NewDeleteOptions(1), append(pods, beside)...)
	for _, n := range nodes {
		n.nothingMounted(t)
	}
	shell(t, nfsServe)
	again := nodes[0].begin(t, "again", "echo again > /data/again && exec sleep 1000", []corev1.Volume{ofNFS("data", nfsServer, "/", false)})
	c.waitRunning(t, "default", again.Name)
	c.remove(t, *metav1.NewDeleteOptions(1), again)
	nodes[0].nothingMounted(t)
}
