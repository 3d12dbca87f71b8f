package image

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Build compiles the main package pkg of the clone at root, such as
// "./07-in-cluster/policy-controller", for Linux, and returns its image. The same
// sources give the same digest, wherever the clone lies.
func Build(ctx context.Context, root, pkg, arch string, labels map[string]string) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "program")
	if err := proc.Go(ctx, proc.Cmd{Dir: root,
		// Without paths, the state of the clone and a build ID, only the sources count.
		Args: []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", binary, pkg},
		Env:  workspace.Environ("CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch),
	}); err != nil {
		return nil, fmt.Errorf("building %s for the image: %w", pkg, err)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	return New("/"+path.Base(pkg), program, arch, labels)
}
