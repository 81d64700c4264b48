package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/hashicorp/go-hclog"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/sim/overlay"
)

var (
	seedList = flag.String("sim.seeds", "", "seeds to run: 3,5,10-20")
	fresh    = flag.Int("sim.fresh", 0, "how many seeds to run that nobody has chosen")
	minutes  = flag.Int("sim.minutes", 1, "virtual minutes of every seed")
	hours    = flag.Int("sim.hours", 0, "virtual hours to run fresh seeds for, an hour each")
	jobs     = flag.Int("sim.jobs", 1, "worlds at a time")
	stories  = flag.String("sim.stories", "", "directory for the stories of what failed")
	child    = flag.Uint64("sim.child", 0, "the seed that this process runs")
	mutant   = flag.String("sim.mutant", "", "the only mutant to look for")
	mines    = flag.Bool("sim.mines", false, "whether the mines of the build panic, until the faults are over")
	mutants  = flag.Bool("sim.mutants", false, "whether each mutant of the build is found by one of the seeds")
	skip     = flag.String("sim.skip", "", "faults that do not happen, by number: 3,5,10-20")
	traced   = flag.String("sim.trace", "", "file for everything that the trace is a sum of")
	paced    = flag.String("sim.pace", "dense", "how much goes on in a world: any, dense, quiet, steady")
	logged   = flag.String("sim.log", "", "file to which a line of every world is added")
	told     = flag.Bool("sim.v", false, "tell the story as it happens")
)

// memoryLimit bounds the bytes of a world: who goes round and round makes garbage that
// nobody collects before the next step.
const memoryLimit = 8 << 30

// processorTime bounds what a world may take of a processor, in seconds: somebody goes round and
// round in one that takes more, without a word. A dense minute takes some seconds.
func processorTime(minutes int) uint64 { return uint64(300 + 30*minutes) }

// godebug spares a world's handshakes what keeps them secret from machines of the future, and its allocations a profile that nobody reads.
const godebug = "GODEBUG=tlsmlkem=0,memprofilerate=0"

// result is what one world says of itself.
type result struct {
	Seed       uint64
	Pace       string
	Faults     int
	Seconds    float64 // virtual
	Trace      string
	Violations string
	Drawn      int // faults, with those that were skipped
	Panics     int // that were undone in Apply and are remembered
	// Unended: the world does not end, or took too much memory. That is told as a violation.
	Unended bool
}

const resultPrefix = "RESULT "

// TestSeed runs one world, in a process of its own: its goroutines end with it.
func TestSeed(t *testing.T) {
	if *child == 0 {
		t.Skip("TestSeeds runs it")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: memoryLimit, Max: memoryLimit}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_CPU, &syscall.Rlimit{Cur: processorTime(*minutes), Max: processorTime(*minutes)}); err != nil {
		t.Fatal(err)
	}
	klog.SetLogger(logr.Discard())
	// Its back-off has read the machine's clock: in a bubble the first error would
	// wait for decades.
	utilruntime.ErrorHandlers = nil
	cryptotest.SetGlobalRandom(t, *child)
	utilrand.Seed(int64(*child)) // else by the machine's clock, and names are made of it
	dir, err := os.MkdirTemp(scratch(), "berth-sim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir) // paths are the same in every run
	synctest.Test(t, func(t *testing.T) {
		r, s, err := live(".")
		_ = os.RemoveAll(dir) // what is left of it harms nobody
		if err != nil {
			t.Fatal(err)
		}
		if r.Violations != "" && *stories != "" {
			for name, text := range map[string][]byte{"seed-%d.txt": []byte(strings.Join(s.Lines(), "\n")), "goroutines-%d.txt": s.stood} {
				if err := os.WriteFile(filepath.Join(*stories, fmt.Sprintf(name, *child)), text, 0o600); err != nil {
					t.Error(err)
				}
			}
		}
		tell(r)
	})
}

// tell ends the process of a world with its result.
func tell(r result) {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // it is made of numbers and texts
	}
	fmt.Printf("%s%s\n", resultPrefix, b)
	pprof.StopCPUProfile() // of -test.cpuprofile
	os.Exit(0)
}

// scratch is where files are fast.
func scratch() string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		return "/dev/shm"
	}
	return os.TempDir()
}

