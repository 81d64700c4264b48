package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// tree is what a container finds in a volume: names, contents, and what is no file of its.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(resolved, func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := os.ReadFile(p)
			out = append(out, filepath.Join(filepath.Base(path), strings.TrimPrefix(p, resolved))+"="+string(data))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(out, " ")
}

// TestVolumesFollow: a volume shows what its objects hold now, whole, and nothing of before.
func TestVolumesFollow(t *testing.T) {
	r := testResolver(t, `
volumes:
- {name: cm, configMap: {name: settings}}
- {name: some, configMap: {name: settings, items: [{key: a, path: deep/a}]}}
- {name: later, secret: {secretName: later, optional: true}}
- {name: unused, configMap: {name: none}}
containers:
- name: main
  volumeMounts:
  - {name: cm, mountPath: /cm}
  - {name: some, mountPath: /some}
  - {name: later, mountPath: /later}
`)
	known := objects{configMaps: map[string]map[string]string{"settings": {"a": "1", "b": "2"}}, secrets: map[string]map[string][]byte{}}
	v := &Volumes{Root: t.TempDir()}
	at := func(volume string) string { return tree(t, filepath.Join(v.Root, "u1", "volumes", volume)) }
	fresh := func() *resolver { n := *r; n.getter, n.configMaps, n.secrets = known, nil, nil; return &n }
	if _, err := v.mounts(context.Background(), fresh(), &r.pod.Spec.Containers[0], nil); err != nil {
		t.Fatal(err)
	}
	if got := at("cm") + "; " + at("some") + "; " + at("later"); got != "a=1 b=2; deep/a=1; " {
		t.Errorf("at first: %s", got)
	}
	link := filepath.Join(v.Root, "u1/volumes/cm", dataLink)
	before, _ := os.Readlink(link)
	if err := v.refresh(context.Background(), fresh()); err != nil {
		t.Error(err)
	}
	if now, _ := os.Readlink(link); now != before {
		t.Error("what did not change was written anew")
	}
	known.configMaps["settings"] = map[string]string{"a": "one", "c": "3"}
	known.secrets["later"] = map[string][]byte{"k": []byte("v")}
	if err := v.refresh(context.Background(), fresh()); err != nil {
		t.Error(err)
	}
	if got := at("cm") + "; " + at("some") + "; " + at("later"); got != "a=one c=3; deep/a=one; k=v" {
		t.Errorf("after a change: %s", got)
	}
	entries, err := os.ReadDir(filepath.Join(v.Root, "u1/volumes/cm"))
	if err != nil || len(entries) != 4 { // a, c, the link and what it leads to
		t.Errorf("something is left of before: %v, %v", entries, err)
	}
	// What cannot be had any more stays, and one volume does not keep the others from following.
	known.configMaps["settings"] = map[string]string{"c": "4"}
	if err := v.refresh(context.Background(), fresh()); err == nil || !strings.Contains(err.Error(), `refreshing volume "some"`) {
		t.Errorf("a key is gone: %v", err)
	}
	if got := at("cm") + "; " + at("some"); got != "c=4; deep/a=one" {
		t.Errorf("after a key is gone: %s", got)
	}
}

// TestPublishOverOldFiles: a volume that an earlier version had written follows, too.
func TestPublishOverOldFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "k"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := publish(dir, map[string]volumeFile{"k": {data: []byte("new")}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); got != "k=new" {
		t.Error(got)
	}
	for _, bad := range []string{"..data", "../k", "/k", "a/../../k"} {
		if err := publish(dir, map[string]volumeFile{bad: {}}, nil, nil); err == nil {
			t.Errorf("%q is written", bad)
		}
	}
}

