package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/sample"
	"github.com/berth-dev/berth/worker"
)

// uplink joins the node agent to the stream to the servers: it is the worker's
// Uplink on one side and the stream's WorkerAgent on the other.
type uplink struct {
	log         hclog.Logger
	client      *rpc.WorkerClient
	agent       *worker.Agent
	assignments chan worker.Assignment
	nodeAPI     *nodeAPI
	objects     objects
	services    *carriedServices // nil: this node carries none
	api         atomic.Pointer[[]string]

	mu        sync.Mutex
	node      []byte // corev1.Node, protobuf
	revision  int64
	told      rpc.Told      // what went into assignments; nil: not all yet
	connected chan struct{} // closed once the first stream was welcomed
	server    string
}

func newUplink(log hclog.Logger) *uplink {
	return &uplink{log: log, assignments: make(chan worker.Assignment), connected: make(chan struct{})}
}

// Register implements worker.Uplink: every stream begins with the node's
// newest form, so it is enough to keep it, and to wait for the first stream.
func (u *uplink) Register(ctx context.Context, node *corev1.Node) error {
	raw, err := node.Marshal()
	if err != nil {
		return fmt.Errorf("encode node %s: %w", node.Name, err)
	}
	u.mu.Lock()
	u.node = raw
	connected := u.connected
	u.mu.Unlock()
	select {
	case <-connected:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Assignments implements worker.Uplink.
func (u *uplink) Assignments() <-chan worker.Assignment { return u.assignments }

// Report implements worker.Uplink. The client keeps the newest status of every
// pod until a server has committed it, so nothing is lost from here on.
func (u *uplink) Report(_ context.Context, reports []worker.PodReport) error {
	for _, r := range reports {
		raw, err := r.Status.Marshal()
		if err != nil {
			return fmt.Errorf("encode the status of pod %s/%s: %w", r.Namespace, r.Name, err)
		}
		u.client.Report(rpc.PodReport{Namespace: r.Namespace, Name: r.Name, UID: string(r.UID), Status: raw, Removed: r.Removed,
			Seen: r.Seen, Number: r.Number})
	}
	return nil
}

// ReportNode implements worker.Uplink.
func (u *uplink) ReportNode(_ context.Context, status *corev1.NodeStatus) error {
	raw, err := status.Marshal()
	if err != nil {
		return fmt.Errorf("encode the node's status: %w", err)
	}
	u.client.ReportNode(raw)
	return nil
}

// sample hands over what the node uses. It goes to the server with the next heartbeat.
func (u *uplink) sample(n *sample.Node) {
	for i := range n.Pods {
		n.Pods[i].UID = string(u.agent.PublicUID(types.UID(n.Pods[i].UID)))
	}
	body, err := n.Encode()
	if err != nil {
		u.log.Warn("what the pods use cannot be told", "error", err)
		return
	}
	u.client.Sample(body)
}

// Event implements worker.Recorder.
func (u *uplink) Event(pod *corev1.Pod, eventType, reason, message string) {
	u.report(newEvent(pod, eventType, reason, message, time.Now()))
}

// badStaticPod tells, by the node, of a static pod that is not run as it is wanted: there may be no object of it.
func (u *uplink) badStaticPod(node string) func(message string) {
	return func(message string) {
		u.report(nodeEvent(node, corev1.EventTypeWarning, "FailedStaticPod", message, time.Now()))
	}
}

func (u *uplink) report(e *corev1.Event) {
	raw, err := e.Marshal()
	if err != nil {
		u.log.Warn("an event can not be encoded", "about", e.InvolvedObject.Name, "reason", e.Reason, "error", err)
		return
	}
	u.client.ReportEvent(raw)
}

// Hello implements rpc.WorkerAgent.
func (u *uplink) Hello() rpc.Hello {
	u.mu.Lock()
	defer u.mu.Unlock()
	h := rpc.Hello{Node: u.node, ResumeRevision: u.revision}
	if u.told != nil {
		h.Told = u.told.Sum()
	}
	if u.services != nil {
		h.Services, h.ServicesRevision = true, u.services.node.Table.Revision()
	}
	return h
}

// Assign implements rpc.WorkerAgent.
func (u *uplink) Assign(ctx context.Context, a *rpc.Assignments) error {
	next := worker.Assignment{Full: a.Full, Revision: a.Revision}
	for _, raw := range a.Pods {
		pod := new(corev1.Pod)
		if err := pod.Unmarshal(raw); err != nil {
			return fmt.Errorf("decode an assigned pod: %w", err)
		}
		next.Pods = append(next.Pods, pod)
	}
	if len(a.Node) > 0 {
		next.Node = new(corev1.Node)
		if err := next.Node.Unmarshal(a.Node); err != nil {
			return fmt.Errorf("decode the node's labels: %w", err)
		}
	}
	for _, uid := range a.Gone {
		next.Gone = append(next.Gone, types.UID(uid))
	}
	told := rpc.Told{}
	for _, pod := range next.Pods {
		told.Add(pod)
	}
	select {
	case u.assignments <- next:
	case <-ctx.Done():
		return ctx.Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.revision = a.Revision
	switch {
	case a.Full:
		u.told = told
	case u.told != nil:
		for _, uid := range a.Gone {
			delete(u.told, uid)
		}
		maps.Copy(u.told, told)
	}
	return nil
}

// Connected implements rpc.WorkerAgent.
func (u *uplink) Connected(server string, api []string) {
	u.api.Store(&api)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.server = server
	select {
	case <-u.connected:
	default:
		close(u.connected)
	}
	u.log.Info("connected", "server", server)
	u.objects.doubt() // nobody has told this worker of changes meanwhile
	if u.agent != nil {
		u.agent.Doubt()
	}
}

// Changed implements rpc.WorkerAgent.
func (u *uplink) Changed(refs []rpc.ObjectRef) {
	out := make([]worker.ObjectRef, len(refs))
	for i, r := range refs {
		out[i] = worker.ObjectRef(r)
	}
	u.objects.changed(out)
	u.agent.Changed(out)
}

// Taken implements rpc.WorkerAgent.
func (u *uplink) Taken(reports []rpc.PodReport) {
	out := make([]worker.Taken, len(reports))
	for i := range reports {
		out[i] = worker.Taken{UID: types.UID(reports[i].UID), Number: reports[i].Number, Late: reports[i].Late}
	}
	u.agent.Taken(out)
}

// Disconnected implements rpc.WorkerAgent. Pods keep running.
func (u *uplink) Disconnected(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.server = ""
	u.log.Info("disconnected; pods keep running", "reason", err)
}

// ConfigMap implements worker.Getter.
func (u *uplink) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	o := new(corev1.ConfigMap)
	return o, u.followed(ctx, worker.ObjectRef{Resource: "configmaps", Namespace: namespace, Name: name}, o)
}

// Secret implements worker.Getter.
func (u *uplink) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	o := new(corev1.Secret)
	return o, u.followed(ctx, worker.ObjectRef{Resource: "secrets", Namespace: namespace, Name: name}, o)
}

// ServiceAccount implements worker.Getter.
func (u *uplink) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	o := new(corev1.ServiceAccount)
	return o, u.fetch(ctx, "serviceaccounts", namespace, name, o)
}

