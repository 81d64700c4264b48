package logfile

import (
	"context"
	"io"
	"os"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
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
	if b := lastWords(file); len(b) > 0 {
		return model.CutText(string(b), maxTerminationBytes)
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
	return model.CutText(string(b), fallbackMessageBytes)
}

// lastWords reads the file. Whatever the container has made of it, nobody waits for what it says: of anything but a file there is nothing to read.
func lastWords(file string) []byte {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTerminationBytes))
	if err != nil {
		return nil
	}
	return b
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
