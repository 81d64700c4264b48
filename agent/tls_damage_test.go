package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/pki"
)

// TestDamagedAuthority: whatever becomes of the files of the CA that an agent has made itself, the agent goes on with it as it was, or
// does not start and names the file or its directory. It never makes another one, whom nobody trusts.
func TestDamagedAuthority(t *testing.T) {
	data := t.TempDir()
	start := func() (*Config, error) {
		c := &Config{Name: "one", DataDir: data, BindAddr: "127.0.0.1", Logger: hclog.NewNullLogger(), Server: &ServerPart{BootstrapExpect: 1}}
		return c, c.secure(t.Context())
	}
	first, err := start()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"ca.pem", "ca-key.pem"} {
		path := filepath.Join(TLSDir(data), file)
		damaged(t, path, 3, func(what string) {
			c, err := start()
			if err == nil && !bytes.Equal(certificate(c.CA), certificate(first.CA)) || err != nil && !strings.Contains(err.Error(), TLSDir(data)) {
				t.Fatalf("%s, %s: %v", file, what, err)
			}
		})
	}
	again, err := start()
	if err != nil || !bytes.Equal(again.CA, first.CA) {
		t.Errorf("the CA is another one: %v", err)
	}
}

// damaged damages a file in many ways, one after another, every bit of every so many bytes among them, and asks each time.
// The file is whole again in the end.
func damaged(t *testing.T, path string, every int, then func(what string)) {
	t.Helper()
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	then("missing")
	damages := map[string][]byte{"empty": nil, "zeroes": make([]byte, len(kept)), "half": kept[:len(kept)/2], "twice": slices.Concat(kept, kept)}
	for i := 0; i < len(kept); i += every {
		b := bytes.Clone(kept)
		b[i] ^= 1 << (i % 8)
		damages[fmt.Sprintf("bit %d of byte %d", i%8, i)] = b
		damages[fmt.Sprintf("%d bytes of it", i)] = kept[:i]
	}
	for what, b := range damages {
		write(b)
		then(what)
	}
	write(kept)
}

// TestLostGossipKey: whatever becomes of the key of gossip that an agent has made, the agent goes on with it, or does not start and names
// the file and what to do. It never makes another one, and each remedy that it names is one.
func TestLostGossipKey(t *testing.T) {
	data := t.TempDir()
	start := func(key string) (string, error) {
		c := &Config{
			Name: "one", DataDir: data, BindAddr: "127.0.0.1", Logger: hclog.NewNullLogger(),
			EncryptionKey: key, Server: &ServerPart{BootstrapExpect: 1},
		}
		err := c.secure(t.Context())
		return c.EncryptionKey, err
	}
	first, err := start("")
	if err != nil || first == "" {
		t.Fatal(first, err)
	}
	path, sum := filepath.Join(TLSDir(data), gossipKeyFile), filepath.Join(TLSDir(data), gossipSumFile)
	refused := 0
	for _, file := range []string{path, sum} {
		damaged(t, file, 1, func(what string) {
			key, err := start("")
			switch {
			case err == nil && key != first:
				t.Errorf("%s, %s: there is another key", file, what)
			case err != nil && (!strings.HasPrefix(err.Error(), path+" ") || !strings.Contains(err.Error(), "put it back from a copy") || strings.Contains(err.Error(), "\n")):
				t.Errorf("%s, %s: %v", file, what, err)
			case err != nil:
				refused++
			}
			if key, err := start(first); err != nil || key != first {
				t.Errorf("%s, %s: with a configured key: %v", file, what, err)
			}
		})
	}
	if refused < 200 {
		t.Errorf("%d were refused", refused)
	}
	if key, err := start(""); err != nil || key != first {
		t.Errorf("put back: %v", err)
	}
	// Another key, by the operator's word.
	other := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	if err := errors.Join(os.WriteFile(path, []byte(other), 0o600), os.Remove(sum)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if key, err := start(""); err != nil || key != other {
			t.Errorf("another one: %v", err)
		}
	}
	if _, err := os.Stat(sum); err != nil {
		t.Error(err)
	}
}

