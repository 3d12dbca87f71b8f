package doctor

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

func clone(t *testing.T, goVersion string) workspace.Workspace {
	t.Helper()
	ws := workspace.Workspace{Root: t.TempDir()}
	text := "module " + workspace.Module + "\n\ngo " + goVersion + "\n"
	fatal.If(t, os.WriteFile(filepath.Join(ws.Root, "go.mod"), []byte(text), 0o644))
	return ws
}

// fake returns a folder with tools that say this about themselves.
func fake(t *testing.T, says map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range says {
		script := "#!/bin/sh\nprintf '%s\\n' '" + text + "'\n"
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

// What the tools of real systems print first.
var (
	macOS = map[string]string{"go": "go version go1.999.0 darwin/arm64", "git": "git version 2.39.5", "jq": "jq-1.7.1-apple",
		"make": "GNU Make 3.81", "bash": "GNU bash, version 3.2.57(1)-release (arm64-apple-darwin24)", "curl": "curl 8.7.1 (x86_64-apple-darwin24.0) libcurl/8.7.1"}
	ubuntu2204 = map[string]string{"go": "go version go1.999.0 linux/amd64", "git": "git version 2.34.1", "jq": "jq-1.6",
		"make": "GNU Make 4.3", "bash": "GNU bash, version 5.1.16(1)-release (x86_64-pc-linux-gnu)", "curl": "curl 7.81.0 (x86_64-pc-linux-gnu) libcurl/7.81.0"}
	old = map[string]string{"go": "go version go1.19 linux/amd64", "git": "git version 1.8.3.1", "jq": "jq version 1.5",
		"make": "GNU Make 3.80", "bash": "GNU bash, version 4.3.0(1)-release", "curl": "curl 7.29.0 (x86_64-redhat-linux-gnu) libcurl/7.29.0"}
)

// script runs scripts/doctor.sh with only the given folder on PATH, as make doctor and
// RequireTools do. It must need no other program, and no new bash.
func script(t *testing.T, path string, args ...string) (output string, failed bool) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	fatal.If(t, err)
	ws, err := workspace.Find()
	fatal.If(t, err)
	cmd := exec.CommandContext(t.Context(), bash, append([]string{filepath.Join(ws.Root, "scripts", "doctor.sh")}, args...)...)
	cmd.Env = []string{"PATH=" + path}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), err != nil
}

func TestTools(t *testing.T) {
	for _, tc := range []struct {
		name string
		says map[string]string
		bad  []string
	}{
		{"macOS", macOS, []string{"bash"}},
		{"Ubuntu 22.04", ubuntu2204, nil},
		{"an old system", old, []string{"go", "bash", "make", "curl", "jq"}},
		{"an empty one", nil, []string{"go", "bash", "make", "git", "curl", "jq"}},
		{"one with versions of its own", map[string]string{"go": "go version go1.999.0", "git": "x", "jq": "jq-master", "make": "x", "bash": "x", "curl": "x"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			output, failed := script(t, fake(t, tc.says), "lacks")
			var got []string
			for line := range strings.Lines(output) {
				name, rest, _ := strings.Cut(line, ": ")
				got = append(got, name)
				if !strings.Contains(rest, "; install ") {
					t.Errorf("no way out in %q", line)
				}
			}
			if diff := cmp.Diff(tc.bad, got); diff != "" || failed != (tc.bad != nil) {
				t.Errorf("tools that are missing or too old (-want +got):\n%s\n%s\nfailed: %v", diff, output, failed)
			}
		})
	}
}

func TestToolThatFails(t *testing.T) {
	dir := fake(t, ubuntu2204)
	fatal.If(t, os.WriteFile(filepath.Join(dir, "jq"), []byte("#!/bin/sh\necho broken >&2; exit 1\n"), 0o755))
	if output, failed := script(t, dir, "lacks"); !failed || !strings.HasPrefix(output, "jq: ") || !strings.Contains(output, "broken; install a newer one") {
		t.Errorf("%s\nfailed: %v", output, failed)
	}
}

// Where Go is missing nothing can be built, and doctor says what there is to say.
func TestWithoutGo(t *testing.T) {
	output, failed := script(t, fake(t, nil))
	for _, want := range []string{"FAIL  go       no working go on PATH\n               -> install Go 1.", "error: 6 of 6 checks failed"} {
		if !failed || !strings.Contains(output, want) {
			t.Errorf("%q is missing:\n%s\nfailed: %v", want, output, failed)
		}
	}
}

