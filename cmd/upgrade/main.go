// Command upgrade moves the workshop to another minor version of Kubernetes: every
// go.mod and every other place that names a version. A test compares all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

func main() {
	ctx, stop := interrupt.Context()
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 || !regexp.MustCompile(`^1\.\d+(\.\d+)?$`).MatchString(args[0]) {
		return errors.New("which version? make upgrade K8S=1.37 moves to its newest patch release, K8S=1.37.2 to that one")
	}
	ws, err := workspace.Find()
	if err != nil {
		return err
	}
	// What it tells to do when it stops half-way undoes other changes, too.
	if changed, err := proc.Output(ctx, proc.Cmd{Path: "git", Args: []string{"status", "--porcelain", "--untracked-files=no"}, Dir: ws.Root, Env: workspace.Environ()}); err != nil {
		return err
	} else if changed != "" {
		return fmt.Errorf("this clone has changes: commit them, or put them aside with git stash\n%s", changed)
	}
	old, err := versionsOf(ws)
	if err != nil {
		return err
	}
	release, err := newest(ctx, ws, args[0])
	if err != nil {
		return err
	}
	fmt.Printf("Moving from Kubernetes %s to %s\n", old["k8s"], release)
	if err := moveModules(ctx, ws, release); err != nil {
		return fmt.Errorf("%w\nSome go.mod files have moved and others not: git restore . undoes that, and the same command tries it again", err)
	}
	found, err := versionsOf(ws)
	if err != nil {
		return err
	}
	if err := movePlaces(ws, found); err != nil {
		return err
	}
	return byHand(ctx, ws, old, found)
}

// newest returns the newest patch release of a minor version that can be downloaded.
func newest(ctx context.Context, ws workspace.Workspace, version string) (string, error) {
	if strings.Count(version, ".") == 2 {
		return version, nil
	}
	list, err := output(ctx, ws.Root, "list", "-m", "-versions", "-f", "{{range .Versions}}{{.}} {{end}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	found := ""
	for _, v := range strings.Fields(list) {
		if semver.MajorMinor(v) == "v"+version && semver.Prerelease(v) == "" && semver.Compare(v, found) > 0 {
			found = v
		}
	}
	if found == "" {
		return "", fmt.Errorf("no release of Kubernetes %s can be downloaded as the Go module k8s.io/kubernetes", version)
	}
	return found[1:], nil
}

// moveModules moves every module of the clone to a release of Kubernetes.
func moveModules(ctx context.Context, ws workspace.Workspace, release string) error {
	file, err := output(ctx, ws.Root, "list", "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes@v"+release)
	if err != nil {
		return err
	}
	upstream, err := parse(strings.TrimSpace(file))
	if err != nil {
		return err
	}
	control, err := parse(filepath.Join(ws.Root, controlPlane))
	if err != nil {
		return err
	}
	published, before := staging(upstream, "./staging/"), staging(control, "k8s.io/")
	modules, err := ws.Modules()
	if err != nil {
		return err
	}
	for _, dir := range modules { // the root module first, because others follow it
		fmt.Println("  " + filepath.Join(dir, "go.mod"))
		if err := moveModule(ctx, ws, dir, release, published, before); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, "go.mod"), err)
		}
	}
	return nil
}

// staging returns the modules that are published from the kubernetes repository: those
// that a go.mod replaces by themselves in a folder, or at another version.
func staging(mod *modfile.File, prefix string) []string {
	var paths []string
	for _, r := range mod.Replace {
		if r.Old.Path != openAPI && strings.HasPrefix(r.New.Path, prefix) && strings.HasSuffix(r.New.Path, r.Old.Path) {
			paths = append(paths, r.Old.Path)
		}
	}
	return paths
}

// moveModule moves one module. The release has published some modules, the one before it others.
func moveModule(ctx context.Context, ws workspace.Workspace, dir, release string, published, before []string) error {
	dir = filepath.Join(ws.Root, dir)
	file := filepath.Join(dir, "go.mod")
	mod, err := parse(file)
	if err != nil {
		return err
	}
	version := "v0." + strings.TrimPrefix(release, "1.")
	// What go get moves, and what else it has to move with them. What is replaced
	// moves nothing with it.
	get, replaced := []string{"get"}, staging(mod, "k8s.io/")
	for _, r := range slices.Clone(mod.Require) {
		switch path := r.Mod.Path; {
		case path == kubernetes:
			get = append(get, path+"@v"+release)
		case slices.Contains(before, path) && !slices.Contains(published, path):
			if !r.Indirect {
				fmt.Printf("    %s is no part of Kubernetes %s, but imported: edit by hand\n", path, release)
			}
			err = errors.Join(err, mod.DropRequire(path))
		case slices.Contains(replaced, path):
			err = errors.Join(err, mod.AddRequire(path, version))
		case slices.Contains(published, path):
			get = append(get, path+"@"+version)
		}
	}
	if len(get) == 1 {
		return err
	}
	if len(replaced) > 0 {
		for _, path := range replaced {
			if !slices.Contains(published, path) {
				err = errors.Join(err, mod.DropReplace(path, ""))
			}
		}
		for _, path := range published {
			err = errors.Join(err, mod.AddReplace(path, "", path, version))
		}
	}
	root, rootErr := parse(filepath.Join(ws.Root, "go.mod"))
	for _, r := range mod.Replace {
		if r.Old.Path == openAPI {
			err = errors.Join(err, mod.AddReplace(openAPI, "", openAPI, required(root, openAPI)))
		}
	}
	if err := errors.Join(err, rootErr, write(file, mod)); err != nil {
		return err
	}
	if _, err := output(ctx, dir, get...); err != nil {
		return err
	}
	return follow(ctx, ws, dir)
}

