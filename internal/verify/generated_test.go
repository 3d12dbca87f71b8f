package verify

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A copy of what generation reads is damaged in every way that counts. The
// check must name each damage, nothing else, and repair none.
func TestVerifyGeneratedFindsDrift(t *testing.T) {
	t.Parallel()
	clone, err := workspace.Find()
	fatal.If(t, err)
	ws := workspace.Workspace{Root: t.TempDir()}
	for _, name := range generateInputs {
		fatal.If(t, copyTree(filepath.Join(clone.Root, name), filepath.Join(ws.Root, name)))
	}
	// The generators are those of the clone, so that they are built once.
	fatal.If(t, os.MkdirAll(clone.Path("codegen"), 0o755))
	fatal.If(t, os.MkdirAll(ws.Path(), 0o755))
	fatal.If(t, os.Symlink(clone.Path("codegen"), ws.Path("codegen")))
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = ws.Root
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
	git("init", "--quiet")
	git("add", "--all")
	types := filepath.Join(ws.Root, "05-crd-go/pkg/apis/icecream/v1alpha1/types.go")
	text, err := os.ReadFile(types)
	fatal.If(t, err)
	changed := strings.Replace(string(text), "type IcecreamSpec struct {", "type IcecreamSpec struct {\n\t// +optional\n\tFlavour string `json:\"flavour,omitempty\"`\n", 1)
	stale := filepath.Join(ws.Root, "05-crd-go/pkg/generated/listers/policy/v1alpha1/old.go")
	role := filepath.Join(ws.Root, "10-kubebuilder/icecream/config/rbac/role.yaml")
	removed := filepath.Join(ws.Root, "05-crd-go/pkg/apis/policy/v1alpha1/zz_generated.deepcopy.go")
	for path, data := range map[string]string{types: changed, stale: "package v1alpha1\n", role: "kind: ClusterRole\n"} {
		fatal.If(t, os.WriteFile(path, []byte(data), 0o644))
	}
	fatal.If(t, os.Remove(removed))
	git("rm", "--quiet", "--cached", "05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	before, err := readTree(filepath.Join(ws.Root, "05-crd-go"))
	fatal.If(t, err)

	err = verifyGenerated(t.Context(), ws)
	if err == nil {
		t.Fatal("the damage was not found")
	}
	const untracked = "not in git; git add:\n  05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml\n  05-crd-go/pkg/generated/listers/policy/v1alpha1/old.go"
	if !strings.Contains(err.Error(), untracked) {
		t.Errorf("it does not say %q:\n%v", untracked, err)
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); strings.Contains(line, ": 05-crd-go/") || strings.Contains(line, ": 10-kubebuilder/") {
			got = append(got, line)
		}
	}
	want := []string{
		"differs: 05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml",
		"differs: 05-crd-go/pkg/generated/applyconfiguration/icecream/v1alpha1/icecreamspec.go",
		"differs: 05-crd-go/pkg/generated/applyconfiguration/internal/internal.go",
		"missing: 05-crd-go/pkg/apis/policy/v1alpha1/zz_generated.deepcopy.go",
		"no longer made: 05-crd-go/pkg/generated/listers/policy/v1alpha1/old.go",
		"differs: 10-kubebuilder/icecream/config/rbac/role.yaml",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-damaged +named):\n%s", diff)
	}
	after, err := readTree(filepath.Join(ws.Root, "05-crd-go"))
	fatal.If(t, err)
	if len(after) != len(before) {
		t.Errorf("%d files before, %d after the check", len(before), len(after))
	}
	for name, data := range before {
		if string(after[name]) != string(data) {
			t.Errorf("the check has changed %s", name)
		}
	}
}

func TestCompareTrees(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"want/tree/same": "1", "got/tree/same": "1",
		"want/tree/deep/other": "1", "got/tree/deep/other": "2",
		"want/tree/new": "", "got/tree/old": "",
	} {
		fatal.If(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	want, got := filepath.Join(dir, "want", "tree"), filepath.Join(dir, "got", "tree")
	differences, err := compareTrees(want, got)
	if diff := cmp.Diff([]string{"differs: tree/deep/other", "missing: tree/new", "no longer made: tree/old"}, differences); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	fatal.If(t, os.RemoveAll(got))
	fatal.If(t, copyTree(want, got))
	if differences, err := compareTrees(want, got); err != nil || len(differences) > 0 {
		t.Errorf("a copy differs from its original: %v %v", differences, err)
	}
}

// One version of Kubernetes for the lessons and for the generators.
func TestGeneratorsFitTheLibraries(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	library, err := ws.ModuleVersion("go.mod", "k8s.io/client-go")
	fatal.If(t, err)
	for _, module := range []string{"k8s.io/code-generator", "k8s.io/apimachinery"} {
		if got, err := ws.ModuleVersion("scripts/codegen/go.mod", module); err != nil || got != library {
			t.Errorf("scripts/codegen has %s %s (%v), the lessons use client-go %s", module, got, err, library)
		}
	}
	openapi, err := ws.ModuleVersion("go.mod", "k8s.io/kube-openapi")
	fatal.If(t, err)
	goMod, err := os.ReadFile(filepath.Join(ws.Root, "scripts/codegen/go.mod"))
	fatal.If(t, err)
	if want := "replace k8s.io/kube-openapi => k8s.io/kube-openapi " + openapi + "\n"; !strings.Contains(string(goMod), want) {
		t.Errorf("scripts/codegen/go.mod lacks the line\n%s", want)
	}
}

// The lessons and the control plane compile what both need once, because it has the
// same versions: on a new machine that is 840 of the lessons' 1,000 packages.
func TestTheControlPlaneHasTheVersionsOfTheLessons(t *testing.T) {
	t.Parallel()
	ws, err := workspace.Find()
	fatal.If(t, err)
	versions := func(goMod string) map[string]string {
		data, err := os.ReadFile(filepath.Join(ws.Root, goMod))
		fatal.If(t, err)
		f, err := modfile.Parse(goMod, data, nil)
		fatal.If(t, err)
		of := map[string]string{}
		for _, r := range f.Require {
			of[r.Mod.Path] = r.Mod.Version
		}
		for _, r := range f.Replace {
			of[r.Old.Path] = r.New.Version
		}
		return of
	}
	lessons, shared := versions("go.mod"), 0
	for module, version := range versions("scripts/controlplane/go.mod") {
		if want, ok := lessons[module]; ok {
			shared++
			if version != want {
				t.Errorf("scripts/controlplane has %s %s, the root module %s: go get the newer one in the other, then go mod tidy", module, version, want)
			}
		}
	}
	if shared < 50 {
		t.Errorf("only %d modules are in both", shared)
	}
}
