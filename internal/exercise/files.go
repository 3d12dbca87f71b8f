package exercise

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/format"
	goversion "go/version"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/workspace"
)

// Files are the files of a task by their path in its folder.
type Files map[string][]byte

// Solution returns the files of a task as the workshop has them.
func (t Task) Solution() (Files, error) {
	files := Files{}
	for name, from := range t.Files {
		data, err := os.ReadFile(filepath.Join(t.Step.Dir, from))
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	if t.Program == "" {
		return files, nil
	}
	dir := filepath.Join(t.Step.Dir, t.Program)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(file, "_test.go") || d.Name() == "go.mod" || d.Name() == "go.sum" {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		// Its packages import the learner's copies of one another.
		ours := fmt.Sprintf("%s/%s/%s", workspace.Module, t.Step.Name, t.Program)
		theirs := workModule + "/" + t.folder()
		text := strings.ReplaceAll(string(data), `"`+ours+`/`, `"`+theirs+`/`)
		text = strings.ReplaceAll(text, `"`+ours+`"`, `"`+theirs+`"`)
		if text != string(data) && path.Ext(file) == ".go" { // the imports have another order now
			formatted, err := format.Source([]byte(text))
			if err != nil {
				return err
			}
			text = string(formatted)
		}
		files[filepath.ToSlash(rel)] = []byte(text)
		return nil
	})
	return files, err
}

// Starter returns the files with which a learner begins.
func (t Task) Starter() (Files, error) {
	return t.edited(t.Open, t.open)
}

// Mutant returns our solution with a mistake in it.
func (t Task) Mutant(m Mistake) (Files, error) {
	files, err := t.edited(m.Mutant, t.change)
	if err != nil {
		return nil, fmt.Errorf("the mutant for %q: %w", m.Name, err)
	}
	return files, nil
}

func (t Task) edited(edits []Edit, edit func(Edit, []byte) ([]byte, error)) (Files, error) {
	files, err := t.Solution()
	if err != nil {
		return nil, err
	}
	for _, e := range edits {
		source, ok := files[e.File]
		if !ok {
			return nil, fmt.Errorf("task %s has no file %s", t.ID(), e.File)
		}
		if files[e.File], err = edit(e, source); err != nil {
			return nil, fmt.Errorf("task %s: %s: %w", t.ID(), e.File, err)
		}
	}
	return files, nil
}

// folder is a task's folder in the learner's module: "03-informer/repair".
func (t Task) folder() string { return path.Join(t.Step.Name, cmp.Or(t.Folder, t.Name)) }

// Dir is a task's folder in a tree.
func (t Task) Dir(tree string) string { return filepath.Join(tree, filepath.FromSlash(t.folder())) }

// Binary is what a task's program is called: its name is its user agent.
func (t Task) Binary() string {
	if t.Shares() {
		return t.Folder // the learner's own program, and not a copy of one of ours
	}
	return path.Base(t.Program)
}

// write writes the files of a task to a folder, which appears whole or not at all.
func (f Files) write(dir string) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		file := filepath.Join(temp, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if path.Ext(name) == ".sh" {
			mode = 0o755
		}
		if err := os.WriteFile(file, f[name], mode); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	return os.Rename(temp, dir)
}

// WriteTree writes the files of a task to a tree that is a module of its own, as
// work/ is. What the tree has of that task is replaced.
func (t Task) WriteTree(ws workspace.Workspace, tree string, files Files) error {
	if err := os.RemoveAll(t.Dir(tree)); err != nil {
		return err
	}
	if err := t.writeModule(ws, tree); err != nil {
		return err
	}
	return files.write(t.Dir(tree))
}

// hashes names what is in files.
func (f Files) hashes() map[string]string {
	sums := map[string]string{}
	for name, data := range f {
		sum := sha256.Sum256(data)
		sums[name] = hex.EncodeToString(sum[:])[:16]
	}
	return sums
}

// workModule is below the root's path, so that internal/ may be imported.
const workModule = workspace.Module + "/work"

