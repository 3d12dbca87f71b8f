// Package pinned makes the binaries that a Go module pins as tools: the control
// plane itself, what a node image is made of, kind and the linters.
package pinned

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"

	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/lock"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Tools are the programs that one module pins as its tools.
type Tools struct {
	Module string   // folder of the module below the clone's root
	Dir    string   // folder below .workshop for the binaries
	Tags   []string // build tags
	// Kubernetes is whether the binaries are told the version of Kubernetes that
	// they are: without it a server built from the module calls itself v0.0.0,
	// and clients warn of version skew.
	Kubernetes bool
	// NeedsFree is how many bytes the build takes where nothing is cached.
	NeedsFree uint64
}

// ControlPlane is etcd, the Kubernetes control plane, kubectl and kwok, pinned
// in scripts/controlplane/go.mod.
var ControlPlane = Tools{Module: "scripts/controlplane", Dir: "bin", Kubernetes: true, NeedsFree: 5 << 30}

// KubernetesVersion returns the Kubernetes version of the control plane, "v1.36.3".
func KubernetesVersion(ws workspace.Workspace) (string, error) {
	return ws.ModuleVersion("scripts/controlplane/go.mod", "k8s.io/kubernetes")
}

// Build builds the named tools of the module, or all of them, unless they are
// current; it reports on out which binary is being built, how many of how many,
// and how long it took. An interrupted build is continued by the next one, from
// Go's build cache.
func (t Tools) Build(ctx context.Context, ws workspace.Workspace, out io.Writer, names ...string) (err error) {
	stale, err := t.stale(ws, names)
	if err != nil || len(stale) == 0 {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("go is not on PATH: install Go (https://go.dev/dl) and try again")
	}
	all, err := t.tools(ws)
	if err != nil {
		return err
	}
	stamp, err := t.Stamp(ws)
	if err != nil {
		return err
	}
	ldflags, err := t.ldflags(ws)
	if err != nil {
		return err
	}
	dir := ws.Path(t.Dir)
	if err := os.MkdirAll(filepath.Join(dir, ".stamps"), 0o755); err != nil {
		return err
	}
	unlock, waited, err := lock.Acquire(ctx, filepath.Join(dir, ".lock"), out, "Another command of this clone is building; waiting for it to end")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if waited { // it may have built these
		if stale, err = t.stale(ws, names); err != nil || len(stale) == 0 {
			return err
		}
	}
	purpose := "building " + t.Module
	if cache := BuildCache(ctx); cache != "" { // which takes most of it, and may be on another disk
		needs := min(t.NeedsFree, max(2<<30, t.NeedsFree/uint64(len(all))*uint64(len(stale)))) // kubectl alone, for one
		if err := diskspace.Require(cache, needs, purpose); err != nil {
			return err
		}
	}
	if err := diskspace.Require(dir, min(t.NeedsFree, 1<<30), purpose); err != nil {
		return err
	}
	fmt.Fprintf(out, "Building %d binaries from Go modules into %s (once; minutes on a machine that never built them)\n", len(stale), dir)
	for i, tool := range stale {
		name := nameOf(tool)
		done := progress.Start(out, fmt.Sprintf("[%d/%d] %s", i+1, len(stale), name))
		// Built beside its place and moved there: a half-written binary is
		// never run, and one that is running is not overwritten.
		tmp := filepath.Join(dir, "."+name+".new")
		// Without -trimpath and with the environment of every other build, so that the
		// 800 packages that the workshop's own programs need, too, are compiled once.
		args := []string{"build", "-tags", strings.Join(t.Tags, ","), "-ldflags", ldflags, "-o", tmp, tool}
		err := goCommand(ctx, filepath.Join(ws.Root, t.Module), args)
		if err == nil {
			err = os.Rename(tmp, filepath.Join(dir, name))
		}
		if err == nil {
			err = os.WriteFile(t.stampFile(ws, name), []byte(stamp), 0o644)
		}
		done(err)
		if err != nil {
			return errors.Join(fmt.Errorf("building %s: %w", name, err), os.RemoveAll(tmp))
		}
	}
	return nil
}

