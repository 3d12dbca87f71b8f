// Command pause does nothing until it is told to stop: what lessons and tests
// run where a pod has to be really there. kind clusters have it as the image
// workshop/pause:1, so that nothing has to be pulled.
package main

import (
	"context"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
}
