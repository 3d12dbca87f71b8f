// Package newrepo writes the repository of a new controller. In the folder
// repository lies the whole of one, for a kind called Widget: a module that
// compiles, and is tested, where it is. Parts that a step teaches, such as its loop,
// are links to the step's own files. A new repository is a copy with other names.
package newrepo

import (
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
	"k8s.io/apimachinery/pkg/util/validation"
)

// source is where the repository lies, below the clone's root.
const source = "internal/newrepo/repository"

// Names are what a new repository is called.
type Names struct {
	Group  string // of the API: stable.example.org
	Kind   string // Widget
	Module string // the Go module; if empty, example.org/ and the name of the folder
}

// Create writes a repository into dir, which must be empty, have nothing but .git, or not be there, and
// returns its whole path. If it fails, it leaves nothing.
func Create(root, dir string, names Names) (string, error) {
	dir, err := target(root, dir)
	if err != nil {
		return "", err
	}
	if names.Module == "" {
		names.Module = "example.org/" + filepath.Base(dir)
	}
	if err := names.validate(); err != nil {
		return "", err
	}
	files, err := names.files(filepath.Join(root, source))
	if err != nil {
		return "", err
	}
	// Written beside its place and moved there, so that it is whole or not there. An empty
	// folder stays the one that it is, because a shell may stand in it.
	beside, move := filepath.Dir(dir), os.Rename
	if _, err := os.Stat(dir); err == nil {
		beside, move = dir, moveContent
	}
	temp, err := os.MkdirTemp(beside, ".new-")
	if err != nil {
		return "", fmt.Errorf("DIR: %w", err)
	}
	defer os.RemoveAll(temp)
	written := filepath.Join(temp, "repository") // with the permissions that umask leaves, unlike temp
	for name, f := range files {
		path := filepath.Join(written, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.text, f.mode)); err != nil {
			return "", fmt.Errorf("writing the repository: %w", err)
		}
	}
	if err := move(written, dir); err != nil {
		return "", fmt.Errorf("DIR: %w", err)
	}
	return dir, nil
}

// moveContent moves all that a folder holds into another one, or nothing.
func moveContent(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for i, entry := range entries {
		if err := os.Rename(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())); err != nil {
			for _, moved := range entries[:i] {
				err = errors.Join(err, os.RemoveAll(filepath.Join(to, moved.Name())))
			}
			return err
		}
	}
	return nil
}

// target returns the whole path of a folder, if a repository may be written there.
func target(root, dir string) (string, error) {
	if dir == "" {
		return "", errors.New("DIR is missing: the folder of the new repository, such as DIR=/path/to/widgets")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("DIR: %w", err)
	}
	// The last part may not exist yet; links in the others must not hide the clone.
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", fmt.Errorf("DIR: the folder above must exist: %w", err)
	}
	dir = filepath.Join(parent, filepath.Base(dir))
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(root, dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
		return "", fmt.Errorf("DIR: %s lies in the clone of the workshop; choose a folder outside of it", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("DIR: %w", err)
	}
	if slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return entry.Name() != ".git" }) { // git init, and a clone of nothing, come before
		return "", fmt.Errorf("DIR: %s is not empty", dir)
	}
	return dir, nil
}

// A kind has at most 40 letters, because names that Kubernetes limits to 63 are made of it.
var kind = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,39}$`)

// taken are the kinds whose Go type or resource would be there twice: those of the repository's
// own packages, and those that metav1.AddToGroupVersion registers in every group.
var taken = []string{"ConfigMap", "GroupVersion", "GroupVersionKind", "AddToScheme", "ConditionReady", "ReasonWritten", "ReasonNotOwned", "ReasonRefused",
	"WatchEvent", "ListOptions", "GetOptions", "DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions"}

// noStrings are the words that YAML 1.1 takes for a boolean or for nothing.
var noStrings = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

func (n Names) validate() error {
	if n.Group == "" || n.Kind == "" {
		return errors.New("GROUP or KIND is missing, such as GROUP=stable.example.org KIND=Widget")
	}
	if problems := validation.IsDNS1123Subdomain(n.Group); len(problems) > 0 {
		return fmt.Errorf("GROUP=%s: %s", n.Group, strings.Join(problems, "; "))
	}
	if !strings.Contains(n.Group, ".") {
		return fmt.Errorf("GROUP=%s: want a domain with a dot, such as stable.example.org", n.Group)
	}
	for _, own := range []string{".k8s.io", ".kubernetes.io"} {
		if strings.HasSuffix("."+n.Group, own) {
			return fmt.Errorf("GROUP=%s: groups below %s are those of Kubernetes itself", n.Group, own[1:])
		}
	}
	if !kind.MatchString(n.Kind) || strings.HasSuffix(n.Kind, "List") {
		return fmt.Errorf("KIND=%s: want one word in CamelCase with at most 40 letters and digits that does not end in List, such as Widget", n.Kind)
	}
	if slices.Contains(taken, n.Kind) || slices.Contains(noStrings, strings.ToLower(n.Kind)) {
		return fmt.Errorf("KIND=%s: Go, Kubernetes or YAML has another meaning for this word; choose another one, such as Widget", n.Kind)
	}
	if err := module.CheckPath(n.Module); err != nil {
		return fmt.Errorf("MODULE: %w; want a path such as github.com/me/widgets", err)
	}
	return nil
}

// replacer puts the new names in the place of those in the repository.
func (n Names) replacer() *strings.Replacer {
	return strings.NewReplacer(
		"example.org/widgets", n.Module,
		"stable.example.org", n.Group,
		"Widgets", plural(n.Kind), "Widget", n.Kind,
		"widgets", strings.ToLower(plural(n.Kind)), "widget", strings.ToLower(n.Kind))
}

// plural follows the rules of English that need no dictionary.
func plural(word string) string {
	lower := strings.ToLower(word)
	for _, end := range []string{"s", "x", "z", "ch", "sh"} {
		if strings.HasSuffix(lower, end) {
			return word + "es"
		}
	}
	if before, ok := strings.CutSuffix(word, "y"); ok && before != "" && !strings.ContainsAny(lower[len(lower)-2:len(lower)-1], "aeiou") {
		return before + "ies"
	}
	return word + "s"
}

type file struct {
	text []byte
	mode fs.FileMode
}

// files reads the repository and gives it its names.
func (n Names) files(dir string) (map[string]file, error) {
	names := n.replacer()
	files := map[string]file{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if rel == "bin" { // what make has built here
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Stat(name) // of what a link points to
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text = []byte(names.Replace(string(text)))
		if path.Ext(rel) == ".go" {
			if text, err = format.Source(text); err != nil { // other names, another order of the imports
				return fmt.Errorf("%s: %w", rel, err)
			}
		}
		files[names.Replace(rel)] = file{text, info.Mode().Perm()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the repository to copy: %w", err)
	}
	return files, nil
}
