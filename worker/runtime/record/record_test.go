package record

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRemove: nothing of a record is left, neither what was put aside nor what a crash left in the midst of a write, and so the
// pod's directory goes.
func TestRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "uid-p")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-p"}}
	if err := Write(dir, pod); err != nil {
		t.Fatal(err)
	}
	if _, err := Replace(dir, pod.UID, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".unfinished-"+File+"-1"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is there: %v", err)
	}
	if err := Remove(dir); err != nil {
		t.Errorf("once more: %v", err)
	}
}
