package fsm

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/owners"
)

// Workloads and owners from the words of a directive.

// setOf: replicas= selector=k:v,… (also the template's labels)
// generation=
func (s *transcript) setOf(a words, meta metav1.ObjectMeta) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: pairs(a.list("selector"))},
	}}
	rs.Spec.Template.Labels = rs.Spec.Selector.MatchLabels
	if n := a.number("replicas"); n != nil {
		replicas := int32(*n)
		rs.Spec.Replicas = &replicas
	}
	if n := a.number("generation"); n != nil {
		rs.Generation = *n
	}
	return rs
}

// laterObject is one of the kinds whose controllers go through the API: class= is that
// of its template.
func (s *transcript) laterObject(kind ObjectKind, a words, meta metav1.ObjectMeta) codec.Object {
	o := kind.New()
	o.SetNamespace(meta.Namespace)
	o.SetName(meta.Name)
	o.SetUID(meta.UID)
	o.SetLabels(meta.Labels)
	o.SetAnnotations(meta.Annotations)
	o.SetOwnerReferences(meta.OwnerReferences)
	o.SetFinalizers(meta.Finalizers)
	o.SetCreationTimestamp(meta.CreationTimestamp)
	o.SetGeneration(meta.Generation)
	fillBinding(kind, o, a)
	if kind.ClusterScoped {
		o.SetNamespace("")
	}
	if rc, ok := o.(*corev1.ReplicationController); ok {
		rc.Spec.Template = &corev1.PodTemplateSpec{}
	}
	switch o := o.(type) {
	case *apiextensionsv1.CustomResourceDefinition: // kind= scope=
		_, o.Spec.Group, _ = strings.Cut(o.Name, ".")
		o.Spec.Scope = apiextensionsv1.ResourceScope(a.or("scope", string(apiextensionsv1.NamespaceScoped)))
		o.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}, Required: []string{}}}}}
		o.Status.AcceptedNames.Kind = a.or("kind", "")
	case *networkingv1.ServiceCIDR: // cidrs=
		o.Spec.CIDRs = a.list("cidrs")
	case *networkingv1.IPAddress: // of=NAMESPACE/SERVICE managed
		namespace, name, _ := strings.Cut(a.or("of", ""), "/")
		o.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}
		if old, ok := objectIn[networkingv1.IPAddress](s.view(), IPAddresses, "", o.Name); ok {
			o.UID = old.UID // the state machine has given it
		}
		if a.has("managed") {
			o.Labels = map[string]string{networkingv1.LabelManagedBy: addressManager}
		}
	case *codec.CustomObject:
		o.Content = []byte(`{"data":"` + a.or("data", "") + `"}`)
	}
	if kind.Workload != nil {
		kind.Workload.Template(o).Spec.PriorityClassName = a.or("class", "")
	}
	return o
}

// ownerReference is one from [controller:|blocks:]RESOURCE/NAME[@UID].
func ownerReference(text string) metav1.OwnerReference {
	yes, ref := true, metav1.OwnerReference{}
	if rest, ok := strings.CutPrefix(text, "controller:"); ok {
		text, ref.Controller, ref.BlockOwnerDeletion = rest, &yes, &yes
	}
	if rest, ok := strings.CutPrefix(text, "blocks:"); ok {
		text, ref.BlockOwnerDeletion = rest, &yes
	}
	resource, name, _ := strings.Cut(text, "/")
	name, uid, given := strings.Cut(name, "@")
	if !given {
		uid = "uid-" + name
	}
	ref.Name, ref.UID = name, types.UID(uid)
	switch kind, ok := objectKinds[resource]; {
	case ok:
		ref.APIVersion, ref.Kind = kind.apiVersion(), kind.Kind
	case resource == "nodes":
		ref.APIVersion, ref.Kind = "v1", "Node"
	case resource == owners.Pods:
		ref.APIVersion, ref.Kind = "v1", "Pod"
	default:
		ref.APIVersion, ref.Kind = "example.com/v1", resource
	}
	return ref
}

