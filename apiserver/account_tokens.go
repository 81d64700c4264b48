package apiserver

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	core "k8s.io/kubernetes/pkg/apis/core"
	accountstorage "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/berth-dev/berth/apiserver/tokens"
)

// accountToken is serviceaccounts/token, by upstream's registry: TokenRequest,
// for the account alone or bound to a pod, a secret or a node. Nothing of it is
// stored.
func (g *registry) accountToken(d description, accounts *tokens.Accounts, made map[string]*served) (rest.Storage, error) {
	upstream, err := accountstorage.NewREST(g.options(d), accounts, tokens.Audiences(), tokens.MaxLife,
		made["pods"].Store, made["secrets"].Store, made["nodes"].Store, false, 0)
	if err != nil {
		return nil, fmt.Errorf("registry of tokens: %w", err)
	}
	return upstream.Token, nil
}

// discloseKeys serves what others need to believe the tokens of this cluster
// (OpenID discovery).
func discloseKeys(s *genericapiserver.GenericAPIServer, accounts *tokens.Accounts, address string) {
	serve := func(path, contentType string, part func(serviceaccount.OpenIDMetadataProvider) ([]byte, int)) {
		s.Handler.NonGoRestfulMux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				refuse(apierrors.NewMethodNotSupported(core.Resource("keys"), r.Method), w, r)
				return
			}
			// Made for each request, since it is made of the keys of the moment.
			provider, err := serviceaccount.NewOpenIDMetadataProvider(tokens.Issuer, "", address, accounts)
			if err != nil {
				refuse(retryable(http.StatusServiceUnavailable, "ServiceUnavailable", tokens.ErrNoKey.Error()), w, r)
				return
			}
			body, maxAge := part(provider)
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
			_, _ = w.Write(body) // the client may be gone
		})
	}
	serve(serviceaccount.OpenIDConfigPath, "application/json", serviceaccount.OpenIDMetadataProvider.GetConfigJSON)
	serve(serviceaccount.JWKSPath, "application/jwk-set+json", serviceaccount.OpenIDMetadataProvider.GetKeysetJSON)
}
