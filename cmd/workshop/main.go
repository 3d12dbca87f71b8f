// Command workshop is what the Makefile calls: clusters, lessons and tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/k8s-go/workshop/internal/command"
	"github.com/k8s-go/workshop/internal/exercise/runner"
)

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup does that
		ends = append(ends, syscall.SIGHUP)
	}
	// In make tour | tee log, Ctrl-C ends tee, too. The next write must not end this process, which still has to clean up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
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
