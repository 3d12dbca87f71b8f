package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A ProgramOption changes a program's source for one build, by an overlay. The
// files of the clone stay as they are.
type ProgramOption struct {
	file     string // relative to the program's folder
	old, new string
	add      bool
	tests    bool
}

// Replace replaces a piece of one of the program's files, such as "main.go". The
// build fails unless the file holds the piece exactly once: a test must not go
// on with a program that it has not changed.
func Replace(file, old, new string) ProgramOption {
	return ProgramOption{file: file, old: old, new: new}
}

// AddFile adds a file to the program's folder.
func AddFile(file, source string) ProgramOption {
	return ProgramOption{file: file, new: source, add: true}
}

// Tests compiles the tests of a package in the place of a program, and needs no other option.
var Tests = ProgramOption{tests: true}

// A program is built once per run, by the first test that asks for it.
type program struct {
	once sync.Once
	path string
	err  error
}

// Program builds the main package at a path relative to the root of the clone,
// such as "./02-clientset/nodes", and returns the binary's path. The binary is
// kept below .workshop, so that the next run links only what has changed.
func (e *Env) Program(pkg string, options ...ProgramOption) string {
	e.t.Helper()
	path, err := e.Build(pkg, options...)
	fatal.If(e.t, err)
	return path
}

// Build is Program for a build that may fail.
func (e *Env) Build(pkg string, options ...ProgramOption) (string, error) {
	e.t.Helper()
	e.own()
	s := e.suite
	key := ProgramKey(pkg, options)
	s.mu.Lock()
	p := s.programs[key]
	if p == nil {
		p = &program{}
		s.programs[key] = p
	}
	s.mu.Unlock()
	p.once.Do(func() {
		p.path, p.err = buildProgram(s.ctx, s.ws.Root, s.ws.Path("programs", key), pkg, options)
	})
	return p.path, p.err
}

// ProgramKey names the folder of the binary of a program at that path. It changes with
// the options and with GOFLAGS=-race, and not with the sources: a new binary takes the
// place of the old one.
func ProgramKey(pkg string, options []ProgramOption) string {
	name := strings.NewReplacer("./", "", "/", "-").Replace(pkg)
	flags := strings.TrimSpace(strings.ReplaceAll(os.Getenv("GOFLAGS"), "-buildvcs=false", "")) // every build has this one
	if flags == "" && len(options) == 0 {
		return name
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %#v", flags, options))
	return name + "-" + hex.EncodeToString(sum[:])[:8]
}

// buildProgram builds a program in a folder of its own. Without a change go
// build finds the binary to be current, and links nothing. The lock is for the
// tests of other packages, which may want the same program at the same time.
func buildProgram(ctx context.Context, root, dir, pkg string, options []ProgramOption) (binary string, err error) {
	lock, err := lockFolder(ctx, dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	now := time.Now()
	if err := os.Chtimes(lock.Path(), now, now); err != nil { // see pruneUnused
		return "", err
	}
	// The binary has the name that go run gives it: clients send it as their user agent.
	binary = filepath.Join(dir, path.Base(pkg))
	if err := GoBuild(ctx, root, pkg, binary, dir, options...); err != nil {
		return "", fmt.Errorf("building %s: %w", pkg, err)
	}
	return binary, nil
}

// Folder returns an empty folder of the test's own, with that name. It has the same path in each run,
// so go has compiled what has not changed, and is removed at the end. Another run waits for it.
func (e *Env) Folder(name string) string {
	e.t.Helper()
	e.own()
	dir := e.suite.ws.Path("folders", strings.ReplaceAll(e.t.Name(), "/", "-"))
	lock, err := lockFolder(e.suite.ctx, dir)
	fatal.If(e.t, err)
	folder := filepath.Join(dir, name)
	e.t.Cleanup(func() {
		if err := errors.Join(os.RemoveAll(folder), lock.Unlock()); err != nil {
			e.t.Error(err)
		}
	})
	// One that was killed has removed nothing.
	fatal.If(e.t, errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o755)))
	return folder
}

// lockFolder makes a folder, unless it is there, and waits until no other process holds it.
func lockFolder(ctx context.Context, dir string) (*flock.Flock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return nil, fmt.Errorf("waiting for %s: %w", lock.Path(), err)
	}
	return lock, nil
}

