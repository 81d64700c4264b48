package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/worker/runtime"
)

func intOf(n int32) intstr.IntOrString { return intstr.FromInt32(n) }

// A pod's life, alike whatever runs its containers.
func TestPodLife(t *testing.T) {
	t.Run("process", func(t *testing.T) { podLife(t, nil) })
	t.Run("cri", func(t *testing.T) { podLife(t, realContainers(t)) })
}

// podLife tests a worker of processes, or of real containers.
func podLife(t *testing.T, d realDaemon) {
	w := worker("worker-1", `capacity { cpu = "8" }`)
	if d != nil {
		w = criWorker(d, "worker-1", "cri")
	}
	s := server("server-1", "bootstrap_expect = 1")
	if d != nil { // pods have a network of their own
		s.Host, w.Host = reachable(), reachable()
	}
	c := newCluster(t, s, w)
	if d != nil {
		c.emptied(t, d)
	}
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(t *testing.T, c *cluster){
		"ends": ends, "restarts": restarts, "init": initContainers, "sees": sees, "stops": stops, "probed": probed, "refused": refused,
		"entered": entered, "attached": attached, "debugged": debugged, "fills": fills, "mounts": mounts, "privileged": privileged,
		"labelled": labelled, "resized": resized, "resized before it begins": resizedInit, "never began": neverBegan,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	t.Run("fails", func(t *testing.T) { fails(t, c, d != nil && *crioPrograms != "") })
	t.Run("namespaces", func(t *testing.T) { namespaces(t, c, d != nil) })
	t.Run("classed", func(t *testing.T) { classed(t, c, d) })
	t.Run("propagated", func(t *testing.T) { propagated(t, c, d != nil) })
	t.Run("confined", func(t *testing.T) { confined(t, c, d != nil) })
	t.Run("bad", func(t *testing.T) { badPods(t, c, d) })
	t.Run("forwarded", func(t *testing.T) { forwarded(t, c, d != nil) })
	t.Run("goes on without its worker", func(t *testing.T) { goesOn(t, c) })
}

func policy(p corev1.RestartPolicy) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = p }
}

// LC3: by their containers' exit codes pods succeed and fail; the last word and the log are kept.
func ends(t *testing.T, c *cluster) {
	create(t, c.Reader().Kube, imaged("well", "echo done; echo bye > /dev/termination-log", policy(corev1.RestartPolicyNever), lastWord),
		imaged("badly", "echo oops >&2; exit 4", policy(corev1.RestartPolicyNever)))
	p := c.waitFor(t, "well", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if x := p.Status.ContainerStatuses[0].State.Terminated; x == nil || x.Reason != "Completed" || x.ExitCode != 0 || x.Message != "bye\n" {
		t.Errorf("its end: %+v", x)
	}
	p = c.waitFor(t, "badly", "to fail", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if x := p.Status.ContainerStatuses[0].State.Terminated; x == nil || x.Reason != "Error" || x.ExitCode != 4 {
		t.Errorf("its end: %+v", x)
	}
	if got := c.berth(t, "logs", "badly"); got != "oops\n" {
		t.Errorf("its log: %q", got)
	}
}

// waitLog waits until a pod's container has written what it is to: one that runs may have written nothing yet.
func waitLog(t *testing.T, c *cluster, pod, want string) {
	t.Helper()
	c.eventually(t, "the log of "+pod, func(context.Context) error {
		if got := c.berth(t, "logs", pod, "-c", "main"); got != want {
			return fmt.Errorf("it is %q, not %q", got, want)
		}
		return nil
	})
}

// RB1, RB2: what ends is started again, its logs are those of the newest run, and of the one before.
func restarts(t *testing.T, c *cluster) {
	create(t, c.Reader().Kube, imaged("again", `if [ ! -e /data/once ]; then touch /data/once; echo first; exit 1; fi; echo second; exec sleep 1000`,
		volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})))
	p := c.waitFor(t, "again", "to run again", func(p *corev1.Pod) bool { return podReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	if last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 1 {
		t.Errorf("its last end: %+v", last)
	}
	waitLog(t, c, "again", "second\n")
	if before := c.berth(t, "logs", "again", "--previous"); before != "first\n" {
		t.Errorf("the log before: %q", before)
	}
}

// IN1, IN2: init containers run one after the other, each until it succeeds, and share the pod's volumes.
func initContainers(t *testing.T, c *cluster) {
	p := imaged("inits", "cat /data/steps; exec sleep 1000", volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	main := p.Spec.Containers[0]
	for name, script := range map[string]string{"one": "echo one >> /data/steps; test -e /data/again || { touch /data/again; exit 1; }", "two": "echo two >> /data/steps"} {
		init := *main.DeepCopy()
		init.Name, init.Command[2] = name, script
		if p.Spec.InitContainers = append(p.Spec.InitContainers, init); name == "one" && len(p.Spec.InitContainers) == 2 {
			p.Spec.InitContainers[0], p.Spec.InitContainers[1] = init, p.Spec.InitContainers[0]
		}
	}
	create(t, c.Reader().Kube, p)
	c.waitRunning(t, "default", "inits")
	waitLog(t, c, "inits", "one\none\ntwo\n")
}

// What a container sees of its pod, its configuration and its security context.
func sees(t *testing.T, c *cluster) {
	kube := c.Reader().Kube
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"key": "value"}}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	user, group := int64(1234), int64(4321)
	create(t, kube, imaged("sees", `echo "$NAME $FROM"; cat /etc/settings/key; echo; id -u; id -g; hostname; cat /data/x 2>/dev/null; echo x > /data/x && echo written; test "$IP" = "$(echo $IP)" && test -n "$IP" && echo addressed`,
		policy(corev1.RestartPolicyNever),
		volume("settings", "/etc/settings", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}),
		volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &group}
			p.Spec.Containers[0].Env = []corev1.EnvVar{
				{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
				{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"}}},
				{Name: "FROM", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "key"}}},
			}
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("500m")}
		}))
	c.waitFor(t, "sees", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if got, want := c.berth(t, "logs", "sees"), "sees value\nvalue\n1234\n4321\nsees\nwritten\naddressed\n"; got != want {
		t.Errorf("it saw %q, want %q", got, want)
	}
}

