package crash

// A program of package main is built with a clock that jumps if JumpingClockSource is
// added to it, and JumpingClock stands where it says RealClock.
const (
	RealClock    = "clock.RealClock{}"
	JumpingClock = "jumpingClock{clock.RealClock{}}"

	// JumpingClockEnv names a file that says by how much the clock is wrong, as "-1h".
	JumpingClockEnv = "JUMPING_CLOCK"
)

// JumpingClockSource is the file to add.
const JumpingClockSource = `package main

import (
	"os"
	"time"

	"k8s.io/utils/clock"
)

type jumpingClock struct{ clock.PassiveClock }

func (c jumpingClock) Now() time.Time {
	data, err := os.ReadFile(os.Getenv("JUMPING_CLOCK"))
	if err != nil {
		return c.PassiveClock.Now()
	}
	offset, err := time.ParseDuration(string(data))
	if err != nil {
		return c.PassiveClock.Now()
	}
	return c.PassiveClock.Now().Add(offset)
}
`
