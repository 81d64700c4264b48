package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ports"
	"github.com/berth-dev/berth/worker/runtime"
)

// execOnly is a runtime of which only Exec is used, and which does not answer
// probes itself.
type execOnly struct {
	runtime.Runtime
	code int
}

func (r execOnly) Exec(context.Context, runtime.ID, []string) (runtime.ExecResult, error) {
	return runtime.ExecResult{Code: r.code, Output: []byte("why\n")}, nil
}

// PB1: what each kind of probe takes for a success.
func TestProbeCalls(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/")) // the paths below are numbers
		if r.Host == "other.example" {
			code = http.StatusTeapot
		}
		w.WriteHeader(code)
	}))
	defer web.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer secure.Close()
	grpcPort := serveHealth(t)
	closed, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Release()
	nobody := portOfAddr(closed.Addr(0))
	port := portOfAddr(web.Listener.Addr().String())
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}}
	}
	named, hosted, unnamed := get("/200"), get("/200"), get("/200")
	unnamed.HTTPGet.Port = intstr.FromString("none")
	named.HTTPGet.Port = intstr.FromString("web")
	hosted.HTTPGet.HTTPHeaders = []corev1.HTTPHeader{{Name: "Host", Value: "other.example"}}
	tls := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt32(portOfAddr(secure.Listener.Addr().String()))}}
	tcp := func(port int32) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
	}
	rpc := func(port int32, service string) corev1.ProbeHandler {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: &service}}
	}
	command := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}
	for _, c := range []struct {
		name    string
		handler corev1.ProbeHandler
		code    int
		fails   string
	}{
		{"exec", command, 0, ""},
		{"exec, other code", command, 3, `command ["check"] exited with 3: why`},
		{"http 200", get("/200"), 0, ""},
		{"http 399", get("399"), 0, ""},
		{"http 404", get("/404"), 0, "statuscode: 404"},
		{"http, named port", named, 0, ""},
		{"http, host header", hosted, 0, "statuscode: 418"},
		{"https, any certificate", tls, 0, ""},
		{"http, nobody", corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(nobody)}}, 0, "refused"},
		{"tcp", tcp(port), 0, ""},
		{"tcp, nobody", tcp(nobody), 0, "refused"},
		{"http, a port of no name", unnamed, 0, "nothing follows: "},
		{"grpc", rpc(grpcPort, ""), 0, ""},
		{"grpc, not serving", rpc(grpcPort, "ill"), 0, "NOT_SERVING"},
		{"grpc, nobody", rpc(nobody, ""), 0, "refused"},
		{"none", corev1.ProbeHandler{}, 0, "nothing follows: the probe is of a kind that this node does not know"},
	} {
		t.Run(c.name, func(t *testing.T) {
			caller := caller{runtime: execOnly{code: c.code}}
			container := &corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: port}}}
			o := caller.do(context.Background(), Action{
				Kind: ActionProbe, Pod: &corev1.Pod{}, IPs: []string{"127.0.0.1"}, Container: container, Probe: &corev1.Probe{ProbeHandler: c.handler}, Timeout: 10 * time.Second,
			})
			var unmade *runtime.ProbeError
			if errors.As(o.Err, &unmade) {
				o.Err = fmt.Errorf("nothing follows: %w", o.Err)
			}
			if c.fails == "" && o.Err != nil || c.fails != "" && (o.Err == nil || !strings.Contains(o.Err.Error(), c.fails)) {
				t.Errorf("got %v, want %q", o.Err, c.fails)
			}
		})
	}
}

func serveHealth(t *testing.T) int32 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := health.NewServer()
	service.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, service)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(fmt.Errorf("serve: %w", err))
		}
	})
	return portOfAddr(l.Addr().String())
}

func portOfAddr(addr string) int32 {
	_, p, _ := net.SplitHostPort(addr) // a listener's
	n, _ := strconv.Atoi(p)
	return int32(n)
}

// failing is a runtime whose Exec fails, and which counts.
type failing struct {
	runtime.Runtime
	err   error
	block bool // until the context ends
	tries int
}

func (r *failing) Exec(ctx context.Context, _ runtime.ID, _ []string) (runtime.ExecResult, error) {
	r.tries++
	if r.block {
		<-ctx.Done()
		return runtime.ExecResult{}, ctx.Err()
	}
	return runtime.ExecResult{}, r.err
}

