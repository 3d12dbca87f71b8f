package loop

import (
	"net/http"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// An API server that refuses connections is away: it restarts, or is being replaced.
// client-go's informers and this queue would wait longer after each try, so that both
// would go on waiting long after it is back. A connection that nobody accepts costs
// the server nothing, so they look for it about once a second.
const lookForServer = time.Second

// WaitForServer makes the watches of a config's clients wait while the API server is
// away, and says so in the log, which they would not. An informer then goes on within two
// seconds of its return; without this, its own back-off doubles up to half a minute, and its
// jitter doubles that again.
func WaitForServer(config *rest.Config) {
	said := &atomic.Bool{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return waitForServer{next, said} })
}

type waitForServer struct {
	next http.RoundTripper
	said *atomic.Bool // that the server is away
}

func (w waitForServer) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		answer, err := w.next.RoundTrip(r)
		if !away(err) || r.URL.Query().Get("watch") != "true" {
			if err == nil && w.said.CompareAndSwap(true, false) {
				klog.FromContext(r.Context()).Info("The API server is back")
			}
			return answer, err
		}
		if w.said.CompareAndSwap(false, true) {
			klog.FromContext(r.Context()).Info("The API server is away: looking for it every second", "err", err)
		}
		timer := time.NewTimer(untilNextLook())
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, r.Context().Err() // and not err, after which the informer would wait once more
		}
	}
}

func away(err error) bool { return err != nil && utilnet.IsConnectionRefused(err) }

func untilNextLook() time.Duration { return wait.Jitter(lookForServer, 1) }
