// Command serve puts the fault proxy in front of a cluster and is steered with
// curl over a Unix socket:
//
//	go run ./internal/faultproxy/serve -write-kubeconfig faulty.yaml -control faults.sock &
//	kubectl --kubeconfig faulty.yaml get pods --watch
//	curl --unix-socket faults.sock -X POST http://proxy/cut
//
// See Proxy.Control for all it can do. It prints each request when it has ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/faultproxy"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "the cluster's kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	out := flag.String("write-kubeconfig", "", "where to write the kubeconfig of the proxy (required)")
	control := flag.String("control", "", "path of the Unix socket that steers the proxy (required)")
	flag.Parse()
	if *out == "" || *control == "" {
		return errors.New("-write-kubeconfig and -control are required")
	}
	proxy, namespace, err := faultproxy.StartFor(rules)
	if err != nil {
		return err
	}
	var printing sync.WaitGroup
	defer printing.Wait() // it ends with the proxy
	defer proxy.Close()
	observations := proxy.Observe(context.Background())
	printing.Go(func() { show(observations) })

	socket, err := net.Listen("unix", *control)
	if err != nil {
		return fmt.Errorf("listening for commands: %w", err)
	}
	steering := &http.Server{Handler: proxy.Control(), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = steering.Close() })()
	// Last, so that whoever sees the file can use both it and the socket.
	if err := proxy.WriteKubeconfig(*out, namespace, ""); err != nil {
		return fmt.Errorf("writing the proxy's kubeconfig: %w", err)
	}
	defer os.Remove(*out)
	if err := steering.Serve(socket); err != nil && ctx.Err() == nil {
		return fmt.Errorf("answering commands: %w", err)
	}
	return nil
}

// show prints each request when it has ended.
func show(observations <-chan faultproxy.Observation) {
	for o := range observations {
		if o.Missed > 0 {
			fmt.Printf("(missed %d observations)\n", o.Missed)
		}
		if o.Moment == faultproxy.Ended {
			fmt.Println(o.Request)
		}
	}
}
