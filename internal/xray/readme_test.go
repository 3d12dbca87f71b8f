package xray_test

import (
	"os"
	"testing"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/workspace"
)

// The terminals of make web reach the cluster through the proxy. A lesson must
// not notice. make test-proxy runs all lessons, which takes some minutes.
func TestREADMEsThroughTheProxy(t *testing.T) {
	ws, err := workspace.Find()
	if err != nil {
		t.Fatal(err)
	}
	steps, err := ws.Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if os.Getenv("READMES") != "all" && s.Number > 2 {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			r := enter(t)
			var person lesson.Prefix // its namespaces are its own where a lesson knows prefixes
			if p := lesson.Prefix("xray-"); p.Check(s) == nil {
				person = p
			} else {
				r.OwnDefinitions()
			}
			summary, err := person.Run(r.Context(), r.Workspace(), r.Cluster(), s, nil, false, r.Environ()...)
			if err != nil {
				t.Fatal(err)
			}
			if _, items := r.Recording(); len(items) < summary.Commands {
				t.Errorf("%d commands, and %d items on the wire", summary.Commands, len(items))
			}
		})
	}
}