func live(dir string) (r result, s *story, err error) {
	s = &story{}
	if *told {
		s.out = os.Stdout
	}
	if *traced != "" {
		s.every = &pages{}
		defer func() {
			if werr := os.WriteFile(*traced, bytes.Join(s.every.full, nil), 0o600); werr != nil && err == nil {
				err = werr
			}
		}()
	}
	servers := serversOf(*child)
	p, err := paceOf(*paced, *child)
	if err != nil {
		return result{}, nil, err
	}
	c := Config{Seed: *child, Dir: dir, Servers: servers, Pace: p, Earlier: *child%3 == 0, Restores: *child%4 == 2, Forgets: *child%4 == 1, Recovers: *child%4 == 0,
		Level: hclog.Info}
	w, err := New(c, s)
	if err != nil {
		return result{}, nil, err
	}
	until := time.Duration(*minutes) * time.Minute
	drawn := draw(c, 20*time.Second, until)
	skipped, err := numbers(*skip)
	if err != nil {
		return result{}, nil, err
	}
	var faults []fault
	for i, f := range drawn {
		if !skipped[uint64(i)] {
			faults = append(faults, f)
		}
	}
	r = result{Seed: *child, Pace: p.name, Drawn: len(drawn)}
	s.endless = func(last string) {
		r.Violations, r.Unended, r.Seconds = fmt.Sprintf("the world does not end: %d things happen at one moment, the last: %s", mostAtOnce, last), true, time.Since(begin).Seconds()
		tell(r)
	}
	swept := time.Now()
	err = w.Run(faults, until, synctest.Wait, func() {
		// By virtual time: how much memory is in use is not the same twice.
		if time.Since(swept) >= p.tidied {
			swept = time.Now()
			synctest.Wait() // or who runs first would depend on how long it takes
			runtime.GC()
		}
	})
	if err != nil {
		r.Violations = err.Error()
	}
	r.Panics = w.panics()
	r.Faults, r.Seconds, r.Trace = w.faults, time.Since(begin).Seconds(), fmt.Sprintf("%x", s.Trace())
	return r, s, nil
}

// serversOf is how many servers a world has: mostly three.
func serversOf(seed uint64) int {
	switch seed % 10 {
	case 4:
		return 4
	case 5:
		return 5
	}
	return 3
}

// numbers reads 3,5,10-20.
func numbers(list string) (map[uint64]bool, error) {
	out := map[uint64]bool{}
	for part := range strings.SplitSeq(list, ",") {
		if part == "" {
			continue
		}
		low, high, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseUint(low, 10, 64)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseUint(high, 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no list of numbers: %w", list, err)
		}
		for n := from; n <= to; n++ {
			out[n] = true
		}
	}
	return out, nil
}

