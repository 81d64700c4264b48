package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is the kernel's clock that also counts the time of a suspended
// machine.
func sinceBoot() (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
