package agent_test

import (
	"os"
	"syscall"
	"testing"
)

// TestMain has client-go's detector look whether a controller changes an object that is not its own (informers.Feed): it would
// end the tests. The variable is read before anything here runs, so the program begins once more.
func TestMain(m *testing.M) {
	const detects = "KUBE_CACHE_MUTATION_DETECTOR"
	if _, ok := os.LookupEnv(detects); !ok {
		exe, err := os.Executable()
		if err == nil {
			err = syscall.Exec(exe, os.Args, append(os.Environ(), detects+"=true"))
		}
		panic(err)
	}
	os.Exit(m.Run())
}
