package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// BenchmarkServerAway measures how long after the return of the API server, which was
// away for 10 s, the icecream controller has caught up: s-heard until it writes because of
// a change that was made meanwhile, so that the back-off of one informer counts;
// s-repeated until it repeats a write that was cut off, so that the queue's does;
// s-available until it reports both, for which all three informers have to be back.
// Bar: at most 6 s. The last variant waits as client-go and its queues do by themselves.
func BenchmarkServerAway(b *testing.B) {
	ownWait := []testenv.ProgramOption{
		testenv.Replace("main.go", "\tloop.WaitForServer(config)\n", ""),
		testenv.Replace("../loop/loop.go", "\tif away(err) {\n\t\tl.lookAgain", "\tif false {\n\t\tl.lookAgain"),
	}
	for _, variant := range []struct {
		name    string
		changes []testenv.ProgramOption
	}{{"wait=loop", nil}, {"wait=client-go", ownWait}} {
		b.Run("controller=icecream/"+variant.name, func(b *testing.B) {
			e := testenv.New(b)
			f := icecreamTestOf(b, e, e.Program(icecreamProgram, variant.changes...))
			f.Start()
			for _, name := range []string{"heard", "repeated"} {
				f.create(name, name, 0)
				f.until(name, isAvailable)
			}
			replicas, longest := 0, map[string]time.Duration{}
			for b.Loop() {
				replicas = 1 - replicas
				spec := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
				write := func(name string) faultproxy.Match {
					return faultproxy.Match{Verb: "patch", Resource: "deployments", Name: name}
				}
				cut := f.Proxy.MustInject(faultproxy.Rule{Match: write("repeated"), Fault: faultproxy.Stall})
				f.patch("repeated", spec)
				f.Struck(cut, 1)
				f.Proxy.Down()
				cut.Remove()
				f.patch("heard", spec)
				_ = f.Hold(10*time.Second, func() error { return nil })
				fatal.If(b, f.Proxy.Up())
				back := time.Now()
				for _, name := range []string{"heard", "repeated"} {
					f.Eventually(2*time.Minute, func(context.Context) error {
						for _, r := range f.Proxy.Requests(write(name)) {
							if r.Started.After(back) && r.Code == 200 {
								longest[name] = max(longest[name], r.Started.Sub(back))
								return nil
							}
						}
						return fmt.Errorf("the Deployment %s is not corrected", name)
					})
				}
				for _, name := range []string{"heard", "repeated"} {
					f.until(name, isAvailable)
				}
				longest["available"] = max(longest["available"], time.Since(back))
			}
			for name, d := range longest {
				b.ReportMetric(d.Seconds(), "s-"+name)
			}
		})
	}
}
