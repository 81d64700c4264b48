package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// searchPath of the images.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// rootfs is the files of an image, by their paths.
type rootfs map[string]imagepack.File

func (r rootfs) put(f imagepack.File) { r[f.Path] = f }

func (r rootfs) files() []imagepack.File {
	out := make([]imagepack.File, 0, len(r))
	for _, path := range slices.Sorted(maps.Keys(r)) { // a directory comes before what is in it
		out = append(out, r[path])
	}
	return out
}

// copyFile takes a file of this machine, and the directories above it.
func (r rootfs) copyFile(from, to string, mode int64) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	to = strings.TrimPrefix(to, "/")
	for dir := filepath.Dir(to); dir != "."; dir = filepath.Dir(dir) {
		if _, there := r[dir]; !there {
			r.put(imagepack.File{Path: dir, Mode: 0o755, Dir: true})
		}
	}
	r.put(imagepack.File{Path: to, Mode: mode, Data: data})
	return nil
}

var libraries = regexp.MustCompile(`/[^\s:)]+`)

// program takes a program of this machine with the libraries that it needs.
func (r rootfs) program(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := r.copyFile(path, "usr/bin/"+name, 0o755); err != nil {
		return err
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return fmt.Errorf("the libraries of %s: %w", name, err)
	}
	for _, library := range libraries.FindAllString(string(out), -1) {
		if err := r.copyFile(library, library, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// shellScript is busybox's shell, by whose words specs know it. Debian's keeps from programs what has a name that no variable of a shell
// has, and that of the image which it stands in for does not: who has such a variable gets bash.
const shellScript = `#!/usr/bin/bash
while IFS= read -r -d "" v; do
  [[ ${v%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || exec -a "$0" /usr/bin/bash "$@"
done < /proc/self/environ
exec -a "$0" /bin/busybox "$@"
`

// hideApplet has busybox not know a program by its name: Debian's static one takes its own from within its shell, whatever the path says. Names
// are in one table there, in order, which the next name of that length keeps (of most; not of ip).
func (r rootfs) hideApplet(name string) {
	f := r["bin/busybox"]
	other := []byte(name)
	other[len(other)-1]++
	f.Data = bytes.ReplaceAll(f.Data, []byte("\x00"+name+"\x00"), []byte("\x00"+string(other)+"\x00"))
	r.put(f)
}

// userSpace is a file system of busybox, with the people that the suite's images have.
func userSpace() (rootfs, error) {
	r := rootfs{}
	for _, dir := range [...]string{"bin", "dev", "etc", "home", "home/user-defined-in-image", "lib", "lib64", "proc", "root", "sbin", "sys", "uploads", "usr",
		"usr/bin", "usr/lib", "usr/local", "usr/local/bin", "usr/sbin", "var", "var/run"} {
		r.put(imagepack.File{Path: dir, Mode: 0o755, Dir: true})
	}
	r.put(imagepack.File{Path: "tmp", Mode: 0o1777, Dir: true})
	r.put(imagepack.File{Path: "var/tmp", Mode: 0o1777, Dir: true})
	r.put(imagepack.File{Path: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n" +
		"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")})
	r.put(imagepack.File{Path: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nnobody:x:65534:\nuser-defined-in-image:x:1000:\n" +
		"group-defined-in-image:x:50000:user-defined-in-image\n")})
	r.put(imagepack.File{Path: "etc/nsswitch.conf", Mode: 0o644, Data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")})
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	if err := r.copyFile(path, "bin/busybox", 0o755); err != nil {
		return nil, err
	}
	out, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing what busybox is: %w", err)
	}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			r.put(imagepack.File{Path: "bin/" + applet, Mode: 0o777, Link: "busybox"})
		}
	}
	r.put(imagepack.File{Path: "bin/sh", Mode: 0o755, Data: []byte(shellScript)})
	r.put(imagepack.File{Path: "bin/bash", Mode: 0o777, Link: "/usr/bin/bash"})
	return r, r.program("bash")
}