// follow tidies a module. The repository of make new then requires what the workshop
// is tested with, its generators what those of the workshop require.
func follow(ctx context.Context, ws workspace.Workspace, dir string) error {
	leaders := map[string][]string{
		newRepository:           {"go.mod"},
		newRepository + "/hack": {"scripts/codegen/go.mod", "go.mod"},
	}
	rel, err := filepath.Rel(ws.Root, dir)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "go.mod")
	mod, err := parse(file)
	if err != nil {
		return err
	}
	leads := map[string]string{}
	for _, name := range leaders[rel] {
		leader, err := parse(filepath.Join(ws.Root, name))
		if err != nil {
			return err
		}
		for _, r := range leader.Require {
			if leads[r.Mod.Path] == "" {
				leads[r.Mod.Path] = r.Mod.Version
			}
		}
	}
	for _, r := range slices.Clone(mod.Require) {
		if version := leads[r.Mod.Path]; version != "" {
			err = errors.Join(err, mod.AddRequire(r.Mod.Path, version))
		}
	}
	if err := errors.Join(err, write(file, mod)); err != nil {
		return err
	}
	_, err = output(ctx, dir, "mod", "tidy")
	return err
}

// movePlaces writes the versions into every other place that names one.
func movePlaces(ws workspace.Workspace, versions map[string]string) error {
	for _, p := range places {
		file := filepath.Join(ws.Root, p.file)
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, p.pattern().ReplaceAllLiteral(data, []byte(p.text(versions))), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// byHand says what no program can move.
func byHand(ctx context.Context, ws workspace.Workspace, old, found map[string]string) error {
	fmt.Println("\nEdit by hand:")
	if err := compare(ws); err != nil {
		fmt.Println(err)
	}
	for _, tool := range []struct{ dir, module string }{
		{".", "sigs.k8s.io/kind"}, {".", "sigs.k8s.io/e2e-framework"}, {filepath.Dir(controlPlane), "sigs.k8s.io/kwok"},
		{filepath.Dir(controlPlane), "go.etcd.io/etcd/server/v3"}, {"scripts/codegen", "sigs.k8s.io/controller-tools"},
		{"10-kubebuilder/icecream", "sigs.k8s.io/controller-runtime"},
		{"11-operator-sdk/packager", "github.com/operator-framework/api"}, {"11-operator-sdk/packager", "github.com/operator-framework/operator-registry"},
	} {
		line, err := output(ctx, filepath.Join(ws.Root, tool.dir), "list", "-m", "-u", "-f", "{{.Version}}{{with .Update}} (newest: {{.Version}}){{end}}", tool.module)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s %s: is it the one for Kubernetes %s?\n", filepath.Join(tool.dir, "go.mod"), tool.module, strings.TrimSpace(line), found["minor"])
	}
	// Some of these lines are history and stay as they are.
	pattern := `(^|[^0-9.])(1|0)\.` + strings.TrimPrefix(old["minor"], "1.") + `([^0-9]|$)`
	left, err := proc.Output(ctx, proc.Cmd{Path: "git", Dir: ws.Root, Env: workspace.Environ(),
		Args: []string{"grep", "-nE", pattern, "--", ":!*go.mod", ":!*go.sum", ":!*_test.go", ":!*/testdata/*", ":!*.svg", ":!*.js", ":!*.mjs"}})
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) { // 1: there are none
		return err
	}
	for line := range strings.Lines(left) {
		fmt.Printf("still %s? %.160s\n", old["minor"], strings.TrimSpace(line))
	}
	fmt.Println("\nThen: make generate build lint verify test, and for each step make readme N=")
	return nil
}

// output runs go in a folder and returns what it prints.
func output(ctx context.Context, dir string, args ...string) (string, error) {
	return proc.Output(ctx, proc.Cmd{Path: "go", Args: args, Dir: dir, Env: workspace.Environ("GOFLAGS=-mod=mod")})
}

func parse(file string) (*modfile.File, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(file, data, nil)
}

func write(file string, mod *modfile.File) error {
	mod.Cleanup()
	mod.SortBlocks()
	data, err := mod.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}
