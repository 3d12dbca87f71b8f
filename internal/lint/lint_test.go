package lint

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// The linters see every script, also one without .sh, and nothing that was made.
func TestSources(t *testing.T) {
	ws := workspace.Workspace{Root: t.TempDir()}
	testfile.WriteAll(t, ws.Root, map[string]string{
		"01-one/a.sh":      "true\n",
		".ci/run":          "#!/usr/bin/env bash\ntrue\n",
		"01-one/notes":     "no script\n",
		".workshop/x.go":   "package x\n",
		".workshop/y.sh":   "true\n",
		".git/hooks/z.sh":  "true\n",
		"01-one/a/main.go": "package main\n",
	})
	goFiles, scripts, err := sources(ws)
	fatal.If(t, err)
	for i := range goFiles {
		goFiles[i], _ = filepath.Rel(ws.Root, goFiles[i])
	}
	for i := range scripts {
		scripts[i], _ = filepath.Rel(ws.Root, scripts[i])
	}
	if want := []string{"01-one/a/main.go"}; !slices.Equal(goFiles, want) {
		t.Errorf("Go files %v, want %v", goFiles, want)
	}
	if want := []string{".ci/run", "01-one/a.sh"}; !slices.Equal(scripts, want) {
		t.Errorf("scripts %v, want %v", scripts, want)
	}
}
