package apiserver

import (
	"encoding/json"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordination "k8s.io/kubernetes/pkg/apis/coordination"
	core "k8s.io/kubernetes/pkg/apis/core"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

func podKind() *kind {
	r := rowsOf("pods", func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })
	r.onNode = func(v *fsm.View, node string, f func(key string, row any) bool) {
		v.PodsOnNode(node, func(pod *corev1.Pod) bool { return f(fsm.PodKey(pod.Namespace, pod.Name), pod) })
	}
	r.fields = func(row any) fields.Fields { return podFields{row.(*corev1.Pod)} }
	r.nodeOf = func(row any) string { return row.(*corev1.Pod).Spec.NodeName }
	return &kind{
		resource:  core.Resource("pods"),
		rows:      r,
		newObject: func() runtime.Object { return new(core.Pod) },
		present:   converting(asObject),
		create: func(obj runtime.Object) (fsm.Command, error) {
			pod, err := versioned[corev1.Pod](obj)
			return &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}}, err
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			pod, err := versioned[corev1.Pod](obj)
			return &fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}, Revision: revision}, err
		},
		remove: func(key string, p fsm.Precondition) fsm.Command {
			now := int64(0)
			return &fsm.DeletePod{Key: key, Precondition: p, GraceSeconds: &now}
		},
	}
}

func nodeKind() *kind {
	return &kind{
		resource:  core.Resource("nodes"),
		rows:      rowsOf("nodes", func(v *fsm.View) fsm.Table[*corev1.Node] { return v.Nodes }),
		newObject: func() runtime.Object { return new(core.Node) },
		present:   converting(asObject),
		create: func(obj runtime.Object) (fsm.Command, error) {
			node, err := versioned[corev1.Node](obj)
			return &fsm.PutNode{Node: fsm.NodeWire{Object: node}, Create: true}, err
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			node, err := versioned[corev1.Node](obj)
			return &fsm.PutNode{Node: fsm.NodeWire{Object: node}, Revision: revision}, err
		},
		remove: func(key string, p fsm.Precondition) fsm.Command {
			return &fsm.DeleteNode{Name: key, Precondition: p}
		},
	}
}

// namespaceKind: rootCA goes into the config map that every new namespace gets.
func namespaceKind(rootCA string) *kind {
	return &kind{
		resource:  core.Resource("namespaces"),
		rows:      rowsOf("namespaces", func(v *fsm.View) fsm.Table[*corev1.Namespace] { return v.Namespaces }),
		newObject: func() runtime.Object { return new(core.Namespace) },
		present:   converting(asObject),
		create: func(obj runtime.Object) (fsm.Command, error) {
			ns, err := versioned[corev1.Namespace](obj)
			return &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: true, RootCA: rootCA}, err
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			ns, err := versioned[corev1.Namespace](obj)
			return &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Revision: revision}, err
		},
		remove: func(key string, p fsm.Precondition) fsm.Command {
			return &fsm.DeleteNamespace{Name: key, Precondition: p}
		},
	}
}

func priorityClassKind() *kind {
	return &kind{
		resource:  scheduling.Resource("priorityclasses"),
		rows:      rowsOf("priorityclasses", func(v *fsm.View) fsm.Table[*schedulingv1.PriorityClass] { return v.PriorityClasses }),
		newObject: func() runtime.Object { return new(scheduling.PriorityClass) },
		present:   converting(asObject),
		create: func(obj runtime.Object) (fsm.Command, error) {
			class, err := versioned[schedulingv1.PriorityClass](obj)
			return &fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}}, err
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			class, err := versioned[schedulingv1.PriorityClass](obj)
			return &fsm.UpdatePriorityClass{Class: fsm.PriorityClassWire{Object: class}, Revision: revision}, err
		},
		remove: func(key string, p fsm.Precondition) fsm.Command {
			return &fsm.DeletePriorityClass{Name: key, Precondition: p}
		},
	}
}

func eventKind() *kind {
	return &kind{
		resource:  core.Resource("events"),
		rows:      rowsOf("events", func(v *fsm.View) fsm.Table[*corev1.Event] { return v.Events }),
		newObject: func() runtime.Object { return new(core.Event) },
		present:   converting(asObject),
		create: func(obj runtime.Object) (fsm.Command, error) {
			event, err := versioned[corev1.Event](obj)
			return &fsm.PutEvent{Event: fsm.EventWire{Object: event}, Create: true}, err
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			event, err := versioned[corev1.Event](obj)
			return &fsm.PutEvent{Event: fsm.EventWire{Object: event}, Revision: revision}, err
		},
		remove: func(key string, p fsm.Precondition) fsm.Command {
			return &fsm.DeleteEvents{Key: key, Precondition: p}
		},
	}
}

