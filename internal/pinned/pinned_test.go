package pinned

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

// clone makes a workspace with a nested module of two small tools.
func clone(t *testing.T) (workspace.Workspace, Tools) {
	t.Helper()
	ws := workspace.Workspace{Root: t.TempDir()}
	main := "package main\n\nfunc main() {}\n"
	testfile.WriteAll(t, ws.Root, map[string]string{
		"scripts/controlplane/go.mod": "module x\n\nrequire k8s.io/kubernetes v1.36.3\n",
		"scripts/small/go.mod":        "module example.com/small\n\ngo 1.26.0\n\ntool (\n\texample.com/small/one\n\texample.com/small/two\n)\n",
		"scripts/small/go.sum":        "",
		"scripts/small/one/main.go":   main,
		"scripts/small/two/main.go":   main,
	})
	return ws, Tools{Module: "scripts/small", Dir: "small"}
}

func mustBuild(t *testing.T, ws workspace.Workspace, s Tools, names ...string) string {
	t.Helper()
	var out bytes.Buffer
	fatal.If(t, s.Build(context.Background(), ws, &out, names...))
	return out.String()
}

func TestBuildOnlyWhatPinsChanged(t *testing.T) {
	ws, s := clone(t)
	if out := mustBuild(t, ws, s, "one"); !strings.Contains(out, "[1/1] one") {
		t.Errorf("progress does not name the binary:\n%s", out)
	}
	if out := mustBuild(t, ws, s); !strings.Contains(out, "[1/1] two") || strings.Contains(out, "one") {
		t.Errorf("want only the missing binary built:\n%s", out)
	}
	if out := mustBuild(t, ws, s); out != "" {
		t.Errorf("a second build is not silent:\n%s", out)
	}
	for _, name := range []string{"one", "two"} {
		if err := exec.Command(ws.Path("small", name)).Run(); err != nil {
			t.Error(err)
		}
	}
	testfile.Write(t, filepath.Join(ws.Root, "scripts/small/go.sum"), "\n")
	if out := mustBuild(t, ws, s); !strings.Contains(out, "[2/2] two") {
		t.Errorf("changed pins, want both built:\n%s", out)
	}
	fatal.If(t, os.Remove(ws.Path("small", "one")))
	if out := mustBuild(t, ws, s); !strings.Contains(out, "[1/1] one") {
		t.Errorf("a binary was removed, want it built:\n%s", out)
	}
}

func TestBuildFailures(t *testing.T) {
	ws, s := clone(t)
	testfile.Write(t, filepath.Join(ws.Root, "scripts/small/two/main.go"), "package main\n\nfunc main() { undefined() }\n")
	err := s.Build(context.Background(), ws, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "building two") || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("error %v does not show what the compiler says", err)
	}
	if left, _ := filepath.Glob(ws.Path("small", ".*.new")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Build(ctx, ws, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: error = %v", err)
	}

	s.NeedsFree = 1 << 62
	if err := s.Build(context.Background(), ws, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "not enough space") {
		t.Errorf("full disk: error = %v", err)
	}
	s.NeedsFree = 0
	t.Setenv("PATH", t.TempDir())
	if err := s.Build(context.Background(), ws, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("no go: error = %v", err)
	}
}

func TestBuildsWaitForEachOther(t *testing.T) {
	ws, s := clone(t)
	mustBuild(t, ws, s)
	fatal.If(t, os.Remove(ws.Path("small", "one")))
	l := flock.New(ws.Path("small", ".lock"))
	if ok, err := l.TryLock(); !ok || err != nil {
		t.Fatalf("nobody builds: %v, %v", ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if err := s.Build(ctx, ws, &out); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(out.String(), "waiting") {
		t.Errorf("beside another build: %v, and said %q", err, out.String())
	}
	fatal.If(t, l.Close())
	if out := mustBuild(t, ws, s); !strings.Contains(out, "[1/1] one") {
		t.Errorf("after it:\n%s", out)
	}
}

// The last element of a path is no name where it is the major version of a module.
func TestNames(t *testing.T) {
	for tool, want := range map[string]string{
		"sigs.k8s.io/kind":                               "kind",
		"sigs.k8s.io/kubebuilder/v4":                     "kubebuilder",
		"go.etcd.io/etcd/server/v3/etcd":                 "etcd",
		"gopkg.in/tool.v2":                               "tool",
		"github.com/rhysd/actionlint/cmd/actionlint":     "actionlint",
		"sigs.k8s.io/controller-tools/cmd/controller-v2": "controller-v2",
	} {
		if got := nameOf(tool); got != want {
			t.Errorf("%s: %q, want %q", tool, got, want)
		}
	}
}
