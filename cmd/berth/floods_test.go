package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// A hundred thousand lines are a few, which say how many there were; other messages, and what was asked for by a level of
// debugging, are not held back by them.
func TestFloodsAreHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := newFloods()
		log := hclog.New(&hclog.LoggerOptions{Output: &out, DisableTime: true, Level: hclog.Debug, Exclude: f.exclude})
		ctx, cancel := context.WithCancel(t.Context())
		go f.tell(ctx, log)
		for i := range 100_000 {
			log.Named("x").Warn("refused", "from", i)
			time.Sleep(time.Millisecond / 2)
		}
		log.Error("the reason")
		for range 200 {
			log.Debug("detail")
		}
		time.Sleep(tellHeldBack)
		cancel()
		synctest.Wait()
		text := out.String()
		if n := strings.Count(text, "refused:"); n < linesAtOnce || n > linesAtOnce+60 {
			t.Errorf("%d lines were written", n)
		}
		if !strings.Contains(text, "the reason") || strings.Count(text, "detail") != 200 {
			t.Errorf("others were held back:\n%.2000s", text)
		}
		told := 0
		for line := range strings.Lines(text) {
			var n int
			if _, rest, found := strings.Cut(line, "message=refused lines="); found {
				if _, err := fmt.Sscan(rest, &n); err != nil {
					t.Error(err)
				}
				told += n
			}
		}
		if want := 100_000 - strings.Count(text, "refused:"); told != want {
			t.Errorf("%d are told to be held back, want %d", told, want)
		}
	})
}

func TestMessagesAreBounded(t *testing.T) {
	f := newFloods()
	kept := 0
	for i := range 10 * maxMessages {
		if !f.exclude(hclog.Info, fmt.Sprint("message ", i)) {
			kept++
		}
	}
	if len(f.counts) > maxMessages+1 || kept != maxMessages+linesAtOnce {
		t.Errorf("%d messages are counted, %d lines written", len(f.counts), kept)
	}
}
