package connect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	schedulingv1client "k8s.io/client-go/kubernetes/typed/scheduling/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/api/operator"
)

// API is the typed access that Berth's own verbs need.
type API struct {
	Core       corev1client.CoreV1Interface
	Scheduling schedulingv1client.SchedulingV1Interface

	client *Client
	scheme *runtime.Scheme
	berth  rest.Interface
}

// API connects. It sends nothing yet.
func (c *Client) API() (*API, error) {
	cfg, err := c.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	// A person may look at the traffic with --v=8.
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	core, err := corev1client.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	scheduling, err := schedulingv1client.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := berthv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	// So that an answer of kind Status is read as the error it is.
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	a := &API{Core: core, Scheduling: scheduling, client: c, scheme: scheme}
	a.berth, err = a.restClient(cfg)
	return a, err
}

func (a *API) restClient(cfg *rest.Config) (rest.Interface, error) {
	gv := berthv1.GroupVersion
	cfg.APIPath, cfg.GroupVersion = "/apis", &gv
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(a.scheme).WithoutConversion()
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	return client, nil
}

// Get reads one object of group berth.dev; namespace "" is for those without.
func (a *API) Get(ctx context.Context, resource, namespace, name string, into runtime.Object) error {
	return a.berth.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").Name(name).Do(ctx).Into(into)
}

// List reads all objects of group berth.dev in a namespace, or with "" in all.
func (a *API) List(ctx context.Context, resource, namespace string, into runtime.Object) error {
	return a.berth.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").Do(ctx).Into(into)
}

// WatchBroke is what client-go itself says of a watch that it could not go on reading: the connection was lost, or what came was not an event.
const WatchBroke metav1.CauseType = "ClientWatchDecoding"

// Watch follows the objects of group berth.dev from a revision on.
func (a *API) Watch(ctx context.Context, resource, namespace, revision string) (watch.Interface, error) {
	opts := metav1.ListOptions{Watch: true, ResourceVersion: revision}
	return a.berth.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").
		VersionedParams(&opts, runtime.NewParameterCodec(a.scheme)).Watch(ctx)
}

// Plan asks the cluster where pods would go.
func (a *API) Plan(ctx context.Context, plan *berthv1.Plan) (*berthv1.Plan, error) {
	answer := &berthv1.Plan{}
	err := a.berth.Post().Resource(berthv1.ResourcePlans).Body(plan).Do(ctx).Into(answer)
	return answer, err
}

// ServerVersion asks any server for the version of the API that it serves.
func (a *API) ServerVersion(ctx context.Context) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	err := a.Operator(ctx, http.MethodGet, "/version", nil, &v)
	return v.GitVersion, err
}

// Operator calls one of the operator endpoints with JSON in and out; either may
// be nil.
func (a *API) Operator(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("writing the request: %w", err)
		}
	}
	return a.operate(ctx, out, func(c rest.Interface) (*rest.Request, error) {
		req := c.Verb(method).AbsPath(path)
		if body != nil {
			req = req.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
		}
		return req, nil
	})
}

// Ask reads one of the paths under /berth/v1 that take parameters.
func (a *API) Ask(ctx context.Context, path string, parameters url.Values, out any) error {
	return a.operate(ctx, out, func(c rest.Interface) (*rest.Request, error) {
		req := c.Get().AbsPath(path)
		for name, values := range parameters {
			for _, value := range values {
				req = req.Param(name, value)
			}
		}
		return req, nil
	})
}

// Upload sends a file to an operator endpoint and reads its answer.
func (a *API) Upload(ctx context.Context, path, contentType string, file io.ReadSeeker, out any) error {
	return a.operate(ctx, out, func(c rest.Interface) (*rest.Request, error) {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("reading the file again: %w", err)
		}
		return c.Put().AbsPath(path).SetHeader("Content-Type", contentType).Body(io.NopCloser(file)), nil
	})
}

// operate sends a request and reads its answer. A server that cannot do it and
// says so with 503 has done nothing; what only the leader can do is then asked of
// the leader.
func (a *API) operate(ctx context.Context, out any, request func(rest.Interface) (*rest.Request, error)) error {
	send := func(to rest.Interface) ([]byte, error) {
		req, err := request(to)
		if err != nil {
			return nil, err
		}
		return raw(req.Do(ctx))
	}
	data, err := send(a.berth)
	if apierrors.IsServiceUnavailable(err) {
		leader, leaderErr := a.leader(ctx)
		if leaderErr != nil {
			return err // of the two, what the server said of the request
		}
		data, err = send(leader)
	}
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reading the server's answer: %w", err)
	}
	return nil
}

// leader connects to the server that leads.
func (a *API) leader(ctx context.Context) (rest.Interface, error) {
	var list operator.MemberList
	data, err := raw(a.berth.Get().AbsPath(operator.PathMembers).Do(ctx))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("reading the members: %w", err)
	}
	for _, m := range list.Members {
		if !m.Leader || m.HTTPAddress == "" || m.Name == list.Server {
			continue
		}
		// A member's address has no scheme: they all have the same.
		scheme, _, _ := strings.Cut(a.client.rest.Host, "://")
		t := trust{caFile: a.client.conn.CAFile, certFile: a.client.conn.CertFile, serverName: a.client.rest.ServerName}
		cfg, err := a.client.configFor(t, []string{scheme + "://" + m.HTTPAddress}, new(answers))
		if err != nil {
			return nil, err
		}
		return a.restClient(cfg)
	}
	return nil, errors.New("no other server leads")
}

// LeaderStatus is what the server that leads knows of itself.
func (a *API) LeaderStatus(ctx context.Context) (*operator.Status, error) {
	s := &operator.Status{}
	if err := a.Operator(ctx, http.MethodGet, operator.PathStatus, nil, s); err != nil || s.Leader == s.Name {
		return s, err
	}
	leader, err := a.leader(ctx)
	if err != nil {
		return nil, err
	}
	data, err := raw(leader.Get().AbsPath(operator.PathStatus).Do(ctx))
	if err != nil {
		return nil, err
	}
	s = &operator.Status{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("reading the server's answer: %w", err)
	}
	return s, nil
}

// Download opens a stream from an operator endpoint.
func (a *API) Download(ctx context.Context, path string) (io.ReadCloser, error) {
	return a.berth.Get().AbsPath(path).Stream(ctx)
}

// raw prefers the message in an answer's body to one made of its status code.
func raw(r rest.Result) ([]byte, error) {
	if err := r.Error(); err != nil {
		return nil, err
	}
	return r.Raw()
}