func volume(name, path string, source corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
}

// TM1–TM4: a pod that is deleted is told, has its grace, and is gone when its containers are; hooks run before. Who watches it sees how it ended
// before it goes, and until then its node shows it.
func stops(t *testing.T, c *cluster) {
	kube := c.Reader().Kube
	create(t, kube, imaged("hooked", `trap "exit 0" TERM; while :; do sleep 0.1; done`, func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "echo begun > /data/begun"}}},
			PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "test -e /data/begun"}}},
		}
	}, volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})),
		imaged("deaf", `trap "" TERM; while :; do sleep 0.1; done`))
	c.waitRunning(t, "default", "hooked", "deaf")
	if known, run := nodePods(t, c, "pods"), nodePods(t, c, "runningpods"); known["hooked"] != corev1.PodRunning || known["deaf"] != corev1.PodRunning || len(run) < 2 {
		t.Errorf("the node shows %v, and that %v run", known, run)
	}
	list, err := kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := int64(1)
	for name, o := range map[string]metav1.DeleteOptions{"hooked": {}, "deaf": {GracePeriodSeconds: &now}} {
		if err := kube.CoreV1().Pods("default").Delete(t.Context(), name, o); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hooked", "deaf"} {
		c.waitGone(t, name)
	}
	for name, want := range map[string]string{"hooked": "Succeeded 0 Completed", "deaf": "Failed 137 Error"} {
		p, got := lastSeen(t, c, name, list.ResourceVersion), "none"
		if x := p.Status.ContainerStatuses[0].State.Terminated; x != nil {
			got = fmt.Sprint(p.Status.Phase, " ", x.ExitCode, " ", x.Reason)
		}
		if got != want {
			t.Errorf("the last that is seen of %s is %s, not %s", name, got, want)
		}
		if p, there := nodePods(t, c, "pods")[name]; there {
			t.Errorf("its node shows %s, which is %s", name, p)
		}
		if _, there := nodePods(t, c, "runningpods")[name]; there {
			t.Errorf("its node says that %s runs", name)
		}
	}
}

// lastSeen is a pod that is gone as who watches it since then was told of it before it went, and again when it did.
func lastSeen(t *testing.T, c *cluster, name, since string) (last *corev1.Pod) {
	t.Helper()
	w, err := c.Reader().Kube.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: since, FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		switch {
		case !ok:
			t.Fatalf("the watch ends: %+v", e.Object)
		case e.Type != watch.Deleted:
			last = p
		case last == nil || !equality.Semantic.DeepEqual(last.Status, p.Status):
			t.Fatalf("%s goes as %+v, and was %+v", name, p.Status, last)
		default:
			return last
		}
	}
	t.Fatalf("the watch ended before %s went", name)
	return nil
}

// nodePods are the pods that the first worker shows at a path of a kubelet's, with their phases.
func nodePods(t *testing.T, c *cluster, path string) map[string]corev1.PodPhase {
	t.Helper()
	var list corev1.PodList
	raw := c.berth(t, "get", "--raw", "/api/v1/nodes/worker-1:10250/proxy/"+path)
	if err := json.Unmarshal([]byte(raw), &list); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	out := map[string]corev1.PodPhase{}
	for i := range list.Items {
		out[list.Items[i].Name] = list.Items[i].Status.Phase
	}
	return out
}

// PB1, PB3: probes run in the container; what is not alive is started again.
func probed(t *testing.T, c *cluster) {
	probe := func(script string) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", script}}}}
	}
	now := int64(1)
	data := volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	create(t, c.Reader().Kube, imaged("probed", "touch /data/ready; exec sleep 1000", data, func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = probe("test -e /data/ready")
	}), imaged("dies", "exec sleep 1000", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = &now
		p.Spec.Containers[0].LivenessProbe = probe("exit 1")
	}))
	c.waitRunning(t, "default", "probed")
	c.waitFor(t, "dies", "to be started again", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	c.hasEvent(t, "dies", "Unhealthy", "Liveness probe failed")
}

