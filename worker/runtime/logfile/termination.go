package logfile

import (
	"context"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// Bounds of termination messages, Kubernetes' own.
const (
	maxTerminationBytes  = 4096
	fallbackMessageBytes = 2048
	fallbackMessageLines = 80
)

// TerminationMessage is what a container left as its last word: the file that it was given for that, or, where its spec
// says so and it failed, the end of its log.
func TerminationMessage(file, log string, policy corev1.TerminationMessagePolicy, failed bool) string {
	if f, err := os.Open(file); err == nil {
		defer f.Close()
		if b, err := io.ReadAll(io.LimitReader(f, maxTerminationBytes)); err == nil && len(b) > 0 {
			return strings.ToValidUTF8(string(b), "\uFFFD")
		}
	}
	if !failed || policy != corev1.TerminationMessageFallbackToLogsOnError {
		return ""
	}
	lines := int64(fallbackMessageLines)
	rc, err := Open(context.Background(), log, runtime.LogOptions{TailLines: &lines}, nil)
	if err != nil {
		return ""
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		return ""
	}
	if len(b) > fallbackMessageBytes {
		b = b[len(b)-fallbackMessageBytes:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// TerminationPolicy is how the container of that name wants its last word found.
func TerminationPolicy(pod *corev1.Pod, container string) (policy corev1.TerminationMessagePolicy) {
	runtime.EachContainer(pod, func(c *corev1.Container, _ string) {
		if c.Name == container {
			policy = c.TerminationMessagePolicy
		}
	})
	return policy
}
