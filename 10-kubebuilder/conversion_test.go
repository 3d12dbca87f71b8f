package kubebuilder

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

// conversion.patch adds a version whose conversion keeps everything. The lesson shows that its tests
// name what a conversion loses that forgets a field.
func TestConversion(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	ws := e.Workspace()
	needsEnvtest(t, ws)
	dir := patchedCopy(t, e, "conversion.patch", e.Folder("copy"))
	// The Makefile builds controller-gen as in a clone.
	if err := os.Symlink(filepath.Join(ws.Root, "scripts"), filepath.Join(dir, "scripts")); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, project)
	if err := proc.Run(e.Context(), proc.Cmd{Path: "make", Args: []string{"generate", "manifests"}, Dir: dir, Env: workspace.Environ()}); err != nil {
		t.Fatal(err)
	}
	if err := suites(e, dir, "./api/...", "./cmd/...", "./internal/webhook/..."); err != nil {
		t.Error(err)
	}
}
