package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/web"
	"github.com/k8s-go/workshop/internal/workspace"
)

// drawDiagrams makes pictures of the lessons' diagrams that are new or have changed.
// Only then does it need Node.js.
func drawDiagrams(ctx context.Context, ws workspace.Workspace, _ []string) error {
	missing, stale, err := web.MissingDiagrams(ws)
	if err != nil {
		return err
	}
	dir := filepath.Join(ws.Root, filepath.FromSlash(web.DiagramDir))
	if len(missing) > 0 {
		renderer := ws.Path("diagrams")
		if err := copyTree(filepath.Join(ws.Root, "scripts", "diagrams"), renderer); err != nil {
			return fmt.Errorf("copying scripts/diagrams: %w", err)
		}
		npm := proc.Cmd{Path: "npm", Args: []string{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, Dir: renderer, Env: workspace.Environ()}
		if err := proc.Run(ctx, npm); err != nil {
			return fmt.Errorf("getting the renderer for the diagram of %s, which needs Node.js 20 with npm and a network: %w", missing[0].Lesson, err)
		}
		for _, d := range missing {
			var svg bytes.Buffer
			node := proc.Cmd{Path: "node", Args: []string{"render.mjs"}, Dir: renderer, Env: workspace.Environ(), In: strings.NewReader(d.Text), Out: &svg}
			if err := proc.Run(ctx, node); err != nil {
				return fmt.Errorf("drawing the diagram of %s: %w", d.Lesson, err)
			}
			picture, err := d.Picture(svg.String())
			if err != nil {
				return fmt.Errorf("drawing the diagram of %s: %w", d.Lesson, err)
			}
			if err := os.WriteFile(filepath.Join(dir, d.File()), []byte(picture), 0o644); err != nil {
				return err
			}
			fmt.Printf("%s: the diagram is %s/%s\n", d.Lesson, web.DiagramDir, d.File())
		}
	}
	var errs []error
	for _, name := range stale {
		errs = append(errs, os.Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// verifyDiagrams checks that the page shows the lessons' diagrams as they are.
func verifyDiagrams(ws workspace.Workspace) error {
	missing, stale, err := web.MissingDiagrams(ws)
	for _, d := range missing {
		err = errors.Join(err, fmt.Errorf("%s has a diagram without a picture; run make generate and commit the result", d.Lesson))
	}
	for _, name := range stale {
		err = errors.Join(err, fmt.Errorf("no lesson shows %s/%s any more; run make generate and commit the result", web.DiagramDir, name))
	}
	return err
}
