package archtest

import (
	"strings"
	"testing"
)

// floors says on which floor a package lives. Each imports only what lives
// below it, so that the core can be read, tested and simulated without the
// machinery above it; packages of one floor do not know each other, so that
// each can be replaced alone.
var floors = map[string]int{
	"api":        0,
	"clock":      0,
	"disk":       0,
	"docs":       0,
	"atomicfile": 0,
	"guard":      0,
	"handshake":  0,
	"config":     0,
	"model":      0,
	"access":     0,
	"pki":        0,
	"ports":      0,
	"wire":       0,
	"raftlog":    1,
	"sample":     1,
	"store":      1,
	"budgets":    2,
	"codec":      2,
	"owners":     2,
	"queue":      2,
	"quotas":     2,
	"usage":      2,
	"fsm":        3,
	"controller": 4,
	"informers":  4,
	"sched":      4,
	// A package below another one has a floor of its own where it must not know what that one knows.
	"sched/victims": 1,
	"apiserver":     5,
	"cluster":       5,
	"explain":       5,
	"peers":         5,
	"raftnode":      5,
	"rpc":           5,
	"web":           5,
	"worker":        5,
	"workloads":     5,
	"agent":         6,
	"server":        6,
	"bench":         7,
	"cmd":           7,
	"e2e":           7,
	"sim":           7,
}

// exceptions are imports inside of one floor, each with its reason.
var exceptions = map[string]string{
	"agent -> server": "an agent is a server, a worker or both in one process: it is their wiring, as cmd is its command line",
	"cmd -> bench":    "berth bench is the bench behind a command line",
}

func TestFloors(t *testing.T) {
	for _, f := range load(t).files {
		from := root(f.Dir)
		if from == "." || from == "archtest" {
			continue
		}
		floor, known := floors[from]
		if !known {
			t.Errorf("%s: package %s has no floor: give it one in archtest and in docs/architecture.md", f.Path, from)
			continue
		}
		for _, p := range f.imports() {
			rest, ours := strings.CutPrefix(p, module+"/")
			if !ours {
				continue
			}
			to := root(rest)
			if to == from {
				continue
			}
			if to == "config" && from != "cmd" {
				t.Errorf("%s imports config: only cmd may, so that everything else takes plain values and can be started without a file", f.Path)
			}
			if f.Test || exceptions[from+" -> "+to] != "" {
				continue
			}
			switch below := floors[to]; {
			case below > floor:
				t.Errorf("%s (floor %d) imports %s (floor %d): a package knows only what lives below it", f.Path, floor, to, below)
			case below == floor && to != "api" && to != "atomicfile" && to != "disk" && to != "pki" && to != "wire":
				t.Errorf("%s imports %s of its own floor %d: declare an interface where it is used, and let the floor above join the two", f.Path, to, floor)
			}
		}
	}
}

// root is the package that a directory's floor is that of: itself, or the topmost above it.
func root(dir string) string {
	if _, own := floors[dir]; own {
		return dir
	}
	top, _, _ := strings.Cut(dir, "/")
	return top
}

// The Kubernetes server library is large: what it drags in stays in the packages
// that need it.
func TestKubernetesStaysWhereItIsNeeded(t *testing.T) {
	for _, f := range load(t).files {
		for _, p := range f.imports() {
			switch {
			case strings.HasPrefix(p, "k8s.io/kubernetes") && !within(f.Dir, "apiserver", "workloads", "worker/services", "worker/probes", "worker/envfile", "agent/manifests"):
				t.Errorf("%s imports %s: only apiserver, workloads, worker/services, worker/probes, worker/envfile and agent/manifests may use k8s.io/kubernetes, it is not meant as a library", f.Path, p)
			case strings.HasPrefix(p, "github.com/hashicorp/raft") && !within(f.Dir, "raftlog", "raftnode", "server", "cmd", "bench", "e2e"):
				t.Errorf("%s imports %s: the log's machinery is raftnode's, the state machine and what reads it know nothing of it", f.Path, p)
			}
		}
	}
}
