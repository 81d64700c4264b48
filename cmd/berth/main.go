// Command berth is everything in one binary: the agent that servers and workers
// run, and the command line that talks to them.
//
// This package only joins: flags and files become plain values for the packages
// that do the work, and what they return becomes text and an exit status. The
// exit status is 0 if it was done, 1 if it was refused or failed, 2 if the
// command was called wrongly.
package main

import (
	"os"
	_ "time/tzdata" // a CronJob's timeZone means the same on a machine without a database of zones

	"github.com/berth-dev/berth/worker/runtime/process"
)

func main() {
	// A worker starts its own binary once more beside every container.
	if process.IsShim(os.Args) {
		os.Exit(process.ShimMain(os.Args))
	}
	a := &app{
		in: os.Stdin, out: os.Stdout, errOut: os.Stderr, getenv: os.Getenv,
		exit: os.Exit, silence: silenceLibraries, startAgent: startAgent,
	}
	os.Exit(a.run(os.Args[1:]))
}
