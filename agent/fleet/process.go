package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/pki"
)

// Ports of an agent.
type Ports struct{ HTTP, RPC, Raft, Gossip int }

// Process is one agent. It is not for concurrent starts and ends.
type Process struct {
	Name string
	Kind pki.Kind
	// Config, Log and DataDir are its files.
	Config, Log, DataDir string
	Ports                Ports
	// Binary is the program of this agent; "": the fleet's.
	Binary string

	// Kube and Dynamic are an administrator's clients of a server.
	Kube    *kubernetes.Clientset
	Dynamic dynamic.Interface

	fleet  *Fleet
	host   string
	prefix []string
	files  pki.Files
	bare   bool
	http   *http.Client
	cmd    *exec.Cmd
	exited chan struct{}
	ended  bool // on purpose
}

// configure writes the agent's file.
func (p *Process) configure(part string) error {
	var join []string
	for _, s := range p.fleet.Servers() {
		join = append(join, fmt.Sprintf("%q", s.at(s.Ports.Gossip)))
	}
	signs := ""
	if p.Kind == pki.Server && !p.fleet.SignsNothing {
		signs = fmt.Sprintf("  ca_key_file = %q\n", filepath.Join(filepath.Dir(p.files.CA), pki.CAKeyFile))
	}
	secrets := fmt.Sprintf(`gossip {
  encryption_key = %q
}
tls {
  ca_file   = %q
  cert_file = %q
  key_file  = %q
%s}
`, p.fleet.GossipKey, p.files.CA, p.files.Cert, p.files.Key, signs)
	if p.bare {
		secrets = ""
	}
	text := fmt.Sprintf(`name      = %q
data_dir  = %q
bind_addr = %q
join      = [%s]
ports {
  http   = %d
  rpc    = %d
  raft   = %d
  gossip = %d
}
%s%s`, p.Name, p.DataDir, p.host, strings.Join(join, ", "), p.Ports.HTTP, p.Ports.RPC, p.Ports.Raft, p.Ports.Gossip,
		secrets, part)
	return os.WriteFile(p.Config, []byte(text), 0o600)
}

// connect makes the clients of a server.
func (p *Process) connect() error {
	config := p.RESTConfig()
	var err error
	if p.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	if p.Kube, err = kubernetes.NewForConfigAndClient(config, p.http); err != nil {
		return err
	}
	p.Dynamic, err = dynamic.NewForConfigAndClient(config, p.http)
	return err
}

// RESTConfig is an administrator's, for a client of this server.
func (p *Process) RESTConfig() *rest.Config { return p.fleet.rest(p.HTTP()) }

// HTTP is the address of a server's API.
func (p *Process) HTTP() string { return p.at(p.Ports.HTTP) }

func (p *Process) at(port int) string { return net.JoinHostPort(p.host, strconv.Itoa(port)) }

// PID is the process's; 0 if it was never started.
func (p *Process) PID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Start starts the process in a group of its own, so that an interrupt of the
// terminal does not reach it.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	args := append(slices.Clone(p.prefix), cmp.Or(p.Binary, p.fleet.Binary), "agent", "-config", p.Config)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes(p.fleet.DieTogether)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited, p.ended = cmd, exited, false
	go func() {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in its log and its state
	}()
	return nil
}

// Running reports whether the process was started and has not ended.
func (p *Process) Running() bool {
	if p.exited == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode is that of a process that has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Signal sends a signal; one that asks the process to end is taken to end it.
func (p *Process) Signal(s syscall.Signal) {
	if p.Running() {
		p.ended = p.ended || s == syscall.SIGTERM || s == syscall.SIGKILL || s == syscall.SIGINT
		_ = p.cmd.Process.Signal(s) // it may just have ended
	}
}

// Kill ends the process as a power failure would.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	if p.exited != nil {
		<-p.exited
	}
}

// LogTail is the end of the process's log.
func (p *Process) LogTail(lines int) string {
	log, _ := os.ReadFile(p.Log) // what can not be read is not shown
	return tail(string(log), lines)
}

// Status asks a server how it is.
func (p *Process) Status(ctx context.Context) (*operator.Status, error) {
	out := new(operator.Status)
	return out, p.Call(ctx, http.MethodGet, operator.PathStatus, out)
}

// Verify lets all servers compare their states.
func (p *Process) Verify(ctx context.Context) (*operator.VerifyResult, error) {
	out := new(operator.VerifyResult)
	return out, p.Call(ctx, http.MethodPost, operator.PathVerify, out)
}

// Call calls one of the operator endpoints of a server.
func (p *Process) Call(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+p.HTTP()+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what there is of it
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, body)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
func attributes(dieTogether bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if dieTogether {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}
