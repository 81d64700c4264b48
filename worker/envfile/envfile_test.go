package envfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestValue(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret.env")
	for _, err := range []error{
		os.WriteFile(outside, []byte("A='stolen'\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "app.env"), []byte("# of the init container\nA='one'\nB='two\nlines' # and more\nE=''\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "bad.env"), []byte("A=one\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "large.env"), []byte("A='"+strings.Repeat("x", maxBytes)+"'\n"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link.env")),
		os.Symlink("app.env", filepath.Join(dir, "within.env")),
		syscall.Mkfifo(filepath.Join(dir, "fifo.env"), 0o600),
		os.Mkdir(filepath.Join(dir, "dir.env"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, key, want, fails string }{
		{"app.env", "A", "one", ""}, {"app.env", "B", "two\nlines", ""}, {"app.env", "E", "", ""}, {"app.env", "NONE", "", ""}, {"within.env", "A", "one", ""},
		{"bad.env", "A", "", "single quotes"}, {"none.env", "A", "", "no such file"}, {"link.env", "A", "", "escapes"}, {"../secret.env", "A", "", "escapes"},
		{"fifo.env", "A", "", "no regular file"}, {"dir.env", "A", "", "no regular file"}, {"large.env", "A", "", "more than"},
	} {
		got, err := Value(dir, c.path, c.key)
		if got != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s of %s is %q, %v; want %q, %s", c.key, c.path, got, err, c.want, c.fails)
		}
	}
}
