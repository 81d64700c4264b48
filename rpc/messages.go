package rpc

import (
	"fmt"

	"github.com/berth-dev/berth/store"
)

// Messages are msgpack maps: fields can be added, and a reader skips what it
// does not know. Integers have their unit in the name. Kubernetes objects travel
// as their own protobuf bytes, into which this package never looks.

// ForwardRequest carries encoded proposals to the leader.
type ForwardRequest struct {
	// Hops is how many servers have sent the request on; it must be 1.
	Hops    int    `msgpack:"hops"`
	Entries []byte `msgpack:"entries"`
	// Server is the name of the one that forwards.
	Server string `msgpack:"server,omitempty"`
}

// ForwardResponse carries the encoded results, one for each proposal, and the
// index of the entry that holds them: the caller waits until it has applied it.
type ForwardResponse struct {
	Results []byte `msgpack:"results"`
	Index   uint64 `msgpack:"index"`
}

// ReadIndexRequest asks the leader for an index that is committed now.
type ReadIndexRequest struct{}

// ReadIndexResponse answers it.
type ReadIndexResponse struct {
	Index uint64 `msgpack:"index"`
}

// StreamReport tells the leader which workers' streams a server holds and has
// lately heard from.
type StreamReport struct {
	Server string   `msgpack:"server"`
	Nodes  []string `msgpack:"nodes"`
}

// StreamReportResponse answers it.
type StreamReportResponse struct{}

// RenewalRequest tells the leader that a node's lease was renewed, the one that is stored under a UID
// and a resource version; without a time it asks for the newest renewal of that one.
type RenewalRequest struct {
	Node            string `msgpack:"node"`
	UID             string `msgpack:"uid"`
	ResourceVersion string `msgpack:"resource_version"`
	// RenewedUnixMicro is by the renewer's clock.
	RenewedUnixMicro int64 `msgpack:"renewed_unix_micro,omitempty"`
}

// RenewalResponse answers it.
type RenewalResponse struct {
	// Taken: the renewal is remembered. If not, it has to be stored.
	Taken bool `msgpack:"taken,omitempty"`
	// RenewedUnixMicro is the newest renewal, to who asked for it; 0: none is known.
	RenewedUnixMicro int64 `msgpack:"renewed_unix_micro,omitempty"`
}

// DigestRequest asks for the digests of the state at the index of a checkpoint.
type DigestRequest struct {
	Index uint64 `msgpack:"index"`
}

// DigestResponse answers it.
type DigestResponse struct {
	Index    uint64 `msgpack:"index"`
	Revision int64  `msgpack:"revision"`
	Digest   string `msgpack:"digest"`
	// Format is how they are taken (store.DigestFormat).
	Format int `msgpack:"format,omitempty"`
	// Tables are the digests of each table.
	Tables []store.TableDigest `msgpack:"tables,omitempty"`
}

// DifferenceRequest tells a server that the majority of the voters has another
// state than it has.
type DifferenceRequest struct {
	// Index is the checkpoint's, EqualAt an earlier one at which the server did
	// not differ; 0: none is known.
	Index   uint64 `msgpack:"index"`
	EqualAt uint64 `msgpack:"equal_at,omitempty"`
	// Digest is the majority's; Tables are those in which the server differs.
	Digest string   `msgpack:"digest"`
	Tables []string `msgpack:"tables,omitempty"`
}

// DifferenceResponse answers it: the server stops.
type DifferenceResponse struct{}

// StatusRequest asks a server how it is.
type StatusRequest struct{}

