// Command berth-shim is the shim alone, which is small where berth is large: there is one of them beside every container of a process
// worker. `make build` puts it into berth (package process), which hands it out; berth built without it is its own shim.
package main

import (
	"fmt"
	"os"

	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

func main() {
	switch {
	case shim.Is(os.Args):
		os.Exit(shim.Main(os.Args))
	case shim.AsksForSum(os.Args):
		fmt.Print(shim.Sum())
	default:
		fmt.Fprintln(os.Stderr, "berth-shim: the workers of berth start it beside their containers; it is of no other use")
		os.Exit(2)
	}
}
