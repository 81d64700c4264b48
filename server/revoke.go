package server

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/rpc"
)

// revokeAhead is for how long after a revocation certificates that are issued still fall under
// it: the clocks of the servers that sign may be off, and a request may be on its way.
const revokeAhead = time.Minute

// longestRevokedName leaves room for what the name of a revocation begins with.
const longestRevokedName = 200

// revokeNode makes all certificates of a node worthless that were issued until now.
func (s *Server) revokeNode(r *http.Request) (any, error) {
	node := r.PathValue("name")
	if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
		return nil, fmt.Errorf("%w: %q is no name of a node: %s", errBadRequest, node, problems[0])
	}
	if len(node) > longestRevokedName {
		return nil, fmt.Errorf("%w: the name of the node is longer than %d", errBadRequest, longestRevokedName)
	}
	if err := s.ReadIndex(r.Context()); err != nil {
		return nil, err
	}
	who := askedFor(r.Context(), nil).User
	until := time.Now().Add(revokeAhead).Truncate(time.Microsecond)
	at := metav1.NewMicroTime(until)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: fsm.RevocationName(node), UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, RenewTime: &at},
	}
	c := &fsm.PutObject{Resource: "leases", Create: true}
	if o, ok := s.state.View().Objects.Get(fsm.ObjectKey("leases", lease.Namespace, lease.Name)); ok {
		lease.UID, lease.CreationTimestamp, c.Create = types.UID(o.Value.GetUID()), o.Value.GetCreationTimestamp(), false
	}
	var err error
	if c.Raw, err = lease.Marshal(); err != nil {
		return nil, err
	}
	result, err := s.proposeOne(r.Context(), c)
	if err == nil {
		err = result.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("revoking the certificates of node %s: %w", node, err)
	}
	s.log.Warn("an operator has revoked the certificates of a node", "node", node, "user", who, "until", until)
	_, known := s.state.View().Nodes.Get(node)
	return &operator.RevokedNode{Node: node, Until: until, Unknown: !known}, nil
}

// errRevoked is why a worker is not heard whose certificate is revoked.
var errRevoked = errors.New("its certificate is revoked")

// checkRevoked refuses a worker by a certificate that counts no more (rpc.ServerConfig).
func (s *Server) checkRevoked(id *pki.Identity) error {
	if until, ok := s.state.View().NodeRevoked(id.Name); ok && id.Kind == pki.Worker && !id.Issued.After(until) {
		return fmt.Errorf("%w: node %s: %w", rpc.ErrForbidden, id.Name, errRevoked)
	}
	return nil
}

// endRevoked ends what a node has open whose certificates were revoked a moment ago: its stream, tunnels to it, and connections to its
// kubelet. One that has another certificate comes back.
func (s *Server) endRevoked(o *fsm.Object) {
	if node := fsm.RevokedNode(o); node != "" {
		s.rpc.AskAgain(node)
		s.endRevokedKubelets(node)
	}
}

// endAllRevoked is endRevoked where it is not known what has changed.
func (s *Server) endAllRevoked() {
	s.rpc.AskAgain("")
	s.endRevokedKubelets("")
}
