package fsm

import (
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/berth-dev/berth/codec"
)

// APIServices is the resource by which servers of others' serve parts of the API.
const APIServices = "apiservices"

// SinceAPIServices is the version of the rules that brought it.
const SinceAPIServices = 17

// MaxAPIServices bounds them: servers ask each of them from time to time what it serves.
const MaxAPIServices = 256

func apiServiceKind() ObjectKind {
	return ObjectKind{
		Group: apiregistrationv1.GroupName, Resource: APIServices, Kind: "APIService", ClusterScoped: true,
		Since: SinceAPIServices, MostInNamespace: MaxAPIServices, New: func() codec.Object { return new(apiregistrationv1.APIService) },
	}
}

// Aggregated is the APIService of a version of a group that a server of others' serves.
func (v *View) Aggregated(group, version string) (*apiregistrationv1.APIService, bool) {
	o, ok := v.Objects.Get(ObjectKey(APIServices, "", version+"."+group))
	if !ok {
		return nil, false
	}
	s := o.Value.(*apiregistrationv1.APIService)
	return s, s.Spec.Service != nil
}

// EachAggregated calls f for every one of them, in the order of their names, until it returns false.
func (v *View) EachAggregated(f func(s *apiregistrationv1.APIService) bool) {
	v.Objects.Scan(ObjectKey(APIServices, "", ""), func(_ string, o *Object) bool {
		s := o.Value.(*apiregistrationv1.APIService)
		return s.Spec.Service == nil || f(s)
	})
}
