// Package kubebuilder builds kubebuilder, which makes the scaffold of step 10.
package kubebuilder

import (
	"context"
	"fmt"
	"os"

	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Tools is kubebuilder, pinned in scripts/kubebuilder/go.mod.
var Tools = pinned.Tools{Module: "scripts/kubebuilder", Dir: "tools", NeedsFree: 1 << 30}

// Print builds kubebuilder unless it is there, and prints its path.
func Print(ctx context.Context, ws workspace.Workspace, _ []string) error {
	if err := Tools.Build(ctx, ws, os.Stderr); err != nil {
		return err
	}
	_, err := fmt.Println(ws.Path("tools", "kubebuilder"))
	return err
}
