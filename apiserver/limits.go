package apiserver

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/certificates"
	core "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/storage"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// Kubernetes bounds an object by the size of a request alone. What is looked at
// again and again, for every pod, node and change, has narrower bounds here:
// far above what anybody needs, and low enough that no object is a burden.
const (
	maxReferences   = 64  // owner references and finalizers
	maxManagers     = 256 // of fields
	maxGrants       = 65536
	maxRules        = 4096 // of a role: they are looked through for requests that nothing allows
	maxContainers   = 128  // of all sorts together
	maxHostPorts    = fsm.MaxHostPorts
	maxPorts        = 512 // of all containers: upstream warns of each pair that is alike
	maxServicePorts = 512 // of a service, and of what is behind it
	maxSchedule     = 1024
	maxPaths        = 512 // in volumes: the same
	maxVolumes      = 256
	maxTolerations  = 128
	maxPodTerms     = 64 // affinity and anti-affinity together, required and preferred
	maxSpread       = 32
	maxNodeTerms    = 64
	maxNodeAsks     = 512 // entries of all node affinity terms of a pod, and their values
	maxExpressions  = 64  // of one selector or term
	maxValues       = 256 // of one expression
	maxNamespaces   = 64  // of one term
	maxMatchKeys    = 32
	maxResources    = 64 // named by a pod, all containers and the overhead together
	maxGates        = 32
	maxTaints       = 64
	maxGraceSeconds = 1 << 31
)

// limits collects what is over its bound.
type limits struct{ field.ErrorList }

func (l *limits) count(path *field.Path, n, most int) {
	if n > most {
		l.ErrorList = append(l.ErrorList, field.TooMany(path, n, most))
	}
}

// checkLimits refuses an object that is over a bound: of its metadata, which all
// kinds share, or of what Berth works with every day.
func checkLimits(obj runtime.Object) error { return checkChange(obj, nil) }

// checkChange is checkLimits for what becomes of an object. What was over its bound before may be so, and may not grow: objects are older than
// bounds.
func checkChange(obj, old runtime.Object) error {
	errs := limitsOf(obj)
	if len(errs) > 0 && old != nil {
		before := limitsOf(old)
		errs = slices.DeleteFunc(errs, func(err *field.Error) bool {
			return slices.ContainsFunc(before, func(was *field.Error) bool { return isNoWorse(err, was) })
		})
	}
	if len(errs) == 0 {
		return nil
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return err
	}
	return apierrors.NewInvalid(kinds[0].GroupKind(), metaOf(obj).GetName(), few(errs))
}

// isNoWorse says whether an error is the one of before, of as much or less.
func isNoWorse(now, was *field.Error) bool {
	if now.Type != was.Type || now.Field != was.Field {
		return false
	}
	n, isNumber := now.BadValue.(int)
	before, wasNumber := was.BadValue.(int)
	return !isNumber || !wasNumber || n <= before
}

