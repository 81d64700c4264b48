package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/pki"
)

// The storm's clients are a process of their own, which the machine serves last: in a cluster clients have machines of their
// own, and what these take of the processors is no server's doing.

// StormArgs are the words after the program's name that make it the storm's clients (Storm).
var StormArgs = []string{"bench", "storm-clients"}

// leastNice is the least that a process may be given of the processors.
const leastNice = 19

// stormOrder is what the storm's clients are told, on the standard input. They end when it ends.
type stormOrder struct {
	Server      string
	CA          []byte
	Cert, Key   []byte
	Space       string
	Connections int
}

// stormCounts is what they tell in the end.
type stormCounts struct {
	Seconds                              float64
	Lists, Bytes, Watches, Events        int64
	Creates, Deletes, Refused, NotServed int64
}

type stormKind struct {
	what   string
	n      int64
	needed bool
}

func (s *stormCounts) kinds() []stormKind {
	return []stormKind{
		{"lists", s.Lists, true},
		{"megabytes of lists and watches", s.Bytes / 1e6, true},
		{"watches begun", s.Watches, true},
		{"pods created", s.Creates, true},
		{"requests answered with 429", s.Refused, false},
		{"requests that failed", s.NotServed, false},
	}
}

// storming is the process of the storm's clients.
type storming struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out bytes.Buffer
}

func (c *contention) startStorm(ctx context.Context) (*storming, error) {
	pair, err := c.servers.ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: stormy})
	if err != nil {
		return nil, err
	}
	order, err := json.Marshal(stormOrder{
		Server: c.leader.addr(c.leader.http), CA: c.servers.ca.CertPEM(), Cert: pair.CertPEM, Key: pair.KeyPEM,
		Space: stormy, Connections: c.Clients,
	})
	if err != nil {
		return nil, err
	}
	s := &storming{cmd: exec.CommandContext(ctx, c.Program, StormArgs...)}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the storm: %w", err)
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, s.cmd.Process.Pid, leastNice); err != nil {
		return nil, errors.Join(fmt.Errorf("the storm's clients are to be served last: %w", err), s.cmd.Process.Kill(), s.cmd.Wait())
	}
	if _, err := s.in.Write(append(order, '\n')); err != nil {
		_, stopErr := s.stop()
		return nil, errors.Join(err, stopErr)
	}
	return s, nil
}

func (s *storming) stop() (counts stormCounts, err error) {
	err = errors.Join(s.in.Close(), s.cmd.Wait())
	if err == nil {
		err = json.Unmarshal(s.out.Bytes(), &counts)
	}
	if err != nil {
		err = fmt.Errorf("the storm's clients: %w", err)
	}
	return counts, err
}

// Storm is the storm's clients: it reads what to do from in, does it until in ends, and writes to out what came of it.
func Storm(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var o stormOrder
	if err := decoder.Decode(&o); err != nil {
		return fmt.Errorf("what the storm is to do: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_ = decoder.Decode(new(any)) // there is nothing more than the end
		cancel()
	}()
	began := time.Now()
	s := &stormers{order: &o, config: restConfig(o.Server, o.CA, pki.Pair{CertPEM: o.Cert, KeyPEM: o.Key})}
	var all sync.WaitGroup
	for i := range o.Connections {
		client, err := s.client()
		if err != nil {
			cancel()
			all.Wait()
			return err
		}
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s.turn(ctx, client, i, n)
			}
			client.CloseIdleConnections()
		})
	}
	all.Wait()
	s.counts.Seconds = time.Since(began).Seconds()
	return json.NewEncoder(out).Encode(&s.counts)
}

type stormers struct {
	order  *stormOrder
	config *rest.Config
	counts stormCounts // atomically
}

// client has a connection of its own.
func (s *stormers) client() (*http.Client, error) {
	config, err := rest.TLSConfigFor(s.config)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1}
	return &http.Client{Transport: t}, nil
}

// turn is one request of a connection, or a few: of three connections one lists, one watches and one writes.
func (s *stormers) turn(ctx context.Context, client *http.Client, i, n int) {
	pods := "https://" + s.order.Server + "/api/v1/pods"
	own := "https://" + s.order.Server + "/api/v1/namespaces/" + s.order.Space + "/pods"
	switch i % 3 {
	case 0:
		s.list(ctx, client, pods, i+n)
	case 1:
		s.watch(ctx, client, pods)
	case 2:
		name := fmt.Sprintf("storm-%04d-%06d", i, n)
		body, err := json.Marshal(restingPod(s.order.Space, name))
		if err != nil {
			panic(err) // a pod is written as JSON
		}
		if s.ask(ctx, client, http.MethodPost, own, body, &s.counts.Creates) {
			s.ask(ctx, client, http.MethodDelete, own+"/"+name+"?gracePeriodSeconds=0", nil, &s.counts.Deletes)
		}
	}
}

// list asks for all pods, as programs, browsers and kubectl do.
func (s *stormers) list(ctx context.Context, client *http.Client, url string, n int) {
	forms := []string{
		"application/json",
		"application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
	}
	form := forms[n%len(forms)]
	if n%2 == 0 {
		url += "?labelSelector=" + appLabel + "%21%3Dnobodys" // every pod is looked at, and shown
	}
	s.read(ctx, client, url, form, &s.counts.Lists)
}

// watchFor is how long a watch is read, before it is begun anew from nothing.
const watchFor = 3 * time.Second

func (s *stormers) watch(ctx context.Context, client *http.Client, url string) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	s.read(ctx, client, url+"?watch=true", "application/json", &s.counts.Watches)
}

// read asks, and reads the answer to its end.
func (s *stormers) read(ctx context.Context, client *http.Client, url, form string, count *int64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err) // the address is one
	}
	req.Header.Set("Accept", form)
	s.do(ctx, client, req, count)
}

func (s *stormers) ask(ctx context.Context, client *http.Client, method, url string, body []byte, count *int64) bool {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		panic(err) // the address is one
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return s.do(ctx, client, req, count)
}

// do counts what comes of a request. Who is told to wait does not: it is a storm.
func (s *stormers) do(ctx context.Context, client *http.Client, req *http.Request, count *int64) bool {
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			atomic.AddInt64(&s.counts.NotServed, 1)
		}
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < http.StatusMultipleChoices {
		atomic.AddInt64(count, 1)
	} else if resp.StatusCode == http.StatusTooManyRequests {
		atomic.AddInt64(&s.counts.Refused, 1)
	} else {
		atomic.AddInt64(&s.counts.NotServed, 1)
	}
	n, _ := io.Copy(io.Discard, resp.Body) // a watch ends with the time that it has
	atomic.AddInt64(&s.counts.Bytes, n)
	return resp.StatusCode < http.StatusMultipleChoices
}
