package server

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
)

// maxToldPanics bounds the panics that are remembered as told.
const maxToldPanics = 1000

// panics keeps what panics in a loop from ending the server: it is counted, and each is told once, with its stack.
type panics struct {
	log   hclog.Logger
	count *prometheus.CounterVec // by loop

	mu   sync.Mutex
	told map[string]bool
}

func newPanics(r prometheus.Registerer, log hclog.Logger) (*panics, error) {
	p := &panics{log: log, told: map[string]bool{}, count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_loop_panics_total", Help: "Panics that a loop of this server, a call or a watch survived, by what panicked.",
	}, []string{"loop"})}
	if err := r.Register(p.count); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return p, nil
}

// note counts a panic, and tells it if it is a new one.
func (p *panics) note(loop, about, value, stack string) {
	p.count.WithLabelValues(loop).Inc()
	key := loop + "\x00" + about + "\x00" + value
	p.mu.Lock()
	known := p.told[key]
	if len(p.told) >= maxToldPanics {
		clear(p.told)
	}
	p.told[key] = true
	p.mu.Unlock()
	if !known {
		p.log.Error("something panicked; this is a mistake of Berth's. The rest goes on, and it is tried again", "loop", loop, "about", about, "panic", value, "stack", stack)
	}
}

// try is a guard.Func.
func (p *panics) try(loop string, f func()) (ok bool) {
	defer func() {
		if value := recover(); value != nil {
			p.note(loop, "", fmt.Sprint(value), string(debug.Stack()))
		}
	}()
	f()
	return true
}
