package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// generateInputs is all that code generation reads. A copy of it is a module of its own.
var generateInputs = []string{"go.mod", "go.sum", "05-crd-go", "09-outside", "10-kubebuilder", "scripts/codegen", "scripts/models-schema", "scripts/update-codegen.sh"}

// verifyGenerated generates in a copy of the tree, at another path, and
// compares. The tree itself is only read. A generated file that git does not
// know would be missing in the next clone, so that is an error too.
func verifyGenerated(ctx context.Context, ws workspace.Workspace) error {
	dir, err := os.MkdirTemp("", "workshop-generate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, name := range generateInputs {
		if err := copyTree(filepath.Join(ws.Root, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("copying %s: %w", name, err)
		}
	}
	// What the generators leave when they are interrupted goes with the copy.
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	if err := proc.Run(ctx, proc.Cmd{Path: filepath.Join(dir, "scripts", "update-codegen.sh"),
		Env: workspace.Environ("CODEGEN_BIN="+ws.Path("codegen"), "TMPDIR="+tmp)}); err != nil {
		return err
	}
	var differences []string
	for _, step := range []string{"05-crd-go", "09-outside", "10-kubebuilder"} {
		found, err := compareTrees(filepath.Join(dir, step), filepath.Join(ws.Root, step))
		if err != nil {
			return err
		}
		differences = append(differences, found...)
	}
	untracked, err := untrackedFiles(ctx, ws.Root, "05-crd-go", "09-outside")
	if err != nil {
		return err
	}
	var errs []error
	if len(differences) > 0 {
		errs = append(errs, fmt.Errorf("generated code does not fit the types; run make generate and commit the result:\n  %s", strings.Join(differences, "\n  ")))
	}
	if len(untracked) > 0 {
		errs = append(errs, fmt.Errorf("generated, but not in git; git add:\n  %s", strings.Join(untracked, "\n  ")))
	}
	return errors.Join(errs...)
}

// copyTree copies a file or a folder; what can be run can be run there, too.
func copyTree(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	data, err := os.ReadFile(from)
	return errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, info.Mode().Perm()))
}

// compareTrees says in a line each which files are missing, superfluous or
// different in a tree.
func compareTrees(want, got string) ([]string, error) {
	wantFiles, err := readTree(want)
	if err != nil {
		return nil, err
	}
	gotFiles, err := readTree(got)
	if err != nil {
		return nil, err
	}
	var differences []string
	for name, data := range wantFiles {
		if have, ok := gotFiles[name]; !ok {
			differences = append(differences, "missing: "+name)
		} else if !bytes.Equal(have, data) {
			differences = append(differences, "differs: "+name)
		}
	}
	for name := range gotFiles {
		if _, ok := wantFiles[name]; !ok {
			differences = append(differences, "no longer made: "+name)
		}
	}
	slices.Sort(differences)
	return differences, nil
}

func readTree(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(root), path)
		if err != nil {
			return err
		}
		files[rel], err = os.ReadFile(path)
		return err
	})
	return files, err
}

// untrackedFiles lists the generated files in a folder that git would not
// clone. Without a repository, as in an unpacked archive, there are none.
func untrackedFiles(ctx context.Context, root string, folders ...string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(root, ".git")); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	// Without --exclude-standard: an ignored file is not cloned either.
	args := []string{"ls-files", "--others", "--"}
	for _, folder := range folders {
		args = append(args, folder+"/pkg/generated", folder+"/config/crd", ":(glob)"+folder+"/**/zz_generated.*")
	}
	output, err := proc.Output(ctx, proc.Cmd{Path: "git", Dir: root, Args: args})
	return strings.Fields(output), err
}