// VolumeOf implements worker.Getter. Both are asked for anew: a claim that is another one has another volume.
func (u *uplink) VolumeOf(ctx context.Context, namespace, claim string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	c := new(corev1.PersistentVolumeClaim)
	if err := u.fetch(ctx, "persistentvolumeclaims", namespace, claim, c); err != nil {
		return nil, nil, err
	}
	if c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound {
		return c, nil, nil
	}
	v := new(corev1.PersistentVolume)
	return c, v, u.fetch(ctx, persistentVolumes, "", c.Spec.VolumeName, v)
}

const persistentVolumes = "persistentvolumes"

// volumeKeeper is an uplink that knows whose volumes it asks for.
type volumeKeeper struct {
	*uplink
	node string
}

// VolumesToGo implements worker.VolumeKeeper.
func (u volumeKeeper) VolumesToGo(ctx context.Context) ([]string, error) {
	list := new(corev1.PersistentVolumeList)
	if err := u.followed(ctx, worker.ObjectRef{Resource: persistentVolumes, Namespace: u.node}, list); err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// PersistentVolume implements worker.VolumeKeeper. It is asked for anew: what is removed does not come back.
func (u *uplink) PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	v := new(corev1.PersistentVolume)
	return v, u.fetch(ctx, persistentVolumes, "", name, v)
}

