package connect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	schedulingv1client "k8s.io/client-go/kubernetes/typed/scheduling/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/berthv1"
)

// API is the typed access that Berth's own verbs need.
type API struct {
	Core       corev1client.CoreV1Interface
	Scheduling schedulingv1client.SchedulingV1Interface

	berth  rest.Interface
	params runtime.ParameterCodec
}

// API connects. It sends nothing yet.
func (c *Client) API() (*API, error) {
	cfg, err := c.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	// A person may look at the traffic with --v=8.
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	core, err := corev1client.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	scheduling, err := schedulingv1client.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := berthv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	// So that an answer of kind Status is read as the error it is.
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	gv := berthv1.GroupVersion
	cfg.APIPath, cfg.GroupVersion = "/apis", &gv
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	berth, err := rest.RESTClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection: %w", err)
	}
	return &API{Core: core, Scheduling: scheduling, berth: berth, params: runtime.NewParameterCodec(scheme)}, nil
}

// Get reads one object of group berth.dev; namespace "" is for those without.
func (a *API) Get(ctx context.Context, resource, namespace, name string, into runtime.Object) error {
	return a.berth.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").Name(name).Do(ctx).Into(into)
}

// List reads all objects of group berth.dev in a namespace, or with "" in all.
func (a *API) List(ctx context.Context, resource, namespace string, into runtime.Object) error {
	return a.berth.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").Do(ctx).Into(into)
}

// Watch follows the objects of group berth.dev from a revision on.
func (a *API) Watch(ctx context.Context, resource, namespace, revision string) (watch.Interface, error) {
	opts := metav1.ListOptions{Watch: true, ResourceVersion: revision}
	return a.berth.Get().Resource(resource).NamespaceIfScoped(namespace, namespace != "").
		VersionedParams(&opts, a.params).Watch(ctx)
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
	req := a.berth.Verb(method).AbsPath(path)
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("writing the request: %w", err)
		}
		req = req.SetHeader("Content-Type", "application/json").Body(body)
	}
	data, err := raw(req.Do(ctx))
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reading the server's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// Download opens a stream from an operator endpoint.
func (a *API) Download(ctx context.Context, path string) (io.ReadCloser, error) {
	return a.berth.Get().AbsPath(path).Stream(ctx)
}

// Upload sends a stream to an operator endpoint and reads its answer.
func (a *API) Upload(ctx context.Context, path, contentType string, body io.Reader, out any) error {
	data, err := raw(a.berth.Put().AbsPath(path).SetHeader("Content-Type", contentType).Body(body).Do(ctx))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reading the server's answer to PUT %s: %w", path, err)
	}
	return nil
}

// raw prefers the message in an answer's body to one made of its status code.
func raw(r rest.Result) ([]byte, error) {
	if err := r.Error(); err != nil {
		return nil, err
	}
	return r.Raw()
}
