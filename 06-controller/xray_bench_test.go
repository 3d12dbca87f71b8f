package controller

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/xraytest"
)

// BenchmarkXray compares how many statuses a second the controller writes while
// the X-ray of make web shows it in one window, while its requests only go
// through the proxy, and without either. The three take turns on the same policies.
// The fastest change of each counts, because the others say more about the machine.
// Bar: on/through-proxy at least 0.95. on/direct also has what the proxy costs.
func BenchmarkXray(b *testing.B) {
	const count, flips = 1000, 3
	p := newPolicyBench(b)
	p.createPods(1, true, func(int) map[string]string { return map[string]string{"team": "none"} })
	p.createPolicies(count, func(int) string { return "counted" })
	fastest := map[string]time.Duration{}
	selected, settled := false, false
	modes := []string{"direct", "through-proxy", "on"}
	back := slices.Clone(modes)
	slices.Reverse(back)
	for b.Loop() {
		for _, mode := range append(modes, back...) {
			args, environ, end := []string{"-namespace", p.Namespace}, []string(nil), func() {}
			switch mode {
			case "through-proxy":
				args = append(args, "-kubeconfig", p.Proxy().Kubeconfig)
			case "on":
				room := xraytest.Enter(b, p.Env)
				args = append(args, "-kubeconfig", room.Proxy.Kubeconfig)
				environ, end = room.Environ(), openWindow(b, room.Hub)
			}
			s := startProgram(b, p.Env, environ, p.Program(policyProgram), args...)
			if !settled {
				p.settle(hasCounted(0, 0))
				settled = true
			}
			for i := range 1 + flips { // the first one warms up the connections
				selected = !selected
				if d := p.flip(count, selected); i > 0 && (fastest[mode] == 0 || d < fastest[mode]) {
					fastest[mode] = d
				}
			}
			s.Stop()
			end()
		}
	}
	for _, mode := range modes {
		b.ReportMetric(count/fastest[mode].Seconds(), mode+"-statuses/s")
	}
	b.ReportMetric(fastest["through-proxy"].Seconds()/fastest["on"].Seconds(), "on/through-proxy")
	b.ReportMetric(fastest["direct"].Seconds()/fastest["on"].Seconds(), "on/direct")
}

// openWindow opens a window of the X-ray, and returns what closes it.
func openWindow(b *testing.B, hub *xray.Hub) (end func()) {
	b.Helper()
	server := httptest.NewServer(hub.Handler())
	window, _, err := websocket.Dial(b.Context(), server.URL+"/ws", nil)
	if err != nil {
		b.Fatal(err)
	}
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