// GoBuild builds the program in the folder pkg of the module at root, or of a module below it
// that pkg belongs to. Changed sources go into the folder overlays. A binary that it has built of
// the same files, in the same way, stays as it is.
func GoBuild(ctx context.Context, root, pkg, binary, overlays string, options ...ProgramOption) error {
	// No symbol table: linking takes a third less, and stack traces stay whole.
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", binary}
	if len(options) == 1 && options[0].tests {
		args = append([]string{"test", "-c", "-vet=off"}, args[1:]...)
	} else if len(options) > 0 {
		file, err := overlay(overlays, filepath.Join(root, pkg), options)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", file)
	}
	// Compiler and linker live shortly: without collecting garbage, up to a limit, they need a tenth less.
	env := workspace.Environ("GOGC=off", "GOMEMLIMIT=1GiB")
	how := fmt.Sprintf("%s %s %#v", workspace.Toolchain(env), pkg, options)
	of := binary + ".of"
	sum := sourcesOf(root, clone())
	if built, err := os.ReadFile(of); err == nil && sum != "" && string(built) == sum+" "+how {
		if _, err := os.Stat(binary); err == nil {
			return nil
		}
	}
	dir, pkg := moduleOf(root, pkg)
	if err := errors.Join(os.RemoveAll(of), proc.Go(ctx, proc.Cmd{Args: append(args, pkg), Dir: dir, Env: env})); err != nil {
		return err
	}
	if sum == "" || sourcesOf(root, cloneNow()) != sum { // somebody works on them
		return nil
	}
	return os.WriteFile(of, []byte(sum+" "+how), 0o644)
}

// clone names the contents of the clone, of which the programs of learners import packages, as they
// were when this process first asked. Without an answer nothing is taken for unchanged.
var clone = sync.OnceValue(cloneNow)

func cloneNow() string {
	ws, err := workspace.Find()
	if err != nil {
		return ""
	}
	sum, err := workspace.Sum(ws.Root, exercise.Work(ws))
	if err != nil {
		return ""
	}
	return sum
}

// sourcesOf names what programs of the tree at root can be compiled from.
func sourcesOf(root, clone string) string {
	if ws, err := workspace.Find(); clone == "" || err == nil && root == ws.Root {
		return clone
	}
	sum, err := workspace.Sum(root, filepath.Join(root, "programs")) // see check.Program
	if err != nil {
		return ""
	}
	return clone + " " + sum
}

// moduleOf returns the folder of the module that a package below root belongs to, and the
// package's path in there. A step can have a project with a module of its own.
func moduleOf(root, pkg string) (module, rest string) {
	dir := path.Clean(filepath.ToSlash(pkg))
	for rest = "."; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil {
			return filepath.Join(root, dir), "./" + rest
		}
		rest = path.Join(path.Base(dir), rest)
	}
	return root, pkg
}

// overlay writes the changed sources to dir, with the file that tells go
// build which of the program's files they stand for, and returns its path.
func overlay(dir, source string, options []ProgramOption) (string, error) {
	changed := map[string]string{}
	for _, o := range options {
		file := filepath.Join(source, o.file)
		text, seen := changed[file]
		if !seen {
			data, err := os.ReadFile(file)
			if err != nil && !(o.add && errors.Is(err, os.ErrNotExist)) {
				return "", err
			}
			text = string(data)
		}
		switch {
		case o.add && text != "":
			return "", fmt.Errorf("%s is there already", file)
		case o.add:
			changed[file] = o.new
		default:
			replaced, err := exercise.ReplaceOnce(text, o.old, o.new)
			if err != nil {
				return "", fmt.Errorf("%s %w", file, err)
			}
			changed[file] = replaced
		}
	}
	replace := map[string]string{}
	for file, text := range changed {
		copied := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[file] = copied
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, data, 0o644)
}

// pruneUnused removes those of the programs below dir that nobody has asked for
// since then, such as those with a change that no test makes any more.
func pruneUnused(dir string, since time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if info, err := os.Stat(filepath.Join(path, "lock")); err == nil && info.ModTime().Before(since) {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}
