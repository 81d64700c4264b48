// Package platter is a disk in memory that forgets as a machine's does: what was
// not synced is lost with the power, whole, in parts or not at all.
package platter

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berth-dev/berth/disk"
)

// Platter is a machine's disk, over all lives of its server. What is written is
// in memory until it is synced; a loss of power takes any part of it away, by pages,
// and names that were not synced.
type Platter struct {
	mu   sync.Mutex
	rand *rand.Rand
	root *inode
	full bool
	// filled: it has been full.
	filled bool
	slow   time.Duration // a sync takes up to so long
	bare   bool          // of the last loss of power: nothing was kept that was not synced
}

// pageBytes is what a disk writes whole or not at all.
const pageBytes = 4096

// inode is a file or a directory, as everybody sees it and as it is on the disk.
type inode struct {
	dir    bool
	names  map[string]*inode // of a directory
	kept   map[string]*inode
	seen   content
	synced content
	since  []write // not synced, in order
	moved  []naming
	held   map[*openFile]bool // with whether it is shared
}

// write is one that is not on the disk yet; without bytes, a length.
type write struct {
	at    int64
	bytes []byte
	size  int64
}

// naming is a change of names in a directory that is not on the disk yet: nil is
// no name. A renaming is one.
type naming map[string]*inode

// New makes a disk with the directories that somebody made before, and that are
// there. What is lost with the power follows from r.
func New(r *rand.Rand, directories ...string) *Platter {
	p := &Platter{rand: r, root: newDir()}
	for _, name := range directories {
		d := newDir()
		p.root.names[name], p.root.kept[name] = d, d
	}
	return p
}

// Copy is a disk that has what everybody sees on this one now, as whoever saves a machine's disk has it. What it loses with the power follows from r.
func (p *Platter) Copy(r *rand.Rand) *Platter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Platter{rand: r, root: p.root.copy()}
}

func (n *inode) copy() *inode {
	if !n.dir {
		return &inode{seen: n.seen.clone(), synced: n.seen.clone()}
	}
	out := newDir()
	for name, child := range n.names { // their order does not matter
		c := child.copy()
		out.names[name], out.kept[name] = c, c
	}
	return out
}

func newDir() *inode { return &inode{dir: true, names: map[string]*inode{}, kept: map[string]*inode{}} }

// Fill makes a disk one that takes no more, or gives it room again.
func (p *Platter) Fill(full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = full
	p.filled = p.filled || full
}

// Slow makes a disk one whose syncs take up to so long each.
func (p *Platter) Slow(most time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = most
}

// delay is what a sync takes.
func (p *Platter) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow <= 0 {
		return 0
	}
	return time.Duration(p.rand.Int64N(int64(p.slow)))
}

// IsFull: the disk takes no more.
func (p *Platter) IsFull() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.full
}

// WasFull: it has been since it was asked last, or is.
func (p *Platter) WasFull() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.filled
	p.filled = p.full
	return was
}

// LosePower makes of the disk what is left of it: one time of two nothing that was not synced, as of a drive whose cache is gone.
func (p *Platter) LosePower() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bare = p.rand.IntN(2) == 0
	p.lose(p.root, map[*inode]bool{})
}

func (p *Platter) lose(n *inode, seen map[*inode]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	n.held = nil
	if !n.dir {
		for _, w := range n.since {
			p.keepSome(n, w)
		}
		if n.since != nil { // else they are equal
			n.since, n.seen = nil, n.synced.clone()
		}
		return
	}
	// Of the changes of names the first ones are there, as a journal has it.
	first := p.rand.IntN(len(n.moved) + 1)
	if p.bare {
		first = 0
	}
	for _, m := range n.moved[:first] {
		m.apply(n.kept)
	}
	n.moved, n.names = nil, map[string]*inode{}
	for _, name := range sorted(n.kept) {
		n.names[name] = n.kept[name]
		p.lose(n.kept[name], seen)
	}
}

// keepSome lets pages of a write be on the disk, or none.
func (p *Platter) keepSome(n *inode, w write) {
	if p.bare {
		return
	}
	if w.bytes == nil {
		if p.rand.IntN(2) == 0 {
			n.synced.resize(w.size)
		}
		return
	}
	how := p.rand.IntN(3)
	for from := int64(0); from < int64(len(w.bytes)); {
		to := min((w.at+from)/pageBytes*pageBytes+pageBytes-w.at, int64(len(w.bytes)))
		if how == 0 || how == 1 && p.rand.IntN(2) == 0 {
			n.synced.overwrite(w.at+from, w.bytes[from:to])
		}
		from = to
	}
}

func (m naming) apply(to map[string]*inode) {
	for _, name := range sorted(m) {
		if m[name] == nil {
			delete(to, name)
		} else {
			to[name] = m[name]
		}
	}
}

func sorted(m map[string]*inode) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Mount gives a life of a server its disk.
func (p *Platter) Mount() *Mounted { return &Mounted{Platter: p} }

// Mounted is a disk as one process has it. After its end nothing is read or
// written.
type Mounted struct {
	*Platter
	dead bool
	// unreadable is within the path of files of which nothing can be read; empty: all can. failed: some could not at a time.
	unreadable string
	failed     bool
	// fuse is after how many changes more the process ends, within the last of
	// them; 0: never. blown is told, with mu held.
	fuse  int
	blown func()
	// syncs is what is done when a file whose path has within in it is synced next.
	within string
	syncs  func()
	// woken is told, with mu held, of a change that a process makes which is to make none any more.
	woken func(path string)
}

// Light lets the process end within one of its next changes.
func (m *Mounted) Light(changes int, blown func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fuse, m.blown = changes, blown
}