// limitsOf is what of an object is over its bound.
func limitsOf(obj runtime.Object) field.ErrorList {
	var l limits
	m := metaOf(obj)
	path := field.NewPath("metadata")
	l.count(path.Child("labels"), len(m.GetLabels()), model.MaxLabels)
	l.count(path.Child("ownerReferences"), len(m.GetOwnerReferences()), maxReferences)
	l.count(path.Child("finalizers"), len(m.GetFinalizers()), maxReferences)
	l.count(path.Child("managedFields"), len(m.GetManagedFields()), maxManagers)
	l.managed(path.Child("managedFields"), m)
	spec := field.NewPath("spec")
	switch o := obj.(type) {
	case *core.Pod:
		l.pod(spec, &o.Spec)
		l.said(field.NewPath("status"), &o.Status)
	case *policy.PodDisruptionBudget:
		l.selector(spec.Child("selector"), o.Spec.Selector)
	case *core.Service:
		l.count(spec.Child("selector"), len(o.Spec.Selector), maxExpressions)
		l.count(spec.Child("ports"), len(o.Spec.Ports), maxServicePorts)
	case *core.Endpoints:
		for i := range o.Subsets {
			l.count(field.NewPath("subsets").Index(i).Child("ports"), len(o.Subsets[i].Ports), maxServicePorts)
		}
	case *discovery.EndpointSlice:
		l.count(field.NewPath("ports"), len(o.Ports), maxServicePorts)
	case *core.ResourceQuota:
		l.resourceQuota(spec, o)
	case *core.LimitRange:
		l.limitRange(spec.Child("limits"), o)
	case *core.Node:
		l.node(o)
	case *core.PersistentVolumeClaim:
		l.volumeClaim(spec, o)
	case *core.PersistentVolume:
		l.persistentVolume(spec, o)
	case *storage.StorageClass:
		l.storageClass(o)
	case *certificates.CertificateSigningRequest:
		l.certificateRequest(spec, o)
	case *autoscaling.HorizontalPodAutoscaler:
		l.autoscaler(spec, o)
	case *rbac.Role:
		l.grants(o.Rules)
	case *rbac.ClusterRole:
		l.grants(o.Rules)
	default:
		if !l.admission(spec, obj) && !l.drivers(spec, obj) {
			l.template(obj)
		}
	}
	return l.ErrorList
}

// freeManagedBytes is how long managed fields are that cannot be too many.
const freeManagedBytes = 2 * maxContents

// managed bounds what is known of who manages an object's fields: it is walked through with every write, for each manager.
func (l *limits) managed(path *field.Path, m metav1.Object) {
	if managedBytes(m) <= freeManagedBytes {
		return
	}
	n := 0
	for _, of := range m.GetManagedFields() {
		if of.FieldsV1 != nil {
			s := shapeIn(of.FieldsV1.Raw, true)
			n += s.managed
		}
	}
	if n > maxContents {
		l.ErrorList = append(l.ErrorList, &field.Error{Type: field.ErrorTypeTooMany, Field: path.String(), BadValue: n, Detail: fmt.Sprintf(
			"managers may manage %d fields together", maxContents)})
	}
}

// grants bounds what a role grants, one verb on one resource counting as one: whoever writes the role, or gives it to somebody, is asked
// for each whether he has it.
func (l *limits) grants(rules []rbac.PolicyRule) {
	l.count(field.NewPath("rules"), len(rules), maxRules)
	if grantsOf(rules) > maxGrants {
		l.ErrorList = append(l.ErrorList, field.Forbidden(field.NewPath("rules"), fmt.Sprintf(
			"verbs times groups times resources times names come to more than %d, all rules together", maxGrants)))
	}
}

// grantsOf is how much rules grant, as far as it matters.
func grantsOf(rules []rbac.PolicyRule) (n int) {
	for i := range rules {
		r := &rules[i]
		n = addGrants(n, len(r.Verbs), len(r.NonResourceURLs))
		n = addGrants(n, len(r.Verbs), len(r.APIGroups), len(r.Resources), max(1, len(r.ResourceNames)))
	}
	return n
}

// addGrants adds a product, as far as it matters.
func addGrants(n int, factors ...int) int {
	product := 1
	for _, f := range factors {
		if product = min(product*f, maxGrants+1); product == 0 {
			return n
		}
	}
	return min(n+product, maxGrants+1)
}

// Controllers add labels and tolerations to the pods that they make, or ask for one
// label more: for those a template leaves room.
const (
	addedLabels      = 8
	addedTolerations = 8
)

