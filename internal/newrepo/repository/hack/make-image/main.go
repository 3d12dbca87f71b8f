// Command make-image builds the controller for Linux, and writes or pushes its
// image. It needs no container engine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"example.org/widgets/hack/image"
)

const program = "widget-controller"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "make-image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("make-image", flag.ContinueOnError)
	root := flags.String("root", "..", "the root `folder` of the repository")
	tag := flags.String("tag", program+":dev", "the image's `name`")
	arch := flags.String("arch", runtime.GOARCH, "the processor `architecture`")
	file := flags.String("file", "image.tar", "the `file` to write")
	push := flags.Bool("push", false, "push the image to the registry in its name, with the credentials of docker login, and write no file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "make-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, program)
	// Without paths, the state of git and a build ID, only the sources count.
	build := exec.CommandContext(ctx, "go", "-C", *root, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", binary, "./cmd/"+program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+*arch)
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the controller: %w\n%s", err, output)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	img, err := image.New("/"+program, data, *arch, map[string]string{"org.opencontainers.image.title": program})
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	if *push {
		if err := image.Push(ctx, *tag, img); err != nil {
			return err
		}
		fmt.Printf("%s for linux/%s is pushed: %s\n", *tag, *arch, digest)
		return nil
	}
	if err := image.Write(*file, *tag, img); err != nil {
		return err
	}
	fmt.Printf("%s for linux/%s is in %s: %s\n", *tag, *arch, *file, digest)
	return nil
}
