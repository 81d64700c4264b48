package archtest

import (
	"slices"
	"testing"
)

// TestTheBinaryBringsTheZones: without its own database of time zones the same CronJob is accepted and kept by a server on one
// machine and by none on another.
func TestTheBinaryBringsTheZones(t *testing.T) {
	if !slices.ContainsFunc(load(t).files, func(f *file) bool {
		return f.Dir == "cmd/berth" && !f.Test && slices.Contains(f.imports(), "time/tzdata")
	}) {
		t.Error("cmd/berth does not import time/tzdata")
	}
}
