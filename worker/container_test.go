package worker

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"
)

func newStepClock() *clocktesting.FakeClock { return clocktesting.NewFakeClock(epoch) }

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for in, want := range map[string]string{
		"":            "",
		"plain":       "plain",
		"$(A)":        "1",
		"x$(A)y$(A)":  "x1y1",
		"$(NO)":       "$(NO)",
		"$$(A)":       "$(A)",
		"$$$(A)":      "$1",
		"$A":          "$A",
		"$(A":         "$(A",
		"end$":        "end$",
		"$(B)":        "$(A)",
		"$()":         "$()",
		"a$$b$$$$c":   "a$b$$c",
		"$(A)$(A":     "1$(A",
		"日本$(A)$日本":   "日本1$日本",
		"$(A)) $((A)": "1) $((A)",
	} {
		if got := expand(in, lookup); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

// objects is a Getter over a few objects.
type objects struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string][]byte
	services   []corev1.Service
	volumes    map[string]*corev1.PersistentVolume // by claim; nil: it has none yet
	token      func(audience string, seconds int64) (string, time.Time, error)
}

func (o objects) Services(context.Context, string) ([]corev1.Service, error) { return o.services, nil }

func (o objects) Token(_ context.Context, _ *corev1.Pod, audience string, seconds int64) (string, time.Time, error) {
	return o.token(audience, seconds)
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if data, ok := o.configMaps[name]; ok {
		return &corev1.ConfigMap{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (o objects) VolumeOf(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	if v, ok := o.volumes[name]; ok {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		return claim, v, nil
	}
	return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, name)
}

func (o objects) ServiceAccount(_ context.Context, _, name string) (*corev1.ServiceAccount, error) {
	if name == "robot" {
		return &corev1.ServiceAccount{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "s"}, {Name: "none"}}}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, name)
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if data, ok := o.secrets[name]; ok {
		return &corev1.Secret{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func testResolver(t *testing.T, spec string) *resolver {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "prod", UID: "u1",
		Labels: map[string]string{"app": "web", "tier": "a"}, Annotations: map[string]string{"x/y": "note"}}}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	pod.Spec.NodeName = "n1"
	return &resolver{pod: pod, podIPs: []string{"10.0.0.9"}, hostIPs: []string{"10.0.0.1", "fd00::1"},
		alloc: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")},
		getter: objects{configMaps: map[string]map[string]string{"cm": {"k": "v", "other": "w"}},
			secrets: map[string]map[string][]byte{"s": {"pass": []byte("word")}}}}
}

func TestEnvironment(t *testing.T) {
	r := testResolver(t, `
containers:
- name: main
  resources: {limits: {memory: 100Mi}, requests: {cpu: 250m}}
  envFrom: [{prefix: C_, configMapRef: {name: cm}}, {secretRef: {name: s}}, {configMapRef: {name: none, optional: true}}]
  env:
  - {name: A, value: "1"}
  - {name: B, value: "$(A)-$(pass)-$(LATER)-$$(A)"}
  - {name: LATER, value: x}
  - {name: A, value: "2"}
  - {name: C_k, value: over}
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
  - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['x/y']"}}}
  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - {name: KEY, valueFrom: {configMapKeyRef: {name: cm, key: k}}}
  - {name: PASS, valueFrom: {secretKeyRef: {name: s, key: pass}}}
  - {name: GONE, valueFrom: {secretKeyRef: {name: s, key: none, optional: true}}}
  - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
  - {name: CPU, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
  - {name: CPUS, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
  - {name: ALL, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
`)
	env, _, err := r.environment(context.Background(), &r.pod.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split("C_k=over C_other=w pass=word A=2 B=1-word-$(LATER)-$(A) LATER=x NAME=web NS=prod UID=u1 LABEL=web NOTE=note "+
		"NODE=n1 IP=10.0.0.9 HOST=10.0.0.1 KEY=v PASS=word MEM=100 CPU=250 CPUS=1 ALL=4", " ")
	if !slices.Equal(env, want) {
		t.Errorf("environment is\n%q, want\n%q", env, want)
	}
	for _, bad := range []string{
		"{name: X, valueFrom: {configMapKeyRef: {name: none, key: k}}}",
		"{name: X, valueFrom: {configMapKeyRef: {name: cm, key: none}}}",
		"{name: X, valueFrom: {fieldRef: {fieldPath: spec.secret}}}",
	} {
		r := testResolver(t, "containers: [{name: main, env: ["+bad+"]}]")
		if _, _, err := r.environment(context.Background(), &r.pod.Spec.Containers[0]); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// A container without a limit is told its pod's, and what the node offers only where the pod has none either.
func TestLimitsOfThoseWithoutOne(t *testing.T) {
	r := testResolver(t, `
resources: {limits: {memory: 64Mi, cpu: 1250m}}
containers:
- name: main
  resources: {limits: {memory: 32Mi, cpu: "0"}}
  env:
  - {name: OWN, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
  - {name: ZERO, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
  - {name: NODE, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage}}}
  - {name: PAGES, valueFrom: {resourceFieldRef: {resource: limits.hugepages-2Mi}}}
- name: other
  env:
  - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
`)
	r.alloc[corev1.ResourceEphemeralStorage], r.alloc["hugepages-2Mi"] = resource.MustParse("7"), resource.MustParse("4Mi")
	for i, want := range []string{"OWN=32 ZERO=1250 NODE=7 PAGES=0", "CPU=2 MEM=67108864"} {
		env, _, err := r.environment(t.Context(), &r.pod.Spec.Containers[i])
		if got := strings.Join(env, " "); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

// A variable of a file that an init container left in a volume.
func TestEnvironmentFromAFile(t *testing.T) {
	v := &Volumes{Root: t.TempDir()}
	dir := v.dir("u1", "shared")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "app.env"), []byte("TOKEN='word'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"volumeName: shared, path: app.env, key: TOKEN":                "X=word",
		"volumeName: shared, path: app.env, key: NONE, optional: true": "",
		"volumeName: shared, path: none.env, key: A, optional: true":   "",
		"volumeName: shared, path: app.env, key: NONE":                 "fails",
		"volumeName: shared, path: none.env, key: A":                   "fails",
		"volumeName: host, path: app.env, key: TOKEN":                  "fails",
	} {
		r := testResolver(t, "volumes: [{name: shared, emptyDir: {}}, {name: host, hostPath: {path: "+dir+"}}]\n"+
			"containers: [{name: main, env: [{name: X, valueFrom: {fileKeyRef: {"+ref+"}}}]}]")
		r.volumeDir = func(volume string) string { return v.dir("u1", volume) }
		env, _, err := r.environment(t.Context(), &r.pod.Spec.Containers[0])
		if got := strings.Join(env, " "); (err != nil) != (want == "fails") || err == nil && got != want {
			t.Errorf("%s: %q, %v", ref, got, err)
		}
	}
}

func TestVolumes(t *testing.T) {
	host := t.TempDir()
	r := testResolver(t, `
volumes:
- {name: empty, emptyDir: {}}
- {name: host, hostPath: {path: `+host+`/made, type: DirectoryOrCreate}}
- {name: cm, configMap: {name: cm, items: [{key: k, path: sub/k.txt, mode: 256}]}}
- {name: secret, secret: {secretName: s}}
- {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
- {name: all, projected: {sources: [{configMap: {name: cm}}, {secret: {name: s}}]}}
containers:
- name: main
  env: [{name: POD, value: web}]
  volumeMounts:
  - {name: empty, mountPath: /data, subPathExpr: "of/$(POD)"}
  - {name: host, mountPath: /host, readOnly: true}
  - {name: cm, mountPath: /cm}
  - {name: secret, mountPath: /secret}
  - {name: down, mountPath: /down}
  - {name: all, mountPath: /all}
`)
	v := &Volumes{Root: t.TempDir()}
	mounts, err := v.mounts(context.Background(), r, &r.pod.Spec.Containers[0], map[string]string{"POD": "web"})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for _, m := range mounts {
		at[m.Target] = m.Source
		if m.Target == "/data" && m.SubPath != "of/web" {
			t.Errorf("sub path is %q", m.SubPath)
		}
		// What shows objects nobody writes into but the agent, whatever the pod says, as in Kubernetes.
		if m.ReadOnly != (m.Target != "/data") {
			t.Errorf("%s: read-only %v", m.Target, m.ReadOnly)
		}
	}
	if want := filepath.Join(v.Root, "u1", "volumes", "empty"); at["/data"] != want {
		t.Errorf("volume is %s, want %s", at["/data"], want)
	}
	// Whatever is in it is for nobody but the agent, and for those that it is mounted for.
	for _, dir := range []string{"u1", "u1/volumes"} {
		if fi, err := os.Stat(filepath.Join(v.Root, dir)); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("mode of %s: %v, %v", dir, fi.Mode(), err)
		}
	}
	for file, want := range map[string]string{"/cm/sub/k.txt": "v", "/secret/pass": "word", "/down/labels": "app=\"web\"\ntier=\"a\"",
		"/all/k": "v", "/all/pass": "word"} {
		dir, rest, _ := strings.Cut(file[1:], "/")
		if b, err := os.ReadFile(filepath.Join(at["/"+dir], rest)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", file, b, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(at["/cm"], "sub/k.txt")); err != nil || fi.Mode().Perm() != 0o400 {
		t.Errorf("mode of a file: %v, %v", fi.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(host, "made", "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.remove(context.Background(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(v.Root, "u1")); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(host, "made", "kept")); err != nil {
		t.Errorf("the host's directory was emptied: %v", err)
	}
}

// The types of a hostPath: what is there has to be of the kind, and what may be made is.
func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file, made, socket := filepath.Join(dir, "file"), filepath.Join(dir, "made"), filepath.Join(dir, "s")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		ok   bool
	}{
		{made, corev1.HostPathFile, false}, {made, corev1.HostPathFileOrCreate, true}, {made, corev1.HostPathFile, true}, {file, corev1.HostPathFileOrCreate, true},
		{dir, corev1.HostPathFileOrCreate, false}, {socket, corev1.HostPathSocket, true}, {file, corev1.HostPathSocket, false},
		{"/dev/null", corev1.HostPathCharDev, true}, {file, corev1.HostPathCharDev, false}, {"/dev/null", corev1.HostPathBlockDev, false},
		{file, corev1.HostPathBlockDev, false}, {dir, corev1.HostPathDirectory, true}, {file, corev1.HostPathDirectoryOrCreate, false},
		{filepath.Join(dir, "none"), corev1.HostPathUnset, true}, {filepath.Join(dir, "none"), corev1.HostPathSocket, false},
	} {
		if err := hostPath(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind}); (err == nil) != c.ok {
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
		t.Errorf("a file that was there is %q, %v", b, err)
	}
}

func TestVolumesRefuse(t *testing.T) {
	dir := t.TempDir()
	for name, spec := range map[string]string{
		"dots":    "volumes: [{name: v, hostPath: {path: " + dir + "}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v, subPath: ../x}]}]",
		"missing": "volumes: [{name: v, hostPath: {path: " + dir + "/no, type: Directory}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]",
		"kind":    "volumes: [{name: v, hostPath: {path: " + dir + ", type: File}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]",
		"claim":   "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]",
		"unknown": "containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]",
		"object":  "volumes: [{name: v, configMap: {name: none}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]",
	} {
		r := testResolver(t, spec)
		v := &Volumes{Root: t.TempDir()}
		if m, err := v.mounts(context.Background(), r, &r.pod.Spec.Containers[0], nil); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// A sub path that is none with the variables as they are is the container's configuration, not a volume that is not there.
func TestSubPathOfVariables(t *testing.T) {
	for expr, want := range map[string]string{
		"$(POD)/x": "web/x", "$$(POD)": "$(POD)", "$(NONE)/x": "", "$(UP)": "", "/$(POD)": "", "$(EMPTY)/$(POD)": "",
	} {
		got, err := subPath(&corev1.VolumeMount{Name: "v", SubPathExpr: expr}, map[string]string{"POD": "web", "UP": "../web", "EMPTY": ""})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", expr, got, err)
		}
	}
	r := testResolver(t, "volumes: [{name: v, emptyDir: {}}]\ncontainers: [{name: a, volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(NONE)}]}]")
	c := caller{volumes: &Volumes{Root: t.TempDir()}}
	o := c.do(t.Context(), Action{Kind: ActionStart, Pod: r.pod, Container: &r.pod.Spec.Containers[0]})
	var pe *prepareError
	if !errors.As(o.Err, &pe) || pe.wait != waitConfigError || pe.event != "Failed" {
		t.Errorf("%+v", o.Err)
	}
}

func TestBackoff(t *testing.T) {
	var b backoff
	now := epoch
	var delays []time.Duration
	for range 8 {
		b.next(now, now)
		until := b.until(now)
		delays = append(delays, until.Sub(now))
		now = until
	}
	want := []time.Duration{10, 20, 40, 80, 160, 300, 300, 300}
	for i := range want {
		if delays[i] != want[i]*time.Second {
			t.Errorf("delay %d is %s", i, delays[i])
		}
	}
	short := backoff{most: 15 * time.Second}
	for _, want := range []time.Duration{10, 15, 15} {
		if short.next(now, now); short.delay != want*time.Second {
			t.Errorf("with a bound of its own the delay is %s, want %ds", short.delay, want)
		}
	}
	if short = (backoff{most: time.Second}); short.delay != 0 {
		t.Error("the first restart waits")
	}
	if short.next(now, now); short.delay != time.Second {
		t.Errorf("the delay is %s", short.delay)
	}
	if until := b.until(now.Add(backoffReset + time.Second)); !until.IsZero() {
		t.Errorf("after a long run it waits until %s", until)
	}
}
