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
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

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
	arch := flags.String("arch", runtime.GOARCH, "the processor `architecture` of the image in the file")
	file := flags.String("file", "image.tar", "the `file` to write")
	push := flags.Bool("push", false, "push an image for each of the -archs to the registry in its name, with the credentials of docker login, and write no file")
	archs := flags.String("archs", "amd64,arm64", "the `architectures` to push, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !*push {
		img, err := build(ctx, *root, *arch)
		if err != nil {
			return err
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		if err := image.Write(*file, *tag, img); err != nil {
			return err
		}
		fmt.Printf("%s for linux/%s is in %s: %s\n", *tag, *arch, *file, digest)
		return nil
	}
	var images []v1.Image
	for _, arch := range strings.Split(*archs, ",") {
		img, err := build(ctx, *root, arch)
		if err != nil {
			return err
		}
		images = append(images, img)
	}
	index, err := image.Index(images...)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := image.Push(ctx, *tag, index); err != nil {
		return err
	}
	fmt.Printf("%s for linux on %s is pushed: %s\n", *tag, *archs, digest)
	return nil
}

// build returns the image for one architecture.
func build(ctx context.Context, root, arch string) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "make-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, program)
	// Without paths, the state of git and a build ID, only the sources count.
	build := exec.CommandContext(ctx, "go", "-C", root, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", binary, "./cmd/"+program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the controller for linux/%s: %w\n%s", arch, err, output)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	return image.New("/"+program, data, arch, map[string]string{"org.opencontainers.image.title": program})
}