// What the node does not have is said before anything runs.
func refused(t *testing.T, c *cluster) {
	create(t, c.Reader().Kube, imaged("users", "true", func(p *corev1.Pod) { no := false; p.Spec.HostUsers = &no }))
	p := c.waitFor(t, "users", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerConfigError" })
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "spec.hostUsers") {
		t.Errorf("it is told %q", m)
	}
}

// A container that is privileged may do what root may, and only such a one.
func privileged(t *testing.T, c *cluster) {
	if os.Geteuid() != 0 {
		t.Skip("nobody has the rights of root here")
	}
	yes := true
	data := volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	create(t, c.Reader().Kube, imaged("mighty", "mount -t tmpfs none /data && echo mounted", data, policy(corev1.RestartPolicyNever), func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	}))
	c.waitFor(t, "mighty", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	waitLog(t, c, "mighty", "mounted\n")
}

// Labels of SELinux change nothing where the host has none, and the pod is told.
func labelled(t *testing.T, c *cluster) {
	if runtime.HostHasSELinux() {
		t.Skip("the host has SELinux")
	}
	create(t, c.Reader().Kube, imaged("labelled", "echo runs", policy(corev1.RestartPolicyNever), func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}
	}))
	c.waitFor(t, "labelled", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	c.hasEvent(t, "labelled", "NotHonoured", "spec.securityContext.seLinuxOptions changes nothing: the host has no SELinux")
}

// A command that is not there counts as an attempt, where the container is made without looking at it; a user that must not be does not.
func fails(t *testing.T, c *cluster, lookedAt bool) {
	yes := true
	create(t, c.Reader().Kube, imaged("nocommand", "", policy(corev1.RestartPolicyNever), func(p *corev1.Pod) {
		p.Spec.Containers[0].Command = []string{"/nowhere"}
	}), imaged("root", "true", func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes} }))
	if lookedAt {
		p := c.waitFor(t, "nocommand", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerError" })
		if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "/nowhere") {
			t.Errorf("it is told %q", m)
		}
	} else {
		p := c.waitFor(t, "nocommand", "to fail", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if x := p.Status.ContainerStatuses[0].State.Terminated; x == nil || x.Reason != "StartError" || x.ExitCode != 128 {
			t.Errorf("its end: %+v", x)
		}
	}
	c.waitFor(t, "root", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerConfigError" })
}

// A pod that holds more of the disk than it may is evicted, in Kubernetes' words: a volume, and what a container writes and logs.
func fills(t *testing.T, c *cluster) {
	limit := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"ephemeral-storage": resource.MustParse("2Mi")}
	}
	size := resource.MustParse("1Mi")
	create(t, c.Reader().Kube,
		imaged("fills-volume", "head -c 3000000 /dev/zero > /data/much; exec sleep 1000",
			volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}})),
		imaged("logs-much", "yes 0123456789012345678901234567890123456789 | head -c 4000000; exec sleep 1000", limit),
		imaged("writes-much", "head -c 4000000 /dev/zero > ./much; exec sleep 1000", limit))
	for name, message := range map[string]string{
		"fills-volume": `Usage of EmptyDir volume "data" exceeds the limit "1Mi".`,
		"logs-much":    "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi.",
		"writes-much":  "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi.",
	} {
		p := c.waitFor(t, name, "to be evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "Evicted" || p.Status.Message != message {
			t.Errorf("%s: %s, %q", name, p.Status.Reason, p.Status.Message)
		}
	}
}

// A worker that is killed and comes back finds its pods as they were, and how they ended.
func goesOn(t *testing.T, c *cluster) {
	data := volume("data", "/data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	create(t, c.Reader().Kube, imaged("stays", "echo begin; exec sleep 1000"), imaged("ends", "echo begin; sleep 1; echo end; exit 9", policy(corev1.RestartPolicyNever), data))
	before := c.waitRunning(t, "default", "stays", "ends")[0]
	w := c.Workers()[0]
	w.Kill()
	startWorker(t, c, w)
	c.waitFor(t, "ends", "to have failed", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Terminated.ExitCode == 9
	})
	if got := c.berth(t, "logs", "ends"); got != "begin\nend\n" {
		t.Errorf("its log: %q", got)
	}
	after := c.waitRunning(t, "default", "stays")[0]
	if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("it is another: %+v", b)
	}
}

var errStillThere = errors.New("it is there")

// waitGone waits until a pod is no more.
func (c *cluster) waitGone(t *testing.T, name string) {
	t.Helper()
	c.eventually(t, name+" to be gone", func(ctx context.Context) error {
		if _, err := c.get(ctx, name); err == nil {
			return errStillThere
		}
		return nil
	})
}

func lastWord(p *corev1.Pod) { p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log" }
