package logfile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Every kind of container says how its last word is found.
func TestTerminationPolicy(t *testing.T) {
	const fallback = corev1.TerminationMessageFallbackToLogsOnError
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", TerminationMessagePolicy: fallback}},
		Containers:     []corev1.Container{{Name: "app", TerminationMessagePolicy: corev1.TerminationMessageReadFile}},
		EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", TerminationMessagePolicy: fallback}}},
	}}
	for name, want := range map[string]corev1.TerminationMessagePolicy{
		"init": fallback, "app": corev1.TerminationMessageReadFile, "debugger": fallback, "none": "",
	} {
		if got := TerminationPolicy(pod, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
