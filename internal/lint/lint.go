// Package lint runs the linters.
package lint

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// tools are the linters, pinned in scripts/tools/go.mod.
var tools = pinned.Tools{Module: "scripts/tools", Dir: "tools", NeedsFree: 1 << 30}

// Run checks form: gofmt, go vet, staticcheck, shellcheck and actionlint.
func Run(ctx context.Context, ws workspace.Workspace, _ []string) error {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		return fmt.Errorf("shellcheck is not on PATH: apt-get install shellcheck, or brew install shellcheck")
	}
	if err := tools.Build(ctx, ws, os.Stdout, "staticcheck", "actionlint"); err != nil {
		return err
	}
	goFiles, scripts, err := sources(ws)
	if err != nil {
		return err
	}
	output, err := proc.Output(ctx, proc.Cmd{Path: "gofmt", Args: append([]string{"-l"}, goFiles...)})
	if err != nil {
		return err
	}
	if len(output) > 0 {
		return fmt.Errorf("gofmt would change these files; run gofmt -w on them:\n%s", output)
	}
	fmt.Println("ok  gofmt")
	if err := modules(ctx, ws, ws.Path("tools", "staticcheck")); err != nil {
		return err
	}
	for _, check := range []struct {
		name    string
		command []string
	}{
		{"shellcheck", append([]string{shellcheck, "--external-sources", "--source-path=SCRIPTDIR"}, scripts...)},
		{"actionlint", []string{ws.Path("tools", "actionlint"), "-shellcheck=" + shellcheck, "-pyflakes="}},
	} {
		if err := execute(ctx, ws.Root, check.command...); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		fmt.Println("ok  " + check.name)
	}
	return nil
}

// pins are the modules whose only programs start etcd and CoreDNS in a few lines. Vetting
// those takes minutes, because all that they import has to be compiled for it.
var pins = []string{"scripts/controlplane", "scripts/nodeimage"}

// modules vets every module of the clone but the pins, also the repository that make new hands out.
func modules(ctx context.Context, ws workspace.Workspace, staticcheck string) error {
	all, err := ws.Modules()
	if err != nil {
		return err
	}
	for _, module := range all {
		dir := filepath.Join(ws.Root, module)
		output, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"list", "./..."}, Dir: dir, Env: workspace.Environ()})
		if err != nil {
			return fmt.Errorf("%s: %w", module, err)
		}
		packages := strings.Fields(output)
		if len(packages) == 0 || slices.Contains(pins, module) { // it pins tools only
			continue
		}
		if err := execute(ctx, dir, append([]string{"go", "vet", workspace.BrowserTests}, packages...)...); err != nil {
			return fmt.Errorf("go vet in the module %s: %w", module, err)
		}
		// The generators of k8s.io/code-generator call what they themselves mark as deprecated.
		written := slices.DeleteFunc(packages, func(pkg string) bool { return strings.Contains(pkg, "/pkg/generated/") })
		if err := execute(ctx, dir, append([]string{staticcheck, workspace.BrowserTests}, written...)...); err != nil {
			return fmt.Errorf("staticcheck in the module %s: %w", module, err)
		}
		fmt.Println("ok  go vet, staticcheck: " + module)
	}
	return nil
}

// execute runs a program to its end and shows its output.
func execute(ctx context.Context, dir string, command ...string) error {
	return proc.Run(ctx, proc.Cmd{Path: command[0], Args: command[1:], Dir: dir, Env: workspace.Environ(),
		Out: os.Stdout, Err: os.Stderr, Grace: time.Minute})
}

// sources lists the Go files and the bash scripts of the clone.
func sources(ws workspace.Workspace) (goFiles, scripts []string, err error) {
	err = filepath.WalkDir(ws.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == ".workshop" || d.Name() == "node_modules" ||
				path == exercise.Work(ws) { // which is the learner's
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) == ".go" {
			goFiles = append(goFiles, path)
		} else if isBash(path) {
			scripts = append(scripts, path)
		}
		return nil
	})
	return goFiles, scripts, err
}

func isBash(path string) bool {
	if filepath.Ext(path) == ".sh" {
		return true
	}
	if filepath.Ext(path) != "" {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	line := make([]byte, 32)
	n, _ := f.Read(line)
	return strings.HasPrefix(string(line[:n]), "#!/usr/bin/env bash")
}
