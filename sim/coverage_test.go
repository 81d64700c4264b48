package sim

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	reach    = flag.Int("sim.reach", -1, "measure what the seeds reach of the product, and look for so many fresh ones that reach more")
	least    = flag.Int("sim.least", 20, "how many blocks that no other reaches make a seed one to keep")
	keptFile = flag.String("sim.kept", "", "file of seeds that are kept for what they reach")
	some     = flag.Int("sim.some", 0, "how many of those that are kept to run")
)

// product is what the names of the product's packages begin with.
const product = "github.com/berth-dev/berth/"

// TestCoverage says which part of the product the seeds reach, and adds fresh seeds that reach more to the file of those
// that are kept.
func TestCoverage(t *testing.T) {
	if *reach < 0 {
		t.Skip("make sim-coverage runs it, with a build that counts")
	}
	chosen, err := numbers(*seedList)
	if err != nil {
		t.Fatal(err)
	}
	seeds := slices.Sorted(maps.Keys(chosen))
	old, err := keptSeeds(*keptFile)
	if err != nil {
		t.Fatal(err)
	}
	seeds = append(seeds, old...)
	for i := range *reach {
		seeds = append(seeds, uint64(time.Now().UnixNano())+uint64(i))
	}
	blocks := map[string]int{} // with their statements; those that are reached are negative
	for i, seed := range seeds {
		fresh := i >= len(seeds)-*reach
		dir := t.TempDir()
		r := run(t, seed, "", "GOCOVERDIR="+dir) // the process leaves there what it has reached
		note(t, &r)
		if r.Violations != "" {
			t.Errorf("seed %d: %s", seed, r.Violations)
			continue
		}
		more, err := reached(dir, blocks)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("seed %d (%s) reaches %d blocks that those before it do not", seed, r.Pace, more)
		if fresh && more >= *least && *keptFile != "" {
			if err := keep(*keptFile, seed, &r, more); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Log(table(blocks))
}

// reached adds what one world has reached, and says how much of it is new.
func reached(dir string, blocks map[string]int) (more int, err error) {
	text := filepath.Join(dir, "text")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+text).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go tool covdata: %w: %s", err, out)
	}
	f, err := os.Open(text)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// github.com/…/file.go:1.2,3.4 statements count
		at, numbers, _ := strings.Cut(lines.Text(), " ")
		statements, count, ok := strings.Cut(numbers, " ")
		n, err := strconv.Atoi(statements)
		if !ok || err != nil || !strings.HasPrefix(at, product) || strings.HasPrefix(at, product+"sim/") {
			continue
		}
		switch was := blocks[at]; {
		case count != "0" && was >= 0:
			blocks[at] = -n
			more++
		case was == 0:
			blocks[at] = n
		}
	}
	return more, nil
}

// table says of every package how many of its statements were reached.
func table(blocks map[string]int) string {
	type sum struct{ reached, all int }
	sums := map[string]sum{}
	for at, n := range blocks {
		file, _, _ := strings.Cut(strings.TrimPrefix(at, product), ":")
		for _, name := range []string{path.Dir(file), "all of them"} {
			s := sums[name]
			if n < 0 {
				s.reached -= n
			}
			s.all += max(n, -n)
			sums[name] = s
		}
	}
	names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Compare(sums[b].all, sums[a].all) })
	text := "package, statements, reached by the seeds"
	for _, name := range names {
		s := sums[name]
		text += fmt.Sprintf("\n| %s | %d | %d %% |", name, s.all, 100*s.reached/max(s.all, 1))
	}
	return text
}

// keptSeeds reads seeds, one at the beginning of every line.
func keptSeeds(file string) (seeds []uint64, err error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		seed, perr := strconv.ParseUint(fields[0], 10, 64)
		if perr != nil {
			return nil, fmt.Errorf("%s: %w", file, perr)
		}
		seeds = append(seeds, seed)
	}
	return seeds, err
}

func keep(file string, seed uint64, r *result, more int) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d # %s, %.0f s, %d faults: %d blocks more\n", seed, r.Pace, r.Seconds, r.Faults, more)
	return errors.Join(err, f.Close())
}

// The blocks of two worlds are joined, and each package's statements counted.
func TestTable(t *testing.T) {
	got := table(map[string]int{product + "fsm/a.go:1.1,2.2": -3, product + "fsm/b.go:1.1,2.2": 1, product + "rpc/c.go:1.1,2.2": 4})
	for _, want := range []string{"| fsm | 4 | 75 % |", "| rpc | 4 | 0 % |", "| all of them | 8 | 37 % |"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}
}
