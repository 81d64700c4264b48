package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// workerData is the directory of a worker that has joined by a token, and has begun a pod.
func workerData(t *testing.T) string {
	t.Helper()
	data := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tls := TLSDir(data)
	ca, err := pki.CreateCA(tls, time.Hour, false)
	check(err)
	check(os.Remove(filepath.Join(tls, pki.CAKeyFile)))
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Worker, Name: "w", Validity: time.Hour})
	check(err)
	check(os.WriteFile(nodeFiles(tls).Cert, slices.Concat(pair.CertPEM, pair.KeyPEM), 0o600))
	check(writeMembers(filepath.Join(tls, membersFile), &operator.Join{Gossip: []string{"127.0.0.1:1"}, GossipKey: "a2V5"}))
	check(startedWorker(t, data))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p"}}
	dir := filepath.Join(processDir(data), string(pod.UID))
	check(os.MkdirAll(filepath.Join(dir, "containers"), 0o700))
	check(record.Write(dir, pod))
	return data
}

// startedWorker reads all that a worker reads of its directory as it starts, and ends.
func startedWorker(t *testing.T, data string) error {
	c := &Config{Name: "w", DataDir: data, BindAddr: "127.0.0.1", Joining: &Joining{}, Logger: hclog.NewNullLogger()}
	err := c.secure(t.Context())
	if err != nil {
		return err
	}
	w := &WorkerConfig{DataDir: data, Runtime: "process", Logger: hclog.NewNullLogger()}
	if err := sweepWorker(data); err != nil {
		return err
	}
	if _, err := workerID(data); err != nil {
		return err
	}
	forward := startForwarder(w, func() []string { return nil })
	defer forward.close()
	rt, end, err := openRuntime(w, newUplink(w.Logger), forward)
	if err != nil {
		return err
	}
	defer end()
	_, err = rt.Open(func(runtime.Event) {})
	return err
}

// TestEveryDamageOfAWorker: whatever is done to whichever file of a worker's directory, the worker starts, or says in one sentence
// which file it is and what to do.
func TestEveryDamageOfAWorker(t *testing.T) {
	data := workerData(t)
	outcomes := map[string]int{}
	try := func(path, what string) {
		t.Helper()
		err := startedWorker(t, data)
		switch {
		case err == nil:
			outcomes[filepath.Base(path)+" heals"]++
		case strings.Contains(err.Error(), "\n"), !strings.Contains(err.Error(), path),
			!strings.Contains(err.Error(), "remove ") && !strings.Contains(err.Error(), "made anew") && !strings.Contains(err.Error(), "give a worker a token"):
			t.Errorf("%s, %s, is told as %q", path, what, err)
		default:
			outcomes[filepath.Base(path)+" is told"]++
		}
	}
	for _, path := range []string{
		filepath.Join(data, "worker-id"), filepath.Join(data, "api-port"), filepath.Join(processDir(data), "uid-p", record.File),
		nodeFiles(TLSDir(data)).CA, nodeFiles(TLSDir(data)).Cert, filepath.Join(TLSDir(data), membersFile),
	} {
		kept, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damaged(t, path, 1+len(kept)/100, func(what string) {
			try(path, what)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
		})
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		try(path, "is a directory")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, kept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []string{"worker-id is told", "node.pem is told", "ca.pem is told", "members.json is told", "pod.record heals", "api-port heals"} {
		if outcomes[o] == 0 {
			t.Errorf("not once: %s, of %v", o, outcomes)
		}
	}
}

// TestUnfinishedFilesOfAWorker: what a crash has left in the midst of a write is gone after the next start.
func TestUnfinishedFilesOfAWorker(t *testing.T) {
	data := workerData(t)
	var left []string
	for _, dir := range []string{data, TLSDir(data), shimDir(data)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		left = append(left, filepath.Join(dir, ".unfinished-x-1"))
	}
	for _, path := range left {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := startedWorker(t, data); err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
}
