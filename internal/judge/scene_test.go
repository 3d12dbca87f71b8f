package judge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A command that ends by itself ends its scene, which says why.
func TestCommandEnds(t *testing.T) {
	for name, test := range map[string]struct {
		command string
		opened  bool
		want    string
		failed  bool
	}{
		"before it works": {`sh -c 'echo no flag -x >&2; exit 2'`, false, "the command ended with exit code 2 before it had opened a watch:\n  no flag -x", false},
		"is not there":    {"/no/such/program", false, "exit code 127 before it had opened a watch", false},
		"port in use":     {`sh -c 'echo listen: address already in use; echo bind: address already in use >&2; exit 1'`, true, "let it take any free one", false},
		"while it works":  {`sh -c 'exit 3'`, true, "failure 4", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			s := &scene{Faults: &crash.Faults{}, lab: &lab{ws: workspace.Workspace{Root: t.TempDir()}, controller: test.command}, ctx: ctx, stop: stop, programs: make([]*program, 1)}
			s.opened.Store(test.opened)
			if err := s.launch(0); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			var f *failure
			if err := context.Cause(ctx); !strings.Contains(err.Error(), test.want) || errors.As(err, &f) != test.failed {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

// Whoever still does something for the first time is slow, and not restless.
func TestNewWork(t *testing.T) {
	var all []faultproxy.Request
	for i := range 6 {
		all = append(all, faultproxy.Request{Verb: "patch", Resource: "icecreams/status", Name: fmt.Sprint("many-", i)})
	}
	if !newWork(all) {
		t.Error("six objects, each written once, are not new work")
	}
	if newWork(append(all, all[5])) {
		t.Error("an object that is written twice is new work")
	}
	if newWork(all[:3]) {
		t.Error("three writes are enough to tell")
	}
}
