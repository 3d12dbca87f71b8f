package controller

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/xraytest"
)

// BenchmarkXray compares how many statuses a second the controller writes while
// the X-ray of make web shows it in one window, while its requests only go
// through the proxy, and without either. For each there is a namespace with 500 policies
// and a controller, which has something to do when it is its turn. The API server remembers what has
// changed, and gets slower while it does; so a round is short, goes forth and back, and gives one
// ratio, and the median of the rounds counts.
// Bar: on/through-proxy at least 0.95, on/direct at least 0.9.
func BenchmarkXray(b *testing.B) {
	const count, rounds = 500, 10
	modes := []string{"direct", "through-proxy", "on"}
	flips := map[string]func() time.Duration{}
	for _, mode := range modes {
		p := newPolicyBench(b)
		p.createPods(1, true, func(int) map[string]string { return map[string]string{"team": "none"} })
		p.createPolicies(count, func(int) string { return "counted" })
		args, environ := []string{"-namespace", p.Namespace}, []string(nil)
		switch mode {
		case "through-proxy":
			args = append(args, "-kubeconfig", p.Proxy().Kubeconfig)
		case "on":
			room := xraytest.Enter(b, p.Env)
			args, environ = append(args, "-kubeconfig", room.Proxy.Kubeconfig), room.Environ()
			defer openWindow(b, room.Hub)()
		}
		s := startProgram(b, p.Env, environ, p.Program(policyProgram), args...)
		defer s.Stop()
		p.settle(hasCounted(0, 0))
		selected := false
		flips[mode] = func() time.Duration {
			selected = !selected
			return p.flip(count, selected)
		}
	}
	back := slices.Clone(modes)
	slices.Reverse(back)
	for _, mode := range modes { // warms up the connections
		flips[mode]()
	}
	all, onOfProxy, onOfDirect := map[string]time.Duration{}, []float64(nil), []float64(nil)
	for b.Loop() {
		for range rounds {
			took := map[string]time.Duration{}
			for _, mode := range slices.Concat(modes, back) {
				took[mode] += flips[mode]()
			}
			for mode, d := range took {
				all[mode] += d
			}
			onOfProxy = append(onOfProxy, took["through-proxy"].Seconds()/took["on"].Seconds())
			onOfDirect = append(onOfDirect, took["direct"].Seconds()/took["on"].Seconds())
		}
	}
	for _, mode := range modes {
		b.ReportMetric(float64(2*count*len(onOfProxy))/all[mode].Seconds(), mode+"-statuses/s")
	}
	b.ReportMetric(median(onOfProxy), "on/through-proxy")
	b.ReportMetric(median(onOfDirect), "on/direct")
}

func median(ratios []float64) float64 { return slices.Sorted(slices.Values(ratios))[len(ratios)/2] }

// openWindow opens a window of the X-ray, and returns what closes it.
func openWindow(b *testing.B, hub *xray.Hub) (end func()) {
	b.Helper()
	server := httptest.NewServer(hub.Handler())
	window, _, err := websocket.Dial(b.Context(), server.URL+"/ws", nil)
	fatal.If(b, err)
	window.SetReadLimit(-1)
	read := make(chan struct{})
	frames := 0
	go func() {
		defer close(read)
		for {
			if _, _, err := window.Read(context.Background()); err != nil {
				return
			}
			frames++
		}
	}()
	return func() {
		_ = window.CloseNow()
		<-read
		server.Close()
		if frames == 0 {
			b.Error("the window has shown nothing")
		}
	}
}
