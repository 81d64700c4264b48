package apiserver

import (
	"github.com/go-logr/logr"
	"github.com/hashicorp/go-hclog"
	"k8s.io/klog/v2"
)

// LogKubernetesTo sends what Kubernetes' libraries log to a logger of ours. It
// holds for the whole process; main calls it once, before anything else.
func LogKubernetesTo(logger hclog.Logger) { klog.SetLogger(logr.New(klogSink{logger})) }

// klogSink is a logr.LogSink over hclog. What the libraries tell is about
// themselves, so it is one step less important here than there.
type klogSink struct{ logger hclog.Logger }

var _ logr.LogSink = klogSink{}

// Init implements logr.LogSink.
func (klogSink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (s klogSink) Enabled(level int) bool {
	return level == 0 && s.logger.IsDebug() || s.logger.IsTrace()
}

// Info implements logr.LogSink.
func (s klogSink) Info(level int, message string, keysAndValues ...any) {
	if level == 0 {
		s.logger.Debug(message, keysAndValues...)
		return
	}
	s.logger.Trace(message, keysAndValues...)
}

// Error implements logr.LogSink.
func (s klogSink) Error(err error, message string, keysAndValues ...any) {
	s.logger.Warn(message, append([]any{"error", err}, keysAndValues...)...)
}

// WithValues implements logr.LogSink.
func (s klogSink) WithValues(keysAndValues ...any) logr.LogSink {
	return klogSink{s.logger.With(keysAndValues...)}
}

// WithName implements logr.LogSink.
func (s klogSink) WithName(name string) logr.LogSink { return klogSink{s.logger.Named(name)} }
