package apiserver

import (
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/version"
)

// What is served is the API of this Kubernetes, whatever version Berth has and
// however it was built: clients decide by it what they may ask for.
const (
	kubernetesMajor      = "1"
	kubernetesMinor      = "36"
	kubernetesGitVersion = "v1.36.3"
)

// servedVersion says so at /version.
type servedVersion struct {
	compatibility.MutableEffectiveVersion
}

func newServedVersion() servedVersion {
	return servedVersion{compatibility.NewEffectiveVersionFromString(kubernetesMajor+"."+kubernetesMinor, "", "")}
}

// Info implements compatibility.EffectiveVersion.
func (servedVersion) Info() *apimachineryversion.Info {
	info := version.Get()
	info.Major, info.Minor, info.GitVersion = kubernetesMajor, kubernetesMinor, kubernetesGitVersion
	info.EmulationMajor, info.EmulationMinor = kubernetesMajor, kubernetesMinor
	return &info
}
