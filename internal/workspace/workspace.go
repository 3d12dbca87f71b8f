// Package workspace knows a clone of the workshop: its root, its steps and
// the folder that holds everything the workshop makes at run time.
package workspace

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/mod/modfile"
)

// Module is the path of the root module; the folder whose go.mod carries it
// is the root of a clone.
const Module = "github.com/k8s-go/workshop"

// BrowserTests compiles the tests that need a browser.
const BrowserTests = "-tags=browser"

// ProxyContext names the context of every kubeconfig for a fault proxy.
const ProxyContext = "faultproxy"

// A Workspace is one clone of the workshop.
type Workspace struct {
	Root string // absolute path
}

// Find returns the clone that holds the current directory.
func Find() (Workspace, error) {
	// Not os.Getwd, which believes PWD: where case does not count in names, that has the one that was typed,
	// and processes are known by the real one.
	start, err := syscall.Getwd()
	if err == nil {
		err = os.Setenv("PWD", start) // so that go and all others that are started agree
	}
	if err != nil {
		return Workspace{}, fmt.Errorf("finding the current folder: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && modfile.ModulePath(data) == Module {
			return Workspace{Root: dir}, nil
		}
		if dir == filepath.Dir(dir) {
			return Workspace{}, fmt.Errorf("%s is not inside a clone of %s: change into the clone and try again", start, Module)
		}
	}
}

// Path returns a path below .workshop, which holds everything that the workshop
// makes at run time.
func (w Workspace) Path(elem ...string) string {
	return filepath.Join(append([]string{w.Root, ".workshop"}, elem...)...)
}

// Bin returns the path of a binary that the workshop built; with no name, their folder.
func (w Workspace) Bin(name string) string { return w.Path("bin", name) }

// ID is a short name derived from the clone's path, so that two clones on one
// machine never use the same cluster. However the way there is spelled, a clone has one.
func (w Workspace) ID() string {
	root := w.Root
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	sum := sha256.Sum256([]byte(root))
	return "workshop-" + hex.EncodeToString(sum[:])[:8]
}

// ModuleVersion returns the version of a module that a go.mod below the root requires.
func (w Workspace) ModuleVersion(goMod, module string) (string, error) {
	f, err := w.parse(goMod)
	if err != nil {
		return "", err
	}
	for _, r := range f.Require {
		if r.Mod.Path == module {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", goMod, module)
}

// Modules returns the folders of all Go modules of the clone, the root's first: "."
// and "scripts/tools". A step can have a project with a module of its own. The module of a learner's work is none of them.
func (w Workspace) Modules() ([]string, error) {
	modules := []string{"."}
	for _, pattern := range []string{"scripts/*/go.mod", "[0-9][0-9]-*/*/go.mod", "internal/newrepo/repository/go.mod", "internal/newrepo/repository/hack/go.mod"} {
		found, err := filepath.Glob(filepath.Join(w.Root, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			dir, err := filepath.Rel(w.Root, filepath.Dir(file))
			if err != nil {
				return nil, err
			}
			modules = append(modules, dir)
		}
	}
	return modules, nil
}

// GoVersion returns the Go version that the root module asks for, "1.26.0".
func (w Workspace) GoVersion() (string, error) {
	f, err := w.parse("go.mod")
	if err != nil {
		return "", err
	}
	if f.Go == nil {
		return "", errors.New("go.mod names no Go version")
	}
	return f.Go.Version, nil
}

func (w Workspace) parse(goMod string) (*modfile.File, error) {
	path := filepath.Join(w.Root, goMod)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return modfile.ParseLax(path, data, nil)
}

// A Step is one numbered folder of the workshop.
type Step struct {
	Number int
	Name   string // the folder's name, "03-informer"
	Dir    string // absolute path
	Title  string // the first heading of its README
}

// OnPath reports whether the step is one of those that build on each other, 01 to 07. The
// others can follow in any order, and have modules of their own.
func (s Step) OnPath() bool { return s.Number <= 7 }

// README returns the path of the step's lesson.
func (s Step) README() string { return filepath.Join(s.Dir, "README.md") }

// Documents returns the paths of what the step has to read and to run: its lesson, and
// its reference.md if there is one, which holds what the lesson does not need.
func (s Step) Documents() []string {
	reference := filepath.Join(s.Dir, "reference.md")
	if _, err := os.Stat(reference); err != nil {
		return []string{s.README()}
	}
	return []string{s.README(), reference}
}

var stepDir = regexp.MustCompile(`^(\d\d)-[a-z-]+$`)

// Steps returns the steps in order: every folder NN-name that has a README.md.
func (w Workspace) Steps() ([]Step, error) {
	entries, err := os.ReadDir(w.Root)
	if err != nil {
		return nil, err
	}
	var steps []Step
	for _, e := range entries {
		m := stepDir.FindStringSubmatch(e.Name())
		if m == nil || !e.IsDir() {
			continue
		}
		s := Step{Name: e.Name(), Dir: filepath.Join(w.Root, e.Name())}
		s.Number, _ = strconv.Atoi(m[1])
		data, err := os.ReadFile(s.README())
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s.Title = title(data)
		steps = append(steps, s)
	}
	return steps, nil
}

func title(markdown []byte) string {
	for sc := bufio.NewScanner(bytes.NewReader(markdown)); sc.Scan(); {
		if t, ok := strings.CutPrefix(sc.Text(), "# "); ok {
			return t
		}
	}
	return ""
}

// Step finds a step by number ("3", "03") or by name ("03-informer"). The
// error for an unknown one lists those that exist.
func (w Workspace) Step(want string) (Step, error) {
	steps, err := w.Steps()
	if err != nil {
		return Step{}, err
	}
	number, numberErr := strconv.Atoi(want)
	var list strings.Builder
	for _, s := range steps {
		if s.Name == strings.TrimSuffix(want, "/") || numberErr == nil && s.Number == number {
			return s, nil
		}
		fmt.Fprintf(&list, "\n  N=%d  %s", s.Number, s.Title)
	}
	if want == "" {
		return Step{}, fmt.Errorf("which step? Give it as N=1, one of:%s", list.String())
	}
	return Step{}, fmt.Errorf("there is no step %q; the steps are:%s", want, list.String())
}

// WriteWhole writes a file whole or not at all, so that nobody reads half of it. What it writes
// before lies beside it, under a name that begins with a dot.
func WriteWhole(file string, data []byte, mode fs.FileMode) error {
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	_ = os.Remove(next) // of a write that was killed; in a folder that others can write to, a link there must not lead elsewhere
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(next, file)
}