// AtSync lets something be done, once, when the process begins to sync a file whose path has within in it: what it has written there is not
// on the disk yet.
func (m *Mounted) AtSync(within string, do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.within, m.syncs = within, do
}

func (m *Mounted) beginSync(path string) {
	m.mu.Lock()
	do := m.syncs
	if do == nil || !strings.Contains(path, m.within) {
		m.mu.Unlock()
		return
	}
	m.syncs = nil
	m.mu.Unlock()
	do()
}

// Rest is told that the process has ended in good order: woken is called once if it changes anything yet.
func (m *Mounted) Rest(woken func(path string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.woken = woken
}

// burn is called with mu held, before a change. What it reports is that the process
// has ended.
func (m *Mounted) burn(path string) bool {
	if woken := m.woken; woken != nil && !m.dead {
		m.woken = nil
		woken(path)
	}
	if m.fuse == 0 || m.dead {
		return m.dead
	}
	if m.fuse--; m.fuse > 0 {
		return false
	}
	m.dead = true
	m.blown()
	return true
}

// FailReads lets reads fail of files whose path has within in it; empty: of none.
func (m *Mounted) FailReads(within string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadable, m.failed = within, m.failed || within != ""
}

// HasFailed: reads may have failed, or all calls do.
func (m *Mounted) HasFailed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed || m.dead
}

// IsDead: the process has ended, or the disk was taken away from it.
func (m *Mounted) IsDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

var _ disk.Disk = (*Mounted)(nil)

// End takes the disk away from a process, and lets go what it held.
func (m *Mounted) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	m.release(m.root)
}

func (m *Mounted) release(n *inode) {
	for f := range n.held {
		if f.disk == m {
			delete(n.held, f)
		}
	}
	for _, child := range n.names {
		m.release(child)
	}
}

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

// findToChange is find before a change.
func (m *Mounted) findToChange(op, path string) (dir *inode, name string, at *inode, err error) {
	m.burn(path)
	return m.find(op, path)
}

// find is called with mu held. Without a name it is the directory.
func (m *Mounted) find(op, path string) (dir *inode, name string, at *inode, err error) {
	if m.dead {
		return nil, "", nil, pathError(op, path, syscall.EIO)
	}
	dir, at = nil, m.root
	for part := range strings.SplitSeq(filepath.Clean("/"+path), "/") {
		if part == "" {
			continue
		}
		if at == nil || !at.dir {
			return nil, "", nil, pathError(op, path, fs.ErrNotExist)
		}
		dir, name, at = at, part, at.names[part]
	}
	return dir, name, at, nil
}

func (n *inode) rename(m naming) {
	m.apply(n.names)
	n.moved = append(n.moved, m)
}

// OpenFile implements disk.Disk.
func (m *Mounted) OpenFile(path string, flag int, _ fs.FileMode) (disk.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	find := m.find
	if flag&os.O_CREATE != 0 {
		find = m.findToChange
	}
	dir, name, at, err := find("open", path)
	switch {
	case err != nil:
		return nil, err
	case at == nil && flag&os.O_CREATE == 0:
		return nil, pathError("open", path, fs.ErrNotExist)
	case at == nil && m.full:
		return nil, pathError("open", path, syscall.ENOSPC)
	case at == nil:
		at = &inode{}
		dir.rename(naming{name: at})
	case flag&os.O_EXCL != 0:
		return nil, pathError("open", path, fs.ErrExist)
	}
	f := &openFile{disk: m, inode: at, path: path}
	if flag&os.O_TRUNC != 0 {
		at.resize(0)
	}
	return f, nil
}

// Mkdir implements disk.Disk.
func (m *Mounted) Mkdir(path string, _ fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, name, at, err := m.findToChange("mkdir", path)
	if err != nil {
		return err
	}
	if at != nil {
		return pathError("mkdir", path, fs.ErrExist)
	}
	dir.rename(naming{name: newDir()})
	return nil
}

// Remove implements disk.Disk.
func (m *Mounted) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, name, at, err := m.findToChange("remove", path)
	switch {
	case err != nil:
		return err
	case at == nil:
		return pathError("remove", path, fs.ErrNotExist)
	case len(at.names) > 0:
		return pathError("remove", path, syscall.ENOTEMPTY)
	}
	dir.rename(naming{name: nil})
	return nil
}

// Rename implements disk.Disk.
func (m *Mounted) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, name, at, err := m.findToChange("rename", from)
	if err == nil && at == nil {
		err = pathError("rename", from, fs.ErrNotExist)
	}
	if err != nil {
		return err
	}
	toDir, toName, there, err := m.find("rename", to)
	switch {
	case err != nil:
		return err
	case there != nil && there.dir && len(there.names) > 0:
		return pathError("rename", to, syscall.ENOTEMPTY)
	case dir == toDir:
		dir.rename(naming{name: nil, toName: at})
	default:
		toDir.rename(naming{toName: at})
		dir.rename(naming{name: nil})
	}
	return nil
}

// Lstat implements disk.Disk.
func (m *Mounted) Lstat(path string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, name, at, err := m.find("lstat", path)
	if err == nil && at == nil {
		err = pathError("lstat", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return at.info(name), nil
}

// ReadDir implements disk.Disk.
func (m *Mounted) ReadDir(path string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _, at, err := m.find("readdir", path)
	if err == nil && (at == nil || !at.dir) {
		err = pathError("readdir", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	var out []fs.DirEntry
	for _, name := range sorted(at.names) {
		out = append(out, fs.FileInfoToDirEntry(at.names[name].info(name)))
	}
	return out, nil
}

type info struct {
	name string
	size int64
	dir  bool
}

func (n *inode) info(name string) fs.FileInfo { return info{name, n.seen.size, n.dir} }

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) ModTime() time.Time { return time.Unix(0, 0) }
func (i info) IsDir() bool        { return i.dir }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}
