package pullrecords

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// Policy says of which images that are here already a pod has to be among those whose credentials a registry took, as Kubernetes'
// imagePullCredentialsVerificationPolicy.
type Policy string

const (
	// NeverVerify: of none.
	NeverVerify Policy = "NeverVerify"
	// NeverVerifyPreloadedImages: of all but those that this worker has not fetched.
	NeverVerifyPreloadedImages Policy = "NeverVerifyPreloadedImages"
	// NeverVerifyAllowlistedImages: of all but those that this worker has not fetched and that a list names.
	NeverVerifyAllowlistedImages Policy = "NeverVerifyAllowlistedImages"
	// AlwaysVerify: of all.
	AlwaysVerify Policy = "AlwaysVerify"
)

// Allowlist names images without their tags and digests. The zero value names none.
type Allowlist struct {
	names    map[string]bool
	prefixes []string
}

// ParseAllowlist reads what images are called, "registry.example.com/team/app", and what the names of several begin with, "registry.example.com/team/*". A name
// without a registry is one of docker.io, as in a pod.
func ParseAllowlist(patterns []string) (Allowlist, error) {
	a := Allowlist{names: map[string]bool{}}
	for _, p := range patterns {
		head, wild := strings.CutSuffix(p, "/*")
		if strings.Contains(head, "*") {
			return Allowlist{}, fmt.Errorf(`%q has a * that is not its end; write "REGISTRY/PATH/*" or the whole name`, p)
		}
		if !wild {
			named, err := reference.ParseNormalizedNamed(head)
			if err != nil {
				return Allowlist{}, fmt.Errorf("%q is not the name of an image: %w", p, err)
			}
			if !reference.IsNameOnly(named) {
				return Allowlist{}, fmt.Errorf("%q has a tag or a digest; it is for all of an image's", p)
			}
			a.names[named.Name()] = true
			continue
		}
		named, err := reference.ParseNormalizedNamed(head + "/x")
		if err != nil {
			return Allowlist{}, fmt.Errorf("%q is not what names of images begin with: %w", p, err)
		}
		if !strings.Contains(head, "/") && named.Name() != dockerHub+head+"/x" { // a registry as a whole
			a.prefixes = append(a.prefixes, reference.Domain(named)+"/")
			continue
		}
		a.prefixes = append(a.prefixes, strings.TrimSuffix(named.Name(), "x"))
	}
	return a, nil
}

// dockerHub begins the names of images whose registry is not named.
const dockerHub = "docker.io/"

// has says whether a repository is named.
func (a Allowlist) has(repository string) bool {
	if a.names[repository] {
		return true
	}
	for _, p := range a.prefixes {
		if strings.HasPrefix(repository, p) {
			return true
		}
	}
	return false
}

// repository is what an image is called, with its registry and without tag and digest: whoever may have one of its images by its digest may have it by any tag.
func repository(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	return named.Name(), nil
}
