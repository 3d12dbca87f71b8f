package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/k8s-go/workshop/internal/kubebuilder"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// notPatched are the files of a kubebuilder project that programs write, and what git ignores:
// go mod tidy makes go.sum, controller-gen the others. 10-kubebuilder/update.sh has the same list.
var notPatched = []string{"go.sum", "api/v1alpha1/zz_generated.deepcopy.go", "config/crd/bases", "config/rbac/role.yaml", "config/webhook/manifests.yaml", "bin", "cover.out"}

// verifyScaffold compares the project of step 10 with what kubebuilder makes, and the patch of what we have changed.
func verifyScaffold(ctx context.Context, ws workspace.Workspace) error {
	step := filepath.Join(ws.Root, "10-kubebuilder")
	if err := kubebuilder.Tools.Build(ctx, ws, os.Stdout); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "workshop-scaffold-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	scaffold := filepath.Join(dir, "scaffold")
	if _, err := proc.Output(ctx, proc.Cmd{Path: filepath.Join(step, "scaffold.sh"), Args: []string{scaffold}, Env: workspace.Environ()}); err != nil {
		return fmt.Errorf("10-kubebuilder/scaffold.sh: %w", err)
	}
	return comparePatched(ctx, scaffold, filepath.Join(step, "changes.patch"), filepath.Join(step, "icecream"))
}

// comparePatched compares a project with a scaffold, which it changes by a patch.
func comparePatched(ctx context.Context, scaffold, patch, project string) error {
	dir, err := os.MkdirTemp("", "workshop-patched-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := filepath.Base(project)
	want, got := filepath.Join(dir, "want", name), filepath.Join(dir, "got", name)
	if err := errors.Join(copyTree(scaffold, want), copyTree(project, got)); err != nil {
		return err
	}
	for _, made := range notPatched {
		if err := errors.Join(os.RemoveAll(filepath.Join(want, made)), os.RemoveAll(filepath.Join(got, made))); err != nil {
			return err
		}
	}
	const update = "run 10-kubebuilder/update.sh and commit the result"
	if _, err := proc.Output(ctx, proc.Cmd{Path: "git", Args: []string{"apply", "--whitespace=nowarn", patch}, Dir: want,
		Env: workspace.Environ("GIT_CEILING_DIRECTORIES=" + dir)}); err != nil {
		return fmt.Errorf("10-kubebuilder/changes.patch does not fit what kubebuilder makes; %s: %w", update, err)
	}
	differences, err := compareTrees(want, got)
	if err != nil {
		return err
	}
	if len(differences) > 0 {
		return fmt.Errorf("10-kubebuilder/icecream is not the scaffold with changes.patch; %s:\n  %s", update, strings.Join(differences, "\n  "))
	}
	return nil
}
