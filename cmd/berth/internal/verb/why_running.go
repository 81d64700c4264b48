package verb

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// tellNotRunning says of a bound pod why it, or a container of it, does not run. What only takes its time is not told.
func tellNotRunning(pod *corev1.Pod) []string {
	var out []string
	if s := &pod.Status; s.Reason != "" {
		out = append(out, sentence(fmt.Sprintf("It is %s, because of %s", s.Phase, s.Reason), s.Message))
	}
	if pod.Status.Phase == corev1.PodSucceeded {
		return out
	}
	for _, list := range []struct {
		what     string
		statuses []corev1.ContainerStatus
	}{
		{"Init container", pod.Status.InitContainerStatuses}, {"Container", pod.Status.ContainerStatuses}, {"Ephemeral container", pod.Status.EphemeralContainerStatuses},
	} {
		for i := range list.statuses {
			out = append(out, tellContainer(list.what, &list.statuses[i])...)
		}
	}
	return out
}

// tellContainer says why a container does not run; nothing of one that does, or that has done its work.
func tellContainer(what string, c *corev1.ContainerStatus) []string {
	name := what + " " + c.Name
	switch w, t := c.State.Waiting, c.State.Terminated; {
	case w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing":
		out := []string{sentence(fmt.Sprintf("%s does not run: %s", name, w.Reason), w.Message)}
		if last := c.LastTerminationState.Terminated; last != nil {
			out = append(out, "  "+ending("It", last))
		}
		return out
	case t != nil && t.ExitCode != 0:
		return []string{ending(name, t)}
	}
	return nil
}

// ending says how a container ended, or that it never came to run.
func ending(who string, t *corev1.ContainerStateTerminated) string {
	if t.Reason == "StartError" {
		return sentence(who+" could not be started", t.Message)
	}
	s := fmt.Sprintf("%s ended with exit code %d", who, t.ExitCode)
	if t.Signal != 0 {
		s = fmt.Sprintf("%s was ended by signal %d", who, t.Signal)
	}
	if t.Reason != "" && t.Reason != "Error" {
		s += " (" + t.Reason + ")"
	}
	return sentence(s, t.Message)
}

// sentence adds what somebody says to what is said; a message of many lines ends at its first.
func sentence(said, message string) string {
	if line, _, _ := strings.Cut(strings.TrimSpace(message), "\n"); line != "" {
		said += ": " + strings.TrimSuffix(line, ".")
	}
	return said + "."
}