// TestSeeds runs worlds, and shortens and tells what went wrong in them.
func TestSeeds(t *testing.T) {
	switch {
	case *child != 0 || *mutants:
		t.Skip("another test runs worlds")
	case *seedList == "" && *fresh+*hours == 0:
		t.Skip("make sim runs it: a world can only be repeated with patches over the runtime")
	}
	chosen, err := numbers(*seedList)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := keptSeeds(*keptFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) > *some { // others every time
		at := int(time.Now().Unix()) % len(kept)
		kept = append(kept[at:], kept[:at]...)[:*some]
	}
	seeds := make(chan uint64)
	go func() {
		defer close(seeds)
		for _, s := range append(slices.Sorted(maps.Keys(chosen)), kept...) {
			seeds <- s
		}
		for i := range *fresh + *hours {
			seeds <- uint64(time.Now().UnixNano()) + uint64(i)
		}
	}()
	if *hours > 0 {
		*minutes = 60
	}
	var mu sync.Mutex
	var sum result
	worlds := 0
	var wg sync.WaitGroup
	for range max(*jobs, 1) {
		wg.Go(func() {
			for seed := range seeds {
				r := run(t, seed, "")
				mu.Lock()
				worlds++
				sum.Faults += r.Faults
				sum.Seconds += r.Seconds
				sum.Panics += r.Panics
				mu.Unlock()
				t.Logf("seed %d (%s): %d faults in %.0f virtual seconds, trace %s", r.Seed, r.Pace, r.Faults, r.Seconds, r.Trace)
				if *mines && r.Violations == "" && r.Panics == 0 {
					t.Errorf("seed %d: nothing panicked: the build has no mines", seed)
				}
				note(t, &r)
				if r.Violations != "" {
					report(t, r)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d worlds, %d faults, %d panics that are recorded, %.2f virtual hours", worlds, sum.Faults, sum.Panics, sum.Seconds/3600)
}

// note adds what a world was to a file.
func note(t *testing.T, r *result) {
	if *logged == "" {
		return
	}
	outcome, _, _ := strings.Cut(r.Violations, "\n")
	f, err := os.OpenFile(*logged, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\t%s\t%.0f\t%d\t%s\n", r.Seed, r.Pace, r.Seconds, r.Faults, cmp.Or(outcome, "ok"))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// TestMutants runs worlds with a defect until one finds it.
func TestMutants(t *testing.T) {
	if !*mutants {
		t.Skip("the build has no mutants: make sim-mutants")
	}
	chosen, err := numbers(*seedList)
	if err != nil {
		t.Fatal(err)
	}
	seeds := slices.Sorted(maps.Keys(chosen))
	var wg sync.WaitGroup
	var missed atomic.Int32
	busy := make(chan struct{}, max(*jobs, 1))
	for _, m := range overlay.Mutants() {
		if *mutant != "" && *mutant != m.Name {
			continue
		}
		busy <- struct{}{}
		wg.Go(func() {
			defer func() { <-busy }()
			if !isFound(t, &m, seeds) {
				missed.Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("%d mutants, %d of them found by none of %d seeds", len(overlay.Mutants()), missed.Load(), len(seeds))
}

// mutantMinutes is how long worlds are, by their pace, in which a defect is looked for that dense ones do not show: as dear as dense ones of three minutes.
var mutantMinutes = map[string]int{"stormy": 20, "still": 60}

// isFound says whether one of the seeds finds a mutant.
func isFound(t *testing.T, m *overlay.Mutant, seeds []uint64) bool {
	pace, long := *paced, *minutes
	if own := mutantMinutes[m.Pace()]; own > 0 && pace == "dense" {
		pace, long = m.Pace(), own
	}
	for _, seed := range seeds {
		r := runAt(t, pace, long, seed, "", overlay.MutantVariable+"="+m.Name)
		switch {
		case r.Violations != "":
			first, _, _ := strings.Cut(r.Violations, "\n")
			t.Logf("%s (%s) is found by seed %d (%s) after %.0f virtual seconds: %.200s", m.Name, m.What, seed, pace, r.Seconds, first)
			return true
		}
	}
	t.Errorf("%s (%s) is found by none of %d seeds", m.Name, m.What, len(seeds))
	return false
}

// run runs a world in a process of its own.
func run(t *testing.T, seed uint64, skipped string, env ...string) result {
	return runAt(t, *paced, *minutes, seed, skipped, env...)
}

func runAt(t *testing.T, pace string, minutes int, seed uint64, skipped string, env ...string) result {
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeed$", "-sim.child="+fmt.Sprint(seed),
		fmt.Sprintf("-sim.minutes=%d", minutes), "-sim.skip="+skipped, "-sim.stories="+*stories, "-sim.pace="+pace)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=5GiB", godebug, overlay.SeedVariable+"="+fmt.Sprint(seed))
	if *mines {
		armed := time.Duration(minutes) * time.Minute
		c.Env = append(c.Env, overlay.MinesVariable+"="+fmt.Sprint(begin.Add(armed).UnixNano()))
	}
	c.Env = append(c.Env, env...)
	// It writes to a file: in this build nobody may come to read a pipe while others wait for their worlds.
	out, err := os.CreateTemp(scratch(), "berth-sim-")
	if err != nil {
		return result{Seed: seed, Violations: err.Error()}
	}
	defer func() { _ = errors.Join(out.Close(), os.Remove(out.Name())) }() // what is left of it harms nobody
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	b, rerr := os.ReadFile(out.Name())
	text, err := string(b), errors.Join(err, rerr)
	for line := range strings.SplitSeq(text, "\n") {
		if told, ok := strings.CutPrefix(line, resultPrefix); ok {
			var r result
			if err := json.Unmarshal([]byte(told), &r); err != nil {
				t.Error(err)
			}
			return r
		}
	}
	r := result{Seed: seed, Violations: fmt.Sprintf("the world ended without a result: %v\n%s", err, text[:min(len(text), 20000)])}
	if used := c.ProcessState.UserTime() + c.ProcessState.SystemTime(); uint64(used.Seconds()+1) >= processorTime(minutes) || strings.Contains(text, "out of memory") {
		r.Unended, r.Violations = true, fmt.Sprintf("the world does not end: it took %s of a processor\n%s", used, r.Violations)
	}
	return r
}

// report shortens what went wrong, and tells it.
func report(t *testing.T, r result) {
	if r.Unended { // to shorten it would take hours
		t.Errorf("seed %d, with -sim.minutes=%d: %s", r.Seed, *minutes, r.Violations)
		return
	}
	skipped, tries := shorten(r.Drawn, 30, func(skipped string) bool { return run(t, r.Seed, skipped).Violations != "" })
	last := run(t, r.Seed, skipped)
	t.Errorf("seed %d: %s\nWith -sim.seeds=%d -sim.minutes=%d -sim.skip=%s (%d of %d faults, after %d tries): %s",
		r.Seed, r.Violations, r.Seed, *minutes, skipped, last.Faults, r.Drawn, tries, last.Violations)
}

// shorten looks for as few faults as still fail: it leaves out half of them, a
// quarter, and so on, as long as it may try.
func shorten(n, most int, fails func(skipped string) bool) (skipped string, tries int) {
	out := make([]bool, n)
	list := func() string {
		var s []string
		for i, gone := range out {
			if gone {
				s = append(s, strconv.Itoa(i))
			}
		}
		return strings.Join(s, ",")
	}
	for size := (n + 1) / 2; size > 0 && tries < most; size /= 2 {
		for at := 0; at < n && tries < most; at += size {
			before := append([]bool(nil), out...)
			for i := at; i < min(at+size, n); i++ {
				out[i] = true
			}
			if tries++; !fails(list()) {
				out = before
			}
		}
	}
	return list(), tries
}

// Of ten faults two are needed.
func TestShorten(t *testing.T) {
	got, _ := shorten(10, 100, func(skipped string) bool {
		gone, err := numbers(skipped)
		return err == nil && !gone[3] && !gone[7]
	})
	if want := "0,1,2,4,5,6,8,9"; got != want {
		t.Errorf("left out %s, want %s", got, want)
	}
}
