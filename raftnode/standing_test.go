package raftnode

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

// standings are servers as their data say that they are, without a network or a
// log.
type standings struct {
	t       *testing.T
	servers map[string]*standingServer
}

type standingServer struct {
	id       *identity
	promises *promises
}

// fresh is a server with an empty data directory.
func (s *standings) fresh(name, incarnation string) *standingServer {
	p, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, "", true, true)
	must(s.t, err)
	return &standingServer{
		id:       &identity{file: identityRecord{Format: 2, Server: name, copyOf: copyOf{Incarnation: incarnation}}},
		promises: p,
	}
}

func (s *standings) describe(name string) string {
	x := s.servers[name]
	r := x.id.record()
	cluster := "no cluster"
	if r.Cluster != "" {
		cluster = fmt.Sprintf("cluster %s, admitted at %s", r.Cluster, r.Admitted)
	}
	vote := "may vote"
	if r.Cluster == "" {
		vote = "talks to nobody"
	} else if err := x.promises.mayVote(); err != nil {
		vote = "no vote"
	}
	return fmt.Sprintf("%s (%s): %s; log up to %s, acknowledged up to %s: %s\n", name, r.Incarnation, cluster,
		x.promises.position(), x.promises.record().Acknowledged, vote)
}

// dial lets one server greet another, as stream does.
func (s *standings) dial(from, to string, admit *position) string {
	a, b := s.servers[from], s.servers[to]
	answerer := &stream{id: b.id, promises: b.promises, self: b.id.record().Server}
	dialler := &stream{id: a.id, promises: a.promises, self: from}
	mine := dialler.hello()
	mine.To, mine.Admit = to, admit
	refusal := answerer.accept(mine)
	theirs := answerer.hello()
	if refusal != nil {
		theirs.Refusal, theirs.Lost = refusal.Error(), errors.Is(refusal, ErrLostData)
	}
	err := a.id.record().judgeAnswer(mine, theirs)
	switch {
	case errors.Is(err, ErrLostData):
		return fmt.Sprintf("%s finds that %s has lost its data: the leader removes and admits it\n", from, to)
	case err != nil:
		return fmt.Sprintf("refused: %v\n", err)
	}
	must(s.t, a.id.meet(to, theirs.copyOf))
	return "connected\n"
}

// TestStanding shows who may vote after what happened to its data.
//
//	fresh NAME incarnation=X             a server with an empty data directory, also in the place of an old one
//	found NAME                           it founds the cluster
//	copy NAME as=X / restore X as=NAME   its directory is copied, and comes back
//	store NAME term=T index=I            its log reaches so far now, and it has acknowledged that
//	lose NAME term=T index=I             its log is cut back to there
//	snapshot NAME term=T index=I         it is sent a snapshot
//	dial FROM to=NAME                    one connects to another, as to one of the configuration
//	admit FROM to=NAME                   the leader admits one that is not in its configuration
//	founding FROM to=NAME                the founder connects before there is a log
//	show
func TestStanding(t *testing.T) {
	datadriven.Walk(t, "testdata/standing", func(t *testing.T, path string) {
		s := &standings{t: t, servers: map[string]*standingServer{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "show" {
				var out strings.Builder
				for _, name := range slices.Sorted(maps.Keys(s.servers)) {
					out.WriteString(s.describe(name))
				}
				return out.String()
			}
			return s.run(d)
		})
	})
}

func (s *standings) run(d *datadriven.TestData) string {
	name := d.CmdArgs[0].Key
	arg := func(key string) (out string) {
		d.ScanArgs(s.t, key, &out)
		return out
	}
	at := func() (p position) {
		d.ScanArgs(s.t, "term", &p.Term)
		d.ScanArgs(s.t, "index", &p.Index)
		return p
	}
	switch d.Cmd {
	case "fresh":
		s.servers[name] = s.fresh(name, arg("incarnation"))
	case "found":
		must(s.t, s.servers[name].id.found("of "+name))
	case "copy", "restore":
		old, server := s.servers[name], s.fresh(name, "")
		server.id.file, server.promises.kept, server.promises.have = old.id.record(), old.promises.record(), old.promises.position()
		if d.Cmd == "copy" {
			s.servers[arg("as")] = server
		} else {
			delete(s.servers, name)
			s.servers[arg("as")] = server
		}
	case "store":
		p := at()
		must(s.t, s.servers[name].promises.acknowledge([]*raft.Log{{Term: p.Term, Index: p.Index}}))
	case "lose":
		s.servers[name].promises.have = at()
	case "snapshot":
		must(s.t, s.servers[name].promises.holds(at()))
	case "dial":
		return s.dial(name, arg("to"), nil)
	case "admit":
		p := s.servers[name].promises.position()
		return s.dial(name, arg("to"), &p)
	case "founding":
		return s.dial(name, arg("to"), &position{})
	default:
		return "unknown command"
	}
	return "ok\n"
}
