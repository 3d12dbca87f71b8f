package command

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/workspace"
)

// People's forks check what our own machine checks: the workflow runs each phase of
// scripts/ci.sh that is about the workshop, and none that is not there.
func TestTheWorkflowRunsThePipeline(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		data, err := os.ReadFile(filepath.Join(ws.Root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	script := read("scripts/ci.sh")
	list := regexp.MustCompile(`(?m)^all=\((.*)\)$`).FindStringSubmatch(script)
	if list == nil {
		t.Fatal("scripts/ci.sh lists no phases")
	}
	// Those machines have the tools, a Docker engine and a registry.
	want := slices.DeleteFunc(strings.Fields(list[1]), func(phase string) bool {
		return slices.Contains([]string{"doctor", "engine", "node-image"}, phase)
	})
	var got []string
	for _, line := range regexp.MustCompile(`scripts/ci\.sh ([a-z -]+)`).FindAllStringSubmatch(read(".github/workflows/ci.yaml"), -1) {
		got = append(got, strings.Fields(line[1])...)
	}
	for _, phase := range append(slices.Clone(want), got...) {
		if !slices.Contains(got, phase) || !strings.Contains(script, "\n  "+phase+") ") {
			t.Errorf("phase %s: in the workflow %v, in the script %v", phase, slices.Contains(got, phase), strings.Contains(script, "\n  "+phase+") "))
		}
	}
}
