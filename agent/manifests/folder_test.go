package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/worker"
)

const good = `apiVersion: v1
kind: Pod
metadata:
  name: %s
spec:
  priorityClassName: system-node-critical
  containers:
  - name: main
    image: busybox
`

func TestDecode(t *testing.T) {
	p, err := decode("web.yaml", fmt.Appendf(nil, good, "web"), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "web-node-1" || p.Namespace != "default" || p.Spec.NodeName != "node-1" || p.Spec.Priority == nil || *p.Spec.Priority != 2000001000 ||
		p.Annotations[worker.ConfigHashAnnotation] != string(p.UID) || p.Annotations[worker.ManifestAnnotation] != "web.yaml" {
		t.Errorf("%+v", p)
	}
	if c := p.Spec.Containers[0]; c.TerminationMessagePath == "" || p.Spec.RestartPolicy != "Always" {
		t.Errorf("it has no defaults: %+v", c)
	}
	if again, _ := decode("web.yaml", fmt.Appendf(nil, good, "web"), "node-1"); again.UID != p.UID {
		t.Error("the same file is another pod")
	}
	if other, _ := decode("web.yaml", fmt.Appendf(nil, good, "web"), "node-2"); other.UID == p.UID {
		t.Error("the same file on another node is the same pod")
	}
	if _, err := decode("web.json", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b"}]}}`), "n"); err != nil {
		t.Error(err)
	}
	if _, err := decode("root.yaml", fmt.Appendf(nil, good+"    securityContext: {privileged: true}\n", "root"), "n"); err != nil {
		t.Error(err)
	}
	for what, one := range map[string]struct{ text, wants string }{
		"unknown field":    {strings.Replace(good, "image:", "imge:", 1), "x.yaml:9: "},
		"no YAML":          {"a: [", "x.yaml: yaml: line"},
		"empty":            {"", "it is empty"},
		"two":              {good + "---\n" + good, "a second document"},
		"another kind":     {"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "it is a Secret"},
		"no name":          {strings.Replace(good, "  name: %s\n", "  labels: {a: b}\n", 1), "x.yaml:3: metadata.name"},
		"a bad image":      {strings.Replace(good, "busybox", `""`, 1), "x.yaml:9: spec.containers[0].image"},
		"another type":     {strings.Replace(good, "containers:", "hostNetwork: 5\n  containers:", 1), "x.yaml:7: "},
		"another priority": {strings.Replace(good, "containers:", "priority: 5\n  containers:", 1), "x.yaml:7: spec.priority"},
		"an account":       {strings.Replace(good, "containers:", "serviceAccountName: a\n  containers:", 1), "may not refer to serviceaccounts"},
		"a secret":         {good + "    envFrom: [{secretRef: {name: a}}]\n", "may not refer to secrets"},
	} {
		text := one.text
		if strings.Contains(text, "%s") {
			text = strings.ReplaceAll(text, "%s", "web")
		}
		if p, err := decode("x.yaml", []byte(text), "n"); err == nil || !strings.Contains(err.Error(), one.wants) {
			t.Errorf("%s: %v, %v; it is to say %q", what, p, err, one.wants)
		}
	}
}

// A file that cannot be read costs no other one its pod, nor its own the one that runs.
func TestFolder(t *testing.T) {
	var told []string
	f := &Folder{Dir: filepath.Join(t.TempDir(), "pods"), Node: "n", Logger: hclog.NewNullLogger(), Tell: func(message string) { told = append(told, message) }}
	saying := func(want ...string) {
		t.Helper()
		if len(told) != len(want) {
			t.Fatalf("told is %q, want %q", told, want)
		}
		for i := range want {
			if !strings.Contains(told[i], want[i]) {
				t.Errorf("told is %q, want %q", told[i], want[i])
			}
		}
		told = nil
	}
	expect := func(what string, wantChanged bool, want ...string) {
		t.Helper()
		m, changed := f.look()
		if changed != wantChanged {
			t.Fatalf("%s: changed: %v", what, changed)
		}
		if !changed {
			return
		}
		var got []string
		for _, p := range m.Pods {
			got = append(got, p.Name)
		}
		for _, name := range m.Broken {
			got = append(got, "!"+name)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(f.Dir, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // another inode, whatever the clock says
			t.Fatal(err)
		}
	}
	expect("no folder", false)
	saying("no such file")
	if err := os.Mkdir(f.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	expect("an empty one", true)
	write("b.yaml", fmt.Sprintf(good, "b"))
	write("a.yaml", "kind: [")
	write(".hidden", "kind: [")
	expect("a file and one with a mistake", true, "b-n", "!a.yaml")
	saying("a.yaml: yaml: line")
	expect("nothing new", false)
	saying()
	write("b.yaml", "kind: [")
	expect("a mistake in a good one", false)
	write("a.yaml", fmt.Sprintf(good, "a"))
	expect("a mistake is corrected", true, "a-n", "b-n")
	write("c.yaml", fmt.Sprintf(good, "a"))
	told = nil
	expect("a name is taken", true, "a-n", "b-n")
	saying("default/a-n of c.yaml is not run: a.yaml has one of the same name")
	if err := os.Remove(filepath.Join(f.Dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	expect("and free again", true, "b-n", "a-n")
	if err := syscall.Mkfifo(filepath.Join(f.Dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("large", strings.Repeat("#", maxBytes+1))
	expect("no regular file, and one that is too large", true, "b-n", "a-n", "!large", "!pipe")
	saying("large: it has more than", "pipe: it is no regular file")
	if err := os.RemoveAll(f.Dir); err != nil {
		t.Fatal(err)
	}
	expect("the folder is gone", false)
}
