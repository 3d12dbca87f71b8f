// Package testfile writes the files of a test.
package testfile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

// Write writes a file, with the folders that it needs.
func Write(t testing.TB, path, text string) {
	t.Helper()
	fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
}

// WriteAll writes files below a folder. Their names have slashes.
func WriteAll(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		Write(t, filepath.Join(dir, filepath.FromSlash(name)), text)
	}
}

// CopyClone copies a clone of the workshop, without what is git's, the reader's or the cluster's.
func CopyClone(t testing.TB, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	fatal.If(t, err)
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case slices.Contains([]string{".git", ".workshop", "work"}, e.Name()):
		case e.IsDir():
			fatal.If(t, os.CopyFS(target, os.DirFS(source)))
		default:
			data, err := os.ReadFile(source)
			fatal.If(t, err)
			Write(t, target, string(data))
		}
	}
}
