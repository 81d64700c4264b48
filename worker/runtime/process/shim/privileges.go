package shim

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/moby/sys/capability"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Privileges are what a container has less than whoever runs the shim.
type Privileges struct {
	// NoNewPrivs: no program that it runs gives it more than it has (allowPrivilegeEscalation: false).
	NoNewPrivs bool `json:",omitempty"`
	// Drop are capabilities by their names, such as NET_ADMIN, that it can never have.
	Drop []string `json:",omitempty"`
	// Filter: the system calls that Filtered lists fail.
	Filter bool `json:",omitempty"`
}

// Capabilities are the names of all capabilities that this kernel has, without CAP_ and in upper case.
func Capabilities() ([]string, error) {
	all, err := capability.ListSupported()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range all {
		out = append(out, strings.ToUpper(c.String()))
	}
	return out, nil
}

// take takes the privileges from the calling thread, for good: what it starts from then on is born without them. The
// thread must never be used for anything else. It keeps what it needs to become another user.
func (p *Privileges) take() error {
	if len(p.Drop) > 0 {
		if err := dropCapabilities(p.Drop); err != nil {
			return fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	if p.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("forbidding new privileges: %w", err)
		}
	}
	if p.Filter {
		if err := loadFilter(); err != nil {
			return fmt.Errorf("filtering system calls: %w", err)
		}
	}
	return nil
}

// dropCapabilities takes them out of the bounding set, beyond which no program gets any; and all out of those sets that
// a program would inherit in spite of it.
func dropCapabilities(names []string) error {
	all, err := capability.ListSupported()
	if err != nil {
		return err
	}
	for _, c := range all {
		if slices.Contains(names, strings.ToUpper(c.String())) {
			if err := capability.DropBound(c); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
		}
	}
	if err := capability.ResetAmbient(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	return unix.Capset(&hdr, &data[0])
}

// Filtered are the system calls that a container with the default profile cannot make: those that change the machine and
// not the process. It is what other runtimes deny, too.
func Filtered() map[string]uint32 {
	return map[string]uint32{
		"acct": unix.SYS_ACCT, "add_key": unix.SYS_ADD_KEY, "bpf": unix.SYS_BPF, "clock_adjtime": unix.SYS_CLOCK_ADJTIME,
		"clock_settime": unix.SYS_CLOCK_SETTIME, "delete_module": unix.SYS_DELETE_MODULE, "finit_module": unix.SYS_FINIT_MODULE,
		"fsconfig": unix.SYS_FSCONFIG, "fsmount": unix.SYS_FSMOUNT, "fsopen": unix.SYS_FSOPEN, "fspick": unix.SYS_FSPICK,
		"init_module": unix.SYS_INIT_MODULE, "io_uring_enter": unix.SYS_IO_URING_ENTER,
		"io_uring_register": unix.SYS_IO_URING_REGISTER, "io_uring_setup": unix.SYS_IO_URING_SETUP, "kcmp": unix.SYS_KCMP,
		"kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "kexec_load": unix.SYS_KEXEC_LOAD, "keyctl": unix.SYS_KEYCTL,
		"mount": unix.SYS_MOUNT, "mount_setattr": unix.SYS_MOUNT_SETATTR, "move_mount": unix.SYS_MOVE_MOUNT,
		"move_pages": unix.SYS_MOVE_PAGES, "nfsservctl": unix.SYS_NFSSERVCTL, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
		"open_tree": unix.SYS_OPEN_TREE, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "pivot_root": unix.SYS_PIVOT_ROOT,
		"quotactl": unix.SYS_QUOTACTL, "reboot": unix.SYS_REBOOT, "request_key": unix.SYS_REQUEST_KEY, "setns": unix.SYS_SETNS,
		"settimeofday": unix.SYS_SETTIMEOFDAY, "swapoff": unix.SYS_SWAPOFF, "swapon": unix.SYS_SWAPON,
		"syslog": unix.SYS_SYSLOG, "umount2": unix.SYS_UMOUNT2, "unshare": unix.SYS_UNSHARE, "userfaultfd": unix.SYS_USERFAULTFD,
		"vhangup": unix.SYS_VHANGUP,
	}
}

// Offsets in what a filter looks at (struct seccomp_data), and the bit that marks x32 system calls.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArg0   = 16 // the low half, on the little-endian machines that this runs on
	x32Bit       = 0x40000000
	newNamespace = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// FilterArch is the kernel's name of this machine's system calls; 0 where there is no filter for them.
func FilterArch() uint32 {
	switch goruntime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	}
	return 0
}

// filter is the program that the kernel asks before each system call.
func filter() ([]bpf.RawInstruction, error) {
	deny := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	missing := bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: FilterArch(), SkipTrue: 1},
		missing, // those of another architecture would come past the rest
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Bit, SkipTrue: 1},
		missing,
	}
	calls := Filtered()
	numbers := make([]uint32, 0, len(calls))
	for _, n := range calls {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: n, SkipTrue: 1}, deny)
	}
	program = append(program,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: offsetArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: newNamespace, SkipTrue: 1},
		deny,
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	return bpf.Assemble(program)
}

func loadFilter() error {
	raw, err := filter()
	if err != nil {
		return err
	}
	instructions := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		instructions[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0) // #nosec G103 -- prctl takes a filter by its address
}

// closeForeign closes every descriptor that this process was born with and that nobody meant for it: the agent's parent
// may have left some open.
func closeForeign() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		_ = unix.CloseRange(lockFD+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
		return
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil || fd <= lockFD {
			continue
		}
		// All that this process opens itself is closed at an exec.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}
