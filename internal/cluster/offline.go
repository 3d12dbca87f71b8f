package cluster

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/k8s-go/workshop/internal/build"
)

// Parts is what Up needs that was built or pulled.
type Parts struct {
	Files []string // below .workshop
	Image string   // which the container engine holds; empty if none is needed
}

// Fetch builds or pulls whatever Up needs and is not there yet. It starts nothing.
func (c *Cluster) Fetch(ctx context.Context, out io.Writer) (Parts, error) {
	names := append(c.p.binaries(), "kubectl")
	if err := build.ControlPlane.Build(ctx, c.ws, out, names...); err != nil {
		return Parts{}, err
	}
	parts := Parts{Files: build.ControlPlane.Files(names...)}
	k, ok := c.p.(*kind)
	if !ok {
		return parts, nil
	}
	e, err := k.engine(ctx)
	if err != nil {
		return Parts{}, err
	}
	if err := kindTool.Build(ctx, c.ws, out, "kind"); err != nil {
		return Parts{}, err
	}
	parts.Files = append(parts.Files, kindTool.Files("kind")...)
	parts.Image, err = k.image(ctx, e, out)
	return parts, err
}

// Missing says what Up would have to build or pull; nothing if it needs no network.
func (c *Cluster) Missing(ctx context.Context) ([]string, error) {
	missing, err := build.ControlPlane.Missing(c.ws, append(c.p.binaries(), "kubectl")...)
	if err != nil {
		return nil, err
	}
	k, ok := c.p.(*kind)
	if !ok {
		return missing, nil
	}
	tool, err := kindTool.Missing(c.ws, "kind")
	if err != nil {
		return nil, err
	}
	missing = append(missing, tool...)
	e, err := k.engine(ctx)
	if err != nil {
		return nil, err
	}
	image, err := k.present(ctx, e)
	if err == nil && image == "" {
		_, _, pinned, err := k.versions()
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(pinned, "@")
		missing = append(missing, fmt.Sprintf("the node image %s in %s", name, e.Name))
	}
	return missing, err
}

// HasImage reports whether a container engine holds the node image of the cluster.
func (c *Cluster) HasImage(ctx context.Context) bool {
	k, ok := c.p.(*kind)
	if !ok {
		return false
	}
	e, err := k.engine(ctx)
	if err != nil {
		return false
	}
	image, err := k.present(ctx, e)
	return err == nil && image != ""
}
