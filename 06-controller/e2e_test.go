package controller

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// namespaceGoes is how long the deletion of a namespace may take: one process of
// the cluster deletes those of all tests, with a limit of requests a second.
const namespaceGoes = 150 * time.Second

// deliveries returns a function that says whether an object, as it has this
// resourceVersion, has gone to a watch since. A watch that is held before the
// event of the controller's own last write leaves the controller waiting for it.
func deliveries(t testing.TB, proxy *testenv.Proxy) func(version string) error {
	var mu sync.Mutex
	delivered := map[string]bool{}
	observations := proxy.Observe(t.Context())
	go func() {
		for o := range observations {
			if o.Moment == faultproxy.EventPassed {
				mu.Lock()
				delivered[o.Event.ResourceVersion] = true
				mu.Unlock()
			}
		}
	}()
	return func(version string) error {
		mu.Lock()
		defer mu.Unlock()
		if !delivered[version] {
			return fmt.Errorf("no watch has delivered resourceVersion %s", version)
		}
		return nil
	}
}

func TestMain(m *testing.M) {
	// The tests mostly wait for the cluster, so more of them can run side by side
	// than the machine has cores.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "16"); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(2)
		}
	}
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }
