package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A server, or a proxy before it, ends each watch at once.
func TestEdgeAndLevelAreNoHotLoop(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	k := &keepers{t: t, e: e, proxy: e.Proxy(), styles: []string{"level"}}
	k.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.End, Times: -1})
	k.start()
	const watches = 11
	e.Eventually(time.Minute, func(context.Context) error {
		if n := k.proxy.Count(faultproxy.Watches); n < watches {
			return fmt.Errorf("%d watches", n)
		}
		return nil
	})
	begun := k.proxy.Requests(faultproxy.Watches)
	// The first pauses can be short: a tick is waiting already, and the next one comes when it would have come anyway.
	if took := begun[watches-1].Started.Sub(begun[0].Started); took < (watches-3)*resync {
		t.Errorf("%d watches in %s, with a pause of %s after each", watches, took, resync)
	}
}
