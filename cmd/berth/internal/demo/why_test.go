package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTellWhy: of a pod that does not run is told what it says itself, and what the program says of it when it is asked as the
// administrator.
func TestTellWhy(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "berth")
	script := `#!/bin/sh
echo "$2 asks for room"
echo "asked: $*"
for f in "$@"; do case "$f" in */client/*.pem) grep -c PRIVATE "$f";; esac; done
exit 3
`
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := prepare(binary, filepath.Join(dir, "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop(0)
	var out bytes.Buffer
	s := &story{Options: Options{Binary: binary, Out: &out}, c: f}
	s.tellWhy(t.Context(), []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: urgent}},
		{ObjectMeta: metav1.ObjectMeta{Name: "batch-1"}, Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource"}},
	})
	for _, want := range []string{
		"   berth why urgent\n     urgent asks for room\n     asked: why urgent --namespace default --addresses " + f.Servers()[0].HTTP() + " --ca-file ",
		"   batch-1 is Failed: Evicted: The node was low on resource\n   berth why batch-1\n     batch-1 asks for room\n",
		"     0\n     0\n     2\n     exit status 3\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("told is\n%s\nwithout\n%s", out.String(), want)
		}
	}
}
