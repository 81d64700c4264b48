package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"text/template"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

// processes are servers of their own, so that one of them can be killed.
type processes struct {
	ca       *pki.CA
	gossip   string // the key
	servers  []*process
	settings serverSettings
	ports    *ports.Claim
}

// process is one server.
type process struct {
	name, dir               string
	http, rpc, raft, gossip int
	client                  kubernetes.Interface

	mu    sync.Mutex // guards what follows: a client asks while it is started again
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
}

// settings are a server's configuration file. Nothing about timing is set: the
// defaults are what is measured.
var settings = template.Must(template.New("").Parse(`name     = "{{.Name}}"
data_dir = "data"
join     = [{{range .Join}}"127.0.0.1:{{.}}", {{end}}]

ports {
  http   = {{.HTTP}}
  rpc    = {{.RPC}}
  raft   = {{.Raft}}
  gossip = {{.Gossip}}
}

gossip {
  encryption_key = "{{.Key}}"
}

tls {
  ca_file   = "ca.pem"
  cert_file = "server.pem"
  key_file  = "server-key.pem"
}

server {
  enabled          = true
  bootstrap_expect = {{.Expect}}

{{if .Controllers}}
  controllers = [{{range .Controllers}}"{{.}}", {{end}}]
{{end}}{{if .EventLimit}}
  scheduler { event_limit = {{.EventLimit}} }
{{end}}}
`))

// serverSettings are those that workloads differ in.
type serverSettings struct {
	EventLimit  int      // 0: the default
	Controllers []string // those that a leader runs; nil: all
}

// startProcesses starts the servers and waits until one leads.
func (r *run) startProcesses(ctx context.Context, settings serverSettings) (_ *processes, err error) {
	if r.Program == "" {
		return nil, errors.New("servers that are processes need Berth's binary")
	}
	now := time.Now()
	ca, err := pki.NewCA(now, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	ps := &processes{ca: ca, gossip: base64.StdEncoding.EncodeToString(key), settings: settings}
	admin, err := ca.Issue(now, pki.Request{Kind: pki.Client, Name: user, Groups: groups})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			ps.stop()
		}
	}()
	if ps.ports, err = ports.Free(4 * r.Servers); err != nil {
		return nil, err
	}
	for i := range r.Servers {
		name := fmt.Sprintf("server-%d", i+1)
		p := &process{name: name, dir: filepath.Join(r.DataDir, name)}
		own := ps.ports.Ports[4*i:]
		p.http, p.rpc, p.raft, p.gossip = own[0], own[1], own[2], own[3]
		if p.client, err = newClient(p.addr(p.http), ca.CertPEM(), admin); err != nil {
			return nil, err
		}
		ps.servers = append(ps.servers, p)
	}
	for _, p := range ps.servers {
		if err := ps.furnish(p); err != nil {
			return nil, err
		}
		if err := p.start(r.Program); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, _, err = ps.awaitLeader(ctx, 0)
	return ps, err
}

func (p *process) addr(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// furnish writes what a server needs.
func (ps *processes) furnish(p *process) error {
	pair, err := ps.ca.Issue(time.Now(), pki.Request{
		Kind: pki.Server, Name: p.name, DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		return err
	}
	var join []int
	for _, other := range ps.servers {
		join = append(join, other.gossip)
	}
	var hcl bytes.Buffer
	err = settings.Execute(&hcl, struct {
		Name, Key                       string
		Join                            []int
		HTTP, RPC, Raft, Gossip, Expect int
		serverSettings
	}{p.name, ps.gossip, join, p.http, p.rpc, p.raft, p.gossip, len(ps.servers), ps.settings})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"berth.hcl": hcl.Bytes(), "ca.pem": ps.ca.CertPEM(), "server.pem": pair.CertPEM, "server-key.pem": pair.KeyPEM,
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), content, 0o600); err != nil {
			return fmt.Errorf("furnish %s: %w", p.name, err)
		}
	}
	return nil
}

// logFile is what a server writes into.
func (p *process) logFile() string { return filepath.Join(p.dir, "log") }

