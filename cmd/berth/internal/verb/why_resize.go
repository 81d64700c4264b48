package verb

import corev1 "k8s.io/api/core/v1"

// tellResize says what a pod's node says of its wish for other resources.
func tellResize(pod *corev1.Pod) (out []string) {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
			out = append(out, "Its node can never give it what it asks for now: "+c.Message+".")
		case c.Type == corev1.PodResizePending:
			out = append(out, "Its node will give it what it asks for now when there is room: "+c.Message+".")
		case c.Type == corev1.PodResizeInProgress && c.Message != "":
			out = append(out, "Its node is giving it other resources, and could not yet: "+c.Message+".")
		case c.Type == corev1.PodResizeInProgress:
			out = append(out, "Its node is giving it other resources.")
		}
	}
	return out
}
