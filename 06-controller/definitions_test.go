package controller

import (
	"sync"
	"testing"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Definitions are cluster-wide, and tests that run side by side share them: the
// first that needs one installs it, the last removes it.
var definitions struct {
	mu    sync.Mutex
	users map[string]int
}

const (
	icecreams = "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml"
	policies  = "../05-crd-go/config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml"
)

// installed installs a definition until the test ends.
func installed(t testing.TB, e *testenv.Env, path string) {
	t.Helper()
	d := &definitions
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == nil {
		d.users = map[string]int{}
	}
	crd := crdtest.Read(t, path)
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.users[path]--; d.users[path] == 0 {
			crdtest.Remove(t, e, crd.Name)
		}
	})
	d.users[path]++
	if d.users[path] == 1 {
		crdtest.Install(kept{t}, e, crd)
	}
}

// kept is a test that does not remove what was installed for it.
type kept struct{ testing.TB }

func (kept) Cleanup(func()) {}