// template: what the pods of a workload are made from.
func (l *limits) template(obj runtime.Object) {
	template, at := podTemplateOf(obj)
	if template == nil {
		return
	}
	l.selector(field.NewPath("spec", "selector"), podSelectorOf(obj))
	most := model.MaxLabels
	switch o := obj.(type) {
	case *apps.ReplicaSet, *core.ReplicationController:
	case *apps.Deployment:
		most -= addedLabels
		if o.Spec.Selector != nil {
			l.count(field.NewPath("spec", "selector", "matchLabels"), len(o.Spec.Selector.MatchLabels), maxExpressions-1)
		}
	case *apps.StatefulSet:
		most -= addedLabels
		l.setPods(o, templateBytes(template))
	case *batch.CronJob:
		most -= addedLabels
		if len(o.Spec.Schedule) > maxSchedule { // it is read, and warned of, many times
			l.ErrorList = append(l.ErrorList, &field.Error{Type: field.ErrorTypeTooLong, Field: "spec.schedule",
				BadValue: len(o.Spec.Schedule), Detail: fmt.Sprintf("may not be more than %d bytes", maxSchedule)})
		}
		// Its controller counts the times since then, one by one where they are too many for a duration.
		if at := o.Status.LastScheduleTime; at != nil && at.UTC().Year() < 1970 {
			l.ErrorList = append(l.ErrorList, field.Invalid(field.NewPath("status", "lastScheduleTime"), at, "must not be before 1970"))
		}
	case *apps.DaemonSet:
		most -= addedLabels
		l.count(at.Child("spec", "tolerations"), len(template.Spec.Tolerations), maxTolerations-addedTolerations)
	default:
		most -= addedLabels
	}
	l.count(at.Child("metadata", "labels"), len(template.Labels), most)
	l.pod(at.Child("spec"), &template.Spec)
}

// pod: the spec of a pod, or of a template.
func (l *limits) pod(path *field.Path, spec *core.PodSpec) {
	l.count(path.Child("containers"), len(spec.Containers)+len(spec.InitContainers)+len(spec.EphemeralContainers), maxContainers)
	l.count(path.Child("containers").Child("resources"), len(resourceNames(spec)), maxResources)
	l.count(path.Child("resourceClaims"), len(spec.ResourceClaims), fsm.MaxDeviceClaims)
	ports, all := 0, 0
	each := func(at *field.Path, containers []core.Container) {
		for i := range containers {
			c := &containers[i]
			l.amounts(at.Index(i).Child("resources", "requests"), c.Resources.Requests)
			l.amounts(at.Index(i).Child("resources", "limits"), c.Resources.Limits)
			all += len(c.Ports)
			for _, p := range c.Ports {
				if p.HostPort != 0 {
					ports++
				}
			}
		}
	}
	each(path.Child("initContainers"), spec.InitContainers)
	each(path.Child("containers"), spec.Containers)
	l.count(path.Child("containers").Child("ports"), ports, maxHostPorts)
	for i := range spec.EphemeralContainers {
		all += len(spec.EphemeralContainers[i].Ports)
	}
	l.count(path.Child("containers").Child("ports"), all, maxPorts)
	l.count(path.Child("volumes").Child("items"), pathsOf(spec.Volumes), maxPaths)
	if r := spec.Resources; r != nil {
		l.amounts(path.Child("resources", "requests"), r.Requests)
		l.amounts(path.Child("resources", "limits"), r.Limits)
	}
	l.amounts(path.Child("overhead"), spec.Overhead)
	volumes := len(spec.Volumes)
	if slices.ContainsFunc(spec.Volumes, func(v core.Volume) bool { return v.Name == accountVolume }) {
		volumes-- // nobody asked for it
	}
	l.count(path.Child("volumes"), volumes, maxVolumes)
	l.count(path.Child("tolerations"), len(spec.Tolerations), maxTolerations)
	l.count(path.Child("schedulingGates"), len(spec.SchedulingGates), maxGates)
	l.count(path.Child("nodeSelector"), len(spec.NodeSelector), maxExpressions)
	if s := spec.TerminationGracePeriodSeconds; s != nil && *s >= maxGraceSeconds {
		l.ErrorList = append(l.ErrorList, field.Invalid(path.Child("terminationGracePeriodSeconds"), *s, fmt.Sprintf("must be less than %d", int64(maxGraceSeconds))))
	}
	l.spread(path.Child("topologySpreadConstraints"), spec.TopologySpreadConstraints)
	if spec.Affinity != nil {
		l.affinity(path.Child("affinity"), spec.Affinity)
	}
}

