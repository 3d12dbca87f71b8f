package command

import (
	"context"
	"fmt"

	"github.com/k8s-go/workshop/internal/newrepo"
	"github.com/k8s-go/workshop/internal/workspace"
)

// newRepository writes a repository for a controller of one's own.
func newRepository(_ context.Context, ws workspace.Workspace, args []string) error {
	args = append(args, make([]string, 4)...)
	names, dir := newrepo.Names{Group: args[0], Kind: args[1], Module: args[3]}, args[2]
	dir, err := newrepo.Create(ws.Root, dir, names)
	if err != nil {
		return fmt.Errorf("make new GROUP= KIND= DIR= [MODULE=]: %w", err)
	}
	fmt.Printf("The repository of your controller is in %s\nChange into that folder and run make: it lists the commands\n", dir)
	return nil
}