// plainKind is a kind of the table of plain objects. T is its internal type, V
// the one that is stored.
func plainKind[T, V any, P interface {
	*T
	runtime.Object
}, W interface {
	*V
	runtime.Object
	codec.Object
}](resource schema.GroupResource) *kind {
	put := func(obj runtime.Object) (*fsm.PutObject, error) {
		v, err := versioned[V, W](obj)
		if err != nil {
			return nil, err
		}
		raw, err := v.Marshal()
		return &fsm.PutObject{Resource: resource.Resource, Raw: raw}, err
	}
	return &kind{
		resource:  resource,
		rows:      plainRows(resource.Resource),
		newObject: func() runtime.Object { return P(new(T)) },
		present:   converting(func(row any) runtime.Object { return row.(*fsm.Object).Value.(W) }),
		create: func(obj runtime.Object) (fsm.Command, error) {
			c, err := put(obj)
			if err != nil {
				return nil, err
			}
			c.Create = true
			return c, nil
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			c, err := put(obj)
			if err != nil {
				return nil, err
			}
			c.Revision = revision
			return c, nil
		},
		remove: func(key string, p fsm.Precondition) fsm.Command { return removeObject(resource.Resource, key, p) },
	}
}

func removeObject(resource, key string, p fsm.Precondition) *fsm.DeleteObject {
	namespace, name, ok := strings.Cut(key, "/")
	if !ok { // of a kind that is in no namespace
		namespace, name = "", key
	}
	return &fsm.DeleteObject{Resource: resource, Namespace: namespace, Name: name, Precondition: p}
}

// inNoNamespace makes a plain kind a cluster-scoped one. In the table its
// objects have an empty namespace.
func inNoNamespace(k *kind) *kind {
	k.rows = plainRows(k.resource.Resource + "/")
	return k
}

// objectsTable is the one table of several resources.
const objectsTable = "objects"

func plainRows(resource string) rows {
	prefix := resource + "/"
	return rows{
		table:     objectsTable,
		keyPrefix: prefix,
		labels:    func(row any) labels.Set { return row.(*fsm.Object).Value.GetLabels() },
		get: func(v *fsm.View, key string) (any, bool) {
			return v.Objects.Get(prefix + key)
		},
		scan: func(v *fsm.View, p, from string, f func(key string, row any) bool) {
			v.Objects.ScanFrom(prefix+p, prefix+from, func(key string, row *fsm.Object) bool { return f(key[len(prefix):], row) })
		},
	}
}

func configMapKind() *kind {
	return plainKind[core.ConfigMap, corev1.ConfigMap](core.Resource("configmaps"))
}
func secretKind() *kind { return plainKind[core.Secret, corev1.Secret](core.Resource("secrets")) }
func podTemplateKind() *kind {
	return plainKind[core.PodTemplate, corev1.PodTemplate](core.Resource("podtemplates"))
}
func serviceKind() *kind { return plainKind[core.Service, corev1.Service](core.Resource("services")) }
func leaseKind() *kind {
	return plainKind[coordination.Lease, coordinationv1.Lease](coordination.Resource("leases"))
}
func serviceAccountKind() *kind {
	return plainKind[core.ServiceAccount, corev1.ServiceAccount](core.Resource("serviceaccounts"))
}

func preemptionKind() *kind {
	return &kind{
		resource:  berthv1.Resource(berthv1.ResourcePreemptions),
		rows:      rowsOf("preemptions", func(v *fsm.View) fsm.Table[*berthv1.Preemption] { return v.Preemptions }),
		newObject: func() runtime.Object { return new(berthv1.Preemption) },
		present:   asIs[berthv1.Preemption],
	}
}

func schedulerConfigurationKind() *kind {
	configure := func(obj runtime.Object, revision int64) (fsm.Command, error) {
		b, err := json.Marshal(obj)
		return &fsm.ConfigureScheduler{JSON: b, Revision: revision}, err
	}
	return &kind{
		resource:  berthv1.Resource(berthv1.ResourceSchedulerConfigurations),
		rows:      rowsOf("schedulerconfigurations", func(v *fsm.View) fsm.Table[*berthv1.SchedulerConfiguration] { return v.Config }),
		newObject: func() runtime.Object { return new(berthv1.SchedulerConfiguration) },
		present:   asIs[berthv1.SchedulerConfiguration],
		create:    func(obj runtime.Object) (fsm.Command, error) { return configure(obj, 0) },
		update:    configure,
	}
}

// asIs presents rows that are the API's objects already.
func asIs[T any](*fsm.View) presenter {
	return func(row any, into runtime.Object) error {
		*any(into).(*T) = *row.(*T)
		return nil
	}
}
