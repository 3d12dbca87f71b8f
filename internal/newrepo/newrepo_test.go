package newrepo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/k8s-go/workshop/internal/fatal"
)

const root = "../.."

func TestRefuses(t *testing.T) {
	full := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o644))
	link := filepath.Join(t.TempDir(), "link")
	clone, err := filepath.Abs(root)
	fatal.If(t, err)
	fatal.If(t, os.Symlink(clone, link))
	parent := t.TempDir()
	dir := filepath.Join(parent, "widgets")
	for _, tc := range []struct {
		group, kind, dir, module string
		says                     string
	}{
		{"", "Widget", dir, "", "GROUP or KIND is missing"},
		{"stable.example.org", "", dir, "", "GROUP or KIND is missing"},
		{"stable.example.org", "Widget", "", "", "DIR is missing"},
		{"stable", "Widget", dir, "", "a domain with a dot"},
		{"Stable.example.org", "Widget", dir, "", "lowercase"},
		{"stable..example.org", "Widget", dir, "", "RFC 1123"},
		{"apps.k8s.io", "Widget", dir, "", "of Kubernetes itself"},
		{"k8s.io", "Widget", dir, "", "of Kubernetes itself"},
		{"stable.example.org", "widget", dir, "", "CamelCase"},
		{"stable.example.org", "Wid-get", dir, "", "CamelCase"},
		{"stable.example.org", "Wídget", dir, "", "CamelCase"},
		{"stable.example.org", "WidgetList", dir, "", "CamelCase"},
		{"stable.example.org", "ConfigMap", dir, "", "another meaning"},
		{"stable.example.org", "ListOptions", dir, "", "another meaning"},
		{"stable.example.org", "Off", dir, "", "another meaning"},
		{"stable.example.org", "Y", dir, "", "another meaning"},
		{"stable.example.org", strings.Repeat("W", 41), dir, "", "at most 40"},
		{"stable.example.org", "Widget", dir, "widgets", "github.com/me/widgets"},
		{"stable.example.org", "Widget", dir, "github.com/me/../widgets", "github.com/me/widgets"},
		{"stable.example.org", "Widget", filepath.Join(parent, "my widgets"), "", "MODULE"},
		{"stable.example.org", "Widget", full, "", "is not empty"},
		{"stable.example.org", "Widget", filepath.Join(full, "file"), "", "not a directory"},
		{"stable.example.org", "Widget", filepath.Join(parent, "none", "widgets"), "", "the folder above must exist"},
		{"stable.example.org", "Widget", root + "/widgets", "", "lies in the clone"},
		{"stable.example.org", "Widget", root, "", "lies in the clone"},
		{"stable.example.org", "Widget", link + "/work", "", "lies in the clone"},
	} {
		_, err := Create(root, tc.dir, Names{Group: tc.group, Kind: tc.kind, Module: tc.module})
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("GROUP=%s KIND=%s DIR=%s MODULE=%s: %v; want %q", tc.group, tc.kind, tc.dir, tc.module, err, tc.says)
		}
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The names are unlike those in the repository, and unlike in length and order.
func TestTheNamesAreTheNewOnes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "exits")
	fatal.If(t, os.MkdirAll(filepath.Join(dir, ".git"), 0o755)) // such a folder is fine, and stays the one in which a shell may stand
	before, err := os.Stat(dir)
	fatal.If(t, err)
	if _, err := Create(root, dir, Names{Group: "doors.example.net", Kind: "EmergencyExit", Module: "zoo.example.com/exits"}); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(dir); err != nil || !os.SameFile(before, after) {
		t.Errorf("the folder is another one (%v)", err)
	}
	old := regexp.MustCompile(`(?i)widget|stable\.example|workshop|k8s-go|06-controller|07-in-cluster`)
	absolute, err := filepath.Abs(root)
	fatal.If(t, err)
	var names []string
	fatal.If(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		names = append(names, rel)
		if !entry.Type().IsRegular() {
			t.Errorf("%s is not a file", rel)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for n, line := range strings.Split(rel+"\n"+string(text), "\n") {
			if strings.Contains(line, "CLONE") { // says where the judge is
				continue
			}
			if old.MatchString(line) || strings.Contains(line, absolute) {
				t.Errorf("%s:%d: %s", rel, n, line)
			}
		}
		return nil
	}))
	for _, name := range []string{"go.mod", ".gitignore", "api/v1alpha1/zz_generated.deepcopy.go", "cmd/emergencyexit-controller/lease.go",
		"config/crd/doors.example.net_emergencyexits.yaml", "internal/loop/loop_test.go", "LICENSE"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing among %q", name, names)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "hack", "test.sh")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("hack/test.sh cannot be run: %v, %v", info, err)
	}
}