// Missing names those of the named tools, or of all, that Build would have to build.
func (t Tools) Missing(ws workspace.Workspace, names ...string) ([]string, error) {
	stale, err := t.stale(ws, names)
	for i := range stale {
		stale[i] = nameOf(stale[i])
	}
	return stale, err
}

// Files returns what Build makes for the named tools, as paths below .workshop.
func (t Tools) Files(names ...string) []string {
	var files []string
	for _, name := range names {
		files = append(files, path.Join(t.Dir, name), path.Join(t.Dir, ".stamps", name))
	}
	return files
}

// nameOf returns the name that go build gives a program: the last element of its path, but
// kubebuilder for sigs.k8s.io/kubebuilder/v4.
func nameOf(tool string) string {
	if prefix, _, ok := module.SplitPathVersion(tool); ok {
		return path.Base(prefix)
	}
	return path.Base(tool)
}

// stale returns the packages of those tools whose binaries are missing or of other pins.
func (t Tools) stale(ws workspace.Workspace, names []string) ([]string, error) {
	stamp, err := t.Stamp(ws)
	if err != nil {
		return nil, err
	}
	tools, err := t.tools(ws)
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, tool := range tools {
		name := nameOf(tool)
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		have, stampErr := os.ReadFile(t.stampFile(ws, name))
		_, binaryErr := os.Stat(ws.Path(t.Dir, name))
		if stampErr != nil || binaryErr != nil || string(have) != stamp {
			stale = append(stale, tool)
		}
	}
	return stale, nil
}

// BuildCache is the folder of Go's build cache, or the next one above it that is there; "" if nobody knows.
func BuildCache(ctx context.Context) string {
	output, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"env", "GOCACHE"}, Env: workspace.Environ()})
	dir := strings.TrimSpace(output)
	if err != nil || !filepath.IsAbs(dir) {
		return ""
	}
	for _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

func goCommand(ctx context.Context, dir string, args []string) error {
	err := proc.Go(ctx, proc.Cmd{Args: args, Dir: dir,
		// Static, also under GOFLAGS=-race: they serve as local processes and in images FROM scratch.
		Env: workspace.Environ("CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (t Tools) stampFile(ws workspace.Workspace, name string) string {
	return ws.Path(t.Dir, ".stamps", name)
}

// Stamp identifies what the module pins: same stamp, same binaries.
func (t Tools) Stamp(ws workspace.Workspace) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(ws.Root, t.Module, name))
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	ldflags, err := t.ldflags(ws)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(h, runtime.GOOS, runtime.GOARCH, t.Tags, ldflags)
	sum := hex.EncodeToString(h.Sum(nil)) + "\n"
	if !t.Kubernetes {
		return sum, nil
	}
	version, err := KubernetesVersion(ws)
	return version + " " + sum, err
}

func (t Tools) ldflags(ws workspace.Workspace) (string, error) {
	flags := []string{"-s", "-w"}
	if !t.Kubernetes {
		return strings.Join(flags, " "), nil
	}
	version, err := KubernetesVersion(ws)
	if err != nil {
		return "", err
	}
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("k8s.io/kubernetes %s is not of the form v1.2.3", version)
	}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+version,
			"-X", pkg+".gitMajor="+parts[0],
			"-X", pkg+".gitMinor="+parts[1],
			"-X", pkg+".gitTreeState=clean")
	}
	return strings.Join(flags, " "), nil
}

// tools lists the package paths that the module names as tools, in its order.
func (t Tools) tools(ws workspace.Workspace) ([]string, error) {
	file := filepath.Join(ws.Root, t.Module, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f, err := modfile.Parse(file, data, nil)
	if err != nil {
		return nil, err
	}
	var tools []string
	for _, tool := range f.Tool {
		tools = append(tools, tool.Path)
	}
	if len(tools) == 0 {
		return nil, fmt.Errorf("%s names no tool", file)
	}
	return tools, nil
}
