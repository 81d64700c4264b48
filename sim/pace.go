package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// pace is how much goes on in a world. In a dense one everything meets everything; in a
// stormy one faults meet faults; a plain one is a dense one of which little but pods is asked, and shows what the rest costs; in a quiet one hours are cheap, and what takes hours
// comes to pass.
type pace struct {
	name    string
	fault   time.Duration // between two of them, on average
	pods    int           // submitted in a minute
	workers int
	slow    int           // by how much longer than in a dense one users rest
	lasting time.Duration // the longest of most faults
	rare    int           // one fault of so many lasts for minutes
	longer  int           // so many, at the most
	calm    int           // one fault in so many of those that need calm has it
	tidied  time.Duration // between two collections of the memory
	chimes  time.Duration // between two times of the CronJobs' schedule
	renewed time.Duration // between two renewals of a lease
	entries int           // until servers take a snapshot; a quarter of them stays in the log
	alone   bool          // nobody is there but who submits pods and takes away those that have ended
	beat    time.Duration // how long servers hear nothing of their leader until they elect another; when nothing is written they hear of the last commit within a twentieth
}

var paces = []pace{
	{name: "dense", fault: 2 * time.Second, pods: 200, workers: 20, slow: 1, lasting: 8 * time.Second, rare: 10, longer: 1, calm: 2, tidied: time.Minute, chimes: time.Minute, renewed: 5 * time.Second, entries: 2000, beat: time.Second},
	{name: "plain", fault: 2 * time.Second, pods: 200, workers: 20, slow: 1, lasting: 8 * time.Second, rare: 10, longer: 1, calm: 20, tidied: 3 * time.Minute, chimes: time.Minute, renewed: 5 * time.Second, entries: 2000, alone: true, beat: time.Second},
	{name: "stormy", fault: time.Second, pods: 30, workers: 10, slow: 6, lasting: 4 * time.Second, rare: 30, longer: 1, calm: 20, tidied: time.Minute, chimes: time.Minute, renewed: 5 * time.Second, entries: 400, beat: time.Second},
	{name: "steady", fault: 15 * time.Second, pods: 30, workers: 10, slow: 6, lasting: 8 * time.Second, rare: 10, longer: 2, calm: 2, tidied: 3 * time.Minute, chimes: time.Minute, renewed: 5 * time.Second, entries: 2000, beat: time.Second},
	{name: "quiet", fault: time.Minute, pods: 4, workers: 5, slow: 40, lasting: 8 * time.Second, rare: 10, longer: 10, calm: 2, tidied: 10 * time.Minute, chimes: time.Minute, renewed: 10 * time.Second, entries: 2000, beat: time.Second},
	{name: "still", fault: 10 * time.Minute, pods: 1, workers: 3, slow: 200, lasting: 8 * time.Second, rare: 3, longer: 10, calm: 2, tidied: 20 * time.Minute, chimes: 10 * time.Minute, renewed: 20 * time.Second, entries: 2000, beat: 10 * time.Second},
}

// poll is how often somebody looks who has been elected: who leads is told by nobody.
func (p pace) poll() time.Duration { return time.Duration(min(p.slow, 10)) * 2 * time.Millisecond }

// isIdle: seconds pass in which nothing is written.
func (p pace) isIdle() bool { return p.slow >= 40 }

// whole is after how many steps digests are compared.
func (p pace) whole() int { return 40 * min(p.slow, 6) }

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
