package pullrecords

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/disk/platter"
	"github.com/berth-dev/berth/worker/runtime"
)

// store is a runtime's images, by their refs, and the time.
type store struct {
	names map[string][]string
	now   time.Time
	err   error
}

func newStore() *store { return &store{names: map[string][]string{}, now: time.Unix(1e9, 0)} }

func (s *store) list() (out []runtime.Image, err error) {
	for ref, names := range s.names {
		out = append(out, runtime.Image{Ref: ref, Names: names})
	}
	return out, s.err
}

// listed has the records told what there is.
func (s *store) listed(t *testing.T, r *Records) {
	t.Helper()
	n := r.Listing()
	images, err := s.list()
	if err != nil {
		t.Fatal(err)
	}
	r.Listed(n, images)
}

func (s *store) open(t *testing.T, d disk.Disk, dir string, change ...func(*Options)) *Records {
	t.Helper()
	o := Options{Dir: dir, Images: s.list, Disk: d, Now: func() time.Time { return s.now }}
	for _, f := range change {
		f(&o)
	}
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func key(name, hash string) runtime.ImageKey {
	return runtime.ImageKey{Namespace: "prod", Name: name, UID: "uid", Hash: hash}
}

func keys(all ...runtime.ImageKey) func() ([]runtime.ImageKey, error) {
	return func() ([]runtime.ImageKey, error) { return all, nil }
}

func pulled(t *testing.T, r *Records, name, ref string, by *runtime.ImageKey) {
	t.Helper()
	if err := r.Begin(name); err != nil {
		t.Fatal(err)
	}
	r.Pulled(name, ref, by)
}

const team = "registry.test/team/app"

// TestMayUse is who may use which image by which policy, without its registry being asked.
func TestMayUse(t *testing.T) {
	allowed, err := ParseAllowlist([]string{"registry.test/listed/*", "registry.test/one"})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore()
	s.names["preloaded"] = []string{team + ":0", "registry.test/listed/old:1", "registry.test/listed/app:0", "registry.test/one:1"}
	r := s.open(t, nil, t.TempDir())
	owner := key("s", "h1")
	recreated, changed, twin, other := owner, owner, owner, key("s", "h2")
	recreated.UID, recreated.Hash = "another", "h3"
	changed.Hash = "h4"
	twin.Namespace, twin.UID = "elsewhere", "another"
	other.UID = "another"
	pulled(t, r, team+":1", "secret", &owner)
	pulled(t, r, "web:1", "public", nil)
	pulled(t, r, "registry.test/listed/app:1", "listed", &owner)
	s.names["secret"], s.names["public"], s.names["listed"] = []string{team + ":1"}, []string{"docker.io/library/web:1"}, []string{"registry.test/listed/app:1"}
	s.listed(t, r)
	if err := r.Begin("registry.test/coming/app:1"); err != nil { // it never comes
		t.Fatal(err)
	}
	const n, p, l, a = NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify
	for _, c := range []struct {
		what      string
		name, ref string
		keys      []runtime.ImageKey
		may       []Policy
	}{
		{"nobody", team + ":1", "secret", nil, []Policy{n}},
		{"who has it", team + ":1", "secret", []runtime.ImageKey{owner}, []Policy{n, p, l, a}},
		{"by its digest", team + "@sha256:" + strings.Repeat("a", 64), "secret", []runtime.ImageKey{owner}, []Policy{n, p, l, a}},
		{"by its tag and digest", team + ":1@sha256:" + strings.Repeat("a", 64), "secret", nil, []Policy{n}},
		{"one of several secrets", team + ":1", "secret", []runtime.ImageKey{other, owner}, []Policy{n, p, l, a}},
		{"the secret says something else by now", team + ":1", "secret", []runtime.ImageKey{changed}, []Policy{n, p, l, a}},
		{"a secret that says the same", team + ":1", "secret", []runtime.ImageKey{twin}, []Policy{n, p, l, a}},
		{"another secret of that name", team + ":1", "secret", []runtime.ImageKey{recreated}, []Policy{n}},
		{"another secret", team + ":1", "secret", []runtime.ImageKey{other}, []Policy{n}},
		{"no hash", team + ":1", "secret", []runtime.ImageKey{{Name: "x"}}, []Policy{n}},
		{"under a name by which nobody fetched it", "registry.test/team/other:1", "secret", nil, []Policy{n, p}}, // somebody on the machine has given it that
		{"under a name by which it comes", "registry.test/coming/app:1", "secret", []runtime.ImageKey{owner}, []Policy{n}},
		{"another image of that name", team + ":1", "moved", []runtime.ImageKey{owner}, []Policy{n, p}}, // the tag was moved by somebody on the machine
		{"what anyone could fetch", "docker.io/library/web:1", "public", nil, []Policy{n, p, l, a}},
		{"what nobody fetched", team + ":0", "preloaded", nil, []Policy{n, p}},
		{"what nobody fetched, and is listed by its beginning", "registry.test/listed/old:1", "preloaded", nil, []Policy{n, p, l}},
		{"what nobody fetched, and is listed", "registry.test/one:1", "preloaded", nil, []Policy{n, p, l}},
		{"listed, and fetched", "registry.test/listed/app:1", "listed", nil, []Policy{n}},
		{"what is being fetched", "registry.test/coming/app:1", "comes", []runtime.ImageKey{owner}, []Policy{n}},
		{"what is being fetched, by another tag", "registry.test/coming/app:2", "comes", nil, []Policy{n}},
		{"no name", "A B", "secret", []runtime.ImageKey{owner}, []Policy{n}},
	} {
		for _, policy := range []Policy{n, p, l, a} {
			r.opts.Policy, r.opts.Allowlist = policy, allowed
			if got := r.MayUse(c.name, c.ref, keys(c.keys...)); got != slices.Contains(c.may, policy) {
				t.Errorf("%s, %s: %v", c.what, policy, got)
			}
		}
	}
	if r.MayUse(team+":1", "secret", func() ([]runtime.ImageKey, error) { return []runtime.ImageKey{owner}, errors.New("unknown") }) {
		t.Error("with secrets that could not be read")
	}
}

func TestAllowlist(t *testing.T) {
	for pattern, names := range map[string]struct{ yes, no string }{
		"web":                  {"web:1", "team/web:1"},
		"docker.io/*":          {"team/web", "registry.test/web"},
		"team/*":               {"docker.io/team/web", "teams/web"},
		"registry.test/*":      {"registry.test/a/b/c:1", "registry.test.org/a"},
		"registry.test:5000/*": {"registry.test:5000/a", "registry.test/a"},
		"registry.test/team/*": {"registry.test/team/web@sha256:" + strings.Repeat("0", 64), "registry.test/teams/web"},
		"registry.test/team":   {"registry.test/team:1", "registry.test/team/web"},
		"localhost/*":          {"localhost/web", "docker.io/localhost/web"},
	} {
		a, err := ParseAllowlist([]string{pattern})
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
		for name, want := range map[string]bool{names.yes: true, names.no: false} {
			if repo, err := repository(name); err != nil || a.has(repo) != want {
				t.Errorf("%s has %s: %v, %v", pattern, name, a.has(repo), err)
			}
		}
	}
	for _, bad := range []string{"", "*", "/*", "a*", "*/a", "a/*/b", "a/**", "A", "web:1", " web", "web/* ", "web@sha256:" + strings.Repeat("0", 64)} {
		if _, err := ParseAllowlist([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestCrashes: a worker is killed at each moment of what it notes, and maybe the power goes; whatever the runtime has by then is for nobody else than before.
func TestCrashes(t *testing.T) {
	const old, first, second = "registry.test/team/app:0", team + ":1", team + ":2"
	kept := 0
	for changes := 1; changes < 60; changes++ {
		for seed := range uint64(12) {
			s := newStore()
			s.names["old"] = []string{old}
			p := platter.New(rand.New(rand.NewPCG(seed, uint64(changes))), "data")
			one, two := key("one", "h1"), key("two", "h2")
			owners := map[string]runtime.ImageKey{}
			m := p.Mount()
			m.Light(changes, func() {})
			if r, err := Open(Options{Dir: "/data/pulls", Images: s.list, Disk: m, Now: func() time.Time { return s.now }}); err == nil {
				for _, x := range []struct {
					name, ref string
					by        runtime.ImageKey
				}{{first, "first", one}, {second, "second", two}} {
					if r.Begin(x.name) != nil || m.IsDead() {
						break // it is not fetched
					}
					s.names[x.ref] = []string{x.name}
					r.Pulled(x.name, x.ref, &x.by)
					if !m.IsDead() {
						owners[x.ref] = x.by
					}
					if x.ref == "first" {
						s.listed(t, r)
					}
				}
			}
			m.End()
			if seed%2 == 0 {
				p.LosePower()
			}
			r := s.open(t, p.Mount(), "/data/pulls")
			look := func(when string) {
				t.Helper()
				for _, ref := range []string{"first", "second"} {
					name := team + map[string]string{"first": ":1", "second": ":2"}[ref]
					if s.names[ref] == nil {
						continue
					}
					stranger := key("three", "h3")
					stranger.UID = "another"
					for _, by := range []string{name, team + "@sha256:" + strings.Repeat("b", 64)} {
						if r.MayUse(by, ref, keys(stranger)) || r.MayUse(by, ref, keys()) {
							t.Fatalf("after %d changes, seed %d, %s: anybody may use %s", changes, seed, when, by)
						}
					}
					if by, ok := owners[ref]; ok && !r.MayUse(name, ref, keys(by)) {
						t.Fatalf("after %d changes, seed %d, %s: its owner may not use %s", changes, seed, when, name)
					} else if ok {
						kept++
					}
				}
				if !r.MayUse(old, "old", keys()) {
					t.Fatalf("after %d changes, seed %d, %s: what was here before cannot be used", changes, seed, when)
				}
			}
			look("at once")
			s.listed(t, r)
			look("after a listing")
			s.now = s.now.Add(unsureAge)
			s.listed(t, r)
			look("later")
			if len(r.pulls) != 0 {
				t.Fatalf("after %d changes there are still pulls under way: %v", changes, r.pulls)
			}
		}
	}
	if kept == 0 {
		t.Error("nobody was remembered")
	}
}

// TestDamagedRecords: a file of which a bit is another, or a part is not there, lets nobody use anything whom the whole one did not let.
func TestDamagedRecords(t *testing.T) {
	const dir = "/data/pulls"
	m := platter.New(rand.New(rand.NewPCG(1, 1)), "data").Mount()
	write := func(path string, b []byte) {
		t.Helper()
		if err := (atomicfile.Files{Disk: m}).Write(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newStore()
	r := s.open(t, m, dir)
	owner := key("s", "h1")
	pulled(t, r, team+":1", "secret", &owner)
	if err := r.Begin(team + ":2"); err != nil {
		t.Fatal(err)
	}
	files, err := m.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	whole := 0
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		good, err := disk.ReadFile(m, path, maxFileBytes)
		if err != nil {
			t.Fatal(err)
		}
		damages := [][]byte{nil, make([]byte, len(good)), append(bytes.Clone(good), good...), make([]byte, maxFileBytes+1), good}
		for i := range good {
			damages = append(damages, good[:i])
			for bit := range 8 {
				b := bytes.Clone(good)
				b[i] ^= 1 << bit
				damages = append(damages, b)
			}
		}
		for _, b := range damages {
			write(path, b)
			r := s.open(t, m, dir)
			stranger := key("t", "h2")
			stranger.UID = "another"
			for ref, name := range map[string]string{"secret": team + ":1", "comes": team + ":2"} {
				if r.MayUse(name, ref, keys()) || r.MayUse(name, ref, keys(stranger)) {
					t.Fatalf("%q: anybody may use %s", b, name)
				}
			}
			if r.MayUse(team+":1", "secret", keys(owner)) {
				whole++
			}
		}
		write(path, good)
	}
	if whole == 0 {
		t.Error("nothing was ever read")
	}
	// The next pull writes it anew.
	write(filepath.Join(dir, imageFile("secret")), []byte("rot"))
	r = s.open(t, m, dir)
	pulled(t, r, team+":1", "secret", &owner)
	if r = s.open(t, m, dir); !r.MayUse(team+":1", "secret", keys(owner)) || r.MayUse("registry.test/before:1", "secret", keys(owner)) {
		t.Error("its owner may not use it, or anybody under a name by which it may have been fetched before")
	}
	// A record of a version that is not known, and one that has another's name.
	for _, b := range []any{image{Version: version + 1, Ref: "secret", Grants: []grant{{Repository: team, Anyone: true}}}, image{Version: version, Ref: "x", Grants: []grant{{Repository: team, Anyone: true}}}} {
		if err := r.write(imageFile("secret"), b); err != nil {
			t.Fatal(err)
		}
		if s.open(t, m, dir).MayUse(team+":1", "secret", keys()) {
			t.Errorf("anybody may use it by %+v", b)
		}
	}
}

// TestFullDisk: nothing is fetched of which it cannot be noted, and what cannot be noted any more is for nobody until its registry was asked.
func TestFullDisk(t *testing.T) {
	s := newStore()
	p := platter.New(rand.New(rand.NewPCG(1, 1)), "data")
	r := s.open(t, p.Mount(), "/data/pulls")
	p.Fill(true)
	if err := r.Begin(team + ":1"); err == nil {
		t.Error("an image may be fetched")
	}
	p.Fill(false)
	if err := r.Begin(team + ":1"); err != nil {
		t.Fatal(err)
	}
	p.Fill(true)
	owner := key("s", "h1")
	r.Pulled(team+":1", "secret", &owner)
	s.names["secret"] = []string{team + ":1"}
	look := func(when string) {
		t.Helper()
		if r.MayUse(team+":1", "secret", keys()) || r.MayUse(team+":1", "secret", keys(owner)) {
			t.Errorf("%s: it may be used", when)
		}
	}
	look("at once")
	s.listed(t, r)
	look("after a listing")
	r = s.open(t, p.Mount(), "/data/pulls")
	look("after a start")
	p.Fill(false)
	s.now = s.now.Add(unsureAge)
	s.listed(t, r)
	look("when there is room")
	if len(r.pulls) != 0 {
		t.Errorf("there are still pulls under way: %v", r.pulls)
	}
	pulled(t, r, team+":1", "secret", &owner)
	if !r.MayUse(team+":1", "secret", keys(owner)) {
		t.Error("its owner may not use it")
	}
}

// TestRemovalFails: a note that may have gone although that failed is there again before the next image is fetched.
func TestRemovalFails(t *testing.T) {
	s := newStore()
	p := platter.New(rand.New(rand.NewPCG(1, 1)), "data")
	d := &failing{Disk: p.Mount()}
	r := s.open(t, d, "/data/pulls")
	if err := r.Begin(team + ":1"); err != nil {
		t.Fatal(err)
	}
	r.Failed(team+":1", true)
	d.syncs = errors.New("broken")
	s.listed(t, r)
	d.syncs = nil
	if err := r.Begin(team + ":2"); err != nil {
		t.Fatal(err)
	}
	s.names["new"] = []string{team + ":2"}
	p.LosePower()
	if s.open(t, p.Mount(), "/data/pulls").MayUse(team+":2", "new", keys()) {
		t.Error("anybody may use it")
	}
}

// failing is a disk whose directories cannot be synced.
type failing struct {
	disk.Disk
	syncs error
}

func (f *failing) OpenFile(path string, flag int, mode fs.FileMode) (disk.File, error) {
	if flag == os.O_RDONLY && f.syncs != nil {
		return nil, f.syncs
	}
	return f.Disk.OpenFile(path, flag, mode)
}

// TestUnsurePulls: what a pull has brought of which nobody heard the end is not taken for what nobody fetched; what was here before is nobody's alone.
func TestUnsurePulls(t *testing.T) {
	for name, c := range map[string]struct {
		over bool
		late bool // the image comes after the call has ended
	}{"cut": {false, true}, "failed, and it is here all the same": {true, false}} {
		t.Run(name, func(t *testing.T) {
			s := newStore()
			s.names["old"] = []string{team + ":0"}
			r := s.open(t, nil, t.TempDir())
			if err := r.Begin(team + ":1"); err != nil {
				t.Fatal(err)
			}
			if !c.late {
				s.names["new"] = []string{team + ":1"}
			}
			r.Failed(team+":1", c.over)
			s.listed(t, r)
			if c.late {
				s.names["new"] = []string{team + ":1"}
			}
			look := func(when string) {
				t.Helper()
				if r.MayUse(team+":1", "new", keys()) {
					t.Errorf("%s: anybody may use it", when)
				}
				if !r.MayUse(team+":0", "old", keys()) {
					t.Errorf("%s: what was here before cannot be used", when)
				}
			}
			look("soon")
			s.now = s.now.Add(unsureAge)
			s.listed(t, r)
			look("later")
			if len(r.pulls) != 0 {
				t.Errorf("there are still pulls under way: %v", r.pulls)
			}
		})
	}
	// One that began before a listing and ended amid it is looked at by the next one.
	s := newStore()
	r := s.open(t, nil, t.TempDir())
	if err := r.Begin(team + ":1"); err != nil {
		t.Fatal(err)
	}
	n := r.Listing()
	r.Failed(team+":1", true)
	s.names["new"] = []string{team + ":1"}
	if r.Listed(n, nil); len(r.pulls) != 1 {
		t.Error("a listing from before has settled it")
	}
	s.listed(t, r)
	if r.MayUse(team+":1", "new", keys()) || len(r.pulls) != 0 {
		t.Errorf("anybody may use it, or it is under way: %v", r.pulls)
	}
	// Where the images cannot be listed nothing begins.
	if s.err = errors.New("away"); !errors.Is(r.Begin("registry.test/other:1"), s.err) {
		t.Error("a pull began")
	}
}

// TestTogether: of two pods that fetch an image at the same time the one without credentials gets nothing by the other's.
func TestTogether(t *testing.T) {
	s := newStore()
	r := s.open(t, nil, t.TempDir())
	owner := key("s", "h1")
	for range 2 {
		if err := r.Begin(team + ":1"); err != nil {
			t.Fatal(err)
		}
	}
	s.names["secret"] = []string{team + ":1"}
	for _, step := range []func(){func() {}, func() { r.Pulled(team+":1", "secret", &owner) }, func() { s.listed(t, r) }, func() { r.Failed(team+":1", true) }, func() { s.listed(t, r) }} {
		step()
		if r.MayUse(team+":1", "secret", keys()) {
			t.Error("it may be used without credentials")
		}
	}
	if !r.MayUse(team+":1", "secret", keys(owner)) || len(r.pulls) != 0 {
		t.Errorf("its owner may not use it, or it is under way: %v", r.pulls)
	}
}

// TestCopies: somebody fetches a copy of what was preloaded from elsewhere, with a secret. To others it is what it was, by its name.
func TestCopies(t *testing.T) {
	s := newStore()
	s.names["same"] = []string{"registry.test/base:1"}
	r := s.open(t, nil, t.TempDir())
	owner := key("s", "h1")
	pulled(t, r, team+":1", "same", &owner)
	s.names["same"] = append(s.names["same"], team+":1")
	s.listed(t, r)
	if !r.MayUse("registry.test/base:1", "same", keys()) || r.MayUse(team+":1", "same", keys()) {
		t.Error("by the name of before it may not be used, or by the other one by anybody")
	}
	// Fetched by its own name it is no longer preloaded.
	pulled(t, r, "registry.test/base:1", "same", &owner)
	if r.MayUse("registry.test/base:1", "same", keys()) {
		t.Error("anybody may use it")
	}
}

// TestRecordsGo: those of images that are not here any more, an hour later, and not because a listing was not whole.
func TestRecordsGo(t *testing.T) {
	dir := t.TempDir()
	s := newStore()
	r := s.open(t, nil, dir)
	owner := key("s", "h1")
	pulled(t, r, team+":1", "secret", &owner)
	s.names["secret"] = []string{team + ":1"}
	s.listed(t, r)
	was := s.names
	s.names = nil
	s.listed(t, r)
	s.now = s.now.Add(goneAge - time.Second)
	s.listed(t, r)
	s.names = was
	s.listed(t, r)
	s.now = s.now.Add(time.Hour)
	if r.MayUse(team+":1", "secret", keys()) || !r.MayUse(team+":1", "secret", keys(owner)) {
		t.Error("it was forgotten who may use it")
	}
	s.names = nil
	s.listed(t, r)
	s.now = s.now.Add(goneAge)
	s.listed(t, r)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v are left: %v", files, err)
	}
}

// TestBounds: neither many secrets, nor many images, nor many pulls that are cut make more of it than there may be.
func TestBounds(t *testing.T) {
	p := platter.New(rand.New(rand.NewPCG(1, 1)), "data")
	s := newStore()
	r := s.open(t, p.Mount(), "/data/pulls")
	long := strings.Repeat("n", 253)
	for i := range maxGrants + 10 {
		k := runtime.ImageKey{Namespace: long, Name: long, UID: "u", Hash: fmt.Sprintf("%064d", i)}
		k.UID += k.UID + "x"
		k.Name = fmt.Sprintf("%s%d", long[:200], i)
		pulled(t, r, team+":1", "secret", &k)
	}
	if r.images[imageFile("secret")].More {
		t.Error("it may have been fetched under other names")
	}
	k := r.images[imageFile("secret")]
	if n := len(k.Grants); n != maxGrants || k.Grants[n-1].Key.Hash != fmt.Sprintf("%064d", maxGrants+9) {
		t.Errorf("%d grants, the last of them %+v", n, k.Grants[n-1])
	}
	if st, err := p.Mount().Lstat("/data/pulls/" + imageFile("secret")); err != nil || st.Size() > maxFileBytes/2 {
		t.Errorf("%v, %v", st, err)
	}
	for i := range maxPulls + 10 {
		name := fmt.Sprintf("registry.test/%d:1", i)
		if err := r.Begin(name); err != nil {
			t.Fatal(err)
		}
		r.Failed(name, false)
		s.now = s.now.Add(time.Millisecond)
	}
	if len(r.pulls) != maxPulls || r.pulls[pullFile("registry.test/3")] != nil {
		t.Errorf("%d pulls are noted", len(r.pulls))
	}
	// An image that is fetched under very many names is under none taken for one that nobody fetched.
	for i := range maxGrants + 10 {
		pulled(t, r, fmt.Sprintf("elsewhere.test/%d:1", i), "secret", nil)
	}
	if r.MayUse(team+":1", "secret", keys()) || r.MayUse("another.test/app:1", "secret", keys()) {
		t.Error("anybody may use it")
	}
	s.names = map[string][]string{}
	for i := len(r.images); i < maxImages; i++ {
		r.images[imageFile(fmt.Sprint(i))] = &known{gone: s.now.Add(time.Duration(i))}
	}
	if err := r.grant("more", grant{Repository: team, Anyone: true}); !errors.Is(err, errFull) || len(r.images) != maxImages {
		t.Errorf("%v, %d images", err, len(r.images))
	}
	s.now = s.now.Add(time.Hour)
	if err := r.grant("more", grant{Repository: team, Anyone: true}); err != nil || len(r.images) != maxImages || r.images[imageFile("1")] != nil {
		t.Errorf("%v, %d images", err, len(r.images))
	}
}
