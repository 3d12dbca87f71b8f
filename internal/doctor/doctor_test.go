package doctor

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/workspace"
)

func clone(t *testing.T, goVersion string) workspace.Workspace {
	t.Helper()
	ws := workspace.Workspace{Root: t.TempDir()}
	text := "module " + workspace.Module + "\n\ngo " + goVersion + "\n"
	if err := os.WriteFile(filepath.Join(ws.Root, "go.mod"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return ws
}

func TestGoVersion(t *testing.T) {
	if f := goVersion(context.Background(), clone(t, "1.20")); f.Fatal || f.Fix != "" {
		t.Errorf("a Go that is new enough: %+v", f)
	}
	if f := goVersion(context.Background(), clone(t, "1.999.0")); !f.Fatal || !strings.Contains(f.Fix, "install Go 1.999.0") {
		t.Errorf("a Go that is too old: %+v", f)
	}
	t.Setenv("PATH", t.TempDir())
	if f := goVersion(context.Background(), clone(t, "1.20")); !f.Fatal || f.Fix == "" {
		t.Errorf("no Go: %+v", f)
	}
}

func TestMissingTool(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if f := onPath("jq", "reason"); !f.Fatal || !strings.Contains(f.Fix, "install jq") {
		t.Errorf("%+v", f)
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	if err := Report(&out, []Finding{{Check: "a", Detail: "fine"}, {Check: "b", Detail: "hm", Fix: "could be better"}}); err != nil {
		t.Errorf("a note alone fails: %v", err)
	}
	if err := Report(&out, []Finding{{Check: "a", Detail: "fine"}, {Check: "c", Detail: "bad", Fix: "mend it", Fatal: true}}); err == nil || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("error = %v", err)
	}
	if !strings.Contains(out.String(), "-> mend it") {
		t.Errorf("the report does not say what to do:\n%s", out.String())
	}
}
