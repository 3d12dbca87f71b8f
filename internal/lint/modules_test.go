package lint

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// What go vet refuses is found in every module, and a module without a program is none to vet.
func TestLintReachesEveryModule(t *testing.T) {
	const good, bad = "package main\n\nfunc main() {}\n", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Printf(\"%d\", \"one\") }\n"
	all := []string{".", "scripts/program", "internal/newrepo/repository", "internal/newrepo/repository/hack"}
	for _, faulty := range []string{"nowhere", ".", "internal/newrepo/repository/hack"} {
		ws := workspace.Workspace{Root: t.TempDir()}
		for _, dir := range append([]string{"scripts/tools"}, all...) {
			text := good
			if dir == faulty {
				text = bad
			}
			files := map[string]string{"go.mod": "module example.org/" + filepath.Base(dir) + "\n\ngo 1.26.0\n", "main.go": text}
			if dir == "." {
				files["go.mod"] = "module " + workspace.Module + "\n\ngo 1.26.0\n"
			}
			if dir == "scripts/tools" {
				delete(files, "main.go")
			}
			for name, text := range files {
				testfile.Write(t, filepath.Join(ws.Root, dir, name), text)
			}
		}
		err := modules(t.Context(), ws, "true")
		if faulty == "nowhere" {
			if err != nil {
				t.Errorf("without a fault: %v", err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "go vet in the module "+faulty+":") {
			t.Errorf("with a fault in %s: %v", faulty, err)
		}
	}
}