// StatusResponse answers it.
type StatusResponse struct {
	Server         string `msgpack:"server"`
	Cluster        string `msgpack:"cluster,omitempty"`
	Version        string `msgpack:"version"`
	CommandVersion uint32 `msgpack:"command_version"`
	Leader         string `msgpack:"leader,omitempty"`
	// RPCAddr and HTTPAddr are host:port as others dial them.
	RPCAddr  string `msgpack:"rpc_addr,omitempty"`
	HTTPAddr string `msgpack:"http_addr,omitempty"`
	NonVoter bool   `msgpack:"non_voter,omitempty"`
	Index    uint64 `msgpack:"index"`
	Revision int64  `msgpack:"revision"`
	Workers  int    `msgpack:"workers"`
	// LastTerm and LastIndex are those of the log's last entry.
	LastTerm  uint64 `msgpack:"last_term,omitempty"`
	LastIndex uint64 `msgpack:"last_index,omitempty"`
	// LastContactNano is how long ago the leader was heard; 0 on the leader,
	// negative if never.
	LastContactNano int64 `msgpack:"last_contact_nano,omitempty"`
	// WallUnixNano is the server's wall clock.
	WallUnixNano int64 `msgpack:"wall_unix_nano,omitempty"`
	// StateUnixNano is the state's time now; 0: the server has not lived with it.
	StateUnixNano int64 `msgpack:"state_unix_nano,omitempty"`
	// MaxState is how many bytes the server lets the state take; 0: it does not say.
	MaxState int64 `msgpack:"max_state,omitempty"`
	// ComparedIndex is the log entry after which it has last compared the servers'
	// states, as the leader; Unsettled says what it found that nobody but an
	// operator can settle.
	ComparedIndex uint64            `msgpack:"compared_index,omitempty"`
	Unsettled     string            `msgpack:"unsettled,omitempty"`
	Raft          map[string]string `msgpack:"raft,omitempty"`
}

// HoldsRequest asks whether a worker's stream ends at the server.
type HoldsRequest struct {
	Node string `msgpack:"node"`
}

// HoldsResponse answers it.
type HoldsResponse struct {
	Holds bool `msgpack:"holds"`
}

// WorkerMessage is what a worker sends on its stream; one field is set. The
// first one is Hello.
type WorkerMessage struct {
	Hello     *Hello       `msgpack:"hello,omitempty"`
	Status    *StatusBatch `msgpack:"status,omitempty"`
	Heartbeat bool         `msgpack:"heartbeat,omitempty"`
	// Sample comes with a heartbeat, so that a server of before there were samples
	// hears the heartbeat and nothing else.
	Sample *Sample `msgpack:"sample,omitempty"`
}

// Sample is what a node used a while ago (package sample), into which this package
// never looks.
type Sample struct {
	AgeNano int64  `msgpack:"age_nano"`
	Body    []byte `msgpack:"body"`
}

// SamplesRequest asks a server for what the workers whose streams end there have
// told of their nodes.
type SamplesRequest struct {
	// Nodes are sorted.
	Nodes []string `msgpack:"nodes"`
}

// SamplesResponse answers it, in the order of the request. More: what comes after the
// last one was left out and is to be asked for again.
type SamplesResponse struct {
	Samples []NodeSample `msgpack:"samples,omitempty"`
	More    bool         `msgpack:"more,omitempty"`
}

// NodeSample is one node's.
type NodeSample struct {
	Node   string `msgpack:"node"`
	Sample Sample `msgpack:"sample"`
}

// Hello opens a worker's stream.
type Hello struct {
	// Name is the node's name. It must be that of the certificate.
	Name string `msgpack:"name"`
	// Instance is another for each process, so that a worker that comes back
	// is told from another one of its name.
	Instance string `msgpack:"instance"`
	// Node is a corev1.Node, protobuf: what the worker registers.
	Node []byte `msgpack:"node"`
	// ResumeRevision is up to where the worker has all that concerns it.
	ResumeRevision int64 `msgpack:"resume_revision"`
	// Told is the sum of what the worker was told of its pods (Told); empty: of nothing.
	Told    []byte `msgpack:"told,omitempty"`
	Version string `msgpack:"version,omitempty"`
	// Services: the worker carries services and wants them all. It has those up to
	// ServicesRevision (0: none).
	Services         bool  `msgpack:"services,omitempty"`
	ServicesRevision int64 `msgpack:"services_revision,omitempty"`
}

// StatusBatch reports statuses. A worker has one batch unacknowledged at most.
type StatusBatch struct {
	ID   uint64      `msgpack:"id"`
	Pods []PodReport `msgpack:"pods,omitempty"`
	// NodeStatus is a corev1.NodeStatus, protobuf; empty if it is unchanged.
	NodeStatus []byte `msgpack:"node_status,omitempty"`
	// Events are corev1.Event objects, protobuf.
	Events [][]byte `msgpack:"events,omitempty"`
}

// PodReport is the newest status of one pod.
type PodReport struct {
	Namespace string `msgpack:"namespace"`
	Name      string `msgpack:"name"`
	UID       string `msgpack:"uid"`
	// Status is a corev1.PodStatus, protobuf.
	Status []byte `msgpack:"status,omitempty"`
	// Removed confirms that nothing of the pod is left on the node (TM4).
	Removed bool `msgpack:"removed,omitempty"`
	// Seen is the newest Assignments.Revision that the worker had heard of when this was so; 0: it does not say.
	Seen int64 `msgpack:"seen,omitempty"`
	// Number is the worker's own for the report. No server hears it.
	Number uint64 `msgpack:"-"`
	// Late is for WorkerAgent.Taken: it was passed over (Ack.Late).
	Late bool `msgpack:"-"`
}

