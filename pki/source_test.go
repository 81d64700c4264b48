//go:build unix

package pki

import (
	"crypto/x509"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestNobodyWaitsForFiles: files that do not let themselves be read hold up nobody, neither who has them looked at nor who is due to while
// somebody does: all go on with what there is, and have the new ones when they can be read.
func TestNobodyWaitsForFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateCA(dir, 0, false); err != nil {
		t.Fatal(err)
	}
	files, err := Issue(dir, Request{Kind: Server, Name: "s1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(files)
	if err != nil {
		t.Fatal(err)
	}
	first := s.Leaf()
	if _, err := Issue(dir, Request{Kind: Server, Name: "s1"}, true); err != nil {
		t.Fatal(err)
	}
	cert, err := os.ReadFile(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files.Cert); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(files.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	var later atomic.Int64
	later.Store(time.Now().UnixNano())
	s.now = func() time.Time { return time.Unix(0, later.Load()) }
	for _, who := range []string{"who has them looked at", "who would, beside that"} {
		later.Add(int64(recheckEvery)) // it is due
		got := make(chan *x509.Certificate, 1)
		go func() { got <- s.Leaf() }()
		select {
		case leaf := <-got:
			if leaf != first {
				t.Errorf("%s has %s, and had %s", who, leaf.SerialNumber, first.SerialNumber)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s waits for it", who)
		}
	}
	writer, err := os.OpenFile(files.Cert, os.O_WRONLY, 0) // until somebody reads
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Write(cert); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	s.reading.Lock() // until it is read
	defer s.reading.Unlock()
	if got := s.Leaf(); got == first {
		t.Errorf("it was read, and is still %s", got.SerialNumber)
	}
}
