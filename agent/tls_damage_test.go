package agent

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
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
		kept, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damages := map[string]func() error{
			"missing": func() error { return os.Remove(path) },
			"empty":   func() error { return os.WriteFile(path, nil, 0o600) },
			"zeroes":  func() error { return os.WriteFile(path, make([]byte, len(kept)), 0o600) },
			"half":    func() error { return os.WriteFile(path, kept[:len(kept)/2], 0o600) },
		}
		for i := 0; i < len(kept); i += 3 {
			b := bytes.Clone(kept)
			b[i] ^= 1 << (i % 8)
			damages[fmt.Sprintf("bit %d of byte %d", i%8, i)] = func() error { return os.WriteFile(path, b, 0o600) }
		}
		for what, damage := range damages {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			c, err := start()
			if err == nil && !bytes.Equal(certificate(c.CA), certificate(first.CA)) || err != nil && !strings.Contains(err.Error(), TLSDir(data)) {
				t.Fatalf("%s, %s: %v", file, what, err)
			}
			if err := os.WriteFile(path, kept, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, kept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, err := start()
	if err != nil || !bytes.Equal(again.CA, first.CA) {
		t.Errorf("the CA is another one: %v", err)
	}
}

// certificate is what the first block of PEM holds: around it there is room for anything.
func certificate(b []byte) []byte {
	block, _ := pem.Decode(b)
	return block.Bytes
}