// Size is about how many bytes a report takes in a message.
func (r *PodReport) Size() int {
	return len(r.Namespace) + len(r.Name) + len(r.UID) + len(r.Status) + 64
}

// ServerMessage is what a server sends on a worker's stream. The first one is
// Welcome.
type ServerMessage struct {
	Welcome     *Welcome     `msgpack:"welcome,omitempty"`
	Assignments *Assignments `msgpack:"assignments,omitempty"`
	Acks        []Ack        `msgpack:"acks,omitempty"`
	Tunnels     []TunnelOpen `msgpack:"tunnels,omitempty"`
	Drain       *Drain       `msgpack:"drain,omitempty"`
	// Changed are objects that the worker follows (FetchRequest.Follow) and that
	// are others now. It follows them no more until it fetches them again.
	Changed []ObjectRef `msgpack:"changed,omitempty"`
	// Services are for workers that want them (Hello.Services).
	Services *Services `msgpack:"services,omitempty"`
}

// ObjectRef names an object that pods refer to.
type ObjectRef struct {
	Resource  string `msgpack:"resource"`
	Namespace string `msgpack:"namespace"`
	Name      string `msgpack:"name"`
}

// Welcome accepts a worker.
type Welcome struct {
	Server          string `msgpack:"server"`
	HeartbeatMillis int64  `msgpack:"heartbeat_millis"`
	// API are the addresses of the servers' API, host:port, the own one first.
	API []string `msgpack:"api,omitempty"`
}

// Assignments says what shall run on the node.
type Assignments struct {
	// Full: Pods are all that shall run; everything else shall not.
	// Otherwise Pods are those that changed, and Gone those that shall not run
	// any more.
	Full bool `msgpack:"full,omitempty"`
	// More: the next message goes on with this one. A WorkerAgent never
	// sees it.
	More bool `msgpack:"more,omitempty"`
	// Revision is up to where the worker has all that concerns it.
	Revision int64 `msgpack:"revision"`
	// Pods are corev1.Pod objects, protobuf.
	Pods [][]byte `msgpack:"pods,omitempty"`
	// Gone are UIDs.
	Gone []string `msgpack:"gone,omitempty"`
	// Node is a corev1.Node, protobuf: the name and the labels that the node has now. Empty: they are
	// as they were told last.
	Node []byte `msgpack:"node,omitempty"`
}

// Ack says what became of a batch. If Error is set, the worker sends the newest
// statuses again; else those of the pods in Failed (UIDs), each later every time,
// and the node's if NodeFailed. What was said of those in Late was passed over, for the state by which it was so is gone
// (PodReport.Seen): of those that are still there it is found again.
type Ack struct {
	BatchID    uint64   `msgpack:"batch_id"`
	Error      string   `msgpack:"error,omitempty"`
	Failed     []string `msgpack:"failed,omitempty"`
	Late       []string `msgpack:"late,omitempty"`
	NodeFailed bool     `msgpack:"node_failed,omitempty"`
}

// NotTaken is WorkerStatus' error when a batch was committed but for what it says of some
// pods, by a mistake of Berth's or since there is no room now, or of the node, for which there is none; or but for what came Late.
type NotTaken struct {
	Pods []string // UIDs
	Late []string // UIDs
	Node bool
}

// Error implements error.
func (e *NotTaken) Error() string {
	switch {
	case len(e.Pods) == 0 && e.Node:
		return "there is no room now for the node's status"
	case len(e.Pods) == 0:
		return fmt.Sprintf("the statuses of %d pods are of a state that is gone", len(e.Late))
	}
	return fmt.Sprintf("the statuses of %d pods were not taken: there is no room for them now, or by a mistake of Berth's that the servers' logs tell", len(e.Pods))
}

// Drain asks the worker to go to another server.
type Drain struct {
	Reason string `msgpack:"reason,omitempty"`
}

// TunnelOpen asks the worker to open a tunnel.
type TunnelOpen struct {
	ID   string `msgpack:"id"`
	Kind string `msgpack:"kind"`
	Body []byte `msgpack:"body,omitempty"`
}

