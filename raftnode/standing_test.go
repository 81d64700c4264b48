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
	members []string // of the configuration
}

type standingServer struct {
	id       *identity
	promises *promises
	// leads in this term; 0: it does not.
	leads uint64
	terms map[uint64]uint64 // of the log's entries, by index
	reach *reach
}

// fresh is a server with an empty data directory.
func (s *standings) fresh(name, incarnation string) *standingServer {
	p, err := openPromises(atomicfile.Files{Disk: disk.OS{}}, "", "a", true, true)
	must(s.t, err)
	id := &identity{file: identityRecord{Format: 2, Server: name, copyOf: copyOf{Incarnation: incarnation}}}
	return &standingServer{id: id, promises: p, terms: map[uint64]uint64{}, reach: newReach(id)}
}

// host is what Node.host reads from Raft.
func (s *standings) host(name string) host {
	x := s.servers[name]
	return host{
		identityRecord: x.id.record(), acknowledged: x.promises.record().Acknowledged, have: x.promises.position(),
		leads: x.leads > 0, term: x.leads, second: x.terms[2], members: s.members,
	}
}

// store lets a server's log reach up to a position.
func (s *standings) store(name string, at position) {
	x := s.servers[name]
	for i := x.promises.position().Index + 1; i <= at.Index; i++ {
		x.terms[i] = at.Term
	}
	last := []*raft.Log{{Term: at.Term, Index: at.Index}}
	must(s.t, x.promises.acknowledge(last))
	for other, leader := range s.servers { // as the gate does
		if leader.leads > 0 && other != name {
			leader.reach.noteEntries(name, &raft.AppendEntriesRequest{Entries: last})
			x.reach.noteEntries(other, &raft.AppendEntriesRequest{Entries: last})
		}
	}
}

func (s *standings) lose(name string, at position) {
	x := s.servers[name]
	x.promises.have = at
	s.restart(name)
	maps.DeleteFunc(x.terms, func(i, _ uint64) bool { return i > at.Index })
}

// restart lets a server forget what it has in memory alone.
func (s *standings) restart(name string) {
	x := s.servers[name]
	x.leads, x.reach = 0, newReach(x.id)
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

// dial lets one server greet another, as stream does. A leader restocks one that has lost its data.
func (s *standings) dial(from, to string) string {
	asked := to // as nameOf says
	if !s.host(from).member(to) {
		asked = ""
	}
	err := s.greet(from, to, asked, s.host(from).admission(asked))
	if !errors.Is(err, ErrLostData) {
		return outcome(err)
	}
	found := fmt.Sprintf("%s finds that %s has lost its data\n", from, to)
	if !s.host(from).restocks(to) {
		return found
	}
	have := s.servers[from].promises.position()
	s.members = slices.DeleteFunc(s.members, func(m string) bool { return m == to })
	s.store(from, position{s.servers[from].leads, have.Index + 1})
	return found + from + " removes " + to + " and adds it: " + s.add(from, to)
}

// add makes a server one of the configuration, as AddNonvoter does.
func (s *standings) add(leader, id string) string {
	err := s.greet(leader, id, id, s.host(leader).newcomer(id))
	if err == nil && !slices.Contains(s.members, id) {
		s.members = append(s.members, id)
	}
	return outcome(err)
}

func outcome(err error) string {
	if err != nil {
		return fmt.Sprintf("refused: %v\n", err)
	}
	return "connected\n"
}

// withoutNode is a stream of a server that has no part in a consensus yet.
func withoutNode(id *identity, p *promises, r *reach, self string) *stream {
	return &stream{
		id: id, promises: p, reach: r, self: self, introduced: map[string]Addresses{}, logger: testLogger(),
		reweigh: func() {}, servers: func() raft.Configuration { return raft.Configuration{} }, leader: func() string { return "" },
	}
}

func (s *standings) greet(from, to, asked string, admit *position) error {
	a, b := s.servers[from], s.servers[to]
	answerer := withoutNode(b.id, b.promises, b.reach, b.id.record().Server)
	dialler := withoutNode(a.id, a.promises, a.reach, from)
	mine := dialler.helloTo(asked)
	mine.To, mine.Admit = asked, admit
	refusal := answerer.accept(mine)
	theirs := answerer.helloTo(from)
	if refusal != nil {
		theirs.Refusal, theirs.Lost = refusal.Error(), errors.Is(refusal, ErrLostData)
	}
	if err := a.id.record().judgeAnswer(mine, theirs); err != nil {
		return err
	}
	return dialler.meet(theirs)
}

// TestStanding shows who may vote after what happened to its data.
//
//	fresh NAME incarnation=X             a server with an empty data directory, also in the place of an old one
//	found NAME servers=(A,B,…)           it founds the cluster, of these servers
//	copy NAME as=X / restore X as=NAME   its directory is copied, and comes back
//	lead NAME term=T                     it leads in a term, and nobody else does
//	restart NAME                         it forgets what it has in memory alone
//	store NAME term=T index=I            its log reaches so far now, and it has acknowledged that
//	lose NAME term=T index=I             it starts again with its log cut back to there
//	snapshot NAME term=T index=I         it restores a snapshot
//	dial FROM to=NAME                    one connects to another, as to one of the configuration
//	add FROM server=NAME                 the leader adds one to the configuration
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
		servers, _ := d.Arg("servers")
		s.members = servers.Vals
		s.store(name, position{1, 1})
	case "copy", "restore":
		old, server := s.servers[name], s.fresh(name, "")
		server.id.file, server.promises.kept, server.promises.have = old.id.record(), old.promises.record(), old.promises.position()
		server.terms = maps.Clone(old.terms)
		if d.Cmd == "restore" {
			delete(s.servers, name)
		}
		s.servers[arg("as")] = server
	case "lead":
		for _, x := range s.servers {
			x.leads = 0
		}
		d.ScanArgs(s.t, "term", &s.servers[name].leads)
	case "restart":
		s.restart(name)
	case "store":
		s.store(name, at())
	case "lose":
		s.lose(name, at())
	case "snapshot":
		s.servers[name].promises.holds(at())
	case "dial":
		return s.dial(name, arg("to"))
	case "add":
		return s.add(name, arg("server"))
	default:
		return "unknown command"
	}
	return "ok\n"
}

// TestAdmittedBefore: who offers to admit a server at the beginning takes no older data for those that were just admitted.
func TestAdmittedBefore(t *testing.T) {
	known := copyOf{Incarnation: "b2", Admitted: position{2, 50}}
	a := identityRecord{Server: "a", Cluster: "c", Peers: map[string]copyOf{"b": known}}
	for want, b := range map[error]copyOf{ErrLostData: {Incarnation: "b1"}, nil: known} {
		got := a.judgeAnswer(hello{Admit: &b.Admitted}, hello{Cluster: "c", Server: "b", copyOf: b})
		if !errors.Is(got, want) {
			t.Errorf("%+v is answered with %v", b, got)
		}
	}
}
