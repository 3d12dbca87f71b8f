package xray

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// Whoever connects without end has only some searches of /proc begun.
func TestSearchesForOwnersAreBounded(t *testing.T) {
	o := &owners{proxy: "127.0.0.1:1", pids: map[string]func() int{}}
	before := runtime.NumGoroutine()
	o.looking.Lock()
	for port := range 900 {
		o.connected(fmt.Sprintf("127.0.0.1:%d", 1024+port))
	}
	if n := runtime.NumGoroutine() - before; n > 50 {
		t.Errorf("%d searches are under way", n)
	}
	o.looking.Unlock()
	if pid := o.of("127.0.0.1:1024"); pid != 0 {
		t.Errorf("process %d has a connection that is none", pid)
	}
}

// Only this user reports to the X-ray and steers its proxy.
func TestModeOfTheSocket(t *testing.T) {
	proxy, err := faultproxy.Start(&rest.Config{Host: "http://127.0.0.1:1"})
	fatal.If(t, err)
	t.Cleanup(proxy.Close)
	dir, err := os.MkdirTemp("", "")
	fatal.If(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "xray")
	hub, err := NewHub(proxy, socket)
	fatal.If(t, err)
	t.Cleanup(func() { _ = hub.Close() })
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has the mode %v (%v)", info.Mode(), err)
	}
}
