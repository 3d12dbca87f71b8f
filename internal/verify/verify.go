// Package verify checks what belongs together: modules, generated code, the
// documents and vendored files.
package verify

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

// Run checks that what belongs together agrees: every go.mod with the code,
// generated code with the types, the documents with the tree, and what is vendored with its checksums.
func Run(ctx context.Context, ws workspace.Workspace, _ []string) error {
	var errs []error
	modules, err := ws.Modules()
	if err != nil {
		return err
	}
	for _, dir := range modules {
		if _, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"mod", "tidy", "-diff"}, Dir: filepath.Join(ws.Root, dir), Env: workspace.Environ()}); err != nil {
			errs = append(errs, fmt.Errorf("%s is not tidy; run go mod tidy there: %w", filepath.Join(dir, "go.mod"), err))
		}
	}
	errs = append(errs, verifyGenerated(ctx, ws), verifyScaffold(ctx, ws), verifyDocuments(ws), verifyVendored(ws))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("ok  modules, generated code, the scaffold of step 10, documents and vendored files")
	return nil
}

// limits are the lengths that the documents promise, in lines.
var limits = map[string]int{"README.md": 120, "CONTRIBUTING.md": 80}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#([^)]*))?\)`)

func verifyDocuments(ws workspace.Workspace) error {
	var errs []error
	steps, err := ws.Steps()
	if err != nil {
		return err
	}
	var lessons []string
	for _, s := range steps {
		for _, document := range s.Documents() {
			lessons = append(lessons, filepath.Join(s.Name, filepath.Base(document)))
		}
	}
	for _, name := range append([]string{"README.md", "CONTRIBUTING.md", trainersFile, glossaryFile}, lessons...) {
		data, err := os.ReadFile(filepath.Join(ws.Root, name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		text := string(data)
		if limit, ok := limits[name]; ok && strings.Count(text, "\n") > limit {
			errs = append(errs, fmt.Errorf("%s has %d lines, more than %d", name, strings.Count(text, "\n"), limit))
		}
		for _, m := range link.FindAllStringSubmatch(noProse.ReplaceAllString(text, ""), -1) { // code is full of brackets
			target := filepath.Join(ws.Root, filepath.Dir(name), m[1])
			if _, err := os.Stat(target); err != nil {
				errs = append(errs, fmt.Errorf("%s links to %s, which is not there", name, m[1]))
			} else if linked, err := os.ReadFile(target); m[2] != "" && filepath.Ext(target) == ".md" && err == nil && !proseOf(name, linked).within(-1, "section "+m[2]) {
				errs = append(errs, fmt.Errorf("%s links to %s#%s, a heading that is not there", name, m[1], m[2]))
			}
		}
	}
	errs = append(errs, verifyTrainers(ws, steps), verifyGlossary(ws, lessons))
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
		for _, document := range s.Documents() {
			errs = append(errs, verifyLesson(ws, s, document))
		}
		if !strings.Contains(string(data), fmt.Sprintf("make test-step N=%d", s.Number)) {
			errs = append(errs, fmt.Errorf("%s does not name its tests: make test-step N=%d", s.README(), s.Number))
		}
		errs = append(errs, verifyOwned(s))
		tests, err := filepath.Glob(filepath.Join(s.Dir, "*_test.go"))
		if err != nil || len(tests) == 0 {
			errs = append(errs, fmt.Errorf("%s has no tests", s.Name))
		}
	}
	return errors.Join(errs...)
}

// verifyLesson checks that something of a document is executed, and that the code that
// it shows is that of the files it names.
func verifyLesson(ws workspace.Workspace, s workspace.Step, document string) error {
	data, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	doc, err := readme.Parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	var errs []error
	if len(doc.Blocks) == 0 {
		errs = append(errs, fmt.Errorf("%s has no console block: nothing in it is executed", document))
	}
	_, drifted, err := readme.Excerpts(ws.Root, data)
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	for _, d := range drifted {
		errs = append(errs, fmt.Errorf("%s: %s; run make readme N=%d", document, d, s.Number))
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
