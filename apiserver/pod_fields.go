package apiserver

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// podFields are the fields that a selector may ask of a pod, read from the row
// as it is: to convert a million pods to find the few that a selector means
// would cost more than everything else of the request.
type podFields struct{ pod *corev1.Pod }

var _ fields.Fields = podFields{}

// Has implements fields.Fields.
func (f podFields) Has(field string) bool {
	_, ok := f.get(field)
	return ok
}

// Get implements fields.Fields.
func (f podFields) Get(field string) string {
	value, _ := f.get(field)
	return value
}

func (f podFields) get(field string) (string, bool) {
	p := f.pod
	switch field {
	case "metadata.name":
		return p.Name, true
	case "metadata.namespace":
		return p.Namespace, true
	case "spec.nodeName":
		return p.Spec.NodeName, true
	case "spec.restartPolicy":
		return string(p.Spec.RestartPolicy), true
	case "spec.schedulerName":
		return p.Spec.SchedulerName, true
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, true
	case "spec.hostNetwork":
		return strconv.FormatBool(p.Spec.HostNetwork), true
	case "status.phase":
		return string(p.Status.Phase), true
	case "status.podIP":
		return podIP(p), true
	case "status.nominatedNodeName":
		return p.Status.NominatedNodeName, true
	}
	return "", false
}

func podIP(p *corev1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return p.Status.PodIPs[0].IP
	}
	return p.Status.PodIP
}
