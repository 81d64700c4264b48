package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

// Fleet is the agents of one cluster, and what they share.
type Fleet struct {
	// Binary is the program that agents are processes of; Dir holds everything.
	Binary, Dir string
	// GossipKey and CA are those of every agent that is added from now on.
	GossipKey string
	CA        *pki.CA
	// SignsNothing keeps the CA's key from the servers: those of before version 11 of the log's rules
	// know no option for it.
	SignsNothing bool
	// DieTogether ends the agents when the process that started them ends,
	// however it does. Their pods live on.
	DieTogether bool

	procs []*Process
	admin pki.Pair
	ports []*ports.Claim // those that agents have, whether they listen there or not
}

// Spec is what is special about one agent.
type Spec struct {
	Name string
	// Kind is pki.Server or pki.Worker: the certificate's.
	Kind pki.Kind
	// HCL is the agent's part of the configuration: its server or worker block.
	HCL string
	// Bare agents have neither a certificate nor the key of gossip: they join by a token.
	Bare bool
	// Host is the address that the agent binds to and is reached at; "": 127.0.0.1.
	Host string
	// Prefix is a program, with arguments, that executes the agent as itself: in
	// another namespace, say.
	Prefix []string
}

// New prepares a fleet without agents: a directory, a CA, a gossip key.
func New(binary, dir string) (*Fleet, error) {
	f := &Fleet{Binary: binary, Dir: dir}
	var err error
	if f.CA, err = pki.CreateCA(filepath.Join(dir, "ca"), pki.DefaultCAValidity, false); err != nil {
		return nil, err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	f.GossipKey = base64.StdEncoding.EncodeToString(key)
	f.admin, err = f.CA.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "admin", Groups: []string{"system:masters"}})
	return f, err
}

// Add configures agents, which know each other and all earlier servers, and
// starts none.
func (f *Fleet) Add(specs ...Spec) ([]*Process, error) {
	added := make([]*Process, len(specs))
	for i, s := range specs {
		p, err := f.newProcess(s)
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", s.Name, err)
		}
		added[i] = p
		f.procs = append(f.procs, p)
	}
	for i, p := range added {
		if err := p.configure(specs[i].HCL); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", p.Name, err)
		}
	}
	return added, nil
}

func (f *Fleet) newProcess(s Spec) (*Process, error) {
	p := &Process{
		Name: s.Name, Kind: s.Kind, bare: s.Bare, fleet: f, host: cmp.Or(s.Host, localhost), prefix: s.Prefix,
		Config: filepath.Join(f.Dir, s.Name+".hcl"), Log: filepath.Join(f.Dir, s.Name+".log"), DataDir: filepath.Join(f.Dir, s.Name),
	}
	r := pki.Request{Kind: s.Kind, Name: s.Name}
	if s.Kind == pki.Server {
		r.DNSNames, r.IPs = []string{"localhost"}, []net.IP{net.ParseIP(p.host)}
	}
	var err error
	if p.files, err = pki.Issue(filepath.Join(f.Dir, "ca"), r, false); err != nil {
		return nil, err
	}
	claim, err := ports.Free(4)
	if err != nil {
		return nil, err
	}
	f.ports = append(f.ports, claim)
	p.Ports = Ports{HTTP: claim.Ports[0], RPC: claim.Ports[1], Raft: claim.Ports[2], Gossip: claim.Ports[3]}
	if s.Kind == pki.Server {
		return p, p.connect()
	}
	return p, nil
}

// Processes are all agents, servers and workers in the order they were added.
func (f *Fleet) Processes() []*Process { return f.procs }

// Servers are those that hold the state.
func (f *Fleet) Servers() []*Process { return f.kind(pki.Server) }

// Workers are those that run pods.
func (f *Fleet) Workers() []*Process { return f.kind(pki.Worker) }

func (f *Fleet) kind(k pki.Kind) []*Process {
	var out []*Process
	for _, p := range f.procs {
		if p.Kind == k {
			out = append(out, p)
		}
	}
	return out
}

// Start starts all agents that do not run.
func (f *Fleet) Start() error {
	for _, p := range f.procs {
		if p.Running() {
			continue
		}
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends every process: politely first, and after the grace at once. Their
// ports may be others' then.
func (f *Fleet) Stop(grace time.Duration) {
	defer func() {
		for _, claim := range f.ports {
			claim.Release()
		}
	}()
	for _, p := range f.procs {
		p.Signal(syscall.SIGTERM)
	}
	deadline := time.After(grace)
	for _, p := range f.procs {
		if p.exited == nil {
			continue
		}
		select {
		case <-p.exited:
		case <-deadline:
			p.Kill()
		}
	}
}

// Reader is a server that runs; the first one if none does.
func (f *Fleet) Reader() *Process {
	servers := f.Servers()
	for _, p := range servers {
		if p.Running() {
			return p
		}
	}
	return servers[0]
}

// Leader asks the running servers who leads; nil if nobody does.
func (f *Fleet) Leader(ctx context.Context) *Process {
	for _, p := range f.Servers() {
		if !p.Running() {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		status, err := p.Status(ask)
		cancel()
		if err == nil && status.State == "leader" {
			return p
		}
	}
	return nil
}

// askTimeout is how long a server may take to say how it is.
const askTimeout = time.Second

// ErrExited says that a process ended that should not have.
var ErrExited = errors.New("it ended by itself")

// Alive returns an error if a process has ended that nobody ended, with the end
// of its log.
func (f *Fleet) Alive() error {
	for _, p := range f.procs {
		if p.exited != nil && !p.Running() && !p.ended {
			return fmt.Errorf("%s: %w; its log ends:\n%s", p.Name, ErrExited, p.LogTail(10))
		}
	}
	return nil
}

// rest is an administrator's configuration of a client.
func (f *Fleet) rest(host string) *rest.Config {
	return &rest.Config{
		Host: "https://" + host, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: f.CA.CertPEM(), CertData: f.admin.CertPEM, KeyData: f.admin.KeyPEM},
	}
}

const localhost = "127.0.0.1"

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// WriteFile writes a file below the fleet's directory and returns its path.
func (f *Fleet) WriteFile(name, text string) (string, error) {
	path := filepath.Join(f.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- containers reach their volumes below it
		return "", err
	}
	return path, os.WriteFile(path, []byte(text), 0o600)
}
