package xray_test

import (
	"os"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// The terminals of make web reach the cluster through the proxy. A lesson must
// not notice. READMES="03-informer 06-controller" chooses the lessons.
func TestREADMEsThroughTheProxy(t *testing.T) {
	steps := strings.Fields(os.Getenv("READMES"))
	if len(steps) == 0 {
		steps = []string{"01-curl", "02-clientset"}
	}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			r := enter(t)
			s, err := r.Workspace().Step(step)
			if err != nil {
				t.Fatal(err)
			}
			var person lesson.Prefix // its namespaces are its own where a lesson knows prefixes
			if p := lesson.Prefix("xray-"); p.Check(s) == nil {
				person = p
			} else {
				r.OwnDefinitions()
			}
			summary, err := person.Run(r.Context(), r.Workspace(), r.Cluster(), s, nil, false,
				"KUBECONFIG="+r.proxy.Kubeconfig, report.Variable+"="+r.socket)
			if err != nil {
				t.Fatal(err)
			}
			if _, items := r.recording(); len(items) < summary.Commands {
				t.Errorf("%d commands, and %d items on the wire", summary.Commands, len(items))
			}
		})
	}
}
