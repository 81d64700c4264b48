package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// 850 timeouts in 90 seconds are nine lines, which say how many there were; and
// another message is not held back by them.
func TestRepeatedErrorsAreOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &sink{log: hclog.New(&hclog.LoggerOptions{Output: &out, DisableTime: true}), repeats: newRepeats()}
		for i := range 850 {
			s.WithName("x").Error(errors.New("http: Handler timeout"), "timeout or abort while handling", "path", fmt.Sprint(i))
			time.Sleep(90 * time.Second / 850)
		}
		s.Error(errors.New("no space left on device"), "the reason")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 10 {
			t.Fatalf("%d lines:\n%s", len(lines), out.String())
		}
		if !strings.Contains(lines[1], "like_it=9") || !strings.Contains(lines[9], "no space left") {
			t.Errorf("they are\n%s", out.String())
		}
	})
}

func TestRepeatsAreBounded(t *testing.T) {
	r := newRepeats()
	for i := range 10 * maxRepeats {
		if _, ok := r.say(fmt.Sprint(i)); !ok || len(r.said) > maxRepeats {
			t.Fatalf("message %d: %v, %d are remembered", i, ok, len(r.said))
		}
	}
}