// PB2: a command that cannot be run is tried three times and says nothing of its container; one that takes too long says that it is ill.
func TestProbesThatCannotBeMade(t *testing.T) {
	probe := Action{Kind: ActionProbe, Pod: &corev1.Pod{}, Container: &corev1.Container{}, Timeout: time.Minute,
		Probe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}}}
	for name, c := range map[string]struct {
		runtime failing
		tries   int
		unmade  bool
	}{
		"no such command": {failing{err: errors.New("executable file not found")}, probeTries, true},
		"no such run":     {failing{err: runtime.ErrNotFound}, probeTries, true},
		"runtime is away": {failing{err: runtime.ErrUnavailable}, 1, false},
		"takes too long":  {failing{block: true}, 1, false},
	} {
		a := probe
		if c.runtime.block {
			a.Timeout = time.Millisecond
		}
		caller := caller{runtime: &c.runtime}
		o := caller.do(t.Context(), a)
		var unmade *runtime.ProbeError
		if errors.As(o.Err, &unmade) != c.unmade || o.Err == nil || c.runtime.tries != c.tries {
			t.Errorf("%s: %d tries, %v", name, c.runtime.tries, o.Err)
		}
	}
}

// A success with a warning is a success, and is told.
func TestProbeWarning(t *testing.T) {
	var told []string
	env := &podEnv{event: func(_ *corev1.Pod, _, reason, message string) { told = append(told, reason+": "+message) }}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", ReadinessProbe: &corev1.Probe{}}}}}
	p := newPodState(pod, nil, env, epoch)
	c := &p.ctrs[0]
	c.state, c.attempt = ctrRunning, 0
	for range 3 {
		p.done(Outcome{Action: Action{Kind: ActionProbe, ID: p.id(c), ProbeKind: ProbeReadiness, Probe: &corev1.Probe{}}, Warning: "it leads away"}, epoch)
	}
	if !c.ready() || len(told) != 2 || told[0] != "ProbeWarning: Readiness probe warning: it leads away" { // the first, and the second in a row
		t.Errorf("ready %v, told %q", c.ready(), told)
	}
}

// A probe's command has the container's variables, as far as the spec says their values itself.
func TestProbeWords(t *testing.T) {
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "PORT", Value: "1"}, {Name: "PORT", Value: "80"}, {Name: "HOST", Value: "$(PORT)"},
		{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}}
	got := probeWords([]string{"check", "$(PORT)", "$$(PORT)", "$(HOST)", "<$(NODE)>", "$(OTHER)"}, c)
	if want := []string{"check", "80", "$(PORT)", "$(PORT)", "<>", "$(OTHER)"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A postStart hook has no bound of its own: it ends by itself, or is cut.
func TestPostStartIsCut(t *testing.T) {
	c := caller{runtime: &failing{block: true}}
	a := Action{Kind: ActionPostStart, Pod: &corev1.Pod{}, ID: runtime.ID{Pod: "p", Container: "a"},
		Hook: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"warm"}}}}
	ctx, over := c.cuttable.begin(t.Context(), a)
	if at, bound := ctx.Deadline(); bound {
		t.Errorf("it has until %s", at)
	}
	done := make(chan Outcome, 1)
	go func() {
		defer over()
		done <- c.do(ctx, a)
	}()
	c.do(t.Context(), Action{Kind: ActionHookEnd, ID: runtime.ID{Pod: "p", Container: "b"}}) // another's
	c.do(t.Context(), Action{Kind: ActionHookEnd, ID: a.ID})
	if o := <-done; !errors.Is(o.Err, context.Canceled) {
		t.Errorf("%v", o.Err)
	}
}

// holding is a runtime that waits for the output of a command that has had its time.
type holding struct {
	runtime.Runtime
	timedOut, release chan struct{}
}

func (h *holding) Exec(ctx context.Context, _ runtime.ID, _ []string) (runtime.ExecResult, error) {
	<-ctx.Done()
	close(h.timedOut)
	<-h.release
	return runtime.ExecResult{}, nil
}

// Who ends does not wait for that.
func TestNobodyWaitsForHeldOutput(t *testing.T) {
	command := &corev1.ExecAction{Command: []string{"check"}}
	for _, a := range []Action{
		{Kind: ActionProbe, Probe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: command}}},
		{Kind: ActionPreStop, Hook: &corev1.LifecycleHandler{Exec: command}},
	} {
		a.Pod, a.Container, a.Timeout = &corev1.Pod{}, &corev1.Container{}, time.Millisecond
		h := &holding{timedOut: make(chan struct{}), release: make(chan struct{})}
		c := caller{runtime: h}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan Outcome, 1)
		go func() { done <- c.do(ctx, a) }()
		<-h.timedOut
		cancel()
		if o := <-done; o.Err == nil {
			t.Errorf("%s: it came to its end", a.Kind)
		}
		close(h.release)
	}
}