func (p *process) start(program string) error {
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.Command(program, "agent", "-config", filepath.Join(p.dir, "berth.hcl"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.ended = cmd, ended
	p.mu.Unlock()
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	return nil
}

// fleet starts the workload's workers, which connect to all servers.
func (ps *processes) fleet(ctx context.Context, r *run) (*fleet, error) {
	var addrs []string
	for _, p := range ps.servers {
		addrs = append(addrs, p.addr(p.rpc))
	}
	return startFleet(ctx, fleetConfig{
		workers: r.Nodes, servers: addrs, version: r.Version, source: ps.workerSource, registered: ps.nodes,
	})
}

// workerSource makes the certificate of a worker.
func (ps *processes) workerSource(name string) (*pki.Source, error) {
	pair, err := ps.ca.Issue(time.Now(), pki.Request{Kind: pki.Worker, Name: name})
	if err != nil {
		return nil, err
	}
	return pki.FromPEM(ps.ca.CertPEM(), pair)
}

// nodes is how many nodes the cluster knows.
func (ps *processes) nodes(ctx context.Context) (int, error) {
	list, err := ps.servers[0].client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}

// running is the process, and the channel that is closed when it has ended; nil
// if it was never started.
func (p *process) running() (*exec.Cmd, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.ended
}

// kill ends the process as a power cut would.
func (p *process) kill() error {
	cmd, ended := p.running()
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-ended
	return nil
}

func (p *process) alive() bool {
	_, ended := p.running()
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

// lastWords is the end of the server's log.
func (p *process) lastWords() string {
	b, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

func (ps *processes) stop() {
	var stopping sync.WaitGroup
	for _, p := range ps.servers {
		cmd, ended := p.running()
		if cmd == nil {
			continue
		}
		stopping.Go(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it fails only for one that has ended
			select {
			case <-ended:
			case <-time.After(startTimeout):
				_ = p.kill()
			}
		})
	}
	stopping.Wait()
	ps.ports.Release()
}

// others are all servers but one.
func (ps *processes) others(but *process) (out []*process) {
	for _, p := range ps.servers {
		if p != but {
			out = append(out, p)
		}
	}
	return out
}

// awaitLeader waits for a leader of a later term than the given one.
func (ps *processes) awaitLeader(ctx context.Context, after uint64) (*process, uint64, error) {
	for {
		for _, p := range ps.servers {
			if !p.alive() {
				continue
			}
			status := new(operator.Status)
			err := p.ask(ctx, http.MethodGet, operator.PathStatus, status)
			if err == nil && status.State == "leader" && status.Term > after {
				return p, status.Term, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("waiting for a leader: %w; the servers' last words:\n%s", ctx.Err(), ps.lastWords())
		case <-time.After(poll):
		}
	}
}

func (ps *processes) lastWords() string {
	var b bytes.Buffer
	for _, p := range ps.servers {
		fmt.Fprintf(&b, "%s (running: %t):\n%s\n", p.name, p.alive(), p.lastWords())
	}
	return b.String()
}

// ask sends an operator's request to this server.
func (p *process) ask(ctx context.Context, method, path string, into any) error {
	raw, err := p.rest().Verb(method).AbsPath(path).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return fmt.Errorf("%s at %s: %w", path, p.name, err)
	}
	return nil
}

func (p *process) rest() rest.Interface { return p.client.CoreV1().RESTClient() }

// verify asks for the digests of all servers at one index, and fails unless
// those of the servers that run are equal.
func (ps *processes) verify(ctx context.Context, by *process) (all bool, err error) {
	result := new(operator.VerifyResult)
	if err := by.ask(ctx, http.MethodPost, operator.PathVerify, result); err != nil {
		return false, err
	}
	first := ""
	for _, v := range result.Servers {
		for _, p := range ps.servers {
			if p.name != v.Name || !p.alive() || v.Digest == "" {
				continue
			}
			if first != "" && v.Digest != first {
				return false, fmt.Errorf("the servers' states differ at index %d: %+v", result.Index, result.Servers)
			}
			first = v.Digest
		}
	}
	if first == "" {
		return false, fmt.Errorf("no server tells its digest: %+v", result.Servers)
	}
	return result.Equal, nil
}