// tools adds the programs that the suite's images have besides.
func (r rootfs) tools() error {
	for _, name := range [...]string{"curl", "dig", "getent", "ip", "nc", "nsenter", "printenv", "wget"} {
		delete(r, "bin/"+name) // busybox's would be found first
		if err := r.program(name); err != nil {
			return err
		}
	}
	for _, name := range [...]string{"nc", "nsenter", "wget"} {
		r.hideApplet(name)
	}
	// What resolves names is loaded by name, and ldd does not know of it.
	for _, pattern := range [...]string{"/lib/*-linux-gnu/libnss_files.so.2", "/lib/*-linux-gnu/libnss_dns.so.2", "/lib/*-linux-gnu/libresolv.so.2"} {
		found, _ := filepath.Glob(pattern) // the pattern is a good one
		for _, library := range found {
			if err := r.copyFile(library, library, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// suiteFiles are where Kubernetes' sources are, with what its images are made of.
func suiteFiles() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("where Kubernetes' sources are: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "test", "images"), nil
}

// agnhost is the suite's own program of many servers, the real one.
func agnhostFiles(program, images string) (rootfs, error) {
	r, err := userSpace()
	if err == nil {
		err = r.tools()
	}
	if err == nil {
		err = r.copyFile(program, "agnhost", 0o755)
	}
	for _, name := range [...]string{"localhost.crt", "localhost.key"} {
		if err == nil {
			err = r.copyFile(filepath.Join(images, "agnhost", "porter", name), name, 0o644)
		}
	}
	r.put(imagepack.File{Path: "agnhost-2", Mode: 0o777, Link: "agnhost"})
	return r, err
}

// with is the same files and those of a folder, at the root.
func (r rootfs) with(folder string) (rootfs, error) {
	out := maps.Clone(r)
	return out, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return out.copyFile(path, strings.TrimPrefix(path, folder), 0o644)
	})
}

const nginxScript = "#!/bin/sh\ncd /usr/share/nginx/html && exec busybox httpd -f -p 80\n"

// pauseScript waits, and for the dead of a shared process namespace, too.
const pauseScript = `trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done`

// suiteImages are stand-ins for the suite's images. Those that the suite tells apart by their contents differ by a variable.
func suiteImages(tools string) ([]*imagepack.Image, error) {
	folder, err := suiteFiles()
	if err != nil {
		return nil, err
	}
	busybox, err := userSpace()
	if err != nil {
		return nil, err
	}
	all, err := agnhostFiles(filepath.Join(tools, "agnhost"), folder)
	if err != nil {
		return nil, err
	}
	noNew := maps.Clone(busybox)
	if err := noNew.copyFile(filepath.Join(tools, "nnp"), "usr/local/bin/nnp", 0o6755); err != nil {
		return nil, err
	}
	sample, etcd := maps.Clone(busybox), maps.Clone(busybox)
	if err := sample.copyFile(filepath.Join(tools, "sample-apiserver"), "sample-apiserver", 0o755); err != nil {
		return nil, err
	}
	if err := etcd.copyFile(filepath.Join(tools, "etcd"), "usr/local/bin/etcd", 0o755); err != nil {
		return nil, err
	}
	nginx := maps.Clone(busybox)
	for _, dir := range [...]string{"usr/share", "usr/share/nginx", "usr/share/nginx/html"} {
		nginx.put(imagepack.File{Path: dir, Mode: 0o755, Dir: true})
	}
	nginx.put(imagepack.File{Path: "usr/share/nginx/html/index.html", Mode: 0o644, Data: []byte("<html><title>Welcome to nginx!</title></html>\n")})
	nginx.put(imagepack.File{Path: "usr/sbin/nginx", Mode: 0o755, Data: []byte(nginxScript)})
	var list []*imagepack.Image
	add := func(id imageutils.ImageID, r rootfs, entrypoint, cmd []string, user string) {
		name := imageutils.GetE2EImage(id)
		list = append(list, &imagepack.Image{Names: []string{name}, Files: r.files(), Entrypoint: entrypoint, Cmd: cmd, User: user,
			Env: []string{searchPath, "STANDS_IN_FOR=" + name}, WorkingDir: "/"})
	}
	server := []string{"/agnhost"}
	add(imageutils.Pause, busybox, []string{"/bin/sh", "-c", pauseScript}, nil, "65535:65535")
	add(imageutils.BusyBox, busybox, nil, []string{"sh"}, "")
	add(imageutils.NonRoot, busybox, nil, []string{"sh", "-c", "id -u; sleep 36000"}, "1234")
	add(imageutils.Nonewprivs, noNew, nil, []string{"nnp"}, "")
	add(imageutils.Agnhost, all, server, []string{"pause"}, "")
	add(imageutils.AgnhostPrev, all, server, []string{"pause"}, "")
	add(imageutils.GlibcDnsTesting, all, nil, []string{"sh"}, "")
	add(imageutils.APIServer, sample, []string{"/sample-apiserver"}, nil, "")
	add(imageutils.Etcd, etcd, nil, []string{"etcd"}, "")
	for id, name := range map[imageutils.ImageID]string{imageutils.Nautilus: "nautilus", imageutils.Kitten: "kitten"} {
		r, err := all.with(filepath.Join(folder, name, "html"))
		if err != nil {
			return nil, err
		}
		// Who reads the files of one of these looks for what tells the system that they are based on.
		r.put(imagepack.File{Path: "etc/os-release", Mode: 0o644, Data: []byte("NAME=\"Alpine Linux\"\nID=alpine\n")})
		add(id, r, server, []string{"test-webserver"}, "")
	}
	for _, id := range [...]imageutils.ImageID{imageutils.Nginx, imageutils.NginxNew} {
		add(id, nginx, nil, []string{"/usr/sbin/nginx", "-g", "daemon off;"}, "")
	}
	return list, nil
}
