package command

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// People's forks check what our own machine checks: the workflow runs each phase of
// scripts/ci.sh that is about the workshop, and none that is not there.
func TestTheWorkflowRunsThePipeline(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	read := func(path string) string {
		data, err := os.ReadFile(filepath.Join(ws.Root, path))
		fatal.If(t, err)
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

// sources returns the tests of each step as one text, by the step's name.
func sources(t *testing.T, ws workspace.Workspace) map[string]string {
	t.Helper()
	steps, err := ws.Steps()
	if err != nil || len(steps) < 12 {
		t.Fatalf("%d steps: %v", len(steps), err)
	}
	texts := map[string]string{}
	for _, step := range steps {
		files, err := filepath.Glob(filepath.Join(ws.Root, step.Name, "*_test.go"))
		fatal.If(t, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			fatal.If(t, err)
			texts[step.Name] += string(data)
		}
	}
	return texts
}

// A lesson that no test executes looks like all others.
func TestEachLessonIsExecuted(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	for step, text := range sources(t, ws) {
		if !strings.Contains(text, "testenv.README(t)") {
			t.Errorf("%s: no test calls testenv.README", step)
		}
	}
}

// The pipeline names tests, and a name that is gone would leave them out in silence.
func TestThePipelineNamesTests(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	script, err := os.ReadFile(filepath.Join(ws.Root, "scripts/ci.sh"))
	fatal.If(t, err)
	var tests []string
	named := func(list string) []string {
		t.Helper()
		names := regexp.MustCompile(`(?m)^` + list + `='\^Test\((.*)\)\$'$`).FindSubmatch(script)
		if names == nil {
			t.Fatalf("scripts/ci.sh has no %s", list)
		}
		return strings.Split(string(names[1]), "|")
	}
	containers := named("containers")
	for step, text := range sources(t, ws) {
		for _, test := range strings.Split(text, "\nfunc Test")[1:] {
			name, body, _ := strings.Cut(test, "(")
			tests = append(tests, name)
			if (strings.Contains(body, ".NeedsContainers()") || strings.Contains(body, ".NeedsImages()")) && !slices.Contains(containers, name) {
				t.Errorf("%s: Test%s needs containers, and scripts/ci.sh does not say so", step, name)
			}
		}
	}
	for _, name := range append(containers, named("shown")...) {
		if !slices.Contains(tests, name) {
			t.Errorf("scripts/ci.sh names Test%s, which no step has", name)
		}
	}
}
