package rpc

import (
	"context"

	"google.golang.org/grpc"
)

// ServerHandler carries out what other servers ask. Every error may be one of
// this package's: the caller gets the same.
type ServerHandler interface {
	// Forward proposes to the log. A server that does not lead returns
	// *NotLeaderError; it never forwards.
	Forward(ctx context.Context, r *ForwardRequest) (*ForwardResponse, error)
	// ReadIndex returns an index that was committed during the call.
	ReadIndex(ctx context.Context, r *ReadIndexRequest) (*ReadIndexResponse, error)
	// ReportStreams takes note of which workers another server holds.
	ReportStreams(ctx context.Context, r *StreamReport) (*StreamReportResponse, error)
	// Renewal takes note of the renewal of a node's lease, or tells of the newest.
	Renewal(ctx context.Context, r *RenewalRequest) (*RenewalResponse, error)
	// Digest returns the digest of this server's state at an index.
	Digest(ctx context.Context, r *DigestRequest) (*DigestResponse, error)
	// Differs tells this server that its state is not that of the others. It
	// makes sure of that, and stops (ErrInvalid if it is not so).
	Differs(ctx context.Context, r *DifferenceRequest) (*DifferenceResponse, error)
	// Status describes this server.
	Status(ctx context.Context, r *StatusRequest) (*StatusResponse, error)
	// Samples returns what the workers that this server holds have told of nodes. It
	// asks nobody else.
	Samples(ctx context.Context, r *SamplesRequest) (*SamplesResponse, error)
}

// WorkerHandler serves the workers whose streams end at this server.
type WorkerHandler interface {
	// WorkerHello registers the node; an error refuses the stream.
	WorkerHello(ctx context.Context, h *Hello) error
	// WorkerStatus commits a batch; what it returns is the worker's Ack.
	WorkerStatus(ctx context.Context, node string, b *StatusBatch) error
	// WorkerAssignments reads this server's state: everything that concerns
	// node since the revision since, as a delta or in full; one that knows them all, by the
	// sum told (Told) as well, is sent no pods. It must not
	// return a state older than since, but wait for it (a worker may come from
	// a server that is ahead), nor one older than what was pushed.
	WorkerAssignments(ctx context.Context, node string, since int64, told []byte) (*Assignments, error)
	// WorkerFetch reads an object that a pod of the node refers to
	// (ErrNotFound, ErrForbidden).
	WorkerFetch(ctx context.Context, r *FetchRequest) (*FetchResponse, error)
	// WorkerToken makes a token of a pod's service account, for a volume of that
	// pod, if it is bound to the worker's node (ErrForbidden, ErrBusy).
	WorkerToken(ctx context.Context, r *TokenRequest) (*TokenResponse, error)
	// WorkerMirror makes or removes the object that shows a pod which the worker has of
	// its own (ErrForbidden, ErrInvalid, ErrBusy).
	WorkerMirror(ctx context.Context, r *MirrorRequest) (*MirrorResponse, error)
	// WorkerSample takes note of what a node uses. It must not block.
	WorkerSample(node string, s *Sample)
	// WorkerGone tells that node's stream has ended and no other has taken
	// its place here.
	WorkerGone(node string, reason error)
}

const (
	serverService = "berth.rpc.Server"
	workerService = "berth.rpc.Worker"

	methodForward       = "/" + serverService + "/Forward"
	methodReadIndex     = "/" + serverService + "/ReadIndex"
	methodReportStreams = "/" + serverService + "/ReportStreams"
	methodRenewal       = "/" + serverService + "/Renewal"
	methodDigest        = "/" + serverService + "/Digest"
	methodDiffers       = "/" + serverService + "/Differs"
	methodStatus        = "/" + serverService + "/Status"
	methodSamples       = "/" + serverService + "/Samples"
	methodHolds         = "/" + serverService + "/Holds"
	methodServerTunnel  = "/" + serverService + "/Tunnel"
	methodConnect       = "/" + workerService + "/Connect"
	methodFetch         = "/" + workerService + "/Fetch"
	methodToken         = "/" + workerService + "/Token"
	methodMirror        = "/" + workerService + "/Mirror"
	methodWorkerTunnel  = "/" + workerService + "/Tunnel"
)

func bothWays(name string, h grpc.StreamHandler) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, Handler: h, ServerStreams: true, ClientStreams: true}
}

// serverDesc is what protoc would make of the service.
func (s *Server) serverDesc() *grpc.ServiceDesc {
	h := s.config.Servers
	return &grpc.ServiceDesc{
		ServiceName: serverService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unary(serverService, "Forward", s.forward),
			unary(serverService, "ReadIndex", h.ReadIndex),
			unary(serverService, "ReportStreams", h.ReportStreams),
			unary(serverService, "Renewal", h.Renewal),
			unary(serverService, "Digest", h.Digest),
			unary(serverService, "Differs", h.Differs),
			unary(serverService, "Status", h.Status),
			unary(serverService, "Samples", h.Samples),
			unary(serverService, "Holds", s.holds),
		},
		Streams: []grpc.StreamDesc{
			bothWays("Tunnel", func(_ any, st grpc.ServerStream) error { return s.serverTunnel(st) }),
		},
	}
}

func (s *Server) workerDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: workerService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unary(workerService, "Fetch", s.fetch), unary(workerService, "Token", s.token), unary(workerService, "Mirror", s.mirror),
		},
		Streams: []grpc.StreamDesc{
			bothWays("Connect", func(_ any, st grpc.ServerStream) error { return s.connect(st) }),
			bothWays("Tunnel", func(_ any, st grpc.ServerStream) error { return s.workerTunnel(st) }),
		},
	}
}

// unary adapts a typed handler.
func unary[Req, Resp any](service, name string, h func(context.Context, *Req) (*Resp, error)) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, dec func(any) error, icept grpc.UnaryServerInterceptor) (any, error) {
			req := new(Req)
			if err := dec(req); err != nil {
				return nil, err
			}
			call := func(ctx context.Context, req any) (any, error) {
				resp, err := h(ctx, req.(*Req))
				if err != nil {
					return nil, err
				}
				return resp, nil
			}
			if icept == nil {
				return call(ctx, req)
			}
			return icept(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + service + "/" + name}, call)
		},
	}
}
