package model

import "time"

// farSeconds is a hundred years: as far as anything that is said in seconds reaches, so that a time that it is added to
// still has its nanoseconds in 64 bits.
const farSeconds = 100 * 365 * 24 * 3600

// Seconds is so many seconds, as objects of the API say them: any number is allowed there. What is further away than a
// hundred years counts as a hundred years.
func Seconds(s int64) time.Duration {
	return time.Duration(min(max(s, -farSeconds), farSeconds)) * time.Second
}
