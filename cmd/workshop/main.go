// Command workshop is what the Makefile calls: clusters, lessons and tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/k8s-go/workshop/internal/command"
	"github.com/k8s-go/workshop/internal/exercise/runner"
)

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup does that
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// When tee or head has ended, the next write must not end this process, which still has to clean up.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	go func() {
		for range pipes {
			if unread(os.Stdout) { // and not a connection that was reset
				cancel()
			}
		}
	}()
	err := command.Run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	var exit *runner.Exit
	switch {
	case err == nil:
	case interrupted:
		fmt.Fprintln(os.Stderr, "Interrupted")
		os.Exit(130)
	case errors.As(err, &exit): // it has been said why
		os.Exit(exit.Code)
	default:
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// unread reports whether a file is a pipe that nobody reads any more.
func unread(file *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLOUT}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLERR != 0
}
