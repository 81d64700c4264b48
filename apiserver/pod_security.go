package apiserver

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	podsecurityv1 "k8s.io/pod-security-admission/admission/api/v1"
)

// PodSecurity says which of Kubernetes' Pod Security Standards hold in namespaces whose labels
// do not say it, and for whom none does.
type PodSecurity struct {
	// Levels are "privileged", "baseline" or "restricted"; empty: "privileged". Versions are
	// "latest" or those of Kubernetes; empty: "latest".
	Enforce, EnforceVersion string
	Audit, AuditVersion     string
	Warn, WarnVersion       string
	// Exempt are users, namespaces and RuntimeClasses that nothing is asked of.
	ExemptUsers, ExemptNamespaces, ExemptRuntimeClasses []string
}

// newPodSecurity makes Kubernetes' admission plugin.
func newPodSecurity(c PodSecurity, initializer admission.PluginInitializer) (admission.ValidationInterface, error) {
	raw, err := json.Marshal(&podsecurityv1.PodSecurityConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: podsecurityv1.SchemeGroupVersion.String(), Kind: "PodSecurityConfiguration"},
		Defaults: podsecurityv1.PodSecurityDefaults{
			Enforce: c.Enforce, EnforceVersion: c.EnforceVersion, Audit: c.Audit, AuditVersion: c.AuditVersion, Warn: c.Warn, WarnVersion: c.WarnVersion,
		},
		Exemptions: podsecurityv1.PodSecurityExemptions{
			Usernames: c.ExemptUsers, Namespaces: c.ExemptNamespaces, RuntimeClasses: c.ExemptRuntimeClasses,
		},
	})
	if err != nil {
		return nil, err
	}
	plugin, err := kubernetesPlugin(podsecurity.Register, podsecurity.PluginName, bytes.NewReader(raw), initializer)
	if err != nil {
		return nil, err
	}
	return plugin.(admission.ValidationInterface), nil
}
