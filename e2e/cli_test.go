package e2e

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// result is how a command ended.
type result struct {
	out, err string
	code     int
}

// run runs the binary with an environment of its own.
func run(t testing.TB, env []string, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("berth %s: %v", strings.Join(args, " "), err)
	}
	if ctx.Err() != nil {
		t.Fatalf("berth %s did not end:\n%s%s", strings.Join(args, " "), out.String(), errOut.String())
	}
	return result{out: out.String(), err: errOut.String(), code: cmd.ProcessState.ExitCode()}
}

// berth runs a command that must succeed, and returns what it printed.
func (c *cluster) berth(t testing.TB, args ...string) string {
	t.Helper()
	return c.berthIn(t, "", args...)
}

func (c *cluster) berthIn(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	r := run(t, c.env, stdin, args...)
	if r.code != 0 {
		t.Fatalf("berth %s: exit status %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// has fails unless the text contains all parts.
func has(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s does not contain %q:\n%s", what, p, text)
		}
	}
}
