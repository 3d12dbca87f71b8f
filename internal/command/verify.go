package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/readme"
	"github.com/k8s-go/workshop/internal/workspace"
)

// verify checks that what belongs together agrees: every go.mod with the code,
// generated code with the types, the documents with the tree, and what is vendored with its checksums.
func verify(ctx context.Context, ws workspace.Workspace, _ []string) error {
	var errs []error
	modules, err := filepath.Glob(filepath.Join(ws.Root, "scripts", "*", "go.mod"))
	if err != nil {
		return err
	}
	own := filepath.Join(ws.Root, "internal", "newrepo", "repository")
	for _, mod := range append(modules, filepath.Join(ws.Root, "go.mod"), filepath.Join(own, "go.mod"), filepath.Join(own, "hack", "go.mod")) {
		if _, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"mod", "tidy", "-diff"}, Dir: filepath.Dir(mod), Env: workspace.Environ()}); err != nil {
			errs = append(errs, fmt.Errorf("%s is not tidy; run go mod tidy there: %w", mod, err))
		}
	}
	errs = append(errs, verifyGenerated(ctx, ws), verifyDocuments(ws), verifyVendored(ws))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("ok  modules, generated code, documents and vendored files")
	return nil
}

// limits are the lengths that the documents promise, in lines.
var limits = map[string]int{"README.md": 120, "CONTRIBUTING.md": 60}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

func verifyDocuments(ws workspace.Workspace) error {
	var errs []error
	steps, err := ws.Steps()
	if err != nil {
		return err
	}
	documents := []string{"README.md", "CONTRIBUTING.md", trainersFile}
	for _, s := range steps {
		documents = append(documents, filepath.Join(s.Name, "README.md"))
	}
	for _, name := range documents {
		data, err := os.ReadFile(filepath.Join(ws.Root, name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		text := string(data)
		if limit, ok := limits[name]; ok && strings.Count(text, "\n") > limit {
			errs = append(errs, fmt.Errorf("%s has %d lines, more than %d", name, strings.Count(text, "\n"), limit))
		}
		for _, fault := range readme.Prose(data) {
			errs = append(errs, fmt.Errorf("%s: %s", name, fault))
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join(ws.Root, filepath.Dir(name), m[1])
			if _, err := os.Stat(target); err != nil {
				errs = append(errs, fmt.Errorf("%s links to %s, which is not there", name, m[1]))
			}
		}
	}
	errs = append(errs, verifyTrainers(ws, steps))
	overview, err := os.ReadFile(filepath.Join(ws.Root, "README.md"))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, s := range steps {
		if !strings.Contains(string(overview), "]("+s.Name+"/") {
			errs = append(errs, fmt.Errorf("README.md does not link to %s/", s.Name))
		}
		data, err := os.ReadFile(s.README())
		if err != nil {
			return err
		}
		doc, err := readme.Parse(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.README(), err))
			continue
		}
		if len(doc.Blocks) == 0 {
			errs = append(errs, fmt.Errorf("%s has no console block: nothing in it is executed", s.README()))
		}
		if !strings.Contains(string(data), fmt.Sprintf("make test-step N=%d", s.Number)) {
			errs = append(errs, fmt.Errorf("%s does not name its tests: make test-step N=%d", s.README(), s.Number))
		}
		errs = append(errs, verifyOwned(s), verifyExcerpts(ws, s, data))
		tests, err := filepath.Glob(filepath.Join(s.Dir, "*_test.go"))
		if err != nil || len(tests) == 0 {
			errs = append(errs, fmt.Errorf("%s has no tests", s.Name))
		}
	}
	return errors.Join(errs...)
}

// verifyExcerpts checks that the code that a lesson shows is that of the files it names.
func verifyExcerpts(ws workspace.Workspace, s workspace.Step, readmeText []byte) error {
	_, drifted, err := readme.Excerpts(ws.Root, readmeText)
	if err != nil {
		return fmt.Errorf("%s: %w", s.README(), err)
	}
	var errs []error
	for _, d := range drifted {
		errs = append(errs, fmt.Errorf("%s: %s; run make readme N=%d", s.README(), d, s.Number))
	}
	return errors.Join(errs...)
}

var stepLabel = regexp.MustCompile(regexp.QuoteMeta(lesson.StepLabel) + `: "?(\d\d)`)

// verifyOwned checks that a lesson declares the cluster-scoped objects that its
// folder holds. Otherwise an interrupted run would leave them in the cluster.
func verifyOwned(s workspace.Step) error {
	owned, err := lesson.Owns(s)
	if err != nil {
		return err
	}
	return filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range stepLabel.FindAllSubmatch(data, -1) {
			if !slices.Contains(owned, string(m[1])) {
				return fmt.Errorf("%s has the label %s=%s, which %s does not declare; add %s to its line <!-- cluster-scoped objects: ... -->", path, lesson.StepLabel, m[1], s.README(), m[1])
			}
		}
		return nil
	})
}
