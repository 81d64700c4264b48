// Build builds every tool that is tried on Berth, and says which could not be.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/e2e/ecosystem/tools"
)

func main() {
	into := flag.String("into", "bin", "The folder that the programs are written to.")
	jobs := flag.Int("jobs", 2, "How many packages are built at a time.")
	flag.Parse()
	if err := run(*into, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "ecosystem:", err)
		os.Exit(1)
	}
}

func run(into string, jobs int) error {
	into, err := filepath.Abs(into)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	failed := 0
	for _, t := range tools.All {
		if err := t.Build(".", into, jobs); err != nil {
			fmt.Fprintln(os.Stderr, "ecosystem:", err)
			failed++
			continue
		}
		fmt.Println("built", t.Name, t.Version)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d tools could not be built", failed, len(tools.All))
	}
	return nil
}
