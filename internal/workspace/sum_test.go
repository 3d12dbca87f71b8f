package workspace

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

func TestSum(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		testfile.WriteAll(t, root, map[string]string{file: text})
	}
	sum := func() string {
		t.Helper()
		s, err := Sum(root, filepath.Join(root, "work"))
		fatal.If(t, err)
		return s
	}
	write("a/main.go", "package main")
	before := sum()
	for _, file := range []string{"a/README.md", ".git/config", ".workshop/x.go", "a/node_modules/x.js", "work/x.go"} {
		if write(file, "x"); sum() != before {
			t.Errorf("%s counts", file)
		}
	}
	for _, file := range []string{"a/main.go", "b/go.mod", "a/work/x.go", "a/data.svg"} {
		if write(file, "x"); sum() == before {
			t.Errorf("%s does not count", file)
		}
		before = sum()
	}
	fatal.If(t, os.Rename(filepath.Join(root, "b"), filepath.Join(root, "c")))
	if sum() == before {
		t.Error("another name does not count")
	}
}
