package fsm

import (
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/store"
)

// ConfigureScheduler stores the one scheduler configuration, as JSON in the
// form of the API. What it leaves out gets its default. Pods that name the
// scheduler of a new profile enter the queue, the oldest first; those of a
// profile that is gone leave it, and their nominations end. So does a
// reservation that would not be made any more. Where these pods are many, they
// come and go in the next entries, and so does another order of the queue.
//
// Refuses: 400 for unreadable JSON; 422 for an invalid configuration; 409 for
// a stale revision.
type ConfigureScheduler struct {
	JSON     []byte `msgpack:"json"`
	Revision int64  `msgpack:"revision,omitempty"`
	// OnlyIfAbsent leaves a configuration that is there as it is: the first
	// leader of a cluster proposes the one of its configuration file.
	OnlyIfAbsent bool `msgpack:"only_if_absent,omitempty"`
}

// unpack stops at fields that are not known.
func (c *ConfigureScheduler) unpack(*cache) error {
	if err := codec.UnmarshalJSON(c.JSON, new(berthv1.SchedulerConfiguration)); errors.Is(err, store.ErrUnknownCommand) {
		return err
	}
	return nil
}

// Apply implements Command.
func (c *ConfigureScheduler) Apply(tx *Tx) Result {
	config := new(berthv1.SchedulerConfiguration)
	if err := json.Unmarshal(c.JSON, config); err != nil {
		return refuseBadRequest("ConfigureScheduler: " + err.Error())
	}
	if errs := config.Validate(); len(errs) > 0 {
		return refusal(apierrors.NewInvalid(configResource.groupKind(), config.Name, errs))
	}
	config.SetDefaults()
	v := tx.view
	old, known := v.Config.Get(config.Name)
	switch {
	case known && c.OnlyIfAbsent:
		return Result{Table: v.Config.Name(), Object: old}
	case known:
		if r, ok := (Precondition{UID: string(config.UID), Revision: c.Revision}).check(old, configResource); !ok {
			return r
		}
		config.UID, config.CreationTimestamp, config.ResourceVersion = old.UID, old.CreationTimestamp, old.ResourceVersion
		if equality.Semantic.DeepEqual(config, old) {
			return Result{Table: v.Config.Name(), Object: old}
		}
	default:
		config.UID, config.CreationTimestamp = tx.newUID(), tx.now()
	}
	before := v.SchedulerConfig()
	put(tx, v.Config, config.Name, config)
	tx.trimEvents(int(*config.Spec.EventLimit))
	tx.forgetArrivals()
	tx.followProfiles(before, config)
	tx.endDisallowedReservation()
	return Result{Table: v.Config.Name(), Object: config}
}

// judgesOtherwise says whether a pod that found no place under one configuration
// may find one under the other.
func judgesOtherwise(before, after *berthv1.SchedulerConfigurationSpec) bool {
	return !equality.Semantic.DeepEqual(addedAffinities(before), addedAffinities(after)) ||
		!equality.Semantic.DeepEqual(before.Preemption, after.Preemption) ||
		!equality.Semantic.DeepEqual(before.PodTopologySpread, after.PodTopologySpread) ||
		!equality.Semantic.DeepEqual(before.Reservation, after.Reservation)
}

// addedAffinities are what the profiles ask of nodes, by scheduler name.
func addedAffinities(s *berthv1.SchedulerConfigurationSpec) map[string]*corev1.NodeAffinity {
	out := map[string]*corev1.NodeAffinity{}
	for i := range s.Profiles {
		if a := s.Profiles[i].AddedAffinity(); a != nil {
			out[s.Profiles[i].SchedulerName] = a
		}
	}
	return out
}
