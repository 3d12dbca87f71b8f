package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// MutantsFile has the controllers that the judge itself is tried with.
const MutantsFile = Folder + "/mutants.yaml"

// A Mutant is a controller with one classic fault, and what the judge has to say of it.
type Mutant struct {
	Name     string // what is wrong with it
	Program  string // the package
	Args     string // beside its namespace
	Contract string
	Level    int
	Cases    string // a pattern of their names; all of the level if empty
	Edits    []Edit // of the program's files; none for a program that has to pass
	Says     string // what the diagnosis has to hold; nothing must be wrong if empty
}

// An Edit replaces a text that is in a file of a program, or of a package that it imports, once.
type Edit struct{ File, Old, New string }

// ReadMutants reads the file of a workspace.
func ReadMutants(ws workspace.Workspace) (all []Mutant, err error) {
	data, err := os.ReadFile(filepath.Join(ws.Root, filepath.FromSlash(MutantsFile)))
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", MutantsFile, err)
	}
	return all, nil
}

// overlay writes the changed files into a folder, and returns go's overlay file.
func (m Mutant) overlay(ws workspace.Workspace, dir string) (string, error) {
	replaced := map[string]string{}
	for _, e := range m.Edits {
		file := filepath.Join(ws.Root, filepath.FromSlash(m.Program), filepath.FromSlash(e.File))
		changed := replaced[file]
		if changed == "" {
			changed = filepath.Join(dir, fmt.Sprintf("%d-%s", len(replaced), filepath.Base(file)))
			replaced[file] = changed
		}
		source := changed
		if _, err := os.Stat(source); err != nil {
			source = file
		}
		data, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(data), e.Old); n != 1 {
			return "", fmt.Errorf("mutant %q: %s has its text %d times and not once: %s", m.Name, e.File, n, e.Old)
		}
		if err := os.WriteFile(changed, []byte(strings.Replace(string(data), e.Old, e.New, 1)), 0o644); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, data, 0o644)
}

// Told is what the judge has said of a mutant.
type Told struct {
	Mutant
	Failed []Result
	Asked  int // cases
}

// right returns an error if the judge has said nothing, or something else.
func (t Told) right() error {
	for _, r := range t.Failed {
		switch {
		case r.Verdict == unjudged:
			return fmt.Errorf("%s: case %s could not be judged: %s", t.Name, r.Case, r.Diagnosis)
		case t.Says == "":
			return fmt.Errorf("%s: case %s failed, and nothing is wrong: %s", t.Name, r.Case, r.Diagnosis)
		case !strings.Contains(r.Diagnosis, t.Says):
			return fmt.Errorf("%s: case %s said %q, want %q", t.Name, r.Case, r.Diagnosis, t.Says)
		}
	}
	if t.Says != "" && len(t.Failed) == 0 {
		return fmt.Errorf("%s: not found in %d cases", t.Name, t.Asked)
	}
	return nil
}

// TellMutants judges the mutants whose names match, and returns an error if one of them was
// not told by its own sentence. out shows how it goes on.
func TellMutants(ctx context.Context, ws workspace.Workspace, only string, seed uint64, out io.Writer) (told []Told, err error) {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return nil, unusable("MUTANT=%s: %w", only, err)
	}
	all, err := ReadMutants(ws)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m Mutant) bool { return !wanted.MatchString(m.Name) })
	if len(all) == 0 {
		return nil, unusable("MUTANT=%s matches none of those in %s", only, MutantsFile)
	}
	told, err = tell(ctx, ws, all, seed, out)
	errs := []error{err}
	for _, t := range told {
		errs = append(errs, t.right())
	}
	return told, errors.Join(errs...)
}

// tell judges mutants on one cluster.
func tell(ctx context.Context, ws workspace.Workspace, mutants []Mutant, seed uint64, out io.Writer) (told []Told, err error) {
	o := Options{Workspace: ws, Controller: "none", Seed: seed, contract: &Contract{}}
	l, err := openLab(ctx, o, out)
	defer func() { err = errors.Join(err, l.close()) }()
	if err != nil {
		return nil, err
	}
	for i, m := range mutants {
		folder, err := FindContract(ws, m.Contract)
		if err != nil {
			return told, err
		}
		if o.contract, err = Load(folder); err != nil {
			return told, err
		}
		l.asked.Name, l.contract = m.Contract, o.contract
		if err := l.learn(ctx); err != nil {
			return told, err
		}
		dir := filepath.Join(l.dir, fmt.Sprintf("mutant-%d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return told, err
		}
		overlay, err := m.overlay(ws, dir)
		if err != nil {
			return told, err
		}
		binary := filepath.Join(dir, path.Base(m.Program))
		if err := proc.Go(ctx, proc.Cmd{Args: []string{"build", "-buildvcs=false", "-overlay=" + overlay, "-o", binary, "./" + m.Program},
			Dir: ws.Root, Env: workspace.Environ()}); err != nil {
			return told, fmt.Errorf("mutant %q does not build: %w", m.Name, err)
		}
		args := strings.TrimSpace(" -namespace {{.Namespace}} " + m.Args)
		l.controller, l.asked.Controller = fmt.Sprintf("'%s' %s", binary, args), "go run ./"+m.Program+" "+args
		o.Level = m.Level
		if o.only, err = regexp.Compile(m.Cases); err != nil {
			return told, fmt.Errorf("mutant %q: %w", m.Name, err)
		}
		fmt.Fprintf(out, "\n--- %s (%s)\n", m.Name, m.Program)
		results, err := matrix(ctx, l, o, seed, out)
		if err != nil {
			return told, fmt.Errorf("mutant %q: %w", m.Name, err)
		}
		t := Told{Mutant: m, Asked: len(results)}
		for _, r := range results {
			if r.Verdict != passed {
				t.Failed = append(t.Failed, r)
			}
		}
		told = append(told, t)
		if err := os.Remove(binary); err != nil { // many of them would fill a small disk
			return told, err
		}
	}
	return told, nil
}

// MutantsTable is what was told, as Markdown.
func MutantsTable(told []Told) string {
	var b strings.Builder
	b.WriteString("| what is wrong | with | found by | the judge says |\n|---|---|---|---|\n")
	for _, t := range told {
		by, says := fmt.Sprintf("none of %d cases", t.Asked), "nothing"
		if len(t.Failed) > 0 {
			first := t.Failed[0]
			by, says = first.Case, first.Diagnosis
			if more := len(t.Failed) - 1; more > 0 {
				by += fmt.Sprintf(" and %d more", more)
			}
		}
		name := t.Name
		if t.Says == "" {
			name = "nothing"
		}
		fmt.Fprintf(&b, "| %s | [%s](../../%s) | %s | %s |\n", name, path.Base(t.Program), t.Program, by, strings.ReplaceAll(says, "|", `\|`))
	}
	return b.String()
}