// pathsOf counts what volumes say that is to be where in them.
func pathsOf(volumes []core.Volume) (n int) {
	for i := range volumes {
		v := &volumes[i]
		if v.Secret != nil {
			n += len(v.Secret.Items)
		}
		if v.ConfigMap != nil {
			n += len(v.ConfigMap.Items)
		}
		if v.DownwardAPI != nil {
			n += len(v.DownwardAPI.Items)
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			s := &v.Projected.Sources[j]
			n++
			if s.Secret != nil {
				n += len(s.Secret.Items)
			}
			if s.ConfigMap != nil {
				n += len(s.ConfigMap.Items)
			}
			if s.DownwardAPI != nil {
				n += len(s.DownwardAPI.Items)
			}
		}
	}
	return n
}

// resourceNames are those that a pod asks for or bounds, anywhere: each is looked at
// on every node.
func resourceNames(spec *core.PodSpec) resourceSet {
	all := resourceSet{}
	for _, containers := range [][]core.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			all.add(containers[i].Resources.Requests, containers[i].Resources.Limits)
		}
	}
	if r := spec.Resources; r != nil {
		all.add(r.Requests, r.Limits)
	}
	all.add(spec.Overhead)
	return all
}

// resourceSet are names of resources.
type resourceSet map[core.ResourceName]bool

func (s resourceSet) add(lists ...core.ResourceList) {
	for _, list := range lists {
		for name := range list {
			s[name] = true
		}
	}
}

// said: what is said that a pod has is charged to it, like what it asks for.
func (l *limits) said(path *field.Path, s *core.PodStatus) {
	all := resourceSet{}
	for _, statuses := range [][]core.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range statuses {
			all.add(statuses[i].AllocatedResources)
			if r := statuses[i].Resources; r != nil {
				all.add(r.Requests, r.Limits)
			}
		}
	}
	l.count(path.Child("containerStatuses").Child("resources"), len(all), maxResources)
	var stored corev1.PodStatus
	if err := corev1conversion.Convert_core_PodStatus_To_v1_PodStatus(s, &stored, nil); err != nil {
		l.ErrorList = append(l.ErrorList, field.InternalError(path, err))
		return
	}
	if err := model.CheckPodStatusBytes(stored.Size()); err != nil { // a worker's is asked the same
		l.ErrorList = append(l.ErrorList, err)
	}
}

// amounts refuses quantities that would not be counted as they are.
func (l *limits) amounts(path *field.Path, list core.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		if !model.Countable(string(name), q) && q.Sign() > 0 { // upstream refuses what is negative
			l.ErrorList = append(l.ErrorList, field.Invalid(path.Key(string(name)), q.String(), "must be at most "+mostOf(string(name))))
		}
	}
}

func mostOf(name string) string {
	if name == string(core.ResourceCPU) {
		return resource.NewMilliQuantity(model.MaxAmount, resource.DecimalSI).String()
	}
	return resource.NewQuantity(model.MaxAmount, resource.BinarySI).String()
}

func (l *limits) spread(path *field.Path, constraints []core.TopologySpreadConstraint) {
	l.count(path, len(constraints), maxSpread)
	for i := range constraints {
		l.selector(path.Index(i).Child("labelSelector"), constraints[i].LabelSelector)
		l.count(path.Index(i).Child("matchLabelKeys"), len(constraints[i].MatchLabelKeys), maxMatchKeys)
	}
}

