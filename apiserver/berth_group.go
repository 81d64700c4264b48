package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/berth-dev/berth/api/berthv1"
)

// berthScheme knows the types of berth.dev. It is this server's own: to add
// them to Kubernetes' scheme would change what other servers of the process are
// reading.
func berthScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{berthv1.AddToScheme, berthv1.AddInternalToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	// Options and answers that belong to no group.
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme, scheme.SetVersionPriority(berthv1.GroupVersion)
}

// withoutProtobuf serves types that have no protobuf encoding: a client that
// would rather have protobuf then takes its next choice.
type withoutProtobuf struct{ serializer.CodecFactory }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	var out []runtime.SerializerInfo
	for _, info := range s.CodecFactory.SupportedMediaTypes() {
		if info.MediaType != runtime.ContentTypeProtobuf {
			out = append(out, info)
		}
	}
	return out
}

func (g *registry) berthGroup(scheme *runtime.Scheme, planner Planner) (genericapiserver.APIGroupInfo, error) {
	codecs := serializer.NewCodecFactory(scheme)
	info := genericapiserver.NewDefaultAPIGroupInfo(berthv1.GroupName, scheme, runtime.NewParameterCodec(scheme), codecs)
	info.NegotiatedSerializer = listSerializer{withoutProtobuf{codecs}, scheme}
	describe := func(k *kind, singular string, namespaced bool, list func() runtime.Object, shortNames ...string) description {
		return description{
			kind: k, singular: singular, shortNames: shortNames, list: list,
			version: berthv1.GroupVersion, table: berthTable(),
		}.by(berthStrategy{scheme, names.SimpleNameGenerator, namespaced})
	}
	queue, err := g.store(describe(queueEntryKind(), "queueentry", true,
		func() runtime.Object { return new(berthv1.QueueEntryList) }))
	if err != nil {
		return info, err
	}
	preemptions, err := g.store(describe(preemptionKind(), "preemption", true,
		func() runtime.Object { return new(berthv1.PreemptionList) }))
	if err != nil {
		return info, err
	}
	config, err := g.store(describe(schedulerConfigurationKind(), "schedulerconfiguration", false,
		func() runtime.Object { return new(berthv1.SchedulerConfigurationList) }))
	if err != nil {
		return info, err
	}
	info.VersionedResourcesStorageMap[berthv1.GroupVersion.Version] = map[string]rest.Storage{
		berthv1.ResourceQueueEntries:            &readOnly{queue, []string{"qe"}},
		berthv1.ResourcePreemptions:             &readOnly{preemptions, nil},
		berthv1.ResourceSchedulerConfigurations: &configuration{readOnly{config, []string{"schedconf"}}, g.backend},
		berthv1.ResourcePlans:                   &plans{backend: g.backend, planner: planner},
	}
	return info, nil
}
