//go:build unix

package pki

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestNobodyWaitsForFiles: while one looks at files that do not let themselves be read, all others go on with what there is.
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
	later := time.Now().Add(recheckEvery)
	s.now = func() time.Time { return later }
	took := make(chan string)
	go func() { took <- s.Leaf().SerialNumber.String() }()
	writer, err := os.OpenFile(files.Cert, os.O_WRONLY, 0) // until somebody reads
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Leaf(); got != first {
		t.Errorf("beside that, the certificate is %s, and was %s", got.SerialNumber, first.SerialNumber)
	}
	if _, err := writer.Write(cert); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-took; got == first.SerialNumber.String() || got != s.Leaf().SerialNumber.String() {
		t.Errorf("who has looked has %s", got)
	}
}
