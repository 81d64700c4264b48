package cri

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// dockerHub is the registry of names that name none.
const dockerHub = "docker.io"

// registryEntry is one registry of a secret.
type registryEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// credential is what a secret says to a registry; the zero value is nobody's, and says nothing.
type credential struct {
	auth *criv1.AuthConfig
	key  *runtime.ImageKey
}

// credentials are those of the secrets that are for the image, the closest first: a secret may name a registry, with
// patterns for parts of its host name, or a path in one.
func credentials(image string, secrets []*corev1.Secret) ([]credential, error) {
	type match struct {
		key string
		credential
	}
	var found []match
	for _, s := range secrets {
		entries, err := registries(s)
		if err != nil {
			return nil, fmt.Errorf("image pull secret %s: %w", s.Name, err)
		}
		for key, e := range entries {
			if at := registryKey(key); covers(at, image) {
				auth, err := e.config()
				if err != nil {
					return nil, fmt.Errorf("image pull secret %s: %s: %w", s.Name, key, err)
				}
				sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", auth.Username, auth.Password, auth.IdentityToken))
				found = append(found, match{at, credential{auth, &runtime.ImageKey{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Hash: hex.EncodeToString(sum[:])}}})
			}
		}
	}
	slices.SortFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(len(b.key), len(a.key)), cmp.Compare(b.key, a.key), cmp.Compare(a.auth.Username, b.auth.Username))
	})
	var out []credential
	for _, m := range found {
		out = append(out, m.credential)
	}
	return out, nil
}

// registries are what a secret has, by registry. One of another type has none.
func registries(s *corev1.Secret) (map[string]registryEntry, error) {
	var entries map[string]registryEntry
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]registryEntry `json:"auths"`
		}
		if err := json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &file); err != nil {
			return nil, fmt.Errorf("%s is not valid", corev1.DockerConfigJsonKey) // no word of what is in it
		}
		entries = file.Auths
	case corev1.SecretTypeDockercfg:
		if err := json.Unmarshal(s.Data[corev1.DockerConfigKey], &entries); err != nil {
			return nil, fmt.Errorf("%s is not valid", corev1.DockerConfigKey)
		}
	}
	return entries, nil
}

func (e registryEntry) config() (*criv1.AuthConfig, error) {
	out := &criv1.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken}
	if e.Auth == "" {
		return out, nil
	}
	b, err := base64.StdEncoding.DecodeString(e.Auth)
	if err != nil {
		b, err = base64.RawStdEncoding.DecodeString(e.Auth)
	}
	user, password, ok := strings.Cut(string(b), ":")
	if err != nil || !ok {
		return nil, fmt.Errorf("auth is not USER:PASSWORD in base64")
	}
	out.Username, out.Password = user, strings.TrimRight(password, "\x00")
	return out, nil
}

// registryKey is what a secret calls a registry, without what says nothing of images: HOST or HOST/PATH.
func registryKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, rest, _ := strings.Cut(strings.TrimRight(key, "/"), "/")
	if rest == "v1" || rest == "v2" {
		rest = ""
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHub
	}
	if rest == "" {
		return host
	}
	return host + "/" + rest
}

// covers says whether a registry, or a path in one, has the image.
func covers(key, image string) bool {
	keyHost, keyPath, _ := strings.Cut(key, "/")
	host, rest, _ := strings.Cut(image, "/")
	wanted, has := strings.Split(keyHost, "."), strings.Split(host, ".")
	if len(wanted) != len(has) {
		return false
	}
	for i := range wanted {
		if ok, err := path.Match(wanted[i], has[i]); err != nil || !ok {
			return false
		}
	}
	if keyPath == "" {
		return true
	}
	next, ok := strings.CutPrefix(rest, keyPath)
	return ok && (next == "" || strings.ContainsAny(next[:1], "/:@"))
}
