package nodeimage

import (
	"archive/zip"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// clone makes a workspace with everything that a node image is made of.
func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	ws := workspace.Workspace{Root: t.TempDir()}
	testfile.WriteAll(t, ws.Root, map[string]string{
		"go.mod":                      "module " + workspace.Module + "\n\nrequire sigs.k8s.io/kind v0.33.0\n",
		"scripts/controlplane/go.mod": "module x\n\nrequire k8s.io/kubernetes v1.36.3\n",
		"scripts/controlplane/go.sum": "",
		"scripts/nodeimage/go.mod":    "module y\n",
		"scripts/nodeimage/go.sum":    "",
		"scripts/nodeimage/build.sh":  "true\n",
	})
	return ws
}

func mustStamp(t *testing.T, ws workspace.Workspace) string {
	t.Helper()
	s, err := stamp(ws)
	fatal.If(t, err)
	return s
}

// An image is out of date as soon as anything that it is made of has changed.
func TestStampKnowsEveryInput(t *testing.T) {
	for name, text := range map[string]string{
		"go.mod":                      "module " + workspace.Module + "\n\nrequire sigs.k8s.io/kind v0.34.0\n",
		"scripts/controlplane/go.mod": "module x\n\nrequire k8s.io/kubernetes v1.36.4\n",
		"scripts/controlplane/go.sum": "x",
		"scripts/nodeimage/go.mod":    "module y\n\ngo 1.26.0\n",
		"scripts/nodeimage/build.sh":  "false\n",
		"scripts/nodeimage/files/new": "",
	} {
		ws := clone(t)
		before := mustStamp(t, ws)
		if again := mustStamp(t, ws); again != before {
			t.Fatalf("two stamps of one tree: %s and %s", before, again)
		}
		testfile.Write(t, filepath.Join(ws.Root, name), text)
		if mustStamp(t, ws) == before {
			t.Errorf("the stamp does not change with %s", name)
		}
	}
	// What the root module requires beside kind does not reach the image.
	ws := clone(t)
	before := mustStamp(t, ws)
	testfile.Write(t, filepath.Join(ws.Root, "go.mod"), "module "+workspace.Module+"\n\nrequire (\n\tsigs.k8s.io/kind v0.33.0\n\texample.com/x v1.0.0\n)\n")
	if mustStamp(t, ws) != before {
		t.Error("the stamp changes with a module that is not in the image")
	}
}

// fakeEngine puts a docker on PATH that has an image with the label.
func fakeEngine(t *testing.T, label string) engine.Engine {
	t.Helper()
	dir := t.TempDir()
	testfile.Write(t, filepath.Join(dir, "docker"), "#!/bin/sh\n[ \"$1 $2\" = 'image inspect' ] && echo '"+label+"'\n")
	fatal.If(t, os.Chmod(filepath.Join(dir, "docker"), 0o755))
	t.Setenv("PATH", dir)
	return engine.Engine{Name: "docker"}
}

func TestCurrent(t *testing.T) {
	ws := clone(t)
	for label, want := range map[string]bool{mustStamp(t, ws): true, "of-other-pins": false, "": false} {
		if got, err := Current(t.Context(), ws, fakeEngine(t, label)); err != nil || got != want {
			t.Errorf("an image with the stamp %q: current %v, %v", label, got, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if got, err := Current(t.Context(), ws, engine.Engine{Name: "docker"}); err != nil || got {
		t.Errorf("no image: current %v, %v", got, err)
	}
}

func TestPossibleSaysWhatToDo(t *testing.T) {
	if err := Possible(engine.Engine{Name: "podman"}); err == nil || !strings.Contains(err.Error(), "CLUSTER=kwok") {
		t.Errorf("with podman: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root gets as far as the tools; run it as root")
	}
	t.Setenv("PATH", t.TempDir())
	if err := Possible(engine.Engine{Name: "docker"}); err == nil || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
		t.Errorf("without the tools: %v", err)
	}
}

// The first command of a fresh clone may need the source of a module that was
// never downloaded.
func TestModuleDirOfAModuleThatWasNeverDownloaded(t *testing.T) {
	proxy, cache, dir := t.TempDir(), t.TempDir(), t.TempDir()
	t.Cleanup(func() { // Go makes its module cache read-only
		_ = filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				return os.Chmod(path, 0o755)
			}
			return err
		})
	})
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{"go.mod": "module example.com/m\n", "images/base/files/x": "y"} {
		w, err := z.Create("example.com/m@v1.0.0/" + name)
		fatal.If(t, err)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	fatal.If(t, z.Close())
	versions := filepath.Join(proxy, "example.com", "m", "@v")
	testfile.Write(t, filepath.Join(versions, "v1.0.0.info"), `{"Version": "v1.0.0"}`)
	testfile.Write(t, filepath.Join(versions, "v1.0.0.mod"), "module example.com/m\n")
	testfile.Write(t, filepath.Join(versions, "v1.0.0.zip"), b.String())
	testfile.Write(t, filepath.Join(dir, "go.mod"), "module example.com/clone\n\ngo 1.26.0\n\nrequire example.com/m v1.0.0\n")
	for name, value := range map[string]string{"GOPROXY": "file://" + proxy, "GOMODCACHE": cache, "GONOSUMDB": "*"} {
		t.Setenv(name, value)
	}
	got, err := moduleDir(context.Background(), dir, "example.com/m")
	fatal.If(t, err)
	if data, err := os.ReadFile(filepath.Join(got, "images", "base", "files", "x")); err != nil || string(data) != "y" {
		t.Errorf("in %s: %q, %v", got, data, err)
	}
	if _, err := moduleDir(context.Background(), dir, "example.com/none"); err == nil || !strings.Contains(err.Error(), "example.com/none") {
		t.Errorf("a module that nobody has: %v", err)
	}
}
