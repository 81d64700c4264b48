package devices

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestDamagedState: whatever becomes of the file, who has which devices is what it was, or the worker says so; no device is anybody
// else's.
func TestDamagedState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	registry := func() *Registry {
		return &Registry{opts: Options{State: path}, log: hclog.NewNullLogger(), resources: map[string]*kind{}}
	}
	was := registry()
	was.grants = []grant{{Pod: "one", Container: "main", Resource: gpu, Devices: []string{"a1", "a2"}}, {Pod: "two", Container: "main", Resource: gpu, Devices: []string{"b1"}}}
	if err := was.save(); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, raw, _ := bytes.Cut(kept, []byte("\n"))
	damages := [][]byte{nil, make([]byte, len(kept)), append(bytes.Clone(kept), kept...), kept, raw} // the last is of before there were checksums
	for i := range kept {
		damages = append(damages, kept[:i])
		for bit := range 8 {
			b := bytes.Clone(kept)
			b[i] ^= 1 << bit
			damages = append(damages, b)
		}
	}
	whole := 0
	for _, b := range damages {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r := registry()
		switch err := r.load(time.Now()); {
		case err != nil && (!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove the file") || strings.Contains(err.Error(), "\n")):
			t.Fatalf("%q: %v", b, err)
		case err == nil && !reflect.DeepEqual(r.grants, was.grants):
			t.Fatalf("of %q there is %+v", b, r.grants)
		case err == nil:
			whole++
		}
	}
	if whole != 2 {
		t.Errorf("%d were taken", whole)
	}
}
