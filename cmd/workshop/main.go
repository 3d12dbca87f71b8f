// Command workshop is what the Makefile calls: clusters, lessons and tests.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/k8s-go/workshop/internal/command"
	"github.com/k8s-go/workshop/internal/exercise/runner"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/proc"
)

func main() {
	ctx, stop := interrupt.Context()
	ctx, cancel := proc.EndWithReader(ctx)
	defer cancel()
	err := command.Run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	var exit *runner.Exit
	switch {
	case err == nil:
	case interrupted:
		interrupt.SayLeft(os.Stderr, err)
		fmt.Fprintln(os.Stderr, "Interrupted")
		os.Exit(130)
	case errors.As(err, &exit): // it has been said why
		os.Exit(exit.Code)
	default:
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}
