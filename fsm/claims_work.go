package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// To find out what the claims of a pod ask, every free volume of their classes has to be
// looked at, once for each demand: all claims that demand the same of one class, whosever
// they are, go by one list, which is made anew when a volume of the class comes or goes.
// What that takes follows from the tables, so it is known and charged before. A pod
// whose claims take more than an entry may do for one decision gets no node, is told why,
// and is tried again after its backoff.

// SinceClaimsCounted is the LogVersion from which on lists are charged once in an entry, and
// there is a bound on what the claims of one pod may take.
const SinceClaimsCounted = 26

const (
	costClaim     = 40 // to look up a claim, its class, and the volume that it has
	costListed    = 3  // to look whether a volume meets a demand, and for each condition of a selector
	costCondition = 10 // to read a condition of a selector, or of a volume for nodes
	valuesPerUnit = 16 // of a condition

	// maxClaimsWork is what the claims of one pod may take, maxClaimsAsks how many
	// conditions they may have for one node, and maxHolders how many pods on nodes may use
	// those that one at a time may use.
	maxClaimsWork = 350_000
	maxClaimsAsks = 20_000
	maxHolders    = 100
)

// VolumeList is the list of the volumes of one class, as they are at some time, that meet
// one demand.
type VolumeList struct {
	shelf  *shelf
	demand string
}

// claimsWork is what it takes to find out what claims ask: for each list of volumes, and
// beside them.
type claimsWork struct {
	own, listed int
	lists       map[VolumeList]int
}

func (v *View) claimsWork(pod *corev1.Pod, names []string) claimsWork {
	w := claimsWork{own: len(names) * costClaim}
	for _, name := range names {
		claim, ok := v.VolumeClaim(pod.Namespace, name)
		if !ok {
			continue
		}
		if isBound(claim) {
			if volume, ok := v.PersistentVolume(claim.Spec.VolumeName); ok {
				w.own += model.ReachAsks(volume) * costCondition
			}
			continue
		}
		class, ok := v.waitingClass(claim)
		if !ok {
			continue
		}
		conditions, values := conditionsOf(claim.Spec.Selector)
		if w.own += (conditions + values) * costCondition; w.own > maxClaimsWork {
			break
		}
		if on, ok := v.volumes.shelves.Get(class.Name); ok {
			w.add(VolumeList{on, demandKey(claim)}, on.volumes*costListed*(1+conditions+values/valuesPerUnit))
		}
	}
	return w
}

func (w *claimsWork) add(list VolumeList, units int) {
	if _, known := w.lists[list]; known {
		return
	}
	if w.lists == nil {
		w.lists = map[VolumeList]int{}
	}
	w.lists[list] = units
	w.listed += units
}

// waitingClass is the class of a claim that has no volume and is to be given one with its
// pod's node.
func (v *View) waitingClass(c *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, bool) {
	class, ok := v.StorageClass(model.ClaimClass(c))
	return class, ok && model.WaitsForPod(class)
}

func conditionsOf(s *metav1.LabelSelector) (conditions, values int) {
	if s == nil {
		return 0, 0
	}
	for i := range s.MatchExpressions {
		values += len(s.MatchExpressions[i].Values)
	}
	return len(s.MatchLabels) + len(s.MatchExpressions), values
}

// units are of the claims of one pod, but for lists that are known.
func (w *claimsWork) units(known map[VolumeList]bool) int {
	units := w.own
	// order does not matter: it is a sum.
	for list, n := range w.lists {
		if !known[list] {
			units += n
		}
	}
	return units
}

// ClaimsWork is what it takes to find out what the pod's claims ask, in units of 25 to 100
// nanoseconds. Lists that are known do not count; those that do are added to them.
func (v *View) ClaimsWork(pod *corev1.Pod, known map[VolumeList]bool) int {
	w := v.workOfClaims(pod)
	units := w.units(known)
	// order does not matter: all of them are added.
	for list := range w.lists {
		known[list] = true
	}
	return units
}

// workOfClaims is without lists where nobody looks at them.
func (v *View) workOfClaims(pod *corev1.Pod) claimsWork {
	names := model.Claims(pod)
	if len(names) == 0 || v.Version() < SinceVolumes {
		return claimsWork{}
	}
	w := v.claimsWork(pod, names)
	if w.own+w.listed > maxClaimsWork && v.Version() >= SinceClaimsCounted {
		return claimsWork{own: min(w.own, maxClaimsWork)}
	}
	return w
}

// tooDear says why nobody looks what a pod's claims ask, "" where somebody does. crowded is
// a claim that too many use.
func (v *View) tooDear(w claimsWork, crowded string) string {
	switch {
	case v.Version() < SinceClaimsCounted:
		return ""
	case crowded != "":
		return fmt.Sprintf("persistentvolumeclaim %q, which one pod at a time may use, is used by more than %d pods on nodes", crowded, maxHolders)
	case w.own+w.listed > maxClaimsWork:
		return fmt.Sprintf("to find volumes for the pod's claims would take more than %d units of work, %d for each volume that each demand is compared with; "+
			"claims that demand the same of a class share theirs", maxClaimsWork, costListed)
	}
	return ""
}

// tooMany is tooDear by what each node would be asked.
func (v *View) tooMany(b *model.VolumesBuilder) string {
	if b.Asks() <= maxClaimsAsks || v.Version() < SinceClaimsCounted {
		return ""
	}
	return fmt.Sprintf("the volumes of the pod's claims, and those that they can be given, have more than %d conditions for a node", maxClaimsAsks)
}

// billClaims charges what it takes to find out what a pod's claims ask, a list once in an
// entry.
func (v *live) billClaims(pod *corev1.Pod) {
	if v.bill == nil || v.Version() < SinceClaimsCounted {
		return
	}
	if v.Version() >= SinceDevices {
		v.billUnits(min(len(pod.Spec.ResourceClaims), MaxDeviceClaims) * costClaim)
	}
	if len(pod.Spec.Volumes) == 0 {
		return
	}
	if v.bill.lists == nil {
		v.bill.lists = map[VolumeList]bool{}
	}
	units := v.ClaimsWork(pod, v.bill.lists)
	v.billUnits(units)
	v.cache.work += int64(units)
}

// claimsWait says whether to find out what a pod's claims ask, by its key, would take more than is left to a plan that has had
// some of its decisions carried out. From then on it is so of all with claims: counting would be most of the work.
func (tx *Tx) claimsWait(key string, spent int64) bool {
	v := tx.view
	pod, ok := v.Pods.Get(key)
	if !ok || spent == 0 || v.Version() < SinceClaimsCounted || len(model.Claims(pod)) == 0 {
		return false
	}
	if !v.bill.claimsWait {
		w := v.workOfClaims(pod)
		v.bill.claimsWait = spent+int64(w.units(v.bill.lists)) > MaxPlanWork
	}
	return v.bill.claimsWait
}
