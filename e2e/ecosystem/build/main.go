// Build builds the tools that are tried on Berth, all or those that are named, and says which could not be.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/e2e/ecosystem/tools"
)

func main() {
	into := flag.String("into", "bin", "The folder that the programs are written to.")
	jobs := flag.Int("jobs", 2, "How many packages are built at a time.")
	flag.Parse()
	if err := run(*into, *jobs, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "ecosystem:", err)
		os.Exit(1)
	}
}

func run(into string, jobs int, names []string) error {
	wanted, err := named(names)
	if err != nil {
		return err
	}
	into, err = filepath.Abs(into)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	failed := 0
	for _, t := range wanted {
		if err := t.Build(".", into, jobs); err != nil {
			fmt.Fprintln(os.Stderr, "ecosystem:", err)
			failed++
			continue
		}
		fmt.Println("built", t.Name, t.Version)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d tools could not be built", failed, len(wanted))
	}
	return nil
}

// named are the tools of these names; of none: all.
func named(names []string) ([]tools.Tool, error) {
	if len(names) == 0 {
		return tools.All, nil
	}
	var out []tools.Tool
	for _, name := range names {
		i := slices.IndexFunc(tools.All, func(t tools.Tool) bool { return t.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no tool is called %q", name)
		}
		out = append(out, tools.All[i])
	}
	return out, nil
}
