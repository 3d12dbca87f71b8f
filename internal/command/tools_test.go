package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// Whatever comes first, it says that a tool is too old, and nothing else happens.
func TestFirstCommandNamesTheOldTool(t *testing.T) {
	dir := t.TempDir()
	curl := "#!/bin/sh\necho 'curl 7.29.0 (x86_64-redhat-linux-gnu) libcurl/7.29.0'\n"
	fatal.If(t, os.WriteFile(filepath.Join(dir, "curl"), []byte(curl), 0o755))
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("CLUSTER", "existing")
	t.Setenv(report.Variable, "") // also where the tests run in a terminal of make web
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	for _, command := range []string{"up", "shell", "tour", "step", "readme", "test-step"} {
		t.Setenv("N", map[bool]string{true: "", false: "1"}[command == "tour"]) // it takes all steps
		err := Run(context.Background(), []string{command})
		if err == nil || !strings.HasPrefix(err.Error(), "curl: ") || !strings.Contains(err.Error(), "7.76") ||
			!strings.Contains(err.Error(), "install") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line about curl", command, err)
		}
	}
}

func TestLessonShell(t *testing.T) {
	for own, want := range map[string]string{
		"/usr/bin/zsh": "/usr/bin/zsh", "/opt/homebrew/bin/bash": "/opt/homebrew/bin/bash",
		"/usr/bin/fish": "bash", "/bin/bash": "bash", "/bin/sh": "bash", "": "bash",
	} {
		if got := lessonShell(own); got != want {
			t.Errorf("lessonShell(%q) = %q, want %q", own, got, want)
		}
	}
}

// In a shell of ours, CLUSTER is no wish of whoever types make judge.
func TestJudgeCluster(t *testing.T) {
	ws := workspace.Workspace{Root: "/clone"}
	for name, tc := range map[string]struct{ cluster, kubeconfig, xray, flags, want string }{
		"nothing":              {"", "", "", "", ""},
		"asked for":            {"kind", "/home/me/.kube/config", "", "", "kind"},
		"make shell":           {"kwok", "/clone/.workshop/kwok/kubeconfig", "", "", ""},
		"make web":             {"kwok", "/tmp/workshop-web-1/kubeconfig", "/tmp/x", "", ""},
		"asked for in a shell": {"kwok", "/clone/.workshop/kwok/kubeconfig", "", "s -- CONTRACT=mirror CLUSTER=kwok", "kwok"},
	} {
		for variable, value := range map[string]string{"CLUSTER": tc.cluster, "KUBECONFIG": tc.kubeconfig, report.Variable: tc.xray, "MAKEFLAGS": tc.flags} {
			t.Setenv(variable, value)
		}
		if got := judgeCluster(ws); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