func TestRequireTools(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	if err := RequireTools(t.Context(), ws); err != nil {
		t.Fatalf("on this machine: %v", err)
	}
	dir := fake(t, macOS)
	bash, err := exec.LookPath("bash")
	fatal.If(t, err)
	fatal.If(t, errors.Join(os.Remove(filepath.Join(dir, "bash")), os.Symlink(bash, filepath.Join(dir, "bash")), os.Remove(filepath.Join(dir, "jq"))))
	t.Setenv("PATH", dir)
	if err := RequireTools(t.Context(), ws); err == nil || err.Error() != "jq: not on PATH; step 01 reads JSON with it; install it: apt-get install jq, brew install jq, or your system's way" {
		t.Errorf("without jq: %v", err)
	}
}

func TestClusterIsTheOneAskedFor(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	t.Setenv("CLUSTER", "existing")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if f := choose(t.Context(), ws).kind(); !strings.HasPrefix(f.Detail, "existing: CLUSTER=existing") {
		t.Errorf("with CLUSTER=existing: %+v", f)
	}
	t.Setenv("CLUSTER", "nope")
	if f := choose(t.Context(), ws).kind(); !f.Fatal || !strings.Contains(f.Detail, "nope") {
		t.Errorf("with a CLUSTER that there is not: %+v", f)
	}
}

// A kind cluster that was asked for needs an engine; only a cluster that nobody asked for falls back to kwok.
func TestClusterThatCannotBe(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	t.Setenv("CLUSTER", "kind")
	t.Setenv("PATH", t.TempDir())
	if f := choose(t.Context(), ws).kind(); !f.Fatal || !strings.Contains(f.Detail, "docker") || f.Fix == "" {
		t.Errorf("%+v", f)
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	if err := Report(&out, []Finding{{Check: "a", Detail: "fine"}, {Check: "b", Detail: "hm", Fix: "could be better"}}, Count{Checks: 3}); err != nil {
		t.Errorf("a note alone fails: %v", err)
	}
	if err := Report(&out, []Finding{{Check: "a", Detail: "fine"}, {Check: "c", Detail: "bad", Fix: "mend it", Fatal: true}}, Count{Checks: 3, Failed: 1}); err == nil || !strings.Contains(err.Error(), "2 of 5") {
		t.Errorf("error = %v", err)
	}
	if !strings.Contains(out.String(), "-> mend it") {
		t.Errorf("the report does not say what to do:\n%s", out.String())
	}
}

// Offline, each thing that a cluster needs and that is not there is named, with the next
// step. The disk needs space for what is not there.
func TestPartsNamesWhatIsMissing(t *testing.T) {
	t.Setenv("CLUSTER", "kwok")
	own, err := workspace.Find()
	fatal.If(t, err)
	ws := clone(t, "1.26.0")
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(own.Root, "scripts", "controlplane", name))
		fatal.If(t, err)
		testfile.Write(t, filepath.Join(ws.Root, "scripts", "controlplane", name), string(data))
	}
	wantDisk := func(want string) {
		t.Helper()
		if f := disk(t.Context(), ws, choose(t.Context(), ws).builds()); !strings.Contains(f.Detail, want) {
			t.Errorf("disk: %+v, want %q", f, want)
		}
	}
	wantDisk("5.0 needed for the first build")
	f := choose(t.Context(), ws).parts()
	for _, want := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwokctl", "kubectl"} {
		if !f.Fatal || !strings.Contains(f.Detail, want) {
			t.Errorf("%s is not named: %+v", want, f)
		}
	}
	if !strings.Contains(f.Fix, "make unpack PACK=") {
		t.Errorf("the next step is not named: %+v", f)
	}
	stamp, err := pinned.ControlPlane.Stamp(ws)
	fatal.If(t, err)
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kwokctl", "kubectl", "etcd"} {
		if f := choose(t.Context(), ws).parts(); !f.Fatal {
			t.Errorf("without %s: %+v", name, f)
		}
		testfile.Write(t, ws.Bin(name), "")
		testfile.Write(t, ws.Bin(filepath.Join(".stamps", name)), stamp)
	}
	if f := choose(t.Context(), ws).parts(); f.Fatal || f.Fix != "" {
		t.Errorf("with all of them: %+v", f)
	}
	wantDisk("2.0 needed for the lessons")
	testfile.Write(t, ws.Bin(".stamps/etcd"), "of other pins")
	if f := choose(t.Context(), ws).parts(); !f.Fatal || !strings.Contains(f.Detail, "CLUSTER=kwok: etcd") {
		t.Errorf("with an outdated etcd: %+v", f)
	}
	wantDisk("5.0 needed for the first build")
}

func TestModulesNamesWhatIsMissing(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	t.Setenv("GOMODCACHE", t.TempDir())
	f := modules(t.Context(), ws)
	if !f.Fatal || !strings.Contains(f.Detail, "k8s.io/client-go v") || !strings.Contains(f.Fix, "make unpack PACK=") {
		t.Errorf("with an empty module cache: %+v", f)
	}
}
