package proc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/poll"
)

// gopsutil knows a process again by the second in which it began. That is counted
// from the boot, whose second Linux moves when the clock is set right: a process that
// runs would count as ended.
func init() { process.EnableBootTimeCache(true) }

// KillSession waits until the process has ended, gives other processes of its
// session a second to end as well, and kills the rest. It returns a line for each
// process that it has killed.
func (p *Process) KillSession(ctx context.Context) ([]string, error) {
	<-p.done
	var left []*process.Process
	look := func(ctx context.Context) (err error) {
		if left, err = p.session(ctx); err != nil {
			return poll.Stop(err)
		}
		if len(left) > 0 {
			return fmt.Errorf("%d processes still run", len(left))
		}
		return nil
	}
	if err := poll.Until(ctx, 50*time.Millisecond, time.Second, look); err == nil {
		return nil, nil
	} else if !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	var lines []string
	for _, l := range left {
		command, _ := l.CmdlineWithContext(ctx) // empty if it has just ended
		lines = append(lines, fmt.Sprintf("%d %s", l.Pid, command))
	}
	return lines, poll.Until(ctx, 50*time.Millisecond, 10*time.Second, func(ctx context.Context) error {
		for _, l := range left { // also what one of them has started meanwhile
			_ = unix.Kill(int(l.Pid), unix.SIGKILL)
		}
		return look(ctx)
	})
}

func (p *Process) session(ctx context.Context) ([]*process.Process, error) {
	all, err := process.ProcessesWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	return slices.DeleteFunc(all, func(o *process.Process) bool {
		// One that has ended has no session, or waits to be collected.
		sid, err := unix.Getsid(int(o.Pid))
		return err != nil || sid != p.Pid() || Ended(ctx, o)
	}), nil
}

// Ended reports whether a process is gone, or only waits to be collected. Where its
// first thread has ended, others may still run, and keep its files and sockets open.
func Ended(ctx context.Context, p *process.Process) bool {
	if running, err := p.IsRunningWithContext(ctx); err != nil || !running {
		return true
	}
	status, err := p.StatusWithContext(ctx)
	if err != nil {
		return true
	}
	threads, err := p.NumThreadsWithContext(ctx)
	return slices.Contains(status, process.Zombie) && (err != nil || threads <= 1)
}