// TestFoundingIsGoneOnWith: an agent that ended while it made its files makes the others when it starts again.
func TestFoundingIsGoneOnWith(t *testing.T) {
	for _, lost := range [][]string{
		{gossipSumFile, "ca.pem", "ca-key.pem"}, {"ca.pem", "ca-key.pem"}, {gossipKeyFile, gossipSumFile, "ca.pem", "ca-key.pem"},
	} {
		data := t.TempDir()
		start := func() (string, error) {
			c := &Config{Name: "one", DataDir: data, BindAddr: "127.0.0.1", Logger: hclog.NewNullLogger(), Server: &ServerPart{BootstrapExpect: 1}}
			err := c.secure(t.Context())
			return c.EncryptionKey, err
		}
		first, err := start()
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range append(lost, "client-admin.pem", "client-admin-key.pem") {
			if err := os.Remove(filepath.Join(TLSDir(data), file)); err != nil {
				t.Fatal(err)
			}
		}
		if key, err := start(); err != nil || (key == first) == (lost[0] == gossipKeyFile) {
			t.Errorf("without %v: %v", lost, err)
		}
	}
}

// TestAuthorityOfAServerIsLost: where a server has been, no other CA is made, unless somebody makes it.
func TestAuthorityOfAServerIsLost(t *testing.T) {
	data := t.TempDir()
	c := func() *Config {
		return &Config{Name: "one", Version: "test", DataDir: data, BindAddr: "127.0.0.1", Logger: hclog.NewNullLogger(), Server: &ServerPart{BootstrapExpect: 1}}
	}
	a, err := Start(t.Context(), *c())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Stop(t.Context()), os.RemoveAll(TLSDir(data))); err != nil {
		t.Fatal(err)
	}
	err = c().secure(t.Context())
	if err == nil || !strings.Contains(err.Error(), filepath.Join(TLSDir(data), "ca.pem")+" is missing") || !strings.Contains(err.Error(), "berth tls ca -d") {
		t.Fatal(err)
	}
	if _, err := os.Stat(TLSDir(data)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
	// Both remedies.
	if _, err := pki.CreateCA(TLSDir(data), 0, false); err != nil {
		t.Fatal(err)
	}
	if err := c().secure(t.Context()); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(TLSDir(data), gossipKeyFile)) {
		t.Error(err)
	}
	key := base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n"
	if err := os.WriteFile(filepath.Join(TLSDir(data), gossipKeyFile), []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c().secure(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMembersAreLearntAgain: of what a worker keeps of the servers, with the key of gossip, nothing damaged counts; what is whole, and
// what an earlier version wrote, does.
func TestMembersAreLearntAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), membersFile)
	want := &operator.Join{GossipKey: "c2VjcmV0", Gossip: []string{"10.0.0.1:7946"}, API: []string{"10.0.0.1:6443"}}
	if err := writeMembers(file, want); err != nil {
		t.Fatal(err)
	}
	damaged(t, file, 1, func(what string) {
		got, err := readMembers(file)
		if reflect.DeepEqual(got, want) && err == nil {
			return // in the name of the checksum
		}
		if !reflect.DeepEqual(got, &operator.Join{}) || what != "missing" && (err == nil || !strings.Contains(err.Error(), file)) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	})
	for _, b := range []string{`{"gossipKey":"c2VjcmV0","gossip":["10.0.0.1:7946"],"api":["10.0.0.1:6443"]}`, ""} {
		if b != "" {
			if err := os.WriteFile(file, []byte(b), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := writeMembers(file, want); err != nil {
			t.Fatal(err)
		}
		if got, err := readMembers(file); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// certificate is what the first block of PEM holds: around it there is room for anything.
func certificate(b []byte) []byte {
	block, _ := pem.Decode(b)
	return block.Bytes
}
