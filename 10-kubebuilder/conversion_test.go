package kubebuilder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

// conversion.patch adds a version whose conversion keeps everything, and its tests name what a
// conversion loses that forgets a field.
func TestConversion(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	ws := e.Workspace()
	needsEnvtest(t, ws)
	dir := patchedCopy(t, e, "conversion.patch")
	// The Makefile builds controller-gen as in a clone.
	if err := os.Symlink(filepath.Join(ws.Root, "scripts"), filepath.Join(dir, "scripts")); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, project)
	if err := proc.Run(e.Context(), proc.Cmd{Path: "make", Args: []string{"generate", "manifests"}, Dir: dir, Env: workspace.Environ()}); err != nil {
		t.Fatal(err)
	}
	if err := suites(e, dir, "./api/...", "./cmd/...", "./internal/webhook/..."); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(dir, "api/v1beta1/icecream_conversion.go")
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const line = "\tdst.Spec.Deployment.Replicas = src.Spec.Replicas\n"
	without := strings.Replace(string(source), line, "", 1)
	if without == string(source) {
		t.Fatalf("ConvertFrom has no line %q", line)
	}
	if err := os.WriteFile(file, []byte(without), 0o644); err != nil {
		t.Fatal(err)
	}
	err = suites(e, dir, "./api/...")
	for _, says := range []string{"from v1alpha1 to v1beta1 and back", "Replicas:       nil"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("without the replicas: %v; want an error with %q", err, says)
		}
	}
}
