package command

import (
	"runtime"
	"slices"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A learner's program belongs to another module than ours, and gets an image all the same.
func TestTheImageOfALearnersProgram(t *testing.T) {
	root := t.TempDir()
	testfile.WriteAll(t, root, map[string]string{
		"go.mod":                          "module example.org/clone\n\ngo 1.26.0\n",
		"work/go.mod":                     "module example.org/work\n\ngo 1.26.0\n",
		"work/06-controller/mine/main.go": "package main\n\nfunc main() { println(\"mine\") }\n",
	})
	name, img, err := imageOf(t.Context(), workspace.Workspace{Root: root}, "work/06-controller/mine", runtime.GOARCH)
	fatal.If(t, err)
	config, err := img.ConfigFile()
	fatal.If(t, err)
	if name != "workshop/mine:1" || !slices.Equal(config.Config.Entrypoint, []string{"/mine"}) {
		t.Errorf("the image is called %s, and runs %v", name, config.Config.Entrypoint)
	}
}
