package lesson

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/k8s-go/workshop/internal/workspace"
)

// PrefixVariable lets several people share one cluster: with WORKSHOP_PREFIX=anna,
// the namespace of a lesson is anna-workshop-01 in place of workshop-01.
const PrefixVariable = "WORKSHOP_PREFIX"

// A Prefix is what somebody's namespaces begin with: "anna-", or "" for nobody's.
type Prefix string

// Namespaces are DNS labels. The outputs of the lessons have room for 16 characters.
var prefixPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?$`)

// ParsePrefix takes the value of PrefixVariable, with or without a dash at its end.
func ParsePrefix(value string) (Prefix, error) {
	name := strings.TrimSuffix(value, "-")
	if value == "" {
		return "", nil
	}
	if !prefixPattern.MatchString(name) {
		return "", fmt.Errorf("%s=%s cannot begin the name of a namespace: use at most 16 small letters, digits and dashes, such as anna", PrefixVariable, value)
	}
	return Prefix(name + "-"), nil
}

// Environ is what programs and scripts of the lessons put before their namespaces.
func (p Prefix) Environ() string { return PrefixVariable + "=" + string(p) }

// Namespace is the namespace that a step's README creates, works in and deletes:
// "workshop-01" for step 1.
func (p Prefix) Namespace(s workspace.Step) string {
	return fmt.Sprintf("%sworkshop-%02d", p, s.Number)
}

// Check returns why a step cannot share a cluster, if the prefix says that it should.
func (p Prefix) Check(s workspace.Step) error {
	owned, err := Owns(s)
	if err != nil || p == "" || len(owned) == 0 {
		return err
	}
	return fmt.Errorf("step %d needs a cluster for each person: it installs definitions, and a cluster has one definition of a name for everybody; unset %s, and start one with make up CLUSTER=kwok", s.Number, PrefixVariable)
}

// Documents returns the step's documents, the lesson first, as somebody with this prefix
// reads and runs them. Those are copies below .workshop, and so is each YAML file that
// names the namespace. Programs and scripts are the same for everybody, and look at
// PrefixVariable.
func (p Prefix) Documents(ws workspace.Workspace, s workspace.Step) ([]string, error) {
	if p == "" {
		return s.Documents(), nil
	}
	if err := p.Check(s); err != nil {
		return nil, err
	}
	namespace := Prefix("").Namespace(s)
	names := []string{} // of the copies, before the namespace: a path is replaced as a whole
	dir := ws.Path("prefix", strings.TrimSuffix(string(p), "-"))
	err := filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(data), namespace) {
			return err
		}
		name, err := filepath.Rel(ws.Root, path)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(ws.Root, dir)
		if err != nil {
			return err
		}
		names = append(names, filepath.ToSlash(name), filepath.ToSlash(filepath.Join(below, name)))
		return write(filepath.Join(dir, name), strings.ReplaceAll(string(data), namespace, p.Namespace(s)))
	})
	if err != nil {
		return nil, fmt.Errorf("copying the files of %s: %w", s.Name, err)
	}
	replace := strings.NewReplacer(append(names, namespace, p.Namespace(s))...).Replace
	var copies []string
	for _, document := range s.Documents() {
		text, err := os.ReadFile(document)
		if err != nil {
			return nil, err
		}
		own := filepath.Join(dir, s.Name, filepath.Base(document))
		if err := write(own, replace(string(text))); err != nil {
			return nil, err
		}
		copies = append(copies, own)
	}
	return copies, nil
}

// write leaves alone what is right already, and a command that reads the file does not see half of it.
func write(file, text string) error {
	if old, err := os.ReadFile(file); err == nil && string(old) == text {
		return nil
	}
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), workspace.WriteWhole(file, []byte(text), 0o644))
}
