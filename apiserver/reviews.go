package apiserver

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"

	// The groups' types, as above all others.
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"

	"github.com/berth-dev/berth/apiserver/tokens"
)

// reviewGroups answer who a client is to the server, and what it may do:
// `kubectl auth whoami` and `kubectl auth can-i`. Nothing of it is stored.
// who answers whose a token is (TokenReview), may what somebody else may
// (SubjectAccessReview).
func reviewGroups(who authenticator.Request, may *rights) []genericapiserver.APIGroupInfo {
	return []genericapiserver.APIGroupInfo{
		groupOf(authenticationv1.SchemeGroupVersion, map[string]rest.Storage{
			"selfsubjectreviews": selfsubjectreview.NewREST(),
			"tokenreviews":       tokenreview.NewREST(who, tokens.Audiences()),
		}),
		groupOf(authorizationv1.SchemeGroupVersion, map[string]rest.Storage{
			"selfsubjectaccessreviews":  selfsubjectaccessreview.NewREST(may),
			"selfsubjectrulesreviews":   selfsubjectrulesreview.NewREST(may),
			"subjectaccessreviews":      subjectaccessreview.NewREST(may),
			"localsubjectaccessreviews": localsubjectaccessreview.NewREST(may),
		}),
	}
}