// TestPublishBesidePipes: what a pod has made a pipe of is not waited for: it is a file again.
func TestPublishBesidePipes(t *testing.T) {
	dir := t.TempDir()
	files := map[string]volumeFile{"k": {data: []byte("text")}, "deep/l": {data: []byte("more")}}
	published := func() {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- publish(dir, files, nil, nil) }()
		select {
		case err := <-done:
			if got := tree(t, dir); err != nil || got != "deep/l=more k=text" {
				t.Errorf("it holds %q, %v", got, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("it waits for a pipe")
		}
	}
	published()
	at := filepath.Join(dir, dataLink, "k")
	for what, thing := range map[string]func() error{
		"pipe":   func() error { return syscall.Mkfifo(at, 0o600) },
		"larger": func() error { return os.WriteFile(at, []byte("text and more"), 0o600) },
		"other":  func() error { return os.WriteFile(at, []byte("test"), 0o600) },
	} {
		if err := errors.Join(os.Remove(at), thing()); err != nil {
			t.Fatal(what, err)
		}
		published()
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeNew(root, "pipe", nil, 0o600); !os.IsExist(err) {
		t.Errorf("into a pipe: %v", err)
	}
}

// TestPublishAmongThieves: whatever somebody who can write in the volume makes of what is being written, nothing outside of it is touched.
func TestPublishAmongThieves(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	kept := filepath.Join(outside, "k")
	if err := os.WriteFile(kept, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var thief sync.WaitGroup
	thief.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			names, _ := filepath.Glob(filepath.Join(dir, "..2*")) // the pattern is a good one
			for _, name := range names {
				// Each may fail: who is robbed goes on meanwhile.
				_ = os.Rename(name, filepath.Join(dir, fmt.Sprint("..stolen-", i)))
				_ = os.Symlink(outside, name)
			}
		}
	})
	group := int64(os.Getgid())
	for i := range 2000 {
		_ = publish(dir, map[string]volumeFile{"k": {data: fmt.Append(nil, i)}}, nil, &group) // that it may fail is the thief's loss
	}
	close(done)
	thief.Wait()
	if data, err := os.ReadFile(kept); err != nil || string(data) != "the host's" {
		t.Errorf("outside it is written %q, %v", data, err)
	}
	if fi, err := os.Stat(kept); err != nil || fi.Mode() != 0o600 {
		t.Errorf("outside a mode is changed: %v, %v", fi, err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside there are %v, %v", entries, err)
	}
}

// TestTokens: a token is kept while it is young, renewed before it ends, and stays when nobody gives another.
func TestTokens(t *testing.T) {
	r := testResolver(t, `
securityContext: {runAsUser: 1000}
volumes:
- name: v
  projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 600}}, {serviceAccountToken: {path: vault, audience: vault, expirationSeconds: 600}}]}
containers:
- {name: main, volumeMounts: [{name: v, mountPath: /v}]}
`)
	given, away := 0, false
	life := 10 * time.Minute
	r.getter = objects{token: func(audience string, _ int64) (string, time.Time, error) {
		if away {
			return "", time.Time{}, errors.New("no server answers")
		}
		given++
		return audience + strings.Repeat("x", given), time.Now().Add(life), nil
	}}
	v := &Volumes{Root: t.TempDir()}
	if _, err := v.mounts(context.Background(), r, &r.pod.Spec.Containers[0], nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(v.Root, "u1/volumes/v")
	if got := tree(t, dir); got != "token=x vault=vaultxx" {
		t.Error(got)
	}
	fi, err := os.Stat(filepath.Join(dir, "token"))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file is for the pod alone: %v, %v", fi.Mode(), err)
	}
	if due := time.Until(v.renewAt(r.pod)); due > 8*time.Minute || due < 7*time.Minute {
		t.Errorf("it is renewed in %s", due)
	}
	again := func() string {
		t.Helper()
		if err := v.refresh(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		return tree(t, dir)
	}
	if got := again(); got != "token=x vault=vaultxx" {
		t.Errorf("young ones were renewed: %s", got)
	}
	held := v.of(r.pod.UID).tokens
	for _, source := range slices.Collect(maps.Keys(held)) {
		old := held[source]
		old.renew = time.Now()
		held[source] = old
	}
	away = true
	if got := again(); got != "token=x vault=vaultxx" || time.Until(v.renewAt(r.pod)) > refreshRetry {
		t.Errorf("without servers: %s", got)
	}
	away = false
	for source, old := range held {
		old.renew = time.Now()
		held[source] = old
	}
	if got := again(); got != "token=xxx vault=vaultxxxx" {
		t.Errorf("due ones: %s", got)
	}
}

// TestServiceVariables: a container is told where the API is, and of services with addresses, unless it says otherwise.
func TestServiceVariables(t *testing.T) {
	r := testResolver(t, "containers: [{name: main, env: [{name: WEB_SERVICE_PORT, value: own}, {name: AT, value: $(WEB_SERVICE_HOST)}]}]")
	web := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.1.0.9",
		Ports: []corev1.ServicePort{{Name: "http-x", Protocol: "TCP", Port: 80}}}}
	web.Name = "web"
	r.getter, r.apiHost, r.apiPort = objects{services: []corev1.Service{web}}, "127.0.0.1", "4000"
	env, values, err := r.environment(context.Background(), &r.pod.Spec.Containers[0])
	if err != nil || env[0] != "WEB_SERVICE_PORT=own" || len(env) != len(values) {
		t.Fatalf("%v, %v", env, err)
	}
	for name, want := range map[string]string{
		"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "4000", "KUBERNETES_SERVICE_PORT_HTTPS": "4000",
		"KUBERNETES_PORT": "tcp://127.0.0.1:4000", "KUBERNETES_PORT_4000_TCP_ADDR": "127.0.0.1", "WEB_SERVICE_PORT": "own",
		"WEB_SERVICE_PORT_HTTP_X": "80", "WEB_PORT_80_TCP_PROTO": "tcp", "AT": "10.1.0.9",
	} {
		if values[name] != want {
			t.Errorf("%s is %q, want %q", name, values[name], want)
		}
	}
	none := false
	r.pod.Spec.EnableServiceLinks = &none
	if _, values, err = r.environment(context.Background(), &r.pod.Spec.Containers[0]); err != nil || values["AT"] != "$(WEB_SERVICE_HOST)" ||
		values["KUBERNETES_SERVICE_HOST"] == "" {
		t.Errorf("without links: %v, %v", values, err)
	}
	r.pod.Spec.EnableServiceLinks = nil
	r.getter = objects{services: make([]corev1.Service, maxServiceLinks+1)}
	if _, _, err = r.environment(context.Background(), &r.pod.Spec.Containers[0]); err == nil {
		t.Error("more than an environment can hold")
	}
}
