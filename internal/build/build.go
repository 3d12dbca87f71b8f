// Package build makes the binaries that a nested Go module pins as tools: the
// control plane itself, and what a node image is made of.
package build

import (
	"bytes"
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
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/term"

	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Set is the tools of one nested module.
type Set struct {
	Module string   // folder of the nested module below the clone's root
	Out    string   // folder below .workshop for the binaries
	Tags   []string // build tags
	// NeedsFree is how many bytes the build takes where nothing is cached.
	NeedsFree uint64
}

// ControlPlane is etcd, the Kubernetes control plane, kubectl and kwok, pinned
// in scripts/controlplane/go.mod.
var ControlPlane = Set{Module: "scripts/controlplane", Out: "bin", NeedsFree: 5 << 30}

// KubernetesVersion returns the Kubernetes version of the control plane, "v1.36.3".
func KubernetesVersion(ws workspace.Workspace) (string, error) {
	return ws.ModuleVersion("scripts/controlplane/go.mod", "k8s.io/kubernetes")
}

// Build builds the named tools of the set, or all of them, unless they are
// current; it reports on out which binary is being built, how many of how many,
// and how long it took. An interrupted build is continued by the next one, from
// Go's build cache.
func (s Set) Build(ctx context.Context, ws workspace.Workspace, out io.Writer, names ...string) error {
	stale, err := s.stale(ws, names)
	if err != nil || len(stale) == 0 {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("go is not on PATH: install Go (https://go.dev/dl) and try again")
	}
	stamp, err := s.Stamp(ws)
	if err != nil {
		return err
	}
	ldflags, err := s.ldflags(ws)
	if err != nil {
		return err
	}
	dir := ws.State(s.Out)
	if err := os.MkdirAll(filepath.Join(dir, ".stamps"), 0o755); err != nil {
		return err
	}
	if err := diskspace.Require(dir, s.NeedsFree, "building "+s.Module); err != nil {
		return err
	}
	fmt.Fprintf(out, "Building %d binaries from Go modules into %s (once; minutes on a machine that never built them)\n", len(stale), dir)
	for i, tool := range stale {
		name := path.Base(tool)
		done := progress(out, fmt.Sprintf("[%d/%d] %s", i+1, len(stale), name))
		// Built beside its place and moved there: a half-written binary is
		// never run, and one that is running is not overwritten.
		tmp := filepath.Join(dir, "."+name+".new")
		args := []string{"build", "-trimpath", "-tags", strings.Join(s.Tags, ","), "-ldflags", ldflags, "-o", tmp, tool}
		err := goCommand(ctx, filepath.Join(ws.Root, s.Module), args)
		if err == nil {
			err = os.Rename(tmp, filepath.Join(dir, name))
		}
		if err == nil {
			err = os.WriteFile(s.stampFile(ws, name), []byte(stamp), 0o644)
		}
		done(err)
		if err != nil {
			return errors.Join(fmt.Errorf("building %s: %w", name, err), os.RemoveAll(tmp))
		}
	}
	return nil
}

// stale returns the packages of those tools whose binaries are missing or of other pins.
func (s Set) stale(ws workspace.Workspace, names []string) ([]string, error) {
	stamp, err := s.Stamp(ws)
	if err != nil {
		return nil, err
	}
	tools, err := s.tools(ws)
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, tool := range tools {
		name := path.Base(tool)
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		have, stampErr := os.ReadFile(s.stampFile(ws, name))
		_, binaryErr := os.Stat(ws.State(s.Out, name))
		if stampErr != nil || binaryErr != nil || string(have) != stamp {
			stale = append(stale, tool)
		}
	}
	return stale, nil
}

func goCommand(ctx context.Context, dir string, args []string) error {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = &output, &output
	// The same static binaries serve as local processes and in images FROM scratch.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, strings.TrimSpace(output.String()))
	}
	return nil
}

// progress announces a piece of work and returns the function that ends the
// announcement. On a terminal the elapsed seconds count up.
func progress(out io.Writer, what string) func(error) {
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start).Round(time.Second) }
	f, isFile := out.(*os.File)
	tty := isFile && term.IsTerminal(int(f.Fd()))
	stop, stopped := make(chan struct{}), make(chan struct{})
	interval := 30 * time.Second
	if tty {
		interval = time.Second
	}
	go func() {
		defer close(stopped)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if tty {
					fmt.Fprintf(out, "\r  %s  %s", what, elapsed())
				} else {
					fmt.Fprintf(out, "  %s  %s so far\n", what, elapsed())
				}
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		result := elapsed().String()
		if err != nil {
			result = "failed after " + result
		}
		if tty {
			fmt.Fprint(out, "\r")
		}
		fmt.Fprintf(out, "  %s  %s\n", what, result)
	}
}

func (s Set) stampFile(ws workspace.Workspace, name string) string {
	return ws.State(s.Out, ".stamps", name)
}

// Stamp identifies what the module pins: same stamp, same binaries.
func (s Set) Stamp(ws workspace.Workspace) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(ws.Root, s.Module, name))
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	ldflags, err := s.ldflags(ws)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(h, runtime.GOOS, runtime.GOARCH, s.Tags, ldflags)
	version, err := KubernetesVersion(ws)
	if err != nil {
		return "", err
	}
	return version + " " + hex.EncodeToString(h.Sum(nil)) + "\n", nil
}

// ldflags stamps the version into the binaries: without it a server built
// from the module calls itself v0.0.0, and clients warn of version skew.
func (s Set) ldflags(ws workspace.Workspace) (string, error) {
	version, err := KubernetesVersion(ws)
	if err != nil {
		return "", err
	}
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("k8s.io/kubernetes %s is not of the form v1.2.3", version)
	}
	flags := []string{"-s", "-w"}
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
func (s Set) tools(ws workspace.Workspace) ([]string, error) {
	file := filepath.Join(ws.Root, s.Module, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f, err := modfile.Parse(file, data, nil)
	if err != nil {
		return nil, err
	}
	var tools []string
	for _, t := range f.Tool {
		tools = append(tools, t.Path)
	}
	if len(tools) == 0 {
		return nil, fmt.Errorf("%s names no tool", file)
	}
	return tools, nil
}
