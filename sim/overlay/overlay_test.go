package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What is to be replaced is there, once: with another toolchain the edits follow.
func TestTheToolchainIsTheOneThatIsEdited(t *testing.T) {
	root, err := GoRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.TempDir(), map[string][]Edit{root: Runtime()}); err != nil {
		t.Error(err)
	}
}

// The mutants and the mines are in the product's sources as they are.
func TestDefectsFollowTheSources(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, edits := range [][]Edit{On(), Mines()} {
		if _, err := Write(t.TempDir(), map[string][]Edit{root: edits}); err != nil {
			t.Error(err)
		}
	}
}

func TestATextThatIsNotThereIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a // twice twice\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{"never", "twice"} {
		if _, err := Write(t.TempDir(), map[string][]Edit{dir: {{"a.go", old, "x"}}}); err == nil || !strings.Contains(err.Error(), "a.go has") {
			t.Errorf("%q: %v", old, err)
		}
	}
}

// chance is a program that shows what is random in a bubble: the order of maps and
// of select, of timers and of goroutines, addresses and numbers.
const chance = `package chance

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sum, m := fnv.New64a(), map[string]int{}
		for i := range 100 {
			m[fmt.Sprint(i)] = i
		}
		var mu sync.Mutex
		note := func(a ...any) { mu.Lock(); fmt.Fprint(sum, a...); mu.Unlock() }
		chans := []chan int{make(chan int, 9), make(chan int, 9)}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for range 100 {
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
					select {
					case chans[0] <- i:
					case chans[1] <- i:
					case n := <-chans[0]:
						note(n)
					case n := <-chans[1]:
						note(-n)
					}
					for k := range m {
						note(k, &k)
						break
					}
				}
			})
		}
		wg.Wait()
		fmt.Printf("sum %x\n", sum.Sum64())
	})
}
`

// A seed gives the same run again, and another one another.
func TestARunIsRepeated(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the runtime")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module chance\n\ngo 1.26\n", "chance_test.go": chance} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := GoRoot()
	if err != nil {
		t.Fatal(err)
	}
	list, err := Write(t.TempDir(), map[string][]Edit{root: Runtime()})
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "test", "-vet=off", "-c", "-overlay", list, "-o", "chance.test", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(seed string) string {
		c := exec.Command(filepath.Join(dir, "chance.test"))
		c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", SeedVariable+"="+seed)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		sum, _, _ := strings.Cut(string(out), "\n")
		return sum
	}
	first := run("1")
	for range 5 {
		if again := run("1"); again != first {
			t.Errorf("a seed gave %s, and then %s", first, again)
		}
	}
	if other := run("2"); other == first {
		t.Errorf("two seeds gave %s", other)
	}
}
