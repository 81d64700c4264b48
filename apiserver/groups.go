package apiserver

import (
	"context"
	"errors"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	replicationcontrollerstorage "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"

	// The groups' types, conversions and defaults register themselves in
	// Kubernetes' scheme.
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"

	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/fsm"
)

const serviceAccounts = "serviceaccounts"

// deleteWorkers is how many objects of a collection are deleted at a time,
// where a deletion is more than one command.
const deleteWorkers = 8

func never(context.Context, string, runtime.Object, runtime.Object) bool { return false }

// kubernetesTable prints the columns that kubectl users know, of every kind.
var kubernetesTable = sync.OnceValue(func() rest.TableConvertor {
	return printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
})

// groupOf describes a group whose types are in Kubernetes' scheme.
func groupOf(gv schema.GroupVersion, resources map[string]rest.Storage) genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.PrioritizedVersions = []schema.GroupVersion{gv}
	info.NegotiatedSerializer = listSerializer{info.NegotiatedSerializer, legacyscheme.Scheme}
	info.VersionedResourcesStorageMap[gv.Version] = resources
	return info
}

// coreGroup is the group without a name. It also gives the events, which are
// served under two names.
func (g *registry) coreGroup(
	config Config, accounts *tokens.Accounts,
) (info genericapiserver.APIGroupInfo, events rest.Storage, err error) {
	table := kubernetesTable()
	made := map[string]*served{}
	var account description
	resources := map[string]rest.Storage{}
	for _, d := range append(plainDescriptions(), podDescription(g.backend), nodeDescription(), namespaceDescription(config.RootCA), eventDescription()) {
		d.version, d.table = corev1.SchemeGroupVersion, table
		if d.kind.rows.table == objectsTable {
			d = plain(d)
		}
		name := d.kind.resource.Resource
		if name == serviceAccounts {
			account = d
		}
		if made[name], err = g.resource(d); err != nil {
			return info, nil, err
		}
		resources[name] = made[name]
	}
	g.pods = made["pods"]
	addPodParts(resources, g.pods, config)
	resources["namespaces"] = oneByOne{made["namespaces"]}
	resources["namespaces/status"] = partOf(made["namespaces"], namespace.StatusStrategy)
	resources["namespaces/finalize"] = partOf(made["namespaces"], namespace.FinalizeStrategy)
	resources["nodes/status"] = partOf(made["nodes"], node.StatusStrategy)
	resources["nodes/proxy"] = &nodeProxy{g.backend, config.Nodes}
	err = errors.Join(
		g.workload(resources, replicationControllerDescription(), replicationcontroller.StatusStrategy),
		g.workload(resources, endpointsDescription(), nil),
		g.workload(resources, limitRangeDescription(), nil),
		g.workload(resources, resourceQuotaDescription(), resourcequota.StatusStrategy),
		g.replicationControllerScale(resources),
		g.volumes(resources),
	)
	if err != nil {
		return info, nil, err
	}
	if resources["services"], err = g.services(made["services"], config.Services); err != nil {
		return info, nil, err
	}
	resources["services/proxy"] = proxyToServices(g.backend, config.Streams)
	resources["services/status"] = partOf(made["services"], serviceStatusChange{service.StatusStrategy})
	if resources["serviceaccounts/token"], err = g.accountToken(account, accounts, made); err != nil {
		return info, nil, err
	}
	return groupOf(corev1.SchemeGroupVersion, resources), resources["events"], nil
}

func (g *registry) replicationControllerScale(resources map[string]rest.Storage) error {
	upstream, err := replicationcontrollerstorage.NewStorage(g.options(replicationControllerDescription()))
	resources["replicationcontrollers/scale"] = &scale{upstream.Scale, g.backend}
	return err
}

func nodeDescription() description {
	return description{
		kind: nodeKind(), singular: "node", shortNames: []string{"no"},
		list:   func() runtime.Object { return new(core.NodeList) },
		create: nodeCreation{node.Strategy}, update: node.Strategy, remove: node.Strategy, reset: node.Strategy,
		attrs: node.GetAttrs, predicate: node.MatchNode,
	}
}

func namespaceDescription(rootCA string) description {
	return description{
		kind: namespaceKind(rootCA), singular: "namespace", shortNames: []string{"ns"}, whole: true,
		list:  func() runtime.Object { return new(core.NamespaceList) },
		attrs: namespace.GetAttrs, predicate: namespace.MatchNamespace,
		// Whatever the propagation: a namespace takes what is in it along.
		erase: func(key string, p fsm.Precondition, _ *metav1.DeleteOptions) fsm.Command {
			return &fsm.DeleteNamespace{Name: key, Precondition: p}
		},
		endsInApply: true,
	}.by(namespace.Strategy)
}

