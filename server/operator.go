package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/cluster"
	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/peers"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/store"
)

// operatorTimeout bounds what an operator's request may take, but for
// snapshots.
const operatorTimeout = 30 * time.Second

// operatorBytes bounds the body of an operator's request, but for snapshots.
const operatorBytes = 64 << 10

// operatorHandler serves the paths of package operator, behind the API's
// authentication.
func (s *Server) operatorHandler() http.Handler {
	answering := func(f func(r *http.Request) (any, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), operatorTimeout)
			defer cancel()
			r.Body = http.MaxBytesReader(w, r.Body, operatorBytes)
			answer, err := f(r.WithContext(ctx))
			s.reply(w, answer, err)
		}
	}
	handlers := map[string]http.HandlerFunc{
		"GET " + operator.PathMembers:                   answering(func(*http.Request) (any, error) { return s.memberList(), nil }),
		"GET " + operator.PathStatus:                    answering(func(*http.Request) (any, error) { return s.Status(), nil }),
		"GET " + operator.PathJoin:                      answering(func(*http.Request) (any, error) { return s.joinAnswer(), nil }),
		"GET " + operator.PathClassDrift:                answering(func(*http.Request) (any, error) { return explain.ClassDrift(s.state.View()), nil }),
		"GET " + operator.PathRaftConfiguration:         answering(func(*http.Request) (any, error) { return s.raftConfiguration(), nil }),
		"DELETE " + operator.PathRaftServers + "/{id}":  answering(s.removeServer),
		"POST " + operator.PathTransferLeader:           answering(s.transferLeader),
		"GET " + operator.PathSnapshot:                  s.saveSnapshot,
		"PUT " + operator.PathSnapshot:                  s.restoreSnapshot,
		"POST " + operator.PathVerify:                   answering(func(r *http.Request) (any, error) { return s.Verify(r.Context()) }),
		"POST " + operator.PathSigningKey:               answering(s.rotateSigningKey),
		"GET " + operator.PathEncryption:                answering(s.encryptionStatus),
		"POST " + operator.PathEncryptionRewrite:        answering(s.rewriteEncrypted),
		"POST " + operator.PathRevokedNodes + "/{name}": answering(s.revokeNode),
	}
	mux := http.NewServeMux()
	for _, endpoint := range operator.Endpoints() { // no other: the list is what attacks are tried at
		mux.HandleFunc(endpoint, handlers[endpoint])
	}
	mux.HandleFunc("GET "+ledger.PathWhy, answering(s.why))
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{s.config.Metrics, apiserver.Gatherer()}, promhttp.HandlerOpts{}))
	return mux
}

func (s *Server) reply(w http.ResponseWriter, answer any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		code, reason := operatorCode(err)
		// Where another server leads, waiting helps nobody: the client asks that one.
		var elsewhere *raftnode.NotLeaderError
		leads := errors.As(err, &elsewhere) && elsewhere.LeaderID != ""
		if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable && !leads {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(code)
		answer = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: reason, Message: err.Error(),
		}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		s.log.Debug("an answer could not be written", "error", err)
	}
}

// errStillAlive refuses to remove a server that would be taken in again.
var errStillAlive = errors.New("it is alive, and would be taken in again: stop it first, and remove it once \"berth members\" shows it as failed")

// errBadRequest is wrapped by what an operator got wrong.
var errBadRequest = errors.New("bad request")

