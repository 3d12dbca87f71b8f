package proc

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
)

const threadEnds = "PROC_TEST_THREAD_ENDS"

func init() {
	if os.Getenv(threadEnds) != "" { // this is the child of the test, in its first thread
		runtime.LockOSThread()
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
}

// A process whose first thread has ended looks like a zombie, but its others still run.
func TestEndedMeansAllThreads(t *testing.T) {
	p, err := Start(t.Context(), Cmd{Path: os.Args[0], Env: append(os.Environ(), threadEnds+"=1")})
	fatal.If(t, err)
	child, err := process.NewProcess(int32(p.Pid()))
	fatal.If(t, err)
	err = poll.Until(t.Context(), 10*time.Millisecond, 20*time.Second, func(ctx context.Context) error {
		if status, err := child.StatusWithContext(ctx); err != nil || len(status) != 1 || status[0] != process.Zombie {
			return errors.Join(errors.New("the first thread still runs"), err)
		}
		return nil
	})
	fatal.If(t, err)
	if Ended(t.Context(), child) {
		t.Error("it counts as ended while threads run")
	}
	fatal.If(t, child.Kill())
	_ = p.Wait() // it was killed
	if !Ended(t.Context(), child) {
		t.Error("it counts as running after it was collected")
	}
}
