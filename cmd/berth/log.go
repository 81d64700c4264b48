package main

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/hashicorp/go-hclog"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// logLibraries sends what the Kubernetes libraries log to the agent's log.
func logLibraries(log hclog.Logger) {
	klog.SetLogger(logr.New(&sink{log: log.Named("kubernetes"), repeats: newRepeats()}))
	// A controller that panics is told of in the log, and goes on with its next object.
	utilruntime.ReallyCrash = false
}

// silenceLibraries is for commands that say themselves what goes wrong.
func silenceLibraries() { klog.SetLogger(logr.Discard()) }

// sink writes logr's messages to hclog. What the libraries call information is
// detail here, and an error that is said again and again is said now and then.
type sink struct {
	log     hclog.Logger
	repeats *repeats
}

func (s *sink) Init(logr.RuntimeInfo) {}

func (s *sink) level(level int) hclog.Level {
	if level == 0 {
		return hclog.Debug
	}
	return hclog.Trace
}

func (s *sink) Enabled(level int) bool { return s.level(level) >= s.log.GetLevel() }

func (s *sink) Info(level int, msg string, kv ...any) { s.log.Log(s.level(level), msg, kv...) }

func (s *sink) Error(err error, msg string, kv ...any) {
	held, ok := s.repeats.say(fmt.Sprint(msg, err))
	if !ok {
		return
	}
	if err != nil { // some tell of what went wrong and have none
		kv = append([]any{"error", err}, kv...)
	}
	if held > 0 {
		kv = append(kv, "like_it", held) // that were not said since the last one
	}
	s.log.Error(msg, kv...)
}

func (s *sink) WithValues(kv ...any) logr.LogSink {
	return &sink{log: s.log.With(kv...), repeats: s.repeats}
}

func (s *sink) WithName(name string) logr.LogSink {
	return &sink{log: s.log.Named(name), repeats: s.repeats}
}
