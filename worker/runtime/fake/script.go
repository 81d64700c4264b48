package fake

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/worker/runtime"
)

// Prefix begins the annotations that script a pod's containers. "fake.berth.dev/KEY" is for all of them,
// "fake.berth.dev/CONTAINER.KEY" for one. Numbers may be lists ("1,1,0"): one for each attempt, the last for all further
// ones.
//
//	run-seconds          how long a container runs; without it an init container ends at once, any other never
//	exit-code            with which code it ends by itself; default 0
//	start-delay-seconds  how long its start takes
//	start-error          its command cannot be run, for this reason
//	ignore-term          "true": TERM does nothing, only KILL ends it
//	term-seconds         how long it goes on after TERM
//	term-exit-code       with which code TERM ends it; default 0
//	oom                  "true": it ends by running out of memory
//	ready-seconds        how long it runs before its startup and readiness probes pass; default 0
//	unhealthy-seconds    how long it runs before its liveness probe fails; without it, it never does
//	unprobed-seconds     how long it runs before its probes can be made at all; default 0
//	hook-exit-code       what lifecycle hooks exit with
//	memory-bytes         how much memory it uses; default 0
//	log                  what it has written, line by line
const Prefix = "fake.berth.dev/"

// script is what one attempt of a container does.
type script struct {
	run        time.Duration // negative: for ever
	delay      time.Duration
	term       time.Duration
	code       int32
	termCode   int32
	hookCode   int32
	ready      time.Duration
	unhealthy  time.Duration // negative: never
	unprobed   time.Duration
	ignoreTerm bool
	oom        bool
	memory     int64
	startError string
	log        string
}

func readScript(spec *runtime.Spec) (script, error) {
	s := script{run: -1, unhealthy: -1}
	for i := range spec.Pod.Spec.InitContainers {
		if c := &spec.Pod.Spec.InitContainers[i]; c.Name == spec.ID.Container && c.RestartPolicy == nil {
			s.run = 0
		}
	}
	var err error
	value := func(key string) (string, bool) {
		v, ok := spec.Pod.Annotations[Prefix+spec.ID.Container+"."+key]
		if !ok {
			v, ok = spec.Pod.Annotations[Prefix+key]
		}
		return v, ok
	}
	number := func(key string, set func(float64)) {
		v, ok := value(key)
		if !ok || err != nil {
			return
		}
		parts := strings.Split(v, ",")
		part := strings.TrimSpace(parts[min(int(spec.Attempt), len(parts)-1)])
		n, perr := strconv.ParseFloat(part, 64)
		if perr != nil {
			err = fmt.Errorf("annotation %s%s: %q is not a number", Prefix, key, part)
			return
		}
		set(n)
	}
	seconds := func(d *time.Duration) func(float64) {
		return func(n float64) { *d = time.Duration(n * float64(time.Second)) }
	}
	code := func(c *int32) func(float64) { return func(n float64) { *c = int32(n) } }
	number("run-seconds", seconds(&s.run))
	number("start-delay-seconds", seconds(&s.delay))
	number("term-seconds", seconds(&s.term))
	number("ready-seconds", seconds(&s.ready))
	number("unhealthy-seconds", seconds(&s.unhealthy))
	number("unprobed-seconds", seconds(&s.unprobed))
	number("exit-code", code(&s.code))
	number("term-exit-code", code(&s.termCode))
	number("hook-exit-code", code(&s.hookCode))
	number("memory-bytes", func(n float64) { s.memory = int64(n) })
	ignore, _ := value("ignore-term")
	oom, _ := value("oom")
	s.ignoreTerm, s.oom = ignore == "true", oom == "true"
	s.startError, _ = value("start-error")
	s.log, _ = value("log")
	return s, err
}
