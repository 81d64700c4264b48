package server

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

const (
	// storeRenewal is how often a lease that is renewed is stored all the same, so that whoever follows
	// leases, and the leader that comes next, is not told of a time long past.
	storeRenewal = 5 * time.Minute
	// renewalTimeout bounds one question to the leader.
	renewalTimeout = 2 * time.Second
)

// renewals are those of nodes' leases that are in no entry of the log: what the leader alone knows. It is
// a memory of hints, as heartbeats are. The leader that comes next has none, and counts silence from its
// own beginning. Each is of a lease as it is stored: that is another one when anything else of it changes.
type renewals struct {
	mu   sync.Mutex
	held map[string]renewal // by node
}

type renewal struct {
	uid, resourceVersion string
	renewedUnixMicro     int64 // by the node's clock
	// seenUnixNano is when it was heard, sinceUnixNano when the first of this lease was, by the state's time.
	seenUnixNano, sinceUnixNano int64
}

// take takes note of a renewal of a lease that is stored so. false: it is time to store one.
func (h *renewals) take(r *rpc.RenewalRequest, nowUnixNano int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	since, renewed := nowUnixNano, r.RenewedUnixMicro
	if before, ok := h.held[r.Node]; ok && before.uid == r.UID && before.resourceVersion == r.ResourceVersion {
		since = before.sinceUnixNano
		if overtaken := before.renewedUnixMicro - renewed; overtaken > 0 && overtaken < renewalTimeout.Microseconds() {
			renewed = before.renewedUnixMicro // by one that was made later; else the node's clock was set back
		}
	}
	if nowUnixNano-since >= storeRenewal.Nanoseconds() {
		return false
	}
	if h.held == nil {
		h.held = map[string]renewal{}
	}
	h.held[r.Node] = renewal{r.UID, r.ResourceVersion, renewed, nowUnixNano, since}
	return true
}

// newest is the newest renewal of a lease that is stored so; 0: none is known.
func (h *renewals) newest(r *rpc.RenewalRequest) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known, ok := h.held[r.Node]; ok && known.uid == r.UID && known.resourceVersion == r.ResourceVersion {
		return known.renewedUnixMicro
	}
	return 0
}

// seen is when a renewal was heard last.
func (h *renewals) seen(node string) (unixNano int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, ok := h.held[node]
	return known.seenUnixNano, ok
}

// forget drops the renewals of nodes whose leases are not kept.
func (h *renewals) forget(keep func(node string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for node := range h.held {
		if !keep(node) {
			delete(h.held, node)
		}
	}
}

// clear drops all: another leadership begins.
func (h *renewals) clear() { h.forget(func(string) bool { return false }) }

// hearing is what a leader hears of nodes, by streams and by leases (controller.Heartbeats).
type hearing struct {
	*heartbeats
	renewals *renewals
}

// LeaseSeenUnixNano implements controller.Heartbeats.
func (h hearing) LeaseSeenUnixNano(node string) (int64, bool) { return h.renewals.seen(node) }

// Renewal implements rpc.ServerHandler.
func (h handler) Renewal(_ context.Context, r *rpc.RenewalRequest) (*rpc.RenewalResponse, error) {
	if !h.node.IsLeader() {
		return nil, peerError(h.notLeader())
	}
	if r.RenewedUnixMicro == 0 {
		return &rpc.RenewalResponse{RenewedUnixMicro: h.renewals.newest(r)}, nil
	}
	row, ok := h.state.View().Objects.Get(nodeLease(r.Node))
	if !ok || string(row.Value.GetUID()) != r.UID || row.Value.GetResourceVersion() != r.ResourceVersion {
		return &rpc.RenewalResponse{}, nil // it was changed, or will be
	}
	return &rpc.RenewalResponse{Taken: h.renewals.take(r, h.node.Clock().NowUnixNano())}, nil
}

func nodeLease(node string) string { return fsm.ObjectKey("leases", corev1.NamespaceNodeLease, node) }

// leases tells the leader of renewals (apiserver.Leases).
type leases struct{ *Server }

// Renew implements apiserver.Leases. Whatever is in the way: then the renewal goes into the log. That is how it ends, too, where
// the leader is older than all this.
func (l leases) Renew(ctx context.Context, r *apiserver.Renewal) bool {
	at := r.At.UnixMicro()
	if at == 0 {
		return false
	}
	answer := l.ask(ctx, &rpc.RenewalRequest{Node: r.Node, UID: r.UID, ResourceVersion: r.ResourceVersion, RenewedUnixMicro: at})
	return answer != nil && answer.Taken
}

// Renewed implements apiserver.Leases.
func (l leases) Renewed(ctx context.Context, node, uid, resourceVersion string) time.Time {
	answer := l.ask(ctx, &rpc.RenewalRequest{Node: node, UID: uid, ResourceVersion: resourceVersion})
	if answer == nil || answer.RenewedUnixMicro == 0 {
		return time.Time{}
	}
	return time.UnixMicro(answer.RenewedUnixMicro)
}

// ask asks whoever leads; nil: nobody answers.
func (l leases) ask(ctx context.Context, r *rpc.RenewalRequest) *rpc.RenewalResponse {
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	id, _ := l.node.Leader()
	var (
		answer *rpc.RenewalResponse
		err    error
	)
	if id == l.config.Name {
		answer, err = handler(l).Renewal(ctx, r)
	} else {
		addr, ok := l.serverAddr(id)
		if !ok {
			return nil
		}
		answer, err = l.peers.Renewal(ctx, addr, r)
	}
	if err != nil {
		l.log.Debug("the leader does not take the renewal of a lease", "leader", id, "node", r.Node, "error", err)
		return nil
	}
	return answer
}
