// Command build builds the simulation's test binary with the patches of package
// overlay laid over the toolchain.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"

	"github.com/berth-dev/berth/sim/overlay"
)

func main() {
	out := flag.String("o", "bin/sim.test", "where the binary goes")
	mutants := flag.Bool("mutants", false, "put the mutants in; "+overlay.MutantVariable+" says which is at work")
	mines := flag.Bool("mines", false, "put the mines in, which panic; "+overlay.MinesVariable+" says until when")
	cover := flag.Bool("cover", false, "count what is reached of the product's statements")
	flag.Parse()
	if err := build(*out, *mutants, *mines, *cover); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func build(out string, mutants, mines, cover bool) error {
	dir, err := os.MkdirTemp("", "berth-overlay-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left of it harms nobody
	root, err := overlay.GoRoot()
	if err != nil {
		return err
	}
	edits := map[string][]overlay.Edit{root: overlay.Runtime()}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	if mutants {
		edits[here] = append(edits[here], overlay.On()...)
	}
	if mines {
		edits[here] = append(edits[here], overlay.Mines()...)
	}
	list, err := overlay.Write(dir, edits)
	if err != nil {
		return err
	}
	args := []string{"test", "-vet=off", "-c", "-overlay", list, "-o", out}
	if cover {
		args = append(args, "-cover", "-covermode=set", "-coverpkg=github.com/berth-dev/berth/...")
	}
	c := exec.Command("go", append(args, "./sim")...)
	// A fifth of a world's time goes into allocating small objects, which is cheaper so.
	c.Env = append(os.Environ(), "GOEXPERIMENT=sizespecializedmalloc")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}
