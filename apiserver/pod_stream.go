package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"

	"github.com/berth-dev/berth/fsm"
)

const (
	// maxStream is how long somebody may stay in a pod. A stream on which nothing
	// happens ends before, at the worker.
	maxStream = 24 * time.Hour
	// maxLoggedCommand is how much of a command the server's log tells.
	maxLoggedCommand = 256
)

// podStream serves pods/exec, pods/attach and pods/portforward: upstream's
// handlers, over a connection that the worker has opened.
type podStream struct {
	what    string
	options func() runtime.Object
	backend Backend
	streams Streams // nil: there are none
	logger  hclog.Logger
}

var _ rest.Connecter = (*podStream)(nil)

// streamKinds are the subresources of pods that lead into them, with what their
// requests say.
func streamKinds() map[string]func() runtime.Object {
	return map[string]func() runtime.Object{
		"exec":        func() runtime.Object { return new(core.PodExecOptions) },
		"attach":      func() runtime.Object { return new(core.PodAttachOptions) },
		"portforward": func() runtime.Object { return new(core.PodPortForwardOptions) },
	}
}

// New implements rest.Storage.
func (s *podStream) New() runtime.Object { return s.options() }

// Destroy implements rest.Storage.
func (s *podStream) Destroy() {}

// NewConnectOptions implements rest.Connecter.
func (s *podStream) NewConnectOptions() (runtime.Object, bool, string) { return s.options(), false, "" }

// ConnectMethods implements rest.Connecter.
func (s *podStream) ConnectMethods() []string { return []string{http.MethodGet, http.MethodPost} }

// Connect implements rest.Connecter. The worker is reached before anything is
// answered, so that whatever is in the way has a status of its own.
func (s *podStream) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	if s.streams == nil {
		return nil, notImplemented(s.what)
	}
	if err := s.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	pod, ok := s.backend.View().Pods.Get(fsm.PodKey(request.NamespaceValue(ctx), name))
	if !ok {
		return nil, apierrors.NewNotFound(core.Resource("pods"), name)
	}
	internal, err := versioned[core.Pod](pod)
	if err != nil {
		return nil, err
	}
	alsoAsk(ctx, func(ctx context.Context) error { return s.mayEnter(ctx, internal) })
	if err := s.mayEnter(ctx, internal); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxStream, fmt.Errorf("it was open for %s", maxStream))
	into := &entrance{stream: s, ctx: ctx, pod: pod, internal: internal}
	handler, err := into.connect(name, opts, responder)
	if err != nil {
		cancel()
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer cancel() // and with it the connection to the worker
		begun := time.Now()
		log := s.logger.With("user", userName(ctx), "pod", pod.Namespace+"/"+pod.Name, "container", into.container)
		log.Info("somebody enters a pod", "by", s.what, "command", into.command)
		handler.ServeHTTP(&tapped{w, cancel}, r.WithContext(ctx))
		log.Info("somebody has left a pod", "by", s.what, "after", time.Since(begun).Round(time.Millisecond))
	}), nil
}

// mayEnter refuses whom a pod could tell what they may not read: see secretGuard.
// What listens in it is the pod's to tell to whoever connects.
func (s *podStream) mayEnter(ctx context.Context, pod *core.Pod) error {
	secret := secretIn(&pod.Spec)
	if s.what == "portforward" || secret == "" {
		return nil
	}
	if yes, err := mayReadSecrets(ctx, pod.Namespace); yes || err != nil {
		return err
	}
	return apierrors.NewForbidden(core.Resource("pods/"+s.what), pod.Name, fmt.Errorf(
		"it refers to the secret %q, and User %q cannot get resource \"secrets\" in API group \"\" in the namespace %q",
		secret, userName(ctx), pod.Namespace))
}

func userName(ctx context.Context) string {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return ""
	}
	return who.GetName()
}

// entrance is one request to enter a pod. To upstream's handlers it is where pods
// are read, and how a node is connected to.
type entrance struct {
	stream    *podStream
	ctx       context.Context
	pod       *corev1.Pod
	internal  *core.Pod
	container string
	command   string
	dialed    atomic.Bool
}

// connect lets upstream check the request and choose the protocol.
func (e *entrance) connect(name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	switch o := opts.(type) {
	case *core.PodExecOptions:
		if len(o.Command) == 0 {
			return nil, apierrors.NewBadRequest("you must specify at least one command for the container")
		}
		e.container, e.command = o.Container, strings.Join(o.Command, " ")
		e.command = e.command[:min(len(e.command), maxLoggedCommand)]
		return (&podrest.ExecREST{Store: e, KubeletConn: e, Authorizer: rightsOf(e.ctx)}).Connect(e.ctx, name, opts, responder)
	case *core.PodAttachOptions:
		e.container = o.Container
		return (&podrest.AttachREST{Store: e, KubeletConn: e, Authorizer: rightsOf(e.ctx)}).Connect(e.ctx, name, opts, responder)
	}
	return (&podrest.PortForwardREST{Store: e, KubeletConn: e, Authorizer: rightsOf(e.ctx)}).Connect(e.ctx, name, opts, responder)
}

// Get implements the getter of upstream's pods.
func (e *entrance) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return e.internal, nil
}

var errDialedTwice = errors.New("the connection to the worker is used already")

// GetConnectionInfo implements upstream's kubeletclient.ConnectionInfoGetter. It
// is asked once the pod and the container are found to be right.
func (e *entrance) GetConnectionInfo(_ context.Context, node types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	if e.container == "" && e.stream.what != "portforward" {
		e.container = e.pod.Spec.Containers[0].Name // the only one, or upstream would have refused
	}
	conn, err := e.stream.streams.Open(e.ctx, e.pod, e.stream.what, e.container)
	if err != nil {
		return nil, readError(err)
	}
	dial := func(context.Context, string, string) (net.Conn, error) {
		if e.dialed.Swap(true) {
			return nil, errDialedTwice
		}
		return &limitedAnswer{Conn: conn}, nil
	}
	return &kubeletclient.ConnectionInfo{
		Scheme: "http", Hostname: string(node), Port: "0", // of the tunnel, which has neither
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}, nil
}

// tapped notices when the client of a connection that is taken over goes away:
// nobody else looks for it while the pod is silent.
type tapped struct {
	http.ResponseWriter
	gone func()
}

// Hijack implements http.Hijacker.
func (t *tapped) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := t.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.New("the connection cannot be taken over")
	}
	conn, rw, err := h.Hijack()
	if err != nil {
		return nil, nil, err
	}
	early := make([]byte, rw.Reader.Buffered())
	if _, err := io.ReadFull(rw.Reader, early); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	c := &tappedConn{conn, t.gone}
	in := io.Reader(c)
	if len(early) > 0 {
		in = io.MultiReader(bytes.NewReader(early), c)
	}
	return c, bufio.NewReadWriter(bufio.NewReader(in), bufio.NewWriter(c)), nil
}

// tappedConn tells when it cannot be read any more.
type tappedConn struct {
	net.Conn
	gone func()
}

// Read implements net.Conn.
func (c *tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.gone()
	}
	return n, err
}
