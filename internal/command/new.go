package command

import (
	"context"
	"fmt"
	"os"

	"github.com/k8s-go/workshop/internal/newrepo"
	"github.com/k8s-go/workshop/internal/workspace"
)

// newRepository writes a repository for a controller of one's own.
func newRepository(_ context.Context, ws workspace.Workspace, _ []string) error {
	names := newrepo.Names{Group: os.Getenv("GROUP"), Kind: os.Getenv("KIND"), Module: os.Getenv("MODULE")}
	dir, err := newrepo.Create(ws.Root, pathOf("DIR"), names)
	if err != nil {
		return fmt.Errorf("make new GROUP= KIND= DIR= [MODULE=]: %w", err)
	}
	fmt.Printf("The repository of your controller is in %s\nChange into that folder and run make: it lists the commands\n", dir)
	return nil
}
