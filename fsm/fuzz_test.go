package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/store"
)

// goldenEntries are entries of one command each, made from the golden bytes.
func goldenEntries(t testing.TB) [][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	var out [][]byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
		if err != nil {
			t.Fatal(err)
		}
		entry, err := store.JoinEntry(Header{TimeUnixNano: worldStart.UnixNano()}, []store.Encoded{b})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry)
	}
	return out
}

// inhabited is a small state in which most things are under way.
func inhabited(t testing.TB) *State {
	s := newTranscript(t)
	inhabit(s)
	return s.state
}

func inhabit(s *transcript) {
	s.run("cluster", nil, strings.TrimSpace(`
node n1 cpu=2
node n2 cpu=2
pod low priority=0 cpu=2 uid=uid
bind low n1
pod web node=n2 cpu=1 uid=uid
pod high priority=10 cpu=2 uid=uid
pod huge cpu=9 uid=uid
object configmaps settings
event event
namespace team`))
	s.run("plan", nil, "preempt high n1 low\nfail huge capacity:2")
}

// FuzzEntry: whatever the bytes are, they are decoded and applied without a
// panic, or refused; what is applied leaves a state whose snapshot is the same
// state.
func FuzzEntry(f *testing.F) {
	for _, entry := range goldenEntries(f) {
		f.Add(entry)
	}
	base := inhabited(f).View()
	f.Fuzz(func(t *testing.T, entry []byte) {
		h, ps, err := DecodeEntry(entry)
		if err != nil {
			return
		}
		again, err := EncodeEntry(h, ps)
		if err != nil {
			t.Fatalf("what was decoded can not be encoded: %v", err)
		}
		s := base.Fork()
		if _, err := s.Apply(base.Index()+1, 1, entry); err != nil {
			t.Fatalf("what was decoded can not be applied: %v", err)
		}
		replica := base.Fork()
		if _, err := replica.Apply(base.Index()+1, 1, again); err != nil {
			t.Fatal(err)
		}
		if s.View().Digest() != replica.View().Digest() {
			t.Fatal("an entry and its re-encoding lead to different states")
		}
		compareViews(t, "restored", s.View(), restoredFrom(t, s.View()).View())
	})
}

// FuzzPodWire: decoding with the cache gives what decoding without it gives,
// also the second time.
func FuzzPodWire(f *testing.F) {
	for i := range 3 {
		p := benchPod(i)
		p.Spec.NodeName, p.Spec.Hostname = strings.Repeat("n", i), strings.Repeat("h", 2-i)
		b, err := p.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var plain corev1.Pod
		plainly := codec.Unmarshal(b, &plain)
		c := newCache()
		for range 2 {
			w := PodWire{raw: bytes.Clone(b)}
			cached := w.unpack(c)
			if (plainly == nil) != (cached == nil) {
				t.Fatalf("plainly: %v, with the cache: %v", plainly, cached)
			}
			if plainly == nil && len(b) > 0 && !equality.Semantic.DeepEqual(&plain, w.Object) {
				t.Fatalf("plainly:\n%v\nwith the cache:\n%v", &plain, w.Object)
			}
			restored, err := newCache().restore(bytes.Clone(b))
			if (plainly == nil) != (err == nil) || err == nil && len(b) > 0 && !equality.Semantic.DeepEqual(&plain, restored) {
				t.Fatalf("plainly:\n%v\nrestored:\n%v (%v)", &plain, restored, err)
			}
		}
	})
}

func FuzzProposals(f *testing.F) {
	for _, c := range samples() {
		b, err := EncodeProposals([]Proposal{{User: "bob", Command: c}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if ps, err := DecodeProposals(b); err == nil {
			if _, err := EncodeProposals(ps); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzResults(f *testing.F) {
	w := newTranscript(f)
	b, err := EncodeResults(w.apply(&AdmitPod{Pod: PodWire{Object: w.pod(words{"web"})}}, &Checkpoint{}, &DeleteNode{Name: "n1"}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if rs, err := DecodeResults(b); err == nil {
			if _, err := EncodeResults(rs); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzRestore: a damaged snapshot is refused and leaves the state as it was;
// one whose checksum is right is restored, or refused, without a panic.
func FuzzRestore(f *testing.F) {
	var buf bytes.Buffer
	if err := inhabited(f).View().Write(&buf); err != nil {
		f.Fatal(err)
	}
	body := buf.Bytes()[:buf.Len()-sha256.Size]
	f.Add(body, true)
	f.Add(buf.Bytes(), false)
	f.Add([]byte("BERTHSNAP"), true)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			sum := sha256.Sum256(b)
			b = append(bytes.Clone(b), sum[:]...)
		}
		s := NewState()
		before := s.View().Digest()
		if err := s.Restore(bytes.NewReader(b)); err != nil {
			if s.View().Digest() != before {
				t.Fatal("a snapshot was refused and yet changed the state")
			}
			return
		}
		compareViews(t, "restored again", s.View(), restoredFrom(t, s.View()).View())
	})
}
