package proc

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// EndWithReader returns a context that also ends when standard output is a pipe that nobody reads
// any more, as after head or tee has ended. The next write would otherwise end this process, which
// still has to clean up.
func EndWithReader(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	go func() {
		for range pipes {
			if unread(os.Stdout) { // and not a connection that was reset
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// unread reports whether a file is a pipe that nobody reads any more.
func unread(file *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLOUT}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 // Linux, macOS
}