func (l *limits) affinity(path *field.Path, a *core.Affinity) {
	if n := a.NodeAffinity; n != nil {
		at := path.Child("nodeAffinity")
		asks := 0
		preferred := at.Child("preferredDuringSchedulingIgnoredDuringExecution")
		l.count(preferred, len(n.PreferredDuringSchedulingIgnoredDuringExecution), maxNodeTerms)
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			asks += l.nodeTerm(preferred.Index(i).Child("preference"), &n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
		}
		if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			terms := at.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
			l.count(terms, len(r.NodeSelectorTerms), maxNodeTerms)
			for i := range r.NodeSelectorTerms {
				asks += l.nodeTerm(terms.Index(i), &r.NodeSelectorTerms[i])
			}
		}
		l.count(at, asks, maxNodeAsks)
	}
	terms := 0
	if p := a.PodAffinity; p != nil {
		terms += l.podTerms(path.Child("podAffinity"), p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		terms += l.podTerms(path.Child("podAntiAffinity"), p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	l.count(path, terms, maxPodTerms)
}

func (l *limits) podTerms(path *field.Path, required []core.PodAffinityTerm, preferred []core.WeightedPodAffinityTerm) int {
	for i := range required {
		l.podTerm(path.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i), &required[i])
	}
	for i := range preferred {
		l.podTerm(path.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm"), &preferred[i].PodAffinityTerm)
	}
	return len(required) + len(preferred)
}

func (l *limits) podTerm(path *field.Path, t *core.PodAffinityTerm) {
	l.selector(path.Child("labelSelector"), t.LabelSelector)
	l.selector(path.Child("namespaceSelector"), t.NamespaceSelector)
	l.count(path.Child("namespaces"), len(t.Namespaces), maxNamespaces)
	l.count(path.Child("matchLabelKeys"), len(t.MatchLabelKeys), maxMatchKeys)
	l.count(path.Child("mismatchLabelKeys"), len(t.MismatchLabelKeys), maxMatchKeys)
}

// nodeTerm returns how many entries and values the term has.
func (l *limits) nodeTerm(path *field.Path, t *core.NodeSelectorTerm) int {
	return l.requirements(path.Child("matchExpressions"), t.MatchExpressions) + l.requirements(path.Child("matchFields"), t.MatchFields)
}

func (l *limits) requirements(path *field.Path, list []core.NodeSelectorRequirement) int {
	l.count(path, len(list), maxExpressions)
	asks := len(list)
	for i := range list {
		l.count(path.Index(i).Child("values"), len(list[i].Values), maxValues)
		asks += len(list[i].Values)
	}
	return asks
}

// selector bounds a selector of pods or namespaces.
func (l *limits) selector(path *field.Path, s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	l.count(path.Child("matchLabels"), len(s.MatchLabels), maxExpressions)
	l.count(path.Child("matchExpressions"), len(s.MatchExpressions), maxExpressions)
	for i := range s.MatchExpressions {
		l.count(path.Child("matchExpressions").Index(i).Child("values"), len(s.MatchExpressions[i].Values), maxValues)
	}
}

// node: its amounts are not bounded here, since what a node claims beyond
// model.MaxAmount does not count.
func (l *limits) node(n *core.Node) {
	own := 0 // Berth's, which nobody has to leave room for
	for i := range n.Spec.Taints {
		if key := n.Spec.Taints[i].Key; key == corev1.TaintNodeNotReady || key == corev1.TaintNodeUnreachable {
			own++
		}
	}
	l.count(field.NewPath("spec", "taints"), len(n.Spec.Taints)-own, maxTaints)
	l.count(field.NewPath("status", "capacity"), len(n.Status.Capacity), model.MaxNodeResources)
	l.count(field.NewPath("status", "allocatable"), len(n.Status.Allocatable), model.MaxNodeResources)
	l.count(field.NewPath("status", "conditions"), len(n.Status.Conditions), model.MaxConditions)
}
