package demo

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/pki"
)

// process is one agent of the demonstration.
type process struct {
	name   string
	config string
	log    string
	http   string // the API's address, of a server
	cmd    *exec.Cmd
	exited chan struct{}

	kube    *kubernetes.Clientset
	dynamic dynamic.Interface
	rest    *http.Client
}

// cluster is the demonstration's processes and what they need.
type cluster struct {
	binary  string
	dir     string
	servers []*process
	workers []*process
}

const (
	serverCount = 3
	workerCount = 3
	// workerCPU is what each worker offers, whatever the machine has.
	workerCPU = 4
)

// ports of the agents; found free and then given to the processes.
type ports struct{ http, rpc, raft, gossip int }

// prepare writes certificates and configurations.
func prepare(binary, dir string) (*cluster, error) {
	c := &cluster{binary: binary, dir: dir}
	ca, err := pki.CreateCA(filepath.Join(dir, "ca"), pki.DefaultCAValidity, false)
	if err != nil {
		return nil, err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	gossipKey := base64.StdEncoding.EncodeToString(key)
	all, err := freePorts(serverCount + workerCount)
	if err != nil {
		return nil, err
	}
	join := make([]string, serverCount)
	for i := range join {
		join[i] = fmt.Sprintf("%q", net.JoinHostPort("127.0.0.1", fmt.Sprint(all[i].gossip)))
	}
	for i := range serverCount + workerCount {
		p := &process{name: fmt.Sprintf("server-%d", i+1)}
		kind, role := pki.Server, fmt.Sprintf("server {\n  enabled          = true\n  bootstrap_expect = %d\n}\n", serverCount)
		if i >= serverCount {
			p.name = fmt.Sprintf("worker-%d", i-serverCount+1)
			kind, role = pki.Worker, fmt.Sprintf("worker {\n  enabled = true\n  capacity {\n    cpu = \"%d\"\n  }\n}\n", workerCPU)
		}
		if err := c.configure(ca, p, kind, all[i], gossipKey, join, role); err != nil {
			return nil, err
		}
	}
	return c, c.connect(ca)
}

func (c *cluster) configure(ca *pki.CA, p *process, kind pki.Kind, at ports, gossipKey string, join []string, role string) error {
	r := pki.Request{Kind: kind, Name: p.name}
	if kind == pki.Server {
		r.DNSNames, r.IPs = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		p.http = net.JoinHostPort("127.0.0.1", fmt.Sprint(at.http))
		c.servers = append(c.servers, p)
	} else {
		c.workers = append(c.workers, p)
	}
	files, err := pki.Issue(filepath.Join(c.dir, "ca"), r, false)
	if err != nil {
		return err
	}
	p.config = filepath.Join(c.dir, p.name+".hcl")
	p.log = filepath.Join(c.dir, p.name+".log")
	text := fmt.Sprintf(`name      = %q
data_dir  = %q
bind_addr = "127.0.0.1"
join      = [%s]
ports {
  http   = %d
  rpc    = %d
  raft   = %d
  gossip = %d
}
gossip {
  encryption_key = %q
}
tls {
  ca_file   = %q
  cert_file = %q
  key_file  = %q
}
%s`, p.name, filepath.Join(c.dir, p.name), strings.Join(join, ", "), at.http, at.rpc, at.raft, at.gossip,
		gossipKey, files.CA, files.Cert, files.Key, role)
	return os.WriteFile(p.config, []byte(text), 0o600)
}

// connect makes the clients, one a server.
func (c *cluster) connect(ca *pki.CA) error {
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "demo", Groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	for _, p := range c.servers {
		config := &rest.Config{
			Host: "https://" + p.http, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: ca.CertPEM(), CertData: pair.CertPEM, KeyData: pair.KeyPEM},
		}
		if p.rest, err = rest.HTTPClientFor(config); err != nil {
			return err
		}
		if p.kube, err = kubernetes.NewForConfigAndClient(config, p.rest); err != nil {
			return err
		}
		if p.dynamic, err = dynamic.NewForConfigAndClient(config, p.rest); err != nil {
			return err
		}
	}
	return nil
}

// freePorts finds ports that nobody listens on now. All are held until the last
// is found, so that they differ.
func freePorts(agents int) ([]ports, error) {
	out := make([]ports, agents)
	for i := range out {
		for _, p := range []*int{&out[i].http, &out[i].rpc, &out[i].raft, &out[i].gossip} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return nil, fmt.Errorf("find a free port: %w", err)
			}
			defer func() { _ = l.Close() }() // nothing was served on it
			*p = l.Addr().(*net.TCPAddr).Port
		}
	}
	return out, nil
}

// start starts a process of its own group, so that an interrupt of the
// terminal reaches the demonstration alone.
func (c *cluster) start(p *process) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	p.cmd = exec.Command(c.binary, "agent", "-config", p.config)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	exited := make(chan struct{})
	p.exited = exited
	go func() {
		defer close(exited)
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	return nil
}

func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *process) signal(s syscall.Signal) {
	if p.running() {
		_ = p.cmd.Process.Signal(s) // it may just have ended
	}
}

// stop ends every process: politely first.
func (c *cluster) stop(grace time.Duration) {
	all := append(append([]*process{}, c.workers...), c.servers...)
	for _, p := range all {
		p.signal(syscall.SIGTERM)
	}
	deadline := time.After(grace)
	for _, p := range all {
		if p.exited == nil {
			continue
		}
		select {
		case <-p.exited:
		case <-deadline:
			p.signal(syscall.SIGKILL)
			<-p.exited
		}
	}
}

// status asks a server how it is.
func (p *process) status(ctx context.Context) (*operator.Status, error) {
	out := new(operator.Status)
	return out, p.call(ctx, http.MethodGet, operator.PathStatus, out)
}

func (p *process) verify(ctx context.Context) (*operator.VerifyResult, error) {
	out := new(operator.VerifyResult)
	return out, p.call(ctx, http.MethodPost, operator.PathVerify, out)
}

func (p *process) call(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+p.http+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.rest.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, body)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// errExited says that a process ended that should not have.
var errExited = errors.New("it ended by itself")

// alive returns an error if a process that should run does not, with the end
// of its log.
func (c *cluster) alive() error {
	for _, p := range append(append([]*process{}, c.servers...), c.workers...) {
		if p.cmd != nil && !p.running() && p.exited != nil {
			log, _ := os.ReadFile(p.log) // what can not be read is not shown
			return fmt.Errorf("%s: %w; its log ends:\n%s", p.name, errExited, tail(string(log), 10))
		}
	}
	return nil
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
