package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// keepRoles gives a cluster of before there were roles those that every cluster has,
// once every server knows of them, and lets those who are authenticated go on as before by
// bindings that are the administrators' from then on. A snapshot that is restored may be of such a cluster.
func (s *Server) keepRoles(ctx context.Context) {
	ticker := time.NewTicker(controlInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		switch v := s.state.View(); {
		case v.HadRoles() || s.versionNow(ctx) < fsm.SinceRoles:
		case !v.HasRoles():
			if err := s.addRoles(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("the cluster has no roles yet", "error", err)
			}
		default: // after the roles, or an upgrade that ends in between would leave people without them
			if err := s.rememberRoles(ctx, v); err != nil && ctx.Err() == nil {
				s.log.Warn("it is not remembered yet that the cluster has roles", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func (s *Server) addRoles(ctx context.Context) error {
	commands, err := roles.Reconcile(s.state.View(), false, s.finishOwn())
	if err != nil {
		return err
	}
	s.log.Info("the cluster gets roles; what everybody might until now is bound to system:authenticated", "objects", len(commands))
	return s.proposeOwn(ctx, own(commands))
}

// rememberRoles has the state say that there are roles, for when the last of them is deleted: who deletes
// what was given gives nothing by it.
func (s *Server) rememberRoles(ctx context.Context, v *fsm.View) error {
	old, ok := v.Namespaces.Get(metav1.NamespaceSystem)
	if !ok {
		return nil // it is being made
	}
	revision, err := strconv.ParseInt(old.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("the revision of the namespace %s: %w", old.Name, err)
	}
	ns := old.DeepCopy()
	metav1.SetMetaDataAnnotation(&ns.ObjectMeta, model.RolesAnnotation, "true")
	return s.proposeOwn(ctx, []fsm.Proposal{{
		User: systemUser, Groups: systemGroups, Command: &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Revision: revision},
	}})
}

// ownRoles are the commands that furnish needs for roles: those of a new cluster, or
// what a new version has added.
func (s *Server) ownRoles(ctx context.Context, v *fsm.View, founding bool) ([]fsm.Command, error) {
	if !founding && !v.HasRoles() || s.versionNow(ctx) < fsm.SinceRoles {
		return nil, nil
	}
	commands, err := roles.Reconcile(v, true, s.finishOwn())
	if err != nil {
		return nil, fmt.Errorf("the cluster's own roles: %w", err)
	}
	return commands, nil
}

// finishOwn gives an object of the cluster's own what every object has.
func (s *Server) finishOwn() func(*metav1.ObjectMeta) {
	now := metav1.NewTime(s.node.Clock().Time())
	return func(o *metav1.ObjectMeta) { o.UID, o.CreationTimestamp = types.UID(uuid.NewUUID()), now }
}
