package command

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/xray/report"
)

// What is wrong with PORT or HOST is said before a cluster is started, with the next step.
func TestWebRefusesBadInput(t *testing.T) {
	clone(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ port, host, prefix, want string }{
		{"http", "", "", "use a number from 1024 to 65535"},
		{"0", "", "", "use a number from 1024 to 65535"},
		{"65536", "", "", "use a number from 1024 to 65535"},
		{port, "", "", "port " + port + ": listen tcp 127.0.0.1:" + port + ": bind: address already in use: choose another one from 1024 on with PORT="},
		{"", "https://learner.example.org/", "", "give the name in the address of the forwarded port"},
		{"", "localhost", "", "leave HOST out"},
		{"", "127.0.0.1:8080", "", "leave HOST out"},
		{"", "", "Anna!", "WORKSHOP_PREFIX=Anna!"},
		{"", "", "", "CLUSTER=minikube is not known"}, // all of the above is well
		{"", "learner.example.org:8080", "anna", "CLUSTER=minikube is not known"},
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

// A shell in a terminal of the page would go past the proxy, so there is none. Where
// the page has ended, the variable that it has left behind changes nothing.
func TestShellInATerminalOfThePage(t *testing.T) {
	dir := t.TempDir()
	clone(t)
	write(t, filepath.Join(dir, "xray"), "")
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
