// cold-store is the outside world of this lesson: a company that rents out cold rooms over HTTP.
// openapi.yaml says what its tenants can ask for. Everything that it does stands in a ledger,
// and its owner can make it refuse, lose answers or be late; see Fault and Settings.
//
// Nothing of it knows of Kubernetes.
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
	"syscall"
	"time"
)

func main() {
	settings := Settings{Remembered: Duration(24 * time.Hour)}
	listen := flag.String("listen", "127.0.0.1:0", "the address for tenants and for the owner; port 0 chooses a free one")
	ledger := flag.String("ledger", "", "the file with all that has happened; it is made if it is not there (required)")
	flag.IntVar(&settings.Quota, "quota", 1000, "how many pallets there are")
	flag.TextVar(&settings.Prepare, "prepare", Duration(2*time.Second), "how long a room takes to be ready")
	flag.TextVar(&settings.Empty, "empty", Duration(time.Second), "how long a room takes to be gone")
	flag.TextVar(&settings.Lag, "lag", Duration(0), "by how much lists are late")
	flag.TextVar(&settings.Remembered, "remembered", settings.Remembered, "how long an Idempotency-Key is known")
	flag.Float64Var(&settings.Rate, "rate", 0, "how many calls a second are answered, for all tenants together; 0 for any number")
	flag.StringVar(&settings.Token, "token", "", "what tenants have to show; nothing if empty")
	flag.Parse()
	if flag.NArg() > 0 || *ledger == "" {
		fmt.Fprintln(os.Stderr, "cold-store -ledger FILE [...]: it needs a ledger, and takes no arguments beside its flags")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *ledger, settings); err != nil {
		fmt.Fprintln(os.Stderr, "cold-store:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, listen, path string, settings Settings) (err error) {
	s := &Server{Store: &Store{keys: map[string]remembered{}, now: func() time.Time { return time.Now().UTC() }}}
	if s.ledger, err = openLedger(path, s.take); err != nil {
		return fmt.Errorf("the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, s.ledger.file.Close()) }()
	s.apply(settings)
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("cold-store: http://%s, with %d entries in its ledger\n", listener.Addr(), s.ledger.entries)
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close() // those who wait get no answer, as if it had been killed
	}
}
