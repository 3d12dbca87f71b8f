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
	"github.com/k8s-go/workshop/internal/proc"
)

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup does that
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	ctx, cancel := proc.EndWithReader(ctx)
	defer cancel()
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
