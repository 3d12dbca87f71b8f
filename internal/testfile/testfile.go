// Package testfile writes the files of a test.
package testfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Write writes a file, with the folders that it needs.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// WriteAll writes files below a folder. Their names have slashes.
func WriteAll(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		Write(t, filepath.Join(dir, filepath.FromSlash(name)), text)
	}
}
