package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/disk/platter"
)

// chaosDisk is a server's data directory: a disk that forgets what was not synced
// when the power goes, that gets full, and slow. It is a file system of this process
// (FUSE), mounted anew for every life of the server.
type chaosDisk struct {
	dir     string
	control string // where the kernel shows the connections of such file systems
	device  uint64 // the present mount's
	platter *platter.Platter
	server  *fuse.Server
	mounted *platter.Mounted
}

func newChaosDisk(dir, control string, seed uint64) (*chaosDisk, error) {
	return &chaosDisk{dir: dir, control: control, platter: platter.New(rand.New(rand.NewPCG(seed, 1)))}, os.MkdirAll(dir, 0o700)
}

func (d *chaosDisk) mount() error {
	d.mounted = d.platter.Mount()
	var none time.Duration
	server, err := fs.Mount(d.dir, &chaosNode{disk: d}, &fs.Options{
		EntryTimeout: &none, AttrTimeout: &none,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "berth-chaos", Name: "berth-chaos"},
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", d.dir, err)
	}
	d.server = server
	var st syscall.Stat_t
	if err := syscall.Stat(d.dir, &st); err != nil {
		return err
	}
	d.device = st.Dev & 0xff // of those without a device the minor number, as long as there are few
	return nil
}

// unmount ends the present mount; its server's process must have ended.
func (d *chaosDisk) unmount(power bool) error {
	if d.server == nil {
		return nil
	}
	d.mounted.End()
	if power {
		d.platter.LosePower()
	}
	d.server = nil
	// Pods have mount namespaces of their own, in which it stays mounted: it is ended
	// by its connection.
	abort := filepath.Join(d.control, fmt.Sprint(d.device), "abort")
	return errors.Join(os.WriteFile(abort, []byte("1"), 0), syscall.Unmount(d.dir, syscall.MNT_DETACH))
}

// chaosNode is a file or directory, chaosFile one that is open.
type chaosNode struct {
	fs.Inode
	disk *chaosDisk
}

type chaosFile struct{ disk.File }

var _ = []any{
	fs.NodeLookuper(&chaosNode{}), fs.NodeGetattrer(&chaosNode{}), fs.NodeSetattrer(&chaosNode{}), fs.NodeReaddirer(&chaosNode{}),
	fs.NodeCreater(&chaosNode{}), fs.NodeOpener(&chaosNode{}), fs.NodeReader(&chaosNode{}), fs.NodeWriter(&chaosNode{}),
	fs.NodeFsyncer(&chaosNode{}), fs.NodeReleaser(&chaosNode{}), fs.NodeAllocater(&chaosNode{}),
	fs.NodeMkdirer(&chaosNode{}), fs.NodeUnlinker(&chaosNode{}), fs.NodeRmdirer(&chaosNode{}), fs.NodeRenamer(&chaosNode{}),
}

func (n *chaosNode) path() string { return "/" + n.Path(nil) }

func (n *chaosNode) below(name string) string {
	if p := n.path(); p != "/" {
		return p + "/" + name
	}
	return "/" + name
}

func chaosErrno(err error) syscall.Errno {
	var no syscall.Errno
	switch {
	case err == nil:
		return fs.OK
	case errors.As(err, &no):
		return no
	case errors.Is(err, os.ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, os.ErrExist):
		return syscall.EEXIST
	}
	return syscall.EIO
}

func fill(out *fuse.Attr, st os.FileInfo) {
	out.Mode, out.Size, out.Nlink = fuse.S_IFREG|0o600, uint64(st.Size()), 1
	if st.IsDir() {
		out.Mode, out.Nlink = fuse.S_IFDIR|0o700, 2
	}
}

func (n *chaosNode) child(ctx context.Context, name string, st os.FileInfo) *fs.Inode {
	if c := n.GetChild(name); c != nil && c.IsDir() == st.IsDir() {
		return c
	}
	mode := uint32(fuse.S_IFREG)
	if st.IsDir() {
		mode = fuse.S_IFDIR
	}
	return n.NewInode(ctx, &chaosNode{disk: n.disk}, fs.StableAttr{Mode: mode})
}

func (n *chaosNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	st, err := n.disk.mounted.Lstat(n.below(name))
	if err != nil {
		return nil, chaosErrno(err)
	}
	fill(&out.Attr, st)
	return n.child(ctx, name, st), fs.OK
}

