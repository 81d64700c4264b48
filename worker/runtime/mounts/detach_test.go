package mounts

import (
	"testing"

	"github.com/moby/sys/mountinfo"
)

// Whoever takes a place out of sight lets go of all that is mounted at it and below it: of another machine's, too, whichever of them is on top.
func TestWhatIsDetachedMayWait(t *testing.T) {
	points := []*mountinfo.Info{
		{Mountpoint: "/v/over", FSType: "nfs4"}, {Mountpoint: "/v/over", FSType: "tmpfs"},
		{Mountpoint: "/v/under", FSType: "tmpfs"}, {Mountpoint: "/v/under", FSType: "fuse.sshfs"},
		{Mountpoint: "/v/above", FSType: "tmpfs"}, {Mountpoint: "/v/above/deep/in", FSType: "cifs"},
		{Mountpoint: "/v/plain", FSType: "tmpfs"}, {Mountpoint: "/v/plainer", FSType: "nfs"},
	}
	for at, want := range map[string]bool{
		"/v/over": true, "/v/under": true, "/v/above": true, "/v/above/deep/in": true, "/v/plain": false, "/v/plainer": true, "/v": true,
	} {
		if got := mayWait(points, at); got != want {
			t.Errorf("%s: %v", at, got)
		}
	}
}

// A path is on the server whose file system is the innermost one around it.
func TestServerOfAPath(t *testing.T) {
	root := &mountinfo.Info{Mountpoint: "/", FSType: "ext4", Source: "/dev/sda"}
	nfs := &mountinfo.Info{Mountpoint: "/mnt", FSType: "nfs4", Source: "[fd00::1]:/export"}
	over := &mountinfo.Info{Mountpoint: "/mnt", FSType: "tmpfs", Source: "tmpfs"}
	in := &mountinfo.Info{Mountpoint: "/mnt/in", FSType: "ext4", Source: "/dev/sdb"}
	for _, c := range []struct {
		points []*mountinfo.Info
		want   string
	}{
		{nil, ""}, {[]*mountinfo.Info{root}, ""}, {[]*mountinfo.Info{root, nfs}, "[fd00::1]"}, {[]*mountinfo.Info{nfs, root}, "[fd00::1]"},
		{[]*mountinfo.Info{root, nfs, over}, ""}, {[]*mountinfo.Info{root, over, nfs}, "[fd00::1]"}, {[]*mountinfo.Info{root, nfs, in}, ""},
	} {
		if got := serverAbove(c.points); got != c.want {
			t.Errorf("%+v: %q", c.points, got)
		}
	}
}
