package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	evaluation "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/quotas"
)

// anyName is a name of a few, or none.
func anyName(t *rapid.T, label string, names ...string) *string {
	if name := rapid.SampledFrom(append(names, "")).Draw(t, label); name != "" {
		return &name
	}
	return nil
}

func anyVolumeClaim(t *rapid.T) *corev1.PersistentVolumeClaim {
	sizes := []string{"0", "1", "1500m", "1Gi", "3Gi"}
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: anyName(t, "class", "fast", "slow"), VolumeAttributesClassName: anyName(t, "attributes", "gold", "iron"),
		Resources: corev1.VolumeResourceRequirements{Requests: amountsBy("storage", rapid.SampledFrom(sizes).Draw(t, "size"))},
	}}
	c.Status.CurrentVolumeAttributesClassName = anyName(t, "current", "gold", "iron", "lead")
	if name := anyName(t, "target", "gold", "lead"); name != nil {
		c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: *name}
	}
	if rapid.Bool().Draw(t, "resized") {
		c.Status.AllocatedResources = amountsBy("storage", rapid.SampledFrom(sizes).Draw(t, "given"))
	}
	return c
}

func anyDeviceClaim(t *rapid.T) *resourcev1.ResourceClaim {
	class, modes := rapid.SampledFrom([]string{"gpu", "nic"}), rapid.SampledFrom([]resourcev1.DeviceAllocationMode{"ExactCount", "All", "Other"})
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
	for range rapid.IntRange(0, 3).Draw(t, "requests") {
		r := resourcev1.DeviceRequest{}
		if rapid.Bool().Draw(t, "exactly") {
			r.Exactly = &resourcev1.ExactDeviceRequest{DeviceClassName: class.Draw(t, "class"), AllocationMode: modes.Draw(t, "mode"), Count: rapid.Int64Range(1, 9).Draw(t, "count")}
		}
		for range rapid.IntRange(0, 3).Draw(t, "alternatives") {
			r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{
				DeviceClassName: class.Draw(t, "class"), AllocationMode: modes.Draw(t, "mode"), Count: rapid.Int64Range(1, 9).Draw(t, "count"),
			})
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
	}
	return c
}

// anyScopes are those that a quota may have, whatever it bounds.
func anyScopes(t *rapid.T, spec *corev1.ResourceQuotaSpec) {
	for range rapid.IntRange(0, 2).Draw(t, "scopes") {
		if rapid.IntRange(0, 3).Draw(t, "of pods") == 0 {
			spec.Scopes = append(spec.Scopes, corev1.ResourceQuotaScopeNotTerminating)
			continue
		}
		r := corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeVolumeAttributesClass,
			Operator: rapid.SampledFrom([]corev1.ScopeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")}
		if r.Operator == corev1.ScopeSelectorOpIn || r.Operator == corev1.ScopeSelectorOpNotIn {
			r.Values = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"gold", "iron", "lead"}), 1, 2, rapid.ID[string]).Draw(t, "values")
		}
		if spec.ScopeSelector == nil {
			spec.ScopeSelector = &corev1.ScopeSelector{}
		}
		spec.ScopeSelector.MatchExpressions = append(spec.ScopeSelector.MatchExpressions, r)
	}
}

// TestClaimsCountAsInKubernetes: whatever claims come, change and go, and whether the quota is there before them or after, what
// is used is what Kubernetes' evaluators count; and a claim is refused if that would be more than the quota has.
func TestClaimsCountAsInKubernetes(t *testing.T) {
	volumes, devices := core.NewPersistentVolumeClaimEvaluator(nil), core.NewResourceClaimEvaluator(nil, nil, nil, nil)
	rapid.Check(t, func(t *rapid.T) {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: amountsBy(
			"persistentvolumeclaims", "2", "count/persistentvolumeclaims", "9", "requests.storage", "5Gi", "count/resourceclaims.resource.k8s.io", "9",
			"fast.storageclass.storage.k8s.io/requests.storage", "3Gi", "slow.storageclass.storage.k8s.io/persistentvolumeclaims", "3",
			"gpu.deviceclass.resource.k8s.io/devices", "20", "nic.deviceclass.resource.k8s.io/devices", "20", "pods", "9", "count/secrets", "0")}}
		anyScopes(t, &q.Spec)
		q.Status.Hard = q.Spec.Hard
		var before, after quotas.Index
		before.Put(nil, q, true)
		there := map[int]runtime.Object{}
		used := func() corev1.ResourceList {
			sum := corev1.ResourceList{}
			for name := range q.Spec.Hard {
				sum[name] = resource.Quantity{}
			}
			for _, o := range there {
				sum = evaluation.Mask(evaluation.Add(sum, usedBy(t, q, o, volumes, devices)), evaluation.ResourceNames(q.Spec.Hard))
			}
			return sum
		}
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			at := rapid.IntRange(0, 5).Draw(t, "claim")
			was := there[at]
			var is runtime.Object
			switch {
			case rapid.IntRange(0, 3).Draw(t, "is") == 0:
			case at%2 == 0:
				is = anyVolumeClaim(t)
			default:
				is = anyDeviceClaim(t)
			}
			had := used()
			delete(there, at)
			if is != nil {
				there[at] = is
				now := used()
				var over bool
				for name, most := range q.Spec.Hard {
					n, then := now[name], had[name]
					over = over || n.Cmp(most) > 0 && n.Cmp(then) > 0
				}
				if why := before.RefuseItem("default", itemOf(was), itemOf(is)); (why != "") != over {
					t.Fatalf("with %v used of %v: %q", now, q.Spec.Hard, why)
				}
			}
			before.PutItem("default", itemOf(was), itemOf(is))
			after.PutItem("default", itemOf(was), itemOf(is))
		}
		after.Put(nil, q, true)
		for when, x := range map[string]*quotas.Index{"before": &before, "after": &after} {
			if got, want := x.Status("default/q").Used, used(); !evaluation.Equals(got, want) {
				t.Fatalf("a quota %s the claims: %v are used, want %v", when, got, want)
			}
		}
		for _, o := range there {
			before.PutItem("default", itemOf(o), nil)
		}
		before.Describe(func(line string) {
			if line[:5] == "items" {
				t.Fatalf("of no claims is left %s", line)
			}
		})
	})
}

func itemOf(o runtime.Object) *quotas.Item {
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		return quotas.VolumeClaim(o)
	case *resourcev1.ResourceClaim:
		return quotas.DeviceClaim(o)
	}
	return nil
}

// usedBy is what Kubernetes counts of an object for a quota.
func usedBy(t *rapid.T, q *corev1.ResourceQuota, o runtime.Object, volumes, devices evaluation.Evaluator) corev1.ResourceList {
	e := devices
	if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
		e = volumes
	}
	matches, err := e.Matches(q, o)
	if err != nil {
		t.Fatal(err)
	}
	if !matches {
		return nil
	}
	used, err := e.Usage(o)
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// amountsBy is a list of amounts by their names.
func amountsBy(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}
