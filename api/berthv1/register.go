package berthv1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of everything in this package.
const GroupName = "berth.dev"

// The resources of the group, as they stand in URLs.
const (
	ResourceQueueEntries            = "queueentries"
	ResourcePreemptions             = "preemptions"
	ResourcePlans                   = "plans"
	ResourceSchedulerConfigurations = "schedulerconfigurations"
)

// GroupVersion is what clients see.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// Resource qualifies a resource name with the group.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme registers the types as berth.dev/v1, with the list and watch
// options that a client's parameter codec needs.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, knownTypes()...)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// AddInternalToScheme registers the same Go types as the group's internal
// version as well: the API server decodes into the internal version, and there
// is only one version here, so nothing has to be converted.
func AddInternalToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(schema.GroupVersion{Group: GroupName, Version: runtime.APIVersionInternal}, knownTypes()...)
	return nil
}

func knownTypes() []runtime.Object {
	return []runtime.Object{
		&QueueEntry{}, &QueueEntryList{},
		&Preemption{}, &PreemptionList{},
		&Plan{},
		&SchedulerConfiguration{}, &SchedulerConfigurationList{},
	}
}
