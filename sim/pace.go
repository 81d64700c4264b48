package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// pace is how much goes on in a world. In a dense one everything meets everything; in a
// quiet one hours are cheap, and what takes hours comes to pass.
type pace struct {
	name    string
	fault   time.Duration // between two of them, on average
	pods    int           // submitted in a minute
	workers int
	slow    int           // by how much longer than in a dense one users rest
	longer  int           // how much longer its faults may be
	tidied  time.Duration // between two collections of the memory
}

var paces = []pace{
	{name: "dense", fault: 2 * time.Second, pods: 200, workers: 20, slow: 1, longer: 1, tidied: time.Minute},
	{name: "steady", fault: 15 * time.Second, pods: 30, workers: 10, slow: 6, longer: 2, tidied: 3 * time.Minute},
	{name: "quiet", fault: time.Minute, pods: 4, workers: 5, slow: 40, longer: 10, tidied: 10 * time.Minute},
}

// paceOf is the pace of a name; "any" is one that the seed draws.
func paceOf(name string, seed uint64) (pace, error) {
	if name == "any" {
		return paces[seed/7%uint64(len(paces))], nil
	}
	var names []string
	for _, p := range paces {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return pace{}, fmt.Errorf("no pace is called %q: any, %s", name, strings.Join(slices.Sorted(slices.Values(names)), ", "))
}