// TunnelRequest asks another server for a tunnel to a worker that it holds.
type TunnelRequest struct {
	Node string `msgpack:"node"`
	Kind string `msgpack:"kind"`
	Body []byte `msgpack:"body,omitempty"`
}

// TunnelAccept is a worker's answer to a TunnelOpen.
type TunnelAccept struct {
	Node string `msgpack:"node"`
	ID   string `msgpack:"id"`
}

// Frame is a piece of a tunnel. The first one carries Request or Accept and, in
// answer to Request, Accepted. Close ends the tunnel in both directions.
type Frame struct {
	Request  *TunnelRequest `msgpack:"request,omitempty"`
	Accept   *TunnelAccept  `msgpack:"accept,omitempty"`
	Accepted bool           `msgpack:"accepted,omitempty"`
	Data     []byte         `msgpack:"data,omitempty"`
	Close    bool           `msgpack:"close,omitempty"`
	Error    *TunnelError   `msgpack:"error,omitempty"`
}

// TunnelError is why the other end has closed a tunnel.
type TunnelError struct {
	// Code is an HTTP status, 500 for an error without one.
	Code    int    `msgpack:"code"`
	Message string `msgpack:"message"`
}

func (e *TunnelError) Error() string { return e.Message }

// Kinds of tunnels. Through each the worker sends Begin first; or it closes the
// tunnel with the reason why there is nothing.
const (
	// KindLogs has a LogsRequest as its body. A container's log follows.
	KindLogs = "logs"
	// KindStream has a StreamRequest as its body. The server's end then makes one
	// HTTP request, which the worker answers as a kubelet would.
	KindStream = "stream"
	// KindNode has no body. The server's end then makes one HTTP request, for what a
	// kubelet shows of its node.
	KindNode = "node"
	// KindDial has a DialRequest as its body. What follows is what comes from there and goes there.
	KindDial = "dial"
)

// Begin says that what the tunnel was asked for is there, although a log may
// still be empty.
const Begin byte = 1

// StreamRequest asks to enter a pod. What is "exec", "attach" or "portforward",
// for which Container is empty.
type StreamRequest struct {
	PodUID    string `msgpack:"pod_uid"`
	Container string `msgpack:"container,omitempty"`
	What      string `msgpack:"what"`
}

// Encode gives the body of a KindStream tunnel.
func (r *StreamRequest) Encode() ([]byte, error) { return encode(r) }

// DecodeStreamRequest is the inverse of Encode.
func DecodeStreamRequest(body []byte) (*StreamRequest, error) {
	r := new(StreamRequest)
	if err := decode(body, r); err != nil {
		return nil, err
	}
	return r, nil
}

// DialRequest asks for a connection to a port of a pod, at the pod's own address.
type DialRequest struct {
	PodUID string `msgpack:"pod_uid"`
	Port   uint16 `msgpack:"port"`
}

// Encode gives the body of a KindDial tunnel.
func (r *DialRequest) Encode() ([]byte, error) { return encode(r) }

// DecodeDialRequest is the inverse of Encode.
func DecodeDialRequest(body []byte) (*DialRequest, error) {
	r := new(DialRequest)
	if err := decode(body, r); err != nil {
		return nil, err
	}
	return r, nil
}

// LogsRequest asks for the log of one container.
type LogsRequest struct {
	Namespace         string `msgpack:"namespace"`
	Pod               string `msgpack:"pod"`
	PodUID            string `msgpack:"pod_uid"`
	Container         string `msgpack:"container"`
	Follow            bool   `msgpack:"follow,omitempty"`
	Previous          bool   `msgpack:"previous,omitempty"`
	Timestamps        bool   `msgpack:"timestamps,omitempty"`
	TailLines         *int64 `msgpack:"tail_lines,omitempty"`
	SinceSeconds      *int64 `msgpack:"since_seconds,omitempty"`
	SinceTimeUnixNano *int64 `msgpack:"since_time_unix_nano,omitempty"`
	LimitBytes        *int64 `msgpack:"limit_bytes,omitempty"`
}

// Encode gives the body of a KindLogs tunnel.
func (r *LogsRequest) Encode() ([]byte, error) { return encode(r) }

// DecodeLogsRequest is the inverse of Encode.
func DecodeLogsRequest(body []byte) (*LogsRequest, error) {
	r := new(LogsRequest)
	if err := decode(body, r); err != nil {
		return nil, err
	}
	return r, nil
}
