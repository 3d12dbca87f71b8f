package command

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// What is wrong with PORT or HOST is said before a cluster is started, with the next step.
func TestWebRefusesBadInput(t *testing.T) {
	clone(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	fatal.If(t, err)
	for _, tc := range []struct{ port, host, prefix, want string }{
		{"http", "", "", "use a number from 1024 to 65535"},
		{"0", "", "", "use a number from 1024 to 65535"},
		{"65536", "", "", "use a number from 1024 to 65535"},
		{port, "", "", "port " + port + ": listen tcp 127.0.0.1:" + port + ": bind: address already in use: choose another one from 1024 on with PORT="},
		{"", "learner.example.org", "", "HOST=https://learner-8080.example.org"},
		{"", "https://learner.example.org/", "", "give scheme, name and port"},
		{"", "https://*.example.org", "", "give scheme, name and port"},
		{"", "ws://learner.example.org", "", "give scheme, name and port"},
		{"", "https://me@learner.example.org", "", "give scheme, name and port"},
		{"", "", "Anna!", "WORKSHOP_PREFIX=Anna!"},
		{"", "", "", "CLUSTER=minikube is not known"}, // all of the above is well
		{"", "https://learner.example.org:8080", "anna", "CLUSTER=minikube is not known"},
	} {
		t.Setenv("PORT", tc.port)
		t.Setenv("HOST", tc.host)
		t.Setenv("WORKSHOP_PREFIX", tc.prefix)
		t.Setenv("CLUSTER", "minikube")
		if err := Run(t.Context(), []string{"web"}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("PORT=%s HOST=%s WORKSHOP_PREFIX=%s: error %v does not say %q", tc.port, tc.host, tc.prefix, err, tc.want)
		}
	}
}

func TestForwardedOrigin(t *testing.T) {
	for host, want := range map[string]string{
		"": "", "https://Learner.example.org": "https://learner.example.org", "https://learner.example.org:443": "https://learner.example.org",
		"http://learner.example.org:80": "http://learner.example.org", "http://learner.example.org:443": "http://learner.example.org:443",
		"http://localhost:8080": "http://localhost:8080", "https://[fd00::1]:8443": "https://[fd00::1]:8443",
	} {
		if origin, err := forwardedOrigin(host); origin != want || err != nil {
			t.Errorf("HOST=%s is the origin %q, want %q (%v)", host, origin, want, err)
		}
	}
}

// Other users of this machine read the command lines of its processes, and not this file.
func TestBrowserCommandLineHasNoToken(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("xdg-open is a program of Linux")
	}
	const address = "http://127.0.0.1:1/#token=SECRET"
	bin, dir := t.TempDir(), t.TempDir()
	said := filepath.Join(dir, "said")
	testfile.Write(t, filepath.Join(bin, "xdg-open"), "#!/bin/sh\necho \"$*\" >"+said+".new && mv "+said+".new "+said+"\n")
	fatal.If(t, os.Chmod(filepath.Join(bin, "xdg-open"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("DISPLAY", ":0")
	ws := workspace.Workspace{Root: dir}
	testfile.Write(t, ws.Path("x"), "")
	file := openBrowser(ws, address)
	var line string
	err := poll.Until(t.Context(), 10*time.Millisecond, time.Minute, func(context.Context) error {
		data, err := os.ReadFile(said)
		line = strings.TrimSpace(string(data))
		return err
	})
	fatal.If(t, err)
	info, err := os.Stat(file)
	fatal.If(t, err)
	page, err := os.ReadFile(file)
	if err != nil || line != file || info.Mode().Perm() != 0o600 || !strings.Contains(string(page), "url="+address+`"`) {
		t.Errorf("the browser was started with %q; file %s has the mode %s and says %s (%v)", line, file, info.Mode(), page, err)
	}
}

// A shell in a terminal of the page would go past the proxy, so there is none. Where
// the page has ended, the variable that it has left behind changes nothing.
func TestShellInATerminalOfThePage(t *testing.T) {
	dir := t.TempDir()
	clone(t)
	testfile.Write(t, filepath.Join(dir, "xray"), "")
	t.Setenv("CLUSTER", "minikube")
	for name, want := range map[string]string{"xray": "", "gone": "CLUSTER=minikube is not known"} {
		t.Setenv(report.Variable, filepath.Join(dir, name))
		var err error
		out := printed(t, func() { err = Run(t.Context(), []string{"shell"}) })
		if want == "" && (err != nil || !strings.HasPrefix(out, "This terminal is such a shell already")) {
			t.Errorf("make shell prints %q, %v", out, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("after the page has ended: %q, %v", out, err)
		}
	}
}
