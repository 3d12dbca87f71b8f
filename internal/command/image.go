package command

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/image"
	"github.com/k8s-go/workshop/internal/workspace"
)

// controllerImage makes the image of step 07's program, or of that in the folder PROGRAM.
// It goes to the registry that is named, else into the cluster of this clone, if that runs
// containers.
func controllerImage(ctx context.Context, ws workspace.Workspace, _ []string) error {
	arch := cmp.Or(os.Getenv("ARCH"), runtime.GOARCH)
	name, img, err := imageOf(ctx, ws, os.Getenv("PROGRAM"), arch)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	if tag := os.Getenv("PUSH"); tag != "" {
		if err := image.Push(ctx, tag, img); err != nil {
			return err
		}
		fmt.Printf("%s for linux/%s is pushed: %s\n", tag, arch, digest)
		return nil
	}
	program, _, _ := strings.Cut(path.Base(name), ":")
	file := ws.Path("images", program+".tar")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := image.Write(file, name, img); err != nil {
		return err
	}
	list := ws.Path("images", program+".cdx.json")
	if err := image.WriteSBOM(list, name, img); err != nil {
		return err
	}
	fmt.Printf("%s for linux/%s is in %s: %s\nWhat it is made of is in %s\n", name, arch, file, digest, list)
	c, err := choose(ctx, ws)
	if err != nil {
		return err
	}
	if state, _ := c.State(ctx); c.Name() != "kind" || state != cluster.Ready {
		fmt.Println("It was loaded nowhere: only the nodes of a kind cluster that is up take it. PUSH=registry/name:tag sends it to a registry")
		return nil
	}
	if err := c.LoadImages(ctx, os.Stdout, file); err != nil {
		return err
	}
	fmt.Println("It is on the nodes of the kind cluster")
	return nil
}

// imageOf builds the image of the program in a folder of the clone, also of the learner's
// module in work, and returns its name. Without a folder, it is that of step 07.
func imageOf(ctx context.Context, ws workspace.Workspace, folder, arch string) (name string, img v1.Image, err error) {
	if folder == "" {
		img, err = image.BuildController(ctx, ws.Root, arch)
		return image.Controller, img, err
	}
	dir := filepath.Join(ws.Root, filepath.FromSlash(folder))
	program := filepath.Base(dir)
	if program == "cmd" { // what the folder is called in every project of kubebuilder
		program = filepath.Base(filepath.Dir(dir))
	}
	img, err = image.Build(ctx, filepath.Dir(dir), "./"+filepath.Base(dir), arch, map[string]string{"org.opencontainers.image.title": program})
	return "workshop/" + program + ":1", img, err
}