func (n *chaosNode) Getattr(_ context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	st, err := n.stat(f)
	if err == nil {
		fill(&out.Attr, st)
	}
	return chaosErrno(err)
}

func (n *chaosNode) stat(f fs.FileHandle) (os.FileInfo, error) {
	if open, ok := f.(*chaosFile); ok {
		return open.Stat()
	}
	return n.disk.mounted.Lstat(n.path())
}

// Setattr changes the length; owners and modes are as they are.
func (n *chaosNode) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		open, ok := f.(*chaosFile)
		if !ok {
			file, err := n.disk.mounted.OpenFile(n.path(), os.O_RDWR, 0)
			if err != nil {
				return chaosErrno(err)
			}
			defer func() { _ = file.Close() }() // it was only changed
			open = &chaosFile{file}
		}
		if err := open.Truncate(int64(size)); err != nil {
			return chaosErrno(err)
		}
	}
	return n.Getattr(ctx, f, out)
}

func (n *chaosNode) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	entries, err := n.disk.mounted.ReadDir(n.path())
	var out []fuse.DirEntry
	for _, e := range entries {
		mode := uint32(fuse.S_IFREG)
		if e.IsDir() {
			mode = fuse.S_IFDIR
		}
		out = append(out, fuse.DirEntry{Name: e.Name(), Mode: mode})
	}
	return fs.NewListDirStream(out), chaosErrno(err)
}

func (n *chaosNode) Create(ctx context.Context, name string, flags, _ uint32, out *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	f, err := n.disk.mounted.OpenFile(n.below(name), int(flags)&^os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, 0, chaosErrno(err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, nil, 0, chaosErrno(err)
	}
	fill(&out.Attr, st)
	return n.child(ctx, name, st), &chaosFile{f}, fuse.FOPEN_DIRECT_IO, fs.OK
}

func (n *chaosNode) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, err := n.disk.mounted.OpenFile(n.path(), int(flags)&^(os.O_APPEND|os.O_CREATE), 0)
	return &chaosFile{f}, fuse.FOPEN_DIRECT_IO, chaosErrno(err)
}

func (n *chaosNode) Read(_ context.Context, f fs.FileHandle, into []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	got, err := f.(*chaosFile).ReadAt(into, at)
	if got > 0 || err != nil && errors.Is(err, io.EOF) {
		err = nil
	}
	return fuse.ReadResultData(into[:got]), chaosErrno(err)
}

func (n *chaosNode) Write(_ context.Context, f fs.FileHandle, b []byte, at int64) (uint32, syscall.Errno) {
	written, err := f.(*chaosFile).WriteAt(b, at)
	return uint32(written), chaosErrno(err)
}

func (n *chaosNode) Fsync(_ context.Context, f fs.FileHandle, _ uint32) syscall.Errno {
	if open, ok := f.(*chaosFile); ok {
		return chaosErrno(open.Sync())
	}
	return chaosErrno(disk.SyncDir(n.disk.mounted, n.path()))
}

func (n *chaosNode) Release(_ context.Context, f fs.FileHandle) syscall.Errno {
	return chaosErrno(f.(*chaosFile).Close())
}

func (n *chaosNode) Allocate(_ context.Context, f fs.FileHandle, at, size uint64, mode uint32) syscall.Errno {
	if mode != 0 {
		return syscall.ENOTSUP
	}
	return chaosErrno(f.(*chaosFile).Reserve(int64(at + size)))
}

func (n *chaosNode) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.disk.mounted.Mkdir(n.below(name), 0o700); err != nil {
		return nil, chaosErrno(err)
	}
	return n.Lookup(ctx, name, out)
}

func (n *chaosNode) Unlink(_ context.Context, name string) syscall.Errno {
	return chaosErrno(n.disk.mounted.Remove(n.below(name)))
}

func (n *chaosNode) Rmdir(ctx context.Context, name string) syscall.Errno { return n.Unlink(ctx, name) }

func (n *chaosNode) Rename(_ context.Context, name string, to fs.InodeEmbedder, toName string, _ uint32) syscall.Errno {
	return chaosErrno(n.disk.mounted.Rename(n.below(name), to.(*chaosNode).below(toName)))
}
