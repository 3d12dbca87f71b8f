package operatorsdk

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most tests wait for the server, not for a core
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }

// A packager runs this step's program.
type packager struct {
	*testenv.Env
	t       *testing.T
	program string
}

func newPackager(t *testing.T) packager {
	t.Helper()
	e := testenv.New(t)
	return packager{e, t, e.Program("./11-operator-sdk/packager")}
}

// in is for a subtest.
func (p packager) in(t *testing.T) packager { return packager{p.For(t), t, p.program} }

func (p packager) run(args ...string) testenv.Result {
	p.t.Helper()
	path := filepath.Dir(p.Program("./11-operator-sdk/packager/scoretests")) + ":" + filepath.Join(p.Workspace().Root, "11-operator-sdk", "scorecard")
	return p.Run(testenv.Command{Path: p.program, Args: args, Env: []string{"PATH=" + path + ":" + filepath.Dir(p.Workspace().Bin("kubectl")) + ":" + os.Getenv("PATH")}})
}

// ok runs a command that has to succeed, and returns what it prints.
func (p packager) ok(args ...string) string {
	p.t.Helper()
	r := p.run(args...)
	if r.ExitCode != 0 {
		p.t.Fatalf("packager %s: exit code %d\n%s%s", strings.Join(args, " "), r.ExitCode, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// fails runs a command that has to find something, and to say it.
func (p packager) fails(text string, args ...string) {
	p.t.Helper()
	if r := p.run(args...); r.ExitCode != 1 || !strings.Contains(r.Stdout+r.Stderr, text) {
		p.t.Errorf("packager %s: exit code %d, want 1 and %q:\n%s%s", strings.Join(args, " "), r.ExitCode, text, r.Stdout, r.Stderr)
	}
}

// bundle writes the bundle of a version: 0.1.0 has mint, and 0.2.0 replaces it and has lime.
func (p packager) bundle(version string) (dir string) {
	p.t.Helper()
	dir = filepath.Join(p.t.TempDir(), version)
	args := []string{"bundle", "-version", version, "-flavour", mint}
	if version == "0.2.0" {
		args = []string{"bundle", "-version", version, "-flavour", lime, "-replaces", "icecream.v0.1.0"}
	}
	p.ok(append(args, dir)...)
	return dir
}
