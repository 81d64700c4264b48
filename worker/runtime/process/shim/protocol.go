// Package shim is the process that stands between the node agent and one container: it starts the container's command,
// writes its output to log files, learns its exit code, ends everything that it started, and keeps all that on disk. It
// lives on when the agent does not, so a restarted agent finds containers running and learns how those ended that are
// gone.
//
// A shim is the program cmd/berth-shim, or a re-execution of the binary that it is part of (Is, Main). It must stay small in imports and memory, since
// there is one for every container, and must never decide anything: it does what the agent told it at its start and
// what comes over its socket. Its files and messages may be read by a newer or an older agent: fields are only added.
package shim

import "time"

// Arg is the hidden argument that makes the binary a shim: argv[1]; argv[2] is the container's directory.
const Arg = "berth-container-shim"

// Is says whether the arguments of the process are those of a shim. The program must then call Main and exit with what
// it returns, before anything else.
func Is(args []string) bool { return len(args) == 3 && args[1] == Arg }

// Files in a container's directory.
const (
	ConfigFile      = "config.json" // Config, by the agent, before the shim starts
	StateFile       = "state.json"  // State, by the shim, before the command runs; it goes again where there is none to run
	ExitFile        = "exit.json"   // Exit, by the shim, when all has ended; by the agent, where the shim did not come to it
	ToldFile        = "told.json"   // Exit, by the agent: what it has told of an end that it could not read
	LogFile         = "log"         // the newest output; older: log.1, log.2 …
	TerminationFile = "termination" // what the container leaves as its last message
	SocketFile      = "control"
	LockFile        = "lock" // held for as long as the shim lives
)

// File descriptors that the agent hands to the shim.
const (
	readyFD = 3 // the shim writes a Ready here and keeps it open until it ends
	lockFD  = 4
)

// Config is everything that a shim is told.
type Config struct {
	Command    []string
	Env        []string
	WorkDir    string
	Root       *Root   `json:",omitempty"` // nil: the host's file system as it is, without Mounts
	Mounts     []Mount `json:",omitempty"`
	Hostname   string  `json:",omitempty"` // with a namespace of its own for it; empty: the host's
	Privileges Privileges
	UID        *int64   `json:",omitempty"` // UID and GID are both there, with an agent that runs as root, or neither
	GID        *int64   `json:",omitempty"`
	Groups     []int64  `json:",omitempty"`
	TasksV1    []string `json:",omitempty"` // cgroup v1: tasks files to be in while starting
	HomeV1     []string `json:",omitempty"` // and those to go back to
	CgroupV2   string   `json:",omitempty"` // directory of the cgroup
	StopSignal int
	Stdin      bool  `json:",omitempty"` // it reads what attached clients say; else nothing
	StdinOnce  bool  `json:",omitempty"` // until the first of them has gone; not with TTY
	TTY        bool  `json:",omitempty"` // it has a terminal
	LogBytes   int64 // size at which the log file is rotated
	LogFiles   int   // how many are kept, the newest included

	Image string `json:",omitempty"` // what the container's spec called its image: for an agent that takes it over
}

// Root is a root of the container's own, in a mount namespace of its own: it shows the host's, and the container's mounts.
type Root struct {
	Dir      string   // an empty directory to make it in
	Hide     []string `json:",omitempty"` // directories of the host that the container does not see
	ReadOnly bool     `json:",omitempty"` // the host's part of it, but for /dev and /proc
	Masked   bool     `json:",omitempty"` // the kernel's inner parts in /proc and /sys are not seen
}

// Mount is a file or directory of the host that the container finds at Target.
type Mount struct {
	Source    string
	SubPath   string `json:",omitempty"` // what of Source; it never leads out of it
	Target    string
	ReadOnly  bool `json:",omitempty"`
	Recursive bool `json:",omitempty"` // read-only with all that is mounted below
	Follow    bool `json:",omitempty"` // what the host mounts below it later is seen
}

// Ready is the shim's first and only message to the agent that started it. With an Error nothing runs.
type Ready struct {
	State
	Error string `json:",omitempty"`
	// Command: the error is the command's: it cannot be run.
	Command bool `json:",omitempty"`
}

// State says what runs. Where it is, whatever it says, the command may have run: nobody runs it again.
type State struct {
	ShimPID   int
	PID       int    // 0: the command is just being started
	PIDStart  uint64 // start time in /proc/PID/stat: a number that is used again has another one
	StartedAt time.Time
	BootID    string `json:",omitempty"` // BootID when it was written; empty: an earlier version wrote it
}

// Exit says how the command ended.
type Exit struct {
	Code       int
	Signal     int
	StartedAt  time.Time
	FinishedAt time.Time
	Unknown    bool `json:",omitempty"` // nobody saw the end: FinishedAt is when it was noticed
}

// Request is one message on the control socket; one answer comes back. Op is one of the constants below.
type Request struct {
	Op      string
	Command []string `json:",omitempty"`
	// Of OpStream and OpAttach: which descriptors come with the message, in this order. A terminal is one for all.
	Stdin, Stdout, Stderr, TTY bool `json:",omitempty"`
}

const (
	OpWatch  = "watch"  // no answer; the connection ends when the shim does, after Exit is written
	OpStop   = "stop"   // the stop signal to the command, if it runs
	OpKill   = "kill"   // KILL to everything that is left
	OpExec   = "exec"   // run Command beside the container's; ends with the connection
	OpStream = "stream" // OpExec with the agent's own ends of pipes, or of a terminal
	OpAttach = "attach" // join what the container reads and writes by pipes; Sizes may follow, if it has a terminal
	maxExecB = 4 << 10  // of an exec's output
	maxLineB = 16 << 10 // of a log line; longer ones are split
)

// Answer to a Request.
type Answer struct {
	Error    string `json:",omitempty"`
	NotFound bool   `json:",omitempty"` // it has ended
	Code     int    `json:",omitempty"`
	Output   []byte `json:",omitempty"`
}
