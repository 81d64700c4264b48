package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// WorkerEviction says when the node runs short of something, and what then. The keys are
// signals (EvictionSignals).
type WorkerEviction struct {
	Hard           map[string]string   `hcl:"hard,optional"`
	Soft           map[string]string   `hcl:"soft,optional"`
	SoftGrace      map[string]Duration `hcl:"soft_grace,optional"`
	MinimumReclaim map[string]string   `hcl:"minimum_reclaim,optional"`

	PressureTransitionPeriod Duration `hcl:"pressure_transition_period,optional"`
	MaxPodGrace              Duration `hcl:"max_pod_grace,optional"`
}

// EvictionSignals are what a node may run short of.
func EvictionSignals() []string {
	return []string{"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available"}
}

// ParseThreshold reads an amount, or a percentage in steps of a hundredth: exactly one of
// the results is not zero, or both are.
func ParseThreshold(text string) (absolute, perMyriad int64, err error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || percent < 0 || percent > 100 {
			return 0, 0, fmt.Errorf(`%q is not a percentage; write, for example, "10%%"`, text)
		}
		return 0, int64(percent*100 + 0.5), nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 || q.Value() > 1<<50 {
		return 0, 0, fmt.Errorf(`%q is not an amount; write, for example, "100Mi" or "10%%"`, text)
	}
	return q.Value(), 0, nil
}

func (e *WorkerEviction) validate(k checker) {
	signals := func(option, signal string) bool {
		problem, ok := oneOf(signal, EvictionSignals()...)
		if !ok {
			k.fail(option, "%s", problem)
		}
		return ok
	}
	for option, amounts := range map[string]map[string]string{
		"worker.eviction.hard": e.Hard, "worker.eviction.soft": e.Soft, "worker.eviction.minimum_reclaim": e.MinimumReclaim,
	} {
		for _, signal := range slices.Sorted(maps.Keys(amounts)) {
			if !signals(option, signal) {
				continue
			}
			if _, _, err := ParseThreshold(amounts[signal]); err != nil {
				k.fail(option, "%s: %v", signal, err)
			}
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(e.Soft)) {
		if _, ok := e.SoftGrace[signal]; !ok {
			k.fail("worker.eviction.soft", "%s: soft_grace does not say for how long", signal)
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(e.SoftGrace)) {
		if !signals("worker.eviction.soft_grace", signal) {
			continue
		}
		switch d := e.SoftGrace[signal]; {
		case d.check() != nil:
			k.fail("worker.eviction.soft_grace", "%s: %v", signal, d.check())
		case d.Value() < time.Second || d.Value() > 24*time.Hour:
			k.fail("worker.eviction.soft_grace", "%s: %q is not between a second and a day", signal, string(d))
		case e.Soft[signal] == "":
			k.fail("worker.eviction.soft_grace", "%s: soft has no threshold for it", signal)
		}
	}
	k.betweenDurations("worker.eviction.pressure_transition_period", e.PressureTransitionPeriod, 0, 24*time.Hour)
	k.betweenDurations("worker.eviction.max_pod_grace", e.MaxPodGrace, 0, 24*time.Hour)
}
