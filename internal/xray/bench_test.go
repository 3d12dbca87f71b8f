package xray

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// BenchmarkEventToWindow sends 100 events a second through the proxy to a client,
// and measures how much later each is in a window of the X-ray. The baseline is
// the client itself, which gets the same events. Bar: p99 under 100 ms.
func BenchmarkEventToWindow(b *testing.B) {
	const seconds, rate = 10, 100
	e := testenv.New(b)
	proxy := e.Proxy()
	dir, err := os.MkdirTemp("", "xray") // short enough for a socket
	fatal.If(b, err)
	defer os.RemoveAll(dir)
	hub, err := NewHub(proxy.Proxy, filepath.Join(dir, "socket"))
	fatal.If(b, err)
	defer hub.Close()
	server := httptest.NewServer(hub.Handler())
	defer server.Close()
	window, _, err := websocket.Dial(b.Context(), server.URL+"/ws", nil)
	fatal.If(b, err)
	window.SetReadLimit(-1)

	var mu sync.Mutex
	inClient, inWindow := map[string]time.Time{}, map[string]time.Time{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for {
			_, data, err := window.Read(context.Background())
			if err != nil {
				return
			}
			now := time.Now()
			var got batch
			if err := json.Unmarshal(data, &got); err != nil {
				b.Error(err)
			}
			mu.Lock()
			for _, i := range got.Items {
				if i.Type == "ADDED" {
					inWindow[i.Object] = now
				}
			}
			mu.Unlock()
		}
	}()
	client, err := kubernetes.NewForConfig(proxy.Config())
	fatal.If(b, err)
	w, err := client.CoreV1().ConfigMaps(e.Namespace).Watch(b.Context(), metav1.ListOptions{})
	fatal.If(b, err)
	go func() {
		for event := range w.ResultChan() {
			if cm, ok := event.Object.(*corev1.ConfigMap); ok && event.Type == "ADDED" {
				mu.Lock()
				inClient[cm.Name] = time.Now()
				mu.Unlock()
			}
		}
	}()

	var late []time.Duration
	sent := 0
	for b.Loop() {
		tick := time.NewTicker(time.Second / rate)
		for range seconds * rate {
			<-tick.C
			name := fmt.Sprintf("event-%d", sent)
			sent++
			// Not through the proxy, which would show each of these requests, too.
			if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Create(b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		tick.Stop()
	}
	e.Eventually(time.Minute, func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if len(inClient) < sent {
			return fmt.Errorf("the client has %d of %d events", len(inClient), sent)
		}
		if len(inWindow) < sent*9/10 { // where the machine stood still, a batch may have held too many
			return fmt.Errorf("the window has %d of %d events", len(inWindow), sent)
		}
		return nil
	})
	w.Stop()
	_ = window.CloseNow()
	<-read
	for name, at := range inWindow {
		if first, ok := inClient[name]; ok {
			late = append(late, at.Sub(first))
		}
	}
	slices.Sort(late)
	b.ReportMetric(late[len(late)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(late[len(late)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(float64(len(late))/float64(sent), "shown")
}

// BenchmarkHour has a hub see as many events as an hour brings at 100 a second,
// with one window that reads and one that does not. Bar: x-memory at most 1.1;
// that is the memory afterwards, compared with the moment when the hub first
// held all items that it remembers.
func BenchmarkHour(b *testing.B) {
	const hour = 3600 * 100
	memory := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		before := memory()
		h := newHub()
		reading, deaf := looks(h), looks(h)
		full := 0.0
		for n := range hour {
			id := n/10 + 1
			o := faultproxy.Observation{Moment: faultproxy.EventPassed, Time: time.Now(), Request: faultproxy.Request{ID: id, Verb: "watch", Resource: "pods", UserAgent: fmt.Sprintf("program-%d/v1", n%50)},
				Event: faultproxy.Event{Type: "MODIFIED", Namespace: "default", Name: fmt.Sprintf("object-%d", n), ResourceVersion: fmt.Sprint(n)}}
			if n%10 == 9 {
				o.Moment, o.Event = faultproxy.Ended, faultproxy.Event{}
			}
			h.mu.Lock()
			h.observed(o, n)
			h.mu.Unlock()
			if n%5 == 0 { // 20 batches a second
				h.next(reading)
			}
			if n == 2*remembered {
				full = memory() - before
			}
		}
		after := memory() - before
		b.ReportMetric(after/(1<<20), "MiB")
		b.ReportMetric(after/full, "x-memory")
		if got, _ := h.next(deaf); got.Counts[report.Event] < hour*9/10 {
			b.Fatalf("the window that read nothing has %d of %d events", got.Counts[report.Event], hour)
		}
	}
}
