package server

import (
	"context"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"time"

	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/workloads"
)

// controllerVerbosity is from which level of klog's on it is told what Kubernetes'
// controllers do; their errors always are.
const controllerVerbosity = 3

// controllerRequests is how many requests a controller has under way at a time, for each core. Some ask for five hundred things
// at once; answered all at once, on the leader's own cores, they would keep its heartbeats waiting until it is no leader any
// more. So many keep the cores busy while others wait for the log.
const controllerRequests = 16

// keepKubernetes runs Kubernetes' own controllers of workloads while ctx lasts. They
// begin when every voter knows their kinds.
func (s *Server) keepKubernetes(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.Background().V(controllerVerbosity))
	for ctx.Err() == nil {
		if s.state.View().Version() >= fsm.SinceWorkloads {
			term := s.node.Leadership().Term // the state is at least as new
			err := workloads.Run(ctx, s, func(name string) *rest.Config { return s.controllerConfig(ctx, name, term) }, workloads.Options{
				Authority: s.config.Authority, Autoscaler: s.config.Autoscaler, Off: s.config.ControllersOff, Open: s.vault.Open, Aggregation: s.aggregation(),
			})
			if ctx.Err() == nil {
				s.log.Info("the controllers of workloads begin anew", "reason", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(controlInterval):
		}
	}
}

// aggregation says how servers of others' are reached, and by what they know this cluster's.
func (s *Server) aggregation() workloads.Aggregation {
	return workloads.Aggregation{
		Resolve: func(namespace, name string, port int32) (*url.URL, error) {
			return apiserver.ResolveService(s.state.View(), namespace, name, port)
		},
		Certificate: s.config.TLS.PEM, Authority: s.rootCA,
		Users: func() (users []string) {
			for _, m := range s.node.Configuration() {
				users = append(users, pki.ServerUser(m.ID))
			}
			slices.Sort(users)
			return users
		},
	}
}

// controllerConfig is a controller's way to the API of this server.
func (s *Server) controllerConfig(ctx context.Context, name string, term uint64) *rest.Config {
	return &rest.Config{
		Host:      "http://" + s.config.Name, // nobody dials it
		UserAgent: name + "-controller",
		Transport: &fenced{
			next: s.api.Local("system:controller:"+name, access.Controllers, access.ControllerGroup(name)), leading: ctx, term: term,
			places: make(chan struct{}, controllerRequests*runtime.GOMAXPROCS(0)),
		},
		QPS: -1, // who is too fast is told so by the API
		ContentConfig: rest.ContentConfig{
			ContentType: kuberuntime.ContentTypeProtobuf, AcceptContentTypes: kuberuntime.ContentTypeProtobuf + "," + kuberuntime.ContentTypeJSON,
		},
	}
}

// here is the key of the term in which, as the leader, only this server may carry out
// what a request writes.
type here struct{}

// fenced lets requests through while a leadership lasts. What is written is proposed by
// this server, in this term, or not at all: so a new leader, which begins when it has applied all that
// the one before it had proposed, never meets a write that was thought of on an older state.
type fenced struct {
	next    http.RoundTripper
	leading context.Context
	term    uint64
	places  chan struct{} // one is taken by each request
}

// RoundTrip implements http.RoundTripper.
func (f *fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := f.leading.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), here{}, f.term))
	defer cancel()
	defer context.AfterFunc(f.leading, cancel)()
	select {
	case f.places <- struct{}{}:
		defer func() { <-f.places }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return f.next.RoundTrip(r.WithContext(ctx))
}