// workloadRef is the ReplicaSet of a name as it is now; uid= demands another.
func (s *transcript) workloadRef(a words, name string) ObjectRef {
	ref := ObjectRef{Resource: a.or("kind", ReplicaSets), Namespace: a.or("ns", "default"), Name: name, UID: "uid-" + name}
	ref.UID = a.or("owner-uid", ref.UID)
	return ref
}

func (s *transcript) setStatus(a words, _ string) []Command { // status SET replicas= ready= [warning=REASON] [garbage]
	var status appsv1.ReplicaSetStatus
	for key, field := range map[string]*int32{"replicas": &status.Replicas, "ready": &status.ReadyReplicas} {
		if n := a.number(key); n != nil {
			*field = int32(*n)
		}
	}
	raw, err := status.Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	if a.has("garbage") {
		raw = []byte{0xff}
	}
	return one(&SetStatus{Owner: s.workloadRef(a, a.name()), Status: raw, WarningReason: a.or("warning", ""), WarningMessage: a.or("message", "")})
}

func (s *transcript) showTally(a words) string { // tally SET
	out := ""
	s.view().Tallies(owners.ID{Namespace: a.or("ns", "default"), UID: types.UID("uid-" + a.name())}, func(t *owners.Tally) bool {
		for k, v := range sortedPairs(t.Labels) {
			out += k + "=" + v + " "
		}
		out += t.String() + "\n"
		return true
	})
	return out
}

func (s *transcript) showVerdicts(words) string { // judge: everything that something has to be done about
	names := map[Verdict]string{
		Disown: "disown", Collect: "collect", CollectInForeground: "collect in the foreground", Release: "release", Finish: "finish", Unblock: "unblock",
	}
	out := ""
	show := func(ref ObjectRef) {
		if verdict := s.view().Judge(ref); verdict != Keep {
			out += fmt.Sprintf("%s %s/%s\n", names[verdict], ref.Resource, ref.Name)
		}
	}
	s.view().Objects.Scan("", func(key string, _ *Object) bool {
		ref, _ := s.view().refOf(ownableKey(key))
		show(ref)
		return true
	})
	s.view().Pods.Scan("", func(key string, _ *corev1.Pod) bool {
		ref, _ := s.view().refOf(ownableKey(owners.Pods + "/" + key))
		show(ref)
		return true
	})
	return out
}

func describeObject(o *Object) string {
	out := fmt.Sprintf("%T", o.Value)
	add := func(format string, args ...any) { out += ", " + fmt.Sprintf(format, args...) }
	if rs, ok := o.Value.(*appsv1.ReplicaSet); ok {
		add("wants %d, has %d, ready %d", ReplicasOf(rs), rs.Status.Replicas, rs.Status.ReadyReplicas)
	}
	if q, ok := o.Value.(*corev1.ResourceQuota); ok {
		add("%s", describeQuota(q))
	}
	switch value := o.Value.(type) {
	case *corev1.PersistentVolume:
		add("%s", describeVolume(value))
	case *corev1.PersistentVolumeClaim:
		add("%s", describeClaim(value))
	case *resourcev1.ResourceClaim:
		if text := describeDevices(value); text != "" {
			add("%s", text)
		}
	}
	if o.Value.GetDeletionTimestamp() != nil {
		add("is being deleted")
	}
	if f := o.Value.GetFinalizers(); len(f) > 0 {
		add("finalizers %s", strings.Join(f, " "))
	}
	return out + describeOwners(o.Value)
}

func describeOwners(o metav1.Object) string {
	out := ""
	for _, r := range o.GetOwnerReferences() {
		what := "owner"
		if r.Controller != nil && *r.Controller {
			what = "controller"
		}
		out += fmt.Sprintf(", %s %s %s", what, r.Kind, r.Name)
	}
	return out
}

// ownableKey is what is under "resource/namespace/name" of the plain objects.
func ownableKey(key string) owners.Key {
	resource, rest, _ := strings.Cut(key, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	return owners.Key{Resource: resource, Namespace: namespace, Name: name}
}