func TestPlural(t *testing.T) {
	for word, want := range map[string]string{"Widget": "Widgets", "Policy": "Policies", "Gateway": "Gateways", "Box": "Boxes", "Bus": "Buses", "Branch": "Branches", "Y": "Ys"} {
		if got := plural(word); got != want {
			t.Errorf("the plural of %s is %s, want %s", word, got, want)
		}
	}
}

// Names of Go's, and of what the repository's own files call something else.
func TestKindsThatAreOtherNames(t *testing.T) {
	for _, kind := range []string{"Switch", "Interface", "Quota", "Store", "Client", "Loop"} {
		dir := filepath.Join(t.TempDir(), "new")
		if _, err := Create(root, dir, Names{Group: "doors.example.net", Kind: kind, Module: "zoo.example.com/new"}); err != nil {
			t.Errorf("KIND=%s: %v", kind, err)
			continue
		}
		lower := strings.ToLower(kind)
		for _, folder := range []string{"internal/controller", "e2e"} {
			files, err := filepath.Glob(filepath.Join(dir, folder, "*.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %v, %v", folder, files, err)
			}
			for _, file := range files {
				f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
				fatal.If(t, err)
				ast.Inspect(f, func(n ast.Node) bool {
					if d, ok := n.(*ast.FuncDecl); ok && d.Name.Name == lower {
						t.Errorf("KIND=%s: %s declares %s", kind, filepath.Base(file), lower)
					}
					return true
				})
			}
		}
	}
}

// A kind becomes a Go type of the API's package, so what that package declares under other names is refused.
func TestKindsThatTheAPIDeclares(t *testing.T) {
	for _, file := range []string{"types.go", "register.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, source, "api/v1alpha1", file), nil, 0)
		fatal.If(t, err)
		for name := range f.Scope.Objects {
			if kind.MatchString(name) && !strings.HasPrefix(name, "Widget") && !slices.Contains(taken, name) {
				t.Errorf("KIND=%s would be there twice", name)
			}
		}
	}
}

// A new repository uses what the workshop is tested with, and needs no download
// where the workshop needs none.
func TestTheVersionsAreThoseOfTheWorkshop(t *testing.T) {
	requires := func(file string) map[string]string {
		text, err := os.ReadFile(filepath.Join(root, file))
		fatal.If(t, err)
		mod, err := modfile.Parse(file, text, nil)
		fatal.If(t, err)
		versions := map[string]string{"go": mod.Go.Version}
		for _, r := range mod.Require {
			versions[r.Mod.Path] = r.Mod.Version
		}
		for _, r := range mod.Replace {
			versions[r.Old.Path] = r.New.Version
		}
		return versions
	}
	workshop, codegen := requires("go.mod"), requires("scripts/codegen/go.mod")
	for _, tc := range []struct {
		file string
		from []map[string]string
	}{
		{source + "/go.mod", []map[string]string{workshop}},
		{source + "/hack/go.mod", []map[string]string{codegen, workshop}}, // the generator's go before those of kind
	} {
		for path, version := range requires(tc.file) {
			for _, from := range tc.from {
				if want := from[path]; want != "" {
					if version != want {
						t.Errorf("%s requires %s %s, the workshop %s", tc.file, path, version, want)
					}
					break
				}
			}
		}
	}
	makefile, err := os.ReadFile(filepath.Join(root, source, "Makefile"))
	fatal.If(t, err)
	if want := "staticcheck@" + requires("scripts/tools/go.mod")["honnef.co/go/tools"] + "\n"; !strings.Contains(string(makefile), want) {
		t.Errorf("the Makefile does not name %s", want)
	}
}
