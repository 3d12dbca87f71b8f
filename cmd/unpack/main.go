// Command unpack installs an archive of make pack. It is built from Go's standard
// library alone, so that it works before there is any module.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/offline/archive"
)

func main() {
	ctx, stop := interrupt.Context()
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err != nil && interrupted:
		fmt.Fprintln(os.Stderr, "Interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run unpacks into the clone that is the current directory.
func run(ctx context.Context, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("which pack? make unpack PACK=FILE installs the one that a trainer has made with make pack")
	}
	clone, err := os.Getwd()
	if err != nil {
		return err
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("asking Go for its module cache: %w", err)
	}
	start := time.Now()
	m, err := archive.Unpack(ctx, args[0], archive.Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Clone: clone, ModuleCache: strings.TrimSpace(string(cache))})
	if err != nil {
		return err
	}
	fmt.Printf("Unpacked in %.1fs\n", time.Since(start).Seconds())
	if m.Image != "" {
		if err := load(ctx, filepath.Join(clone, ".workshop", "pack"), m.Image); err != nil {
			return err
		}
	}
	fmt.Println("  make doctor OFFLINE=1   says whether this machine is ready")
	return nil
}

// load gives the node image to the first container engine that takes it. Without
// one, the rest of the pack is as good as before.
func load(ctx context.Context, dir, image string) error {
	start := time.Now()
	var errs []error
	for _, engine := range []string{"docker", "podman", "nerdctl"} {
		output, err := exec.CommandContext(ctx, engine, "load", "--input", filepath.Join(dir, "node-image.tar")).CombinedOutput()
		if err == nil {
			fmt.Printf("%s is loaded into %s, in %.1fs\n", image, engine, time.Since(start).Seconds())
			return os.RemoveAll(dir)
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), os.RemoveAll(dir))
		}
		if !errors.Is(err, exec.ErrNotFound) {
			errs = append(errs, fmt.Errorf("%s: %w: %s", engine, err, strings.TrimSpace(string(output))))
		}
	}
	why := "none is installed"
	if len(errs) > 0 {
		why = errors.Join(errs...).Error()
	}
	fmt.Printf("Note: no container engine took the node image %s, so use CLUSTER=kwok, or start Docker and unpack again (%s)\n", image, why)
	return os.RemoveAll(dir)
}
