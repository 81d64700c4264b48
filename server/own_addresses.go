package server

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/fsm"
)

const (
	// defaultRange is the name of the range that the configuration names.
	defaultRange = "kubernetes"
	// addressesAtOnce is how many addresses of services from before version 16 get their objects
	// at a time, and addressPasses how many looks it takes until all of them are looked through again.
	addressesAtOnce = 500
	addressPasses   = 30
)

// ownRange is the command that makes the cluster's range for services what the configuration says, where there
// is none or one family of two; and whether what there is is another one.
func (s *Server) ownRange(v *fsm.View, now metav1.Time) (c []fsm.Command, differs bool, err error) {
	if v.Version() < fsm.SinceAddresses {
		return nil, false, nil
	}
	var want []string
	for _, p := range s.config.Services.Prefixes() {
		want = append(want, p.Masked().String())
	}
	r := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultRange, UID: types.UID(uuid.NewUUID()), CreationTimestamp: now, Generation: 1},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: want},
	}
	old, ok := v.Objects.Get(fsm.ObjectKey(fsm.ServiceCIDRs, "", defaultRange))
	if ok {
		is := old.Value.(*networkingv1.ServiceCIDR)
		switch {
		case slices.Equal(is.Spec.CIDRs, want), is.DeletionTimestamp != nil:
			return nil, false, nil
		case len(want) != 2 || len(is.Spec.CIDRs) != 1 || is.Spec.CIDRs[0] != want[0]:
			return nil, true, nil
		}
		r = is.DeepCopy()
		r.Spec.CIDRs, r.Generation = want, r.Generation+1
	}
	raw, err := r.Marshal()
	if err != nil {
		return nil, false, fmt.Errorf("encode the range for services: %w", err)
	}
	return []fsm.Command{&fsm.PutObject{Resource: fsm.ServiceCIDRs, Raw: raw, Create: !ok}}, false, nil
}

// missingAddresses are the commands that make the objects of addresses that services have had since before there were
// any.
func (s *Server) missingAddresses(v *fsm.View, now metav1.Time) (out []fsm.Command, err error) {
	if v.Version() < fsm.SinceAddresses {
		return nil, nil
	}
	for service, a := range v.AddressesWithout {
		raw, failed := fsm.AddressOf(service, a, types.UID(uuid.NewUUID()), now).Marshal()
		if failed != nil {
			return nil, fmt.Errorf("encode the address %s: %w", a, failed)
		}
		out = append(out, &fsm.PutObject{Resource: fsm.IPAddresses, Raw: raw, Create: true})
		if len(out) == addressesAtOnce {
			break
		}
	}
	return out, nil
}

// addressKeeper keeps the range and the addresses while this server leads.
type addressKeeper struct {
	server *Server
	looks  int
	told   bool
}

// keep does what is to be done now.
func (k *addressKeeper) keep(ctx context.Context, v *fsm.View, now metav1.Time) {
	s := k.server
	commands, differs, err := s.ownRange(v, now)
	if differs && !k.told {
		k.told = true
		s.log.Warn("services get addresses of another range than the configured one: delete the ServiceCIDR "+defaultRange+", and it is made anew when no service has an address of it",
			"configured", s.config.Services.Prefixes())
	}
	if k.looks%addressPasses == 0 && err == nil {
		var missing []fsm.Command
		if missing, err = s.missingAddresses(v, now); len(missing) > 0 {
			commands = append(commands, missing...)
			k.looks-- // there may be more
		}
	}
	k.looks++
	if err != nil {
		s.log.Error("the addresses of services can not be encoded", "error", err)
	}
	s.proposeAll(ctx, v, commands)
}

// isGiven: a service has the address from Berth, so that it leads to somebody only where services are carried.
func isGiven(v *fsm.View, ranges Services, s *corev1.Service) bool {
	return ranges.Has(s.Spec.ClusterIP) || v.OfServiceRange(s.Spec.ClusterIP)
}
