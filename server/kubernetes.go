package server

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/workloads"
)

// controllerVerbosity is from which level of klog's on it is told what Kubernetes'
// controllers do; their errors always are.
const controllerVerbosity = 3

// keepKubernetes runs Kubernetes' own controllers of workloads while ctx lasts. They
// begin when every voter knows their kinds, and only where the wall clock can be gone
// by, for they go by it: they fail Jobs and delete them by the time that it shows.
func (s *Server) keepKubernetes(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.Background().V(controllerVerbosity))
	for ctx.Err() == nil {
		if s.state.View().Version() >= fsm.SinceWorkloads && s.awaitClock(ctx) {
			err := s.whileClockIsRight(ctx, s.runKubernetes)
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

func (s *Server) runKubernetes(ctx context.Context) error {
	r := s.begin(ctx)
	defer r.end(nil)
	err := workloads.Run(r.lasting, s, func(name string) *rest.Config { return s.controllerConfig(name, r) }, workloads.Options{
		Now: s.node.Clock().Time, Pods: s.podWriters(r), Workloads: s.workloadWriters(r), Authority: s.config.Authority, Autoscaler: s.config.Autoscaler,
		Off: s.config.ControllersOff, Open: s.vault.Open, Aggregation: s.aggregation(),
		Tokens: workloads.Tokens{Signer: s.accounts.Lasting(), KeyOf: tokens.KeyOf, RootCA: []byte(s.rootCA)},
	})
	if r.lasting.Err() != nil {
		return context.Cause(r.lasting)
	}
	return err
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
func (s *Server) controllerConfig(name string, r reign) *rest.Config {
	who, groups := controllerUser(name)
	return &rest.Config{
		Host:      "http://" + s.config.Name, // nobody dials it
		UserAgent: name + "-controller",
		Transport: &pacedRequests{next: &fencedRequests{s.newFence(r), s.api.Local(who, groups...)}},
		QPS:       -1, // who is too fast is told so by the API
		// What upstream's controllers ask for that is out of date is nobody's business who reads a server's output.
		WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			ContentType: kuberuntime.ContentTypeProtobuf, AcceptContentTypes: kuberuntime.ContentTypeProtobuf + "," + kuberuntime.ContentTypeJSON,
		},
	}
}

// podWriters is how controllers write pods; nil: by requests.
func (s *Server) podWriters(r reign) func(controller string) workloads.PodWriter {
	if s.api.LocalPods("") == nil {
		return nil
	}
	return func(controller string) workloads.PodWriter {
		who, groups := controllerUser(controller)
		return &fencedPods{s.newConvoyFence(r), s.api.LocalPods(who, groups...)}
	}
}

// workloadWriters is how controllers write ReplicaSets and statuses of Deployments; nil: by requests.
func (s *Server) workloadWriters(r reign) func(controller string) workloads.WorkloadWriter {
	if s.api.LocalWorkloads("") == nil {
		return nil
	}
	return func(controller string) workloads.WorkloadWriter {
		who, groups := controllerUser(controller)
		return &fencedWorkloads{s.newConvoyFence(r), s.api.LocalWorkloads(who, groups...)}
	}
}

// controllerUser is who a controller is to the API.
func controllerUser(controller string) (name string, groups []string) {
	return "system:controller:" + controller, []string{access.Controllers, access.ControllerGroup(controller)}
}

// fencedRequests are requests that a fence lets through.
type fencedRequests struct {
	*fence
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f *fencedRequests) RoundTrip(r *http.Request) (*http.Response, error) {
	return fenced(r.Context(), f.fence, func(ctx context.Context) (*http.Response, error) { return f.next.RoundTrip(r.WithContext(ctx)) })
}

// fencedPods are pods that are written as a fence lets them.
type fencedPods struct {
	*fence
	next *apiserver.LocalPods
}

// Create implements workloads.PodWriter.
func (f *fencedPods) Create(ctx context.Context, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	return fenced(ctx, f.fence, func(ctx context.Context) (*corev1.Pod, error) { return f.next.Create(ctx, namespace, pod) })
}

// RemoveFinalizers implements workloads.PodWriter.
func (f *fencedPods) RemoveFinalizers(ctx context.Context, namespace, name string, finalizers []string) (*corev1.Pod, bool, error) {
	done := true
	written, err := fenced(ctx, f.fence, func(ctx context.Context) (pod *corev1.Pod, err error) {
		pod, done, err = f.next.RemoveFinalizers(ctx, namespace, name, finalizers)
		return pod, err
	})
	return written, done, err
}

// fencedWorkloads are ReplicaSets and statuses of Deployments that are written as a fence lets them.
type fencedWorkloads struct {
	*fence
	next *apiserver.LocalWorkloads
}

// CreateReplicaSet implements workloads.WorkloadWriter.
func (f *fencedWorkloads) CreateReplicaSet(ctx context.Context, namespace string, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
	return fenced(ctx, f.fence, func(ctx context.Context) (*appsv1.ReplicaSet, error) {
		return f.next.CreateReplicaSet(ctx, namespace, rs)
	})
}

// UpdateDeploymentStatus implements workloads.WorkloadWriter.
func (f *fencedWorkloads) UpdateDeploymentStatus(ctx context.Context, namespace string, d *appsv1.Deployment) (*appsv1.Deployment, error) {
	return fenced(ctx, f.fence, func(ctx context.Context) (*appsv1.Deployment, error) {
		return f.next.UpdateDeploymentStatus(ctx, namespace, d)
	})
}
