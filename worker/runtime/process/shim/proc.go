package shim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// killChildren kills every child of this process. What they leave behind becomes children in turn, since the shim is a
// subreaper, so repeating it after each end reaches everything.
func killChildren() {
	self := os.Getpid()
	eachProcess(func(pid int, stat [][]byte) {
		// A child that is not waited for yet keeps its number, so this cannot hit another.
		if ppid, _ := strconv.Atoi(string(stat[1])); ppid == self && string(stat[0]) != "Z" {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
}

// signalSession signals every process of a session. The leader is one that is not waited for yet, so the session is its.
func signalSession(leader int, sig syscall.Signal) {
	eachProcess(func(pid int, stat [][]byte) {
		if session, _ := strconv.Atoi(string(stat[3])); session == leader {
			_ = syscall.Kill(pid, sig)
		}
	})
}

// eachProcess visits all processes that are seen from here, with what statFields says of them.
func eachProcess(visit func(pid int, stat [][]byte)) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f, err := statFields(pid); err == nil && len(f) > 3 {
			visit(pid, f)
		}
	}
}

// Find is the number of the shim that lives in a directory: of the process that has the directory's lock where only shims have one. 0: none is seen.
func Find(dir string) int {
	lock, err := os.Stat(filepath.Join(dir, LockFile))
	if err != nil {
		return 0
	}
	end, found := filepath.Join("/", filepath.Base(dir), LockFile), 0
	eachProcess(func(pid int, _ [][]byte) {
		held := fmt.Sprintf("/proc/%d/fd/%d", pid, lockFD)
		// The name comes first: nobody has to ask another machine, or a device, what else a process may have there.
		if name, err := os.Readlink(held); err != nil || pid == os.Getpid() || !strings.HasSuffix(name, end) {
			return
		}
		if fi, err := os.Stat(held); err == nil && os.SameFile(fi, lock) {
			found = pid
		}
	})
	return found
}

// PIDStart is when a process was started, in the kernel's ticks since boot.
func PIDStart(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	if len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

// statFields are the fields of /proc/PID/stat after the name, which may hold anything.
func statFields(pid int) ([][]byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil, fmt.Errorf("/proc/%d/stat cannot be read", pid)
	}
	return bytes.Fields(b[i+1:]), nil
}
