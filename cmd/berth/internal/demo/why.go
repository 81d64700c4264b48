package demo

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Where a story stops because a pod does not run, it says why: a machine whose disk
// is nearly full, say, takes no pods.

// whyTimeout bounds what is asked about one pod.
const whyTimeout = 10 * time.Second

// waitForRunning waits for pods, and says of those that do not run in time why that is so. The pods that are meant to wait are
// not asked about.
func (s *story) waitForRunning(ctx context.Context, what string, ask func(ctx context.Context) (bool, error)) error {
	err := s.wait(ctx, what, waitForPods, ask)
	if err == nil || ctx.Err() != nil {
		return err
	}
	pods, listErr := s.pods(ctx)
	if listErr != nil {
		s.say("which pods run is not known: %v", listErr)
		return err
	}
	s.tellWhy(ctx, slices.DeleteFunc(pods, func(p corev1.Pod) bool { return running(&p) || p.Name == later || p.Name == huge }))
	return err
}

// tellWhy tells of pods what they say themselves, and what `berth why` says of them.
func (s *story) tellWhy(ctx context.Context, pods []corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		if p.Status.Reason != "" || p.Status.Message != "" {
			s.say("%s is %s: %s: %s", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		s.say("berth why %s", p.Name)
		for line := range strings.Lines(s.why(ctx, p.Name)) {
			s.say("  %s", strings.TrimRight(line, "\n"))
		}
	}
}

// why is what the program says of a pod.
func (s *story) why(ctx context.Context, pod string) string {
	ctx, cancel := context.WithTimeout(ctx, whyTimeout)
	defer cancel()
	client := s.c.Reader().RESTConfig()
	args := []string{"why", pod, "--namespace", namespace, "--addresses", s.c.Reader().HTTP()}
	for _, f := range []struct {
		flag, name string
		content    []byte
	}{{"--ca-file", "ca.pem", client.CAData}, {"--cert-file", "admin.pem", client.CertData}, {"--key-file", "admin-key.pem", client.KeyData}} {
		path, err := s.c.WriteFile(filepath.Join("client", f.name), string(f.content))
		if err != nil {
			return err.Error()
		}
		args = append(args, f.flag, path)
	}
	cmd := exec.CommandContext(ctx, s.Binary, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		out.WriteString(err.Error())
	}
	return out.String()
}
