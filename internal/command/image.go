package command

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/image"
	"github.com/k8s-go/workshop/internal/workspace"
)

// controllerImage makes the image of step 07. It goes to the registry that is named,
// else into the cluster of this clone, if that runs containers.
func controllerImage(ctx context.Context, ws workspace.Workspace, args []string) error {
	arch := cmp.Or(os.Getenv("ARCH"), runtime.GOARCH)
	img, err := image.BuildController(ctx, ws.Root, arch)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	if tag := strings.Join(args, ""); tag != "" {
		if err := image.Push(ctx, tag, img); err != nil {
			return err
		}
		fmt.Printf("%s for linux/%s is pushed: %s\n", tag, arch, digest)
		return nil
	}
	file := ws.Path("images", "policy-controller.tar")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := image.Write(file, image.Controller, img); err != nil {
		return err
	}
	list := ws.Path("images", "policy-controller.cdx.json")
	if err := image.WriteSBOM(list, image.Controller, img); err != nil {
		return err
	}
	fmt.Printf("%s for linux/%s is in %s: %s\nWhat it is made of is in %s\n", image.Controller, arch, file, digest, list)
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
