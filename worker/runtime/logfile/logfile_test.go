package logfile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

const stamp = "2026-01-01T00:00:00.000000001Z"

func add(t *testing.T, path string, lines ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if _, err := f.WriteString(stamp + " " + line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func rotate(t *testing.T, path string, files int) {
	t.Helper()
	for i := files - 2; i >= 0; i-- {
		if err := os.Rename(Name(path, i), Name(path, i+1)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	add(t, path)
}

func read(t *testing.T, path string, o runtime.LogOptions) string {
	t.Helper()
	rc, err := Open(t.Context(), path, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What a container wrote is read back as it was: long lines in one, and a last line without its end without one.
func TestPartialLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	add(t, path, "stdout F whole", "stdout P a ", "stdout P long ", "stdout F one", "stderr F other", "stdout P no end")
	if got := read(t, path, runtime.LogOptions{}); got != "whole\na long one\nother\nno end" {
		t.Errorf("it is %q", got)
	}
	if got := read(t, path, runtime.LogOptions{Stream: "Stdout", Timestamps: true}); got != stamp+" whole\n"+stamp+" a long one\n"+stamp+" no end" {
		t.Errorf("with times it is %q", got)
	}
	one := int64(1)
	if got := read(t, path, runtime.LogOptions{TailLines: &one}); got != "no end" {
		t.Errorf("its tail is %q", got)
	}
}

// The last lines are those of all files together.
func TestTailOverFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for i := range 3 {
		if i > 0 {
			rotate(t, path, 5)
		}
		add(t, path, fmt.Sprintf("stdout F %d-a", i), fmt.Sprintf("stdout F %d-b", i))
	}
	for n, want := range map[int64]string{0: "", 1: "2-b\n", 3: "1-b\n2-a\n2-b\n", 6: "0-a\n0-b\n1-a\n1-b\n2-a\n2-b\n", 9: "0-a\n0-b\n1-a\n1-b\n2-a\n2-b\n"} {
		if got := read(t, path, runtime.LogOptions{TailLines: &n}); got != want {
			t.Errorf("the last %d lines are %q, want %q", n, got, want)
		}
	}
}

// Who follows a log reads on over its rotations, in order and each line once, until the container has ended and all is read.
func TestFollowOverRotations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	add(t, path, "stdout F line 0")
	var alive atomic.Bool
	alive.Store(true)
	rc, err := Open(t.Context(), path, runtime.LogOptions{Follow: true}, func() (bool, error) { return alive.Load(), nil })
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	in := bufio.NewScanner(rc)
	next := 0
	follow := func(until int) {
		t.Helper()
		for ; next <= until; next++ {
			if !in.Scan() || in.Text() != fmt.Sprintf("line %d", next) {
				t.Fatalf("after line %d it reads %q, %v", next-1, in.Text(), in.Err())
			}
		}
	}
	follow(0)
	line := 1
	for round := range 4 {
		// What is written before and after a rotation that nobody saw, and more than one rotation at once.
		for range round + 1 {
			add(t, path, fmt.Sprintf("stdout F line %d", line))
			line++
			rotate(t, path, 10)
		}
		add(t, path, fmt.Sprintf("stdout F line %d", line))
		follow(line)
		line++
	}
	add(t, path, fmt.Sprintf("stdout F line %d", line))
	alive.Store(false)
	follow(line)
	if in.Scan() || in.Err() != nil {
		t.Errorf("after the end it reads %q, %v", in.Text(), in.Err())
	}
}

// Who goes away is waited for no longer.
func TestFollowIsCancelled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	add(t, path, "stdout F line")
	ctx, cancel := context.WithCancel(t.Context())
	rc, err := Open(ctx, path, runtime.LogOptions{Follow: true}, func() (bool, error) { return true, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	b := make([]byte, 5)
	if _, err := io.ReadFull(rc, b); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(rc); err != nil {
		t.Error(err)
	}
}

// Whatever a container makes of the file for its last words: what is no file says nothing, and is not waited for.
func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	log, file := filepath.Join(dir, "log"), filepath.Join(dir, "termination")
	add(t, log, "stdout F it broke")
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		make func() error
		want string
	}{
		{"a file", func() error { return os.WriteFile(file, []byte("last"), 0o600) }, "last"},
		{"nothing", func() error { return nil }, "it broke\n"},
		{"a pipe", func() error { return syscall.Mkfifo(file, 0o600) }, "it broke\n"},
		{"a link", func() error { return os.Symlink("other", file) }, "it broke\n"},
		{"a directory", func() error { return os.Mkdir(file, 0o700) }, "it broke\n"},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		said := make(chan string, 1)
		go func() { said <- TerminationMessage(file, log, corev1.TerminationMessageFallbackToLogsOnError, true) }()
		select {
		case got := <-said:
			if got != c.want {
				t.Errorf("%s: %q", c.name, got)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: it is waited for", c.name)
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
}