// VolumeGone implements worker.VolumeKeeper.
func (u *uplink) VolumeGone(ctx context.Context, name string) error {
	_, err := u.client.Fetch(ctx, rpc.FetchRequest{Resource: persistentVolumes, Name: name, Gone: true})
	return err
}

// Mirror implements worker.Mirrors.
func (u *uplink) Mirror(ctx context.Context, change worker.MirrorChange) error {
	if pod := change.Delete; pod != nil {
		return u.client.Mirror(ctx, rpc.MirrorRequest{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)})
	}
	pod := change.Create.DeepCopy()
	pod.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.UID)
	pod.UID = ""
	if pod.Spec.PriorityClassName != "" {
		pod.Spec.Priority = nil // for the servers to say
	}
	raw, err := pod.Marshal()
	if err != nil {
		return fmt.Errorf("encode the static pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return u.client.Mirror(ctx, rpc.MirrorRequest{Pod: raw})
}

// handler finds which of the runtime's handlers a RuntimeClass means.
func (u *uplink) handler(ctx context.Context, class string) (string, error) {
	o := new(nodev1.RuntimeClass)
	return o.Handler, u.fetch(ctx, "runtimeclasses", "", class, o)
}

// servers are the addresses of the API that the last server has told.
func (u *uplink) servers() []string {
	if api := u.api.Load(); api != nil {
		return *api
	}
	return nil
}

// Services implements worker.Getter.
func (u *uplink) Services(ctx context.Context, namespace string) ([]corev1.Service, error) {
	list := new(corev1.ServiceList)
	err := u.fetch(ctx, "services", namespace, "", list)
	if errors.Is(err, rpc.ErrForbidden) {
		return nil, nil // a server of an earlier version tells no worker of services
	}
	return list.Items, err
}

// Token implements worker.Getter.
func (u *uplink) Token(ctx context.Context, pod *corev1.Pod, audience string, seconds int64) (string, time.Time, error) {
	r, err := u.client.Token(ctx, rpc.TokenRequest{
		Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID), Audience: audience, ExpirationSeconds: seconds,
	})
	if err != nil {
		return "", time.Time{}, err
	}
	return r.Token, time.Now().Add(time.Duration(r.LifeSeconds) * time.Second), nil
}

func (u *uplink) fetch(ctx context.Context, resource, namespace, name string, into message) error {
	r, err := u.client.Fetch(ctx, rpc.FetchRequest{Resource: resource, Namespace: namespace, Name: name, Carried: u.services != nil})
	if err != nil {
		return fetchError(err, resource, name)
	}
	return decodeFetched(r.Object, worker.ObjectRef{Resource: resource, Namespace: namespace, Name: name}, into)
}

// followed gives an object of which the worker has a copy, as long as nobody says that it has changed.
func (u *uplink) followed(ctx context.Context, ref worker.ObjectRef, into message) error {
	raw, err := u.objects.get(ctx, ref, func(ctx context.Context, have int64) (*rpc.FetchResponse, error) {
		return u.client.Fetch(ctx, rpc.FetchRequest{
			Resource: ref.Resource, Namespace: ref.Namespace, Name: ref.Name, Follow: true, Have: have,
		})
	})
	if err != nil {
		return fetchError(err, ref.Resource, ref.Name)
	}
	return decodeFetched(raw, ref, into)
}

type message interface{ Unmarshal([]byte) error }

func decodeFetched(raw []byte, ref worker.ObjectRef, into message) error {
	if err := into.Unmarshal(raw); err != nil {
		return fmt.Errorf("decode %s %s/%s: %w", ref.Resource, ref.Namespace, ref.Name, err)
	}
	return nil
}
