// Package progress shows that a long piece of work goes on.
package progress

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// Start announces a piece of work and returns the function that ends the
// announcement. On a terminal the elapsed seconds count up; elsewhere a line
// says every half minute that the work goes on.
func Start(out io.Writer, what string) func(error) {
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start).Round(time.Second) }
	f, isFile := out.(*os.File)
	tty := isFile && term.IsTerminal(int(f.Fd()))
	stop, stopped := make(chan struct{}), make(chan struct{})
	interval := 30 * time.Second
	if tty {
		interval = time.Second
	}
	go func() {
		defer close(stopped)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if tty {
					fmt.Fprintf(out, "\r  %s  %s", what, elapsed())
				} else {
					fmt.Fprintf(out, "  %s  %s so far\n", what, elapsed())
				}
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		result := elapsed().String()
		if err != nil {
			result = "failed after " + result
		}
		if tty {
			fmt.Fprint(out, "\r")
		}
		fmt.Fprintf(out, "  %s  %s\n", what, result)
	}
}
