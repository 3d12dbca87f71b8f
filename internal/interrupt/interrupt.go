// Package interrupt says when a program is to end. It imports Go's standard library alone, for a
// program that runs before there is any module.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Context returns a context that ends with Ctrl-C, with SIGTERM, and when the terminal is closed,
// unless nohup has the program survive that. After stop, each of them ends the program at once.
func Context() (ctx context.Context, stop context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	return signal.NotifyContext(context.Background(), ends...)
}
