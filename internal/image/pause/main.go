// Command pause does nothing until it is told to stop: what lessons and tests
// run where a pod has to be really there. kind clusters have it as the image
// workshop/pause:1, so that nothing has to be pulled. It has no shell, so it
// brings the few commands that a pod needs for logs, exec and port-forward:
//
//	pause              waits
//	pause serve :8080  answers HTTP, prints a line for each request, waits
//	pause echo WORD... prints the words
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pause:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		<-ctx.Done()
		return nil
	case args[0] == "echo":
		fmt.Println(strings.Join(args[1:], " "))
		return nil
	case args[0] == "serve" && len(args) == 2:
		return serve(ctx, args[1])
	}
	return fmt.Errorf("unknown command %q: want none, echo or serve ADDRESS", strings.Join(args, " "))
}

func serve(ctx context.Context, address string) error {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		fmt.Fprintln(w, "hello from pause")
	})}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("serving", address)
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