func operatorCode(err error) (int, metav1.StatusReason) {
	var (
		elsewhere *raftnode.NotLeaderError
		refused   *explain.Refused
	)
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge
	case errors.As(err, &refused):
		return refusedCode(refused.Reason), refused.Reason
	case is(raftnode.ErrUnknownServer):
		return http.StatusNotFound, metav1.StatusReasonNotFound
	case is(errStillAlive, raftnode.ErrTransferPending):
		return http.StatusConflict, metav1.StatusReasonConflict
	case is(errBadRequest, raftnode.ErrLastVoter, store.ErrSnapshot):
		return http.StatusBadRequest, metav1.StatusReasonBadRequest
	case is(raftnode.ErrUnknownOutcome, apiserver.ErrUnknownOutcome):
		return http.StatusGatewayTimeout, metav1.StatusReasonTimeout
	case is(raftnode.ErrBusy, apiserver.ErrBusy), apierrors.IsTooManyRequests(err):
		return http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests
	case errors.As(err, &elsewhere), is(raftnode.ErrNoLeader, raftnode.ErrShutdown, apiserver.ErrNoLeader):
		return http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	case is(context.DeadlineExceeded):
		return http.StatusGatewayTimeout, metav1.StatusReasonTimeout
	}
	return http.StatusInternalServerError, metav1.StatusReasonInternalError
}

func (s *Server) memberList() *operator.MemberList {
	leader, _ := s.node.Leader()
	out := &operator.MemberList{Server: s.config.Name}
	servers := map[string]*peers.Answer{}
	for _, p := range s.room.Peers() {
		servers[p.ID] = p.Answer
	}
	for _, m := range s.pool.Members() {
		one := operator.Member{
			Name: m.Name, Role: string(m.Role), Status: string(m.Status), GossipAddress: m.Addr,
			RPCAddress: m.RPCAddr, HTTPAddress: m.HTTPAddr, Version: m.Version,
		}
		// What a server has said itself comes before what gossip says of it, and only
		// one of the consensus leads.
		if a, ok := servers[m.Name]; ok && m.Role == cluster.RoleServer {
			one.Leader = m.Name == leader
			if a != nil {
				one.RPCAddress, one.HTTPAddress, one.Version = a.RPCAddr, a.HTTPAddr, a.Version
			}
		}
		out.Members = append(out.Members, one)
	}
	return out
}

// joinAnswer tells a node where the others are.
func (s *Server) joinAnswer() *operator.Join {
	out := &operator.Join{GossipKey: s.config.Gossip.EncryptionKey, Gossip: []string{s.GossipAddr()}, API: s.apiAddresses()}
	for _, m := range s.pool.Members() {
		if m.Role == cluster.RoleServer && m.Addr != s.GossipAddr() {
			out.Gossip = append(out.Gossip, m.Addr)
		}
	}
	return out
}

// Status describes this server.
func (s *Server) Status() *operator.Status {
	view := s.state.View()
	leader, _ := s.node.Leader()
	out := &operator.Status{
		Name: s.config.Name, ID: s.node.ID(), ClusterID: s.node.ClusterID(), Version: s.config.Version,
		State: s.Role(), Leader: leader, Term: s.Term(), CommitIndex: s.node.CommitIndex(),
		AppliedIndex: view.Index(), Revision: view.Revision(), Healthy: true,
		LogVersion: view.Version(), KnownVersion: s.knownVersion(),
	}
	out.StateBytes, out.MaxStateBytes = view.Bytes(), s.maxState()
	out.Clock = s.clockStatus()
	out.Unsettled = s.unsettled()
	signs := s.config.Authority.Key != ""
	out.Signs = &signs
	if leader == "" {
		out.Healthy, out.Message = false, "no leader is known, and nothing can be changed"
	}
	if err := s.failure(); err != nil {
		out.Healthy, out.Message = false, err.Error()
	}
	for _, f := range view.LastApplyFailures(shownFailures) {
		out.ApplyFailures = append(out.ApplyFailures, operator.ApplyFailure{
			Index: f.Index, Command: f.Command, Part: f.Part, User: f.User, TimeUnixNano: f.TimeUnixNano,
		})
	}
	return out
}

// shownFailures is how many of the newest failures of Apply a status tells of.
const shownFailures = 16