func eventDescription() description {
	return description{
		kind: eventKind(), singular: "event", shortNames: []string{"ev"},
		list:  func() runtime.Object { return new(core.EventList) },
		attrs: event.GetAttrs, predicate: event.Matcher,
	}.by(event.Strategy)
}

// plainDescriptions are the kinds that have no meaning for scheduling.
func plainDescriptions() []description {
	return []description{
		description{
			kind: configMapKind(), singular: "configmap", shortNames: []string{"cm"},
			list:  func() runtime.Object { return new(core.ConfigMapList) },
			attrs: configmap.GetAttrs, predicate: configmap.Matcher,
		}.by(configmap.Strategy),
		description{
			kind: secretKind(), singular: "secret",
			list:  func() runtime.Object { return new(core.SecretList) },
			attrs: secret.GetAttrs, predicate: secret.Matcher,
		}.by(secret.Strategy),
		description{
			kind: serviceAccountKind(), singular: "serviceaccount", shortNames: []string{"sa"},
			list: func() runtime.Object { return new(core.ServiceAccountList) },
		}.by(serviceaccount.Strategy),
		description{
			kind: podTemplateKind(), singular: "podtemplate",
			list: func() runtime.Object { return new(core.PodTemplateList) },
		}.by(podtemplate.Strategy),
		serviceDescription(),
	}
}

func serviceDescription() description {
	return description{
		kind: serviceKind(), singular: "service", shortNames: []string{"svc"}, categories: []string{"all"}, version: corev1.SchemeGroupVersion,
		list:   func() runtime.Object { return new(core.ServiceList) },
		create: serviceCreation{service.Strategy}, update: serviceChange{service.Strategy}, remove: service.Strategy, reset: service.Strategy,
		attrs: service.GetAttrs, predicate: service.Matcher,
	}
}

func podDescription(backend Backend) description {
	return description{
		kind: podKind(), singular: "pod", shortNames: []string{"po"}, categories: []string{"all"}, whole: true,
		list:   func() runtime.Object { return new(core.PodList) },
		create: podCreation{pod.Strategy, backend.View}, update: podChange{pod.Strategy}, remove: pod.Strategy, reset: pod.Strategy,
		attrs: pod.GetAttrs, predicate: pod.MatchPod,
		erase: func(key string, p fsm.Precondition, options *metav1.DeleteOptions) fsm.Command {
			return &fsm.DeletePod{Key: key, Precondition: p, GraceSeconds: options.GracePeriodSeconds, Propagation: propagation(options)}
		},
		endsInApply: true,
	}
}

func addPodParts(resources map[string]rest.Storage, pods *served, config Config) {
	b := &binding{pods.backend}
	resources["bindings"] = &bindings{b}
	resources["pods/binding"] = b
	resources["pods/eviction"] = &eviction{pods.backend}
	resources["pods/proxy"] = proxyToPods(pods.backend, config.Streams)
	resources["pods/status"] = partOf(pods, pod.StatusStrategy)
	resources["pods/log"] = &podLog{backend: pods.backend, logs: config.Logs}
	resources["pods/ephemeralcontainers"] = narrowPartOf(pods, pod.EphemeralContainersStrategy)
	resources["pods/resize"] = resizing{narrowPartOf(pods, pod.ResizeStrategy)}
	for what, options := range streamKinds() {
		resources["pods/"+what] = &podStream{
			what: what, options: options, backend: pods.backend, streams: config.Streams, logger: config.Logger.Named("streams"),
		}
	}
}

func (g *registry) schedulingGroup() (genericapiserver.APIGroupInfo, error) {
	r, err := g.resource(description{
		kind: priorityClassKind(), singular: "priorityclass", shortNames: []string{"pc"},
		version: schedulingv1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(scheduling.PriorityClassList) },
	}.by(newClassStrategy()))
	return groupOf(schedulingv1.SchemeGroupVersion, map[string]rest.Storage{"priorityclasses": r}), err
}

func (g *registry) coordinationGroup() (genericapiserver.APIGroupInfo, error) {
	r, err := g.resource(plain(description{
		kind: leaseKind(), singular: "lease",
		version: coordinationv1.SchemeGroupVersion, table: kubernetesTable(),
		list: func() runtime.Object { return new(coordination.LeaseList) },
	}.by(lease.Strategy)))
	return groupOf(coordinationv1.SchemeGroupVersion, map[string]rest.Storage{"leases": r}), err
}

// eventsGroup shows the same events under their newer name.
func eventsGroup(events rest.Storage) genericapiserver.APIGroupInfo {
	return groupOf(eventsv1.SchemeGroupVersion, map[string]rest.Storage{"events": events})
}
