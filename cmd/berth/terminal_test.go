package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/fsm"
)

// TestKubectlsNames: the connection's flags have kubectl's names as well, and what there is not says what there is.
func TestKubectlsNames(t *testing.T) {
	home := cluster(t)
	other := t.TempDir()
	file := func(name string) string { return filepath.Join(home, name) }
	server := strings.TrimSpace(strings.Split(strings.SplitAfter(contextFile(t, home), `, "`)[1], `"`)[0])
	ok := []string{"get", "pods", "-n", "web", "-s", server, "--certificate-authority", file("ca.pem"), "--client-certificate", file("client-ada.pem"),
		"--client-key", file("client-ada-key.pem"), "--tls-server-name", "server.berth.internal", "--request-timeout", "30s"}
	if res := berth(t, other, ok...); res.status != 0 || !strings.Contains(res.out, "front") {
		t.Errorf("kubectl's names: %+v", res)
	}
	for _, args := range [][]string{
		{"get", "pods", "--kubeconfig", "x"}, {"--kubeconfig=x", "get", "pods"}, {"queue", "--cluster", "x"}, {"get", "pods", "--user", "ada"},
		{"get", "pods", "--cache-dir", "x"}, {"config", "view", "--raw"}, {"completion", "foo"}, {"completion"},
		{"dev", "--end-pods"}, {"dev", "--nodes-memory", "1"}, {"dev", "--http-port", "99999"}, {"tls", "server", "x", "--dns", "a b"},
	} {
		res := berth(t, home, args...)
		if res.status != exitUsage || strings.Contains(res.errOut, "unknown flag") || res.errOut == "" {
			t.Errorf("%v: %+v", args, res)
		}
	}
	if res := berth(t, home, "get", "pods", "--kubeconfig", "x"); !strings.Contains(res.errOut, "--context") || !strings.Contains(res.errOut, "--cli-config") {
		t.Errorf("--kubeconfig: %+v", res)
	}
	if res := berth(t, home, "completion", "bash"); res.status != 0 || !strings.Contains(res.out, "__start_berth") {
		t.Errorf("completion: %d, %s", res.status, res.errOut)
	}
	if res := berth(t, home, "top", "--help"); strings.Contains(res.out, "must be installed") {
		t.Errorf("top speaks of another server: %s", res.out)
	}
	if res := berth(t, home, "tls", "client", "ada", "-d", home); res.status != exitFailed || !strings.Contains(res.errOut, "--force") {
		t.Errorf("a key that is there: %+v", res)
	}
}

func contextFile(t *testing.T, home string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(home, ".config", "berth", "cli.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestWhatAnAgentCannotUse is told by option and line, and nothing is made.
func TestWhatAnAgentCannotUse(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "berth.hcl")
	text := fmt.Sprintf("name = \"s1\"\ndata_dir = \"new\"\nauth { token_file = \"tokens.csv\" }\nserver {\n  enabled = true\n  max_log_version = %d\n}\n"+
		"worker {\n  enabled = true\n  cri {\n    image_pull_credentials_verification_policy = \"NeverVerifyAllowlistedImages\"\n    preloaded_images_verification_allowlist = [\"a*\"]\n  }\n}\n", fsm.LogVersion+1)
	for name, content := range map[string]string{"berth.hcl": text, "tokens.csv": "only,two\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	res := berth(t, dir, "agent", "-config", file)
	for _, want := range []string{file + ":3: auth.token_file: " + filepath.Join(dir, "tokens.csv") + ":1:", fmt.Sprintf("%s:6: server.max_log_version: this version of Berth knows the log's rules up to version %d", file, fsm.LogVersion),
		file + ":12: worker.cri.preloaded_images_verification_allowlist: \"a*\" has a * that is not its end"} {
		if !strings.Contains(res.errOut, want) || res.status != exitFailed {
			t.Errorf("want %q in %+v", want, res)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

func TestWhatKubectlPrintsOfLeases(t *testing.T) {
	const before, after = "Unschedulable:      false\n", "Conditions:\n  Type  Status\n"
	for lease, want := range map[string]string{
		"Lease:              Failed to get lease: leases \"worker-1\" not found\n": "",
		"Lease:              Failed to get lease: leases \"k1\" is forbidden\n":    "Lease:              Failed to get lease: leases \"k1\" is forbidden\n",
		"Lease:\n  HolderIdentity:  k1\n":                                          "Lease:\n  HolderIdentity:  k1\n",
	} {
		var out bytes.Buffer
		text := before + lease + after
		if n, err := (leaseless{&out}).Write([]byte(text)); n != len(text) || err != nil || out.String() != before+want+after {
			t.Errorf("%q: %d, %v, %q", lease, n, err, out.String())
		}
	}
	var out bytes.Buffer
	u := &unrepeated{out: &out}
	for _, line := range []string{"a\n", "a\n", "b\n", "a\n"} {
		if n, err := u.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if out.String() != "a\nb\na\n" {
		t.Errorf("got %q", out.String())
	}
}

// TestAnErrorWithoutOne: what the libraries tell of as an error and give none has no error=<nil>.
func TestAnErrorWithoutOne(t *testing.T) {
	var out bytes.Buffer
	s := &sink{log: hclog.New(&hclog.LoggerOptions{Output: &out}), repeats: newRepeats()}
	s.Error(nil, "Unable to sync caches")
	if !strings.Contains(out.String(), "Unable to sync caches") || strings.Contains(out.String(), "nil") {
		t.Errorf("got %q", out.String())
	}
}