func (s *Server) raftConfiguration() *operator.RaftConfiguration {
	out := &operator.RaftConfiguration{Server: s.config.Name, Index: s.node.ConfigurationIndex(), Term: s.Term()}
	for _, p := range s.room.Peers() {
		suffrage := "voter"
		if !p.Voter {
			suffrage = "nonvoter"
		}
		healthy := s.heard(&p)
		one := operator.RaftServer{
			ID: p.ID, Name: p.ID, Address: p.RaftAddr, Suffrage: suffrage, Leader: p.Leader, Healthy: &healthy, Version: p.Version(),
		}
		if p.Answer != nil {
			one.LastIndex = p.Answer.LastIndex
			if p.Compared {
				offset := int64(p.Offset)
				one.ClockOffsetNano = &offset
			}
		}
		if p.Error != nil {
			one.Message = p.Error.Error()
		}
		out.Servers = append(out.Servers, one)
	}
	if len(out.Servers) == 0 {
		out.Message = fmt.Sprintf("server %s has no data: it belongs to no cluster yet, or waits for the leader of one to take it in; ask another server", s.config.Name)
	}
	return out
}

// Role is what this server is in the consensus: "follower", "candidate", "leader", "learner", or "shutdown".
func (s *Server) Role() string {
	for _, m := range s.node.Configuration() {
		if m.ID == s.config.Name && m.NonVoter {
			return "learner"
		}
	}
	return s.node.State()
}

// Term is the newest of Raft's terms that this server knows.
func (s *Server) Term() uint64 { return s.node.Term() }

func (s *Server) removeServer(r *http.Request) (any, error) {
	id := r.PathValue("id")
	if p, ok := s.room.Peer(id); ok && s.IsLeader() && s.heard(&p) {
		return nil, fmt.Errorf("remove %s: %w", id, errStillAlive)
	}
	if err := s.node.RemoveServer(r.Context(), id); err != nil {
		return nil, s.leaderHint(err)
	}
	s.log.Info("server removed by an operator", "which", id)
	return s.raftConfiguration(), nil
}

// readRequest reads what an operator asks for; nothing is what is left out.
func readRequest(r *http.Request, into any) error {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: read the request: %w", errBadRequest, err)
	}
	return nil
}

func (s *Server) transferLeader(r *http.Request) (any, error) {
	var req operator.TransferLeaderRequest
	if err := readRequest(r, &req); err != nil {
		return nil, err
	}
	from, _ := s.node.Leader()
	for _, m := range s.node.Configuration() {
		if m.ID != req.ID {
			continue
		}
		if m.NonVoter {
			return nil, fmt.Errorf("%w: %s has no vote, and can not lead", errBadRequest, req.ID)
		}
		if m.Leader {
			return &operator.TransferLeaderResult{From: from, To: from}, nil
		}
	}
	if err := s.node.TransferLeadership(r.Context(), req.ID); err != nil {
		return nil, s.leaderHint(err)
	}
	to := from
	for to == from || to == "" {
		select {
		case <-r.Context().Done():
			return &operator.TransferLeaderResult{From: from}, nil
		case <-time.After(leaderPoll):
			to, _ = s.node.Leader()
		}
	}
	return &operator.TransferLeaderResult{From: from, To: to}, nil
}

// leaderHint says to whom an operator's request has to go instead.
func (s *Server) leaderHint(err error) error {
	var elsewhere *raftnode.NotLeaderError
	if !errors.As(err, &elsewhere) || elsewhere.LeaderID == "" {
		return err
	}
	if addr := s.httpAddr(elsewhere.LeaderID); addr != "" {
		return fmt.Errorf("%w (its API is at https://%s)", err, addr)
	}
	return err
}

func (s *Server) saveSnapshot(w http.ResponseWriter, r *http.Request) {
	if err := s.ReadIndex(r.Context()); err != nil {
		s.reply(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", operator.SnapshotContentType)
	if err := s.state.View().Write(w); err != nil {
		s.log.Warn("a snapshot was not sent whole; its checksum will say so", "error", err)
	}
}
