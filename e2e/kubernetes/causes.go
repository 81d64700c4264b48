package main

import "strings"

// cause is why some specs do not pass. It has to be about specs that fail: an entry for one that passes is an error.
type cause struct {
	specs  string // the beginning of their names
	reason string
}

// causes are known and told; a failure that none explains makes the run fail.
var causes = []cause{}

func causeOf(causes []cause, name string) string {
	for _, c := range causes {
		if strings.HasPrefix(name, c.specs) {
			return c.reason
		}
	}
	return ""
}
