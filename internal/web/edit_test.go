package web

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
)

// edit saves a text as the page does.
func (c *client) edit(name, text, hash string) (answer workFile, code int, says string) {
	c.t.Helper()
	body, err := json.Marshal(workFile{Text: text, Hash: hash})
	fatal.If(c.t, err)
	code, says = c.call("PUT", "/api/edit?path="+url.QueryEscape(name), string(body), nil)
	if code == http.StatusOK {
		fatal.If(c.t, json.Unmarshal([]byte(says), &answer))
	}
	return answer, code, says
}

// A learner's file is saved as gofmt writes it, with its mode, and never over what somebody
// else has written.
func TestEdit(t *testing.T) {
	ws := clone(t, "$ true")
	testfile.WriteAll(t, ws.Root, map[string]string{"work/01-one/a/main.go": "package main\n", "work/01-one/a/run.sh": "true\n"})
	c := serve(t, Options{Workspace: ws})
	const name = "work/01-one/a/main.go"
	disk := filepath.Join(ws.Root, name)
	fatal.If(t, errors.Join(os.Chmod(disk, 0o775), os.Symlink("run.sh", filepath.Join(filepath.Dir(disk), ".main.go.new"))))
	holds := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(disk); err != nil || string(got) != want {
			t.Errorf("the disk holds %q, want %q (%v)", got, want, err)
		}
	}
	var file workFile
	if code, text := c.call("GET", "/api/edit?path="+name, "", &file); code != http.StatusOK || file.Text != "package main\n" {
		t.Fatalf("reading: %d %s", code, text)
	}
	file, code, says := c.edit(name, "package main\nfunc  main( ){ }", file.Hash)
	const formatted = "package main\n\nfunc main() {}\n"
	if code != http.StatusOK || file.Text != formatted || file.Problem != "" {
		t.Fatalf("saving: %d %s", code, says)
	}
	holds(formatted)
	if info, err := os.Stat(disk); err != nil || info.Mode().Perm() != 0o775 {
		t.Errorf("the mode has changed: %v, %v", info.Mode(), err)
	}
	// What is not Go yet is saved, too, and the line is named.
	const broken = "package main\n\nfunc main() {\n"
	if file, code, says = c.edit(name, broken, file.Hash); code != http.StatusOK || file.Line != 3 || file.Problem == "" {
		t.Errorf("saving what is not Go: %d %s", code, says)
	}
	holds(broken)
	// Somebody else has written it since.
	fatal.If(t, os.WriteFile(disk, []byte("package other\n"), 0o775))
	if _, code, says := c.edit(name, formatted, file.Hash); code != http.StatusConflict || !strings.Contains(says, "nothing was saved") {
		t.Errorf("saving over another's change: %d %s", code, says)
	}
	holds("package other\n")
	// Somebody else has deleted it since, and no save brings it back.
	fatal.If(t, os.Remove(disk))
	if _, code, says := c.edit(name, formatted, hashOf("package other\n")); code != http.StatusNotFound {
		t.Errorf("saving what was deleted: %d %s", code, says)
	}
	if _, err := os.Stat(disk); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the deleted file is there again (%v)", err)
	}
	// A shell script stays as it was typed, and no save has written through the link beside the file.
	if code, text := c.call("GET", "/api/edit?path=work/01-one/a/run.sh", "", &file); code != http.StatusOK || file.Text != "true\n" {
		t.Fatalf("reading: %d %s", code, text)
	}
	if file, code, says = c.edit("work/01-one/a/run.sh", "if  true; then :; fi", file.Hash); code != http.StatusOK || file.Text != "if  true; then :; fi" {
		t.Errorf("saving a script: %d %s", code, says)
	}
	err := filepath.WalkDir(ws.Root, func(path string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".new") {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The page changes nothing but the learner's copies, however the path is written.
func TestEditStaysBelowWork(t *testing.T) {
	ws := clone(t, "$ true")
	outside := filepath.Join(t.TempDir(), "outside.go")
	testfile.WriteAll(t, ws.Root, map[string]string{"work/a/main.go": "package a\n", "work/a/.state.json": "{}", "work/a/binary": "\x00", "work/a/large": strings.Repeat("x", maxWork+1)})
	fatal.If(t, os.WriteFile(outside, []byte("package outside\n"), 0o644))
	for from, to := range map[string]string{"work/link.go": outside, "work/folder": filepath.Dir(outside), "work/inside.go": filepath.Join(ws.Root, "01-one", "main.go")} {
		fatal.If(t, os.Symlink(to, filepath.Join(ws.Root, from)))
	}
	c := serve(t, Options{Workspace: ws})
	ours, err := os.ReadFile(filepath.Join(ws.Root, "01-one", "main.go"))
	fatal.If(t, err)
	for name, code := range map[string]int{
		"01-one/main.go": http.StatusForbidden, "work/../01-one/main.go": http.StatusForbidden, "/work/a/main.go": http.StatusForbidden, "work//a/main.go": http.StatusForbidden,
		"work/a/.state.json": http.StatusForbidden, "work/.git/config": http.StatusForbidden, "": http.StatusForbidden, "work": http.StatusForbidden, "work/a": http.StatusForbidden,
		"work/link.go": http.StatusForbidden, "work/inside.go": http.StatusForbidden, "work/folder/outside.go": http.StatusNotFound, "work/a/new.go": http.StatusNotFound,
		"work/a/binary": http.StatusUnsupportedMediaType, "work/a/large": http.StatusUnsupportedMediaType,
	} {
		if got, text := c.call("GET", "/api/edit?path="+url.QueryEscape(name), "", nil); got != code || text == "" {
			t.Errorf("reading %q: %d %s", name, got, text)
		}
		for _, hash := range []string{"", hashOf(string(ours)), hashOf("package outside\n")} {
			if _, got, text := c.edit(name, "package hacked\n", hash); got != code || text == "" {
				t.Errorf("writing %q: %d %s", name, got, text)
			}
		}
	}
	for _, file := range []string{outside, filepath.Join(ws.Root, "01-one", "main.go")} {
		if data, err := os.ReadFile(file); err != nil || strings.Contains(string(data), "hacked") {
			t.Errorf("%s holds %q (%v)", file, data, err)
		}
	}
}
