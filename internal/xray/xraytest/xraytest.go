// Package xraytest has tests look at programs through the X-ray of make web.
package xraytest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// A Room is what surrounds a terminal of make web: a fault proxy in front of the
// cluster, the X-ray that observes it, and the socket on which programs report.
type Room struct {
	*testenv.Env
	Proxy  *testenv.Proxy
	Hub    *xray.Hub
	Socket string

	t testing.TB
}

// Enter opens a room until the test ends.
func Enter(t testing.TB, e *testenv.Env) *Room {
	t.Helper()
	r := &Room{Env: e, Proxy: e.Proxy(), t: t}
	dir, err := os.MkdirTemp("", "xray-") // short enough for a socket
	fatal.If(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r.Socket = filepath.Join(dir, "socket")
	if r.Hub, err = xray.NewHub(r.Proxy.Proxy, r.Socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Hub.Close(); err != nil {
			t.Errorf("closing the X-ray: %v", err)
		}
	})
	return r
}

// Environ is what a terminal adds to the environment of its programs.
func (r *Room) Environ() []string {
	return []string{"KUBECONFIG=" + r.Proxy.Kubeconfig, report.Variable + "=" + r.Socket}
}

// Recording returns what the X-ray remembers: as the page saves it, and its items.
func (r *Room) Recording() (text string, items []xray.Item) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.Hub.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/recording", nil))
	text = w.Body.String()
	var file struct {
		Version int
		Items   []xray.Item
	}
	if err := json.Unmarshal([]byte(text), &file); err != nil || w.Code != http.StatusOK || file.Version != 1 {
		r.t.Fatalf("the recording: status %d, version %d, %v", w.Code, file.Version, err)
	}
	return text, file.Items
}

// Until waits for items that come one after the other, perhaps with others between
// them, and returns the last one. It reads the recording, because a batch of many
// items holds none of them.
func (r *Room) Until(what string, steps ...func(xray.Item) bool) (last xray.Item) {
	r.t.Helper()
	r.Eventually(time.Minute, func(context.Context) error {
		_, items := r.Recording()
		from := 0
		for n, f := range steps {
			at := slices.IndexFunc(items[from:], f)
			if at < 0 {
				return fmt.Errorf("never seen: %s, the %d. of %d, in %d items; the last are %+v", what, n+1, len(steps), len(items), items[max(0, len(items)-20):])
			}
			last, from = items[from+at], from+at+1
		}
		return nil
	})
	return last
}