// writeModule writes the go.mod and go.sum of a tree. They have the requirements of the root, so
// that nothing has to be downloaded, and what a learner has added. If a task's program has
// a module of its own, its step's folder in the tree is a module with the requirements of that.
func (t Task) writeModule(ws workspace.Workspace, tree string) error {
	base, name := ws.Root, workModule
	if dir := t.module(); dir != "" {
		base, name, tree = dir, workModule+"/"+t.Step.Name, filepath.Join(tree, t.Step.Name)
	}
	mod, err := parseModule(base)
	if err != nil {
		return err
	}
	theirs, err := parseModule(tree)
	if errors.Is(err, fs.ErrNotExist) {
		theirs, err = &modfile.File{}, nil
	}
	if err != nil {
		return fmt.Errorf("%w; mend it, or remove it to get a new one", err)
	}
	if err := addModules(mod, theirs); err != nil {
		return err
	}
	if err := mod.AddModuleStmt(name); err != nil {
		return err
	}
	mod.Module.Syntax.Before = []modfile.Comment{{Token: "// make exercise writes this file, and make check brings it up to date. What you add stays."}}
	ours := map[string]string{} // modules of the clone, and their folders
	for _, r := range mod.Replace {
		if strings.HasPrefix(r.Old.Path, workspace.Module) {
			ours[r.Old.Path] = filepath.Join(base, r.New.Path)
		}
	}
	if base == ws.Root {
		ours[workspace.Module] = ws.Root
		err = mod.AddRequire(workspace.Module, "v0.0.0")
	}
	for module, dir := range ours {
		to, failed := filepath.Rel(tree, dir)
		err = errors.Join(err, failed, mod.AddReplace(module, "", filepath.ToSlash(to), ""))
	}
	if err != nil {
		return err
	}
	mod.Cleanup()
	text, err := mod.Format()
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(base, "go.sum"))
	if err != nil {
		return err
	}
	if theirs.Module != nil {
		theirSums, err := os.ReadFile(filepath.Join(tree, "go.sum"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for line := range bytes.Lines(theirSums) {
			if !bytes.Contains(sums, line) {
				sums = append(sums, line...)
			}
		}
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return err
	}
	return errors.Join(writeIfOther(filepath.Join(tree, "go.mod"), text), writeIfOther(filepath.Join(tree, "go.sum"), sums))
}

// module is the folder of the module in its step that a task's program belongs to, if it has
// one. A step has at most one with programs for learners.
func (t Task) module() string {
	for _, from := range append(slices.Collect(maps.Values(t.Files)), t.Program) {
		for dir := filepath.Join(t.Step.Dir, from); len(dir) > len(t.Step.Dir); dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				return dir
			}
		}
	}
	return ""
}

func parseModule(dir string) (*modfile.File, error) {
	file := filepath.Join(dir, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(file, data, nil)
}

// addModules adds to ours the modules that only theirs requires. The versions of what
// ours requires itself stay; of what it requires indirectly, an added module may need
// newer ones, and a newer Go.
func addModules(ours, theirs *modfile.File) error {
	have := map[string]*modfile.Require{workspace.Module: {}}
	for _, r := range ours.Require {
		have[r.Mod.Path] = r
	}
	var newer, added []*modfile.Require
	for _, r := range theirs.Require {
		switch our := have[r.Mod.Path]; {
		case our == nil:
			added = append(added, r)
			ours.AddNewRequire(r.Mod.Path, r.Mod.Version, r.Indirect)
		case our.Indirect && semver.Compare(r.Mod.Version, our.Mod.Version) > 0:
			newer = append(newer, r)
		}
	}
	var errs []error
	if len(added) > 0 { // else the newer ones are those of another commit of the workshop
		for _, r := range newer {
			errs = append(errs, ours.AddRequire(r.Mod.Path, r.Mod.Version))
		}
		if theirs.Go != nil && goversion.Compare("go"+theirs.Go.Version, "go"+ours.Go.Version) > 0 {
			errs = append(errs, ours.AddGoStmt(theirs.Go.Version))
		}
	}
	for _, r := range theirs.Replace {
		if !strings.HasPrefix(r.Old.Path, workspace.Module) && !slices.ContainsFunc(ours.Replace, func(o *modfile.Replace) bool { return o.Old == r.Old }) {
			errs = append(errs, ours.AddReplace(r.Old.Path, r.Old.Version, r.New.Path, r.New.Version))
		}
	}
	for _, e := range theirs.Exclude {
		errs = append(errs, ours.AddExclude(e.Mod.Path, e.Mod.Version))
	}
	for _, tool := range theirs.Tool {
		errs = append(errs, ours.AddTool(tool.Path))
	}
	return errors.Join(errs...)
}

// writeIfOther leaves a file alone that has this text: an editor would load the
// module again.
func writeIfOther(file string, text []byte) error {
	if old, err := os.ReadFile(file); err == nil && string(old) == string(text) {
		return nil
	}
	return workspace.WriteWhole(file, text, 0o644)
}
