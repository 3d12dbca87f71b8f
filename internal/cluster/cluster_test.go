package cluster

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/workspace"
)

func clone(t *testing.T) workspace.Workspace {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return workspace.Workspace{Root: root}
}

func TestSelectUnknown(t *testing.T) {
	_, _, err := Select(context.Background(), clone(t), "minikube")
	if err == nil || !strings.Contains(err.Error(), "kwok, ") || !strings.Contains(err.Error(), "existing") {
		t.Errorf("error %v does not list what there is", err)
	}
}

func TestSelectNeverTakesSomebodysCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "kubeconfig"))
	p, _, err := Select(context.Background(), clone(t), "")
	if err != nil || p.Name() == "existing" {
		t.Errorf("Select = %v, %v", p, err)
	}
}

func TestExisting(t *testing.T) {
	ws := clone(t)
	e := &existing{ws}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("HOME", t.TempDir())

	if err := e.up(context.Background(), io.Discard); err == nil || !strings.Contains(err.Error(), "set KUBECONFIG") {
		t.Errorf("no kubeconfig: error %v does not say what to do", err)
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: one\ncontexts: [{name: one, context: {cluster: one}}, {name: two, context: {cluster: two}}]\n" +
		"clusters: [{name: one, cluster: {server: 'https://127.0.0.1:1'}}, {name: two, cluster: {server: 'https://127.0.0.1:2'}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.up(context.Background(), io.Discard); err == nil || !strings.Contains(err.Error(), "context one: https://127.0.0.1:1 does not answer") {
		t.Errorf("server down: error = %v", err)
	}
	if _, err := os.Stat(ws.State("existing")); !os.IsNotExist(err) {
		t.Errorf("a connection that failed has left files behind (%v)", err)
	}
	if after, err := os.ReadFile(kubeconfig); err != nil || string(after) != text {
		t.Errorf("the user's kubeconfig was changed (%v)", err)
	}
}

func TestDownOfNothing(t *testing.T) {
	ws := clone(t)
	for _, p := range All(ws) {
		var out bytes.Buffer
		if err := Down(context.Background(), ws, p, &out); err != nil || out.Len() > 0 {
			t.Errorf("%s: %v, output %q", p.Name(), err, out.String())
		}
		if state, detail := p.State(context.Background()); state != Absent {
			t.Errorf("%s is %s (%s)", p.Name(), state, detail)
		}
	}
}

// Processes are ours if they run from our bin folder, however they came to
// be there, and only then.
func TestKillProcesses(t *testing.T) {
	ws := clone(t)
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(ws.Bin(""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ws.Bin("etcd"), sleep, 0o755); err != nil {
		t.Fatal(err)
	}
	start := func(path string) (ended chan error) {
		cmd := exec.Command(path, "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		ended = make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		return ended
	}
	ours, theirs := start(ws.Bin("etcd")), start("/bin/sleep")
	// A new build replaces the binary while the old one runs.
	if err := os.Remove(ws.Bin("etcd")); err != nil {
		t.Fatal(err)
	}

	running, err := processes(context.Background(), ws)
	if err != nil || len(running) != 1 || len(running["etcd"]) != 1 {
		t.Fatalf("processes = %v, %v", running, err)
	}
	if missing := missingComponents(running); len(missing) != len(kwokComponents)-1 {
		t.Errorf("missing components: %v", missing)
	}
	if err := killProcesses(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ours:
	case <-time.After(5 * time.Second):
		t.Error("our process still runs")
	}
	select {
	case <-theirs:
		t.Error("a process of somebody else was ended")
	default:
	}
}

func TestLockWaits(t *testing.T) {
	ws := clone(t)
	unlock, err := lock(context.Background(), ws, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if _, err := lock(ctx, ws, &out); err == nil || !strings.Contains(out.String(), "waiting") {
		t.Errorf("a second lock: %v, output %q", err, out.String())
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = lock(context.Background(), ws, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestEnviron(t *testing.T) {
	ws := clone(t)
	t.Setenv("KUBECONFIG", "/somewhere/else")
	p := &kwok{ws}
	env := map[string][]string{}
	for _, kv := range Environ(ws, p) {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = append(env[name], value)
	}
	if got := env["KUBECONFIG"]; len(got) != 1 || got[0] != p.Kubeconfig() {
		t.Errorf("KUBECONFIG = %v", got)
	}
	if got := env["PATH"]; len(got) != 1 || !strings.HasPrefix(got[0], ws.Bin("")) {
		t.Errorf("PATH = %v does not start with the workshop's kubectl", got)
	}
	if got := env["KUBECACHEDIR"]; len(got) != 1 || !strings.HasPrefix(got[0], ws.Root) {
		t.Errorf("KUBECACHEDIR = %v is outside the clone", got)
	}
}

func TestSkew(t *testing.T) {
	for _, tc := range []struct {
		server, clientGo string
		note             bool
	}{
		{"v1.36.3", "v0.36.3", false},
		{"v1.35.8", "v0.36.3", false},
		{"v1.37.0", "v0.36.3", false},
		{"v1.34.11+k3s1", "v0.36.3", true},
		{"v1.38.0-alpha.1", "v0.36.3", true},
		{"unknown", "v0.36.3", true},
	} {
		if note := skew(tc.server, tc.clientGo); (note != "") != tc.note {
			t.Errorf("skew(%s, %s) = %q", tc.server, tc.clientGo, note)
		}
	}
}

// A pin names the minor version that chooses it, and carries its digest.
func TestNodeImagesArePinned(t *testing.T) {
	for minor, image := range nodeImages {
		if !strings.HasPrefix(image, "kindest/node:v"+minor+".") || !strings.Contains(image, "@sha256:") {
			t.Errorf("K8S_VERSION=%s is pinned to %s", minor, image)
		}
	}
}

func TestKindFailureIsShort(t *testing.T) {
	ws := clone(t)
	t.Setenv("PATH", t.TempDir()) // no container engine
	k := &kind{ws}
	err := k.explain(context.Background(), "create cluster", os.ErrDeadlineExceeded, bytes.Repeat([]byte("noise\n"), 10_000))
	if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "the container engine went away") {
		t.Errorf("error = %.600v", err)
	}
	if log, err := os.ReadFile(ws.State("logs", "kind.log")); err != nil || len(log) != 60_000 {
		t.Errorf("kind's output was not kept: %d bytes, %v", len(log), err)
	}
}
