package operatorsdk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
)

// A catalog is checked with the upgrade graph of its channels.
func TestCatalog(t *testing.T) {
	t.Parallel()
	p := newPackager(t)
	bundles := []string{p.bundle("0.1.0"), p.bundle("0.2.0")}
	catalog := func(p packager, entries string) (file string) {
		p.t.Helper()
		data, err := os.ReadFile("package.yaml")
		fatal.If(p.t, err)
		head, _, found := strings.Cut(string(data), "entries:\n")
		if !found {
			p.t.Fatal("package.yaml has no entries")
		}
		if entries != "" {
			data = []byte(head + "entries: " + entries + "\n")
		}
		file = filepath.Join(p.t.TempDir(), "package.yaml")
		fatal.If(p.t, os.WriteFile(file, data, 0o644))
		return file
	}

	said := p.ok(append([]string{"catalog", "-package", catalog(p, "")}, bundles...)...)
	for _, want := range []string{"schema: olm.package", "schema: olm.channel", "schema: olm.bundle", "image: workshop/icecream-bundle:v0.2.0", "type: olm.gvk", "type: olm.csv.metadata"} {
		if !strings.Contains(said, want) {
			t.Errorf("the catalog has no %q", want)
		}
	}
	whole := filepath.Join(t.TempDir(), "catalog.yaml")
	fatal.If(t, os.WriteFile(whole, []byte(said), 0o644))
	if said := p.ok("check", whole); !strings.Contains(said, "catalog.yaml is a valid catalog") {
		t.Errorf("of its own catalog, packager says:\n%s", said)
	}
	if said := p.ok(append([]string{"catalog", "-mermaid", "-package", catalog(p, "")}, bundles...)...); !strings.Contains(said, "-- replace -->") {
		t.Errorf("the graph has no edge:\n%s", said)
	}

	for name, tc := range map[string]struct{ entries, says string }{
		"a dead end": {"[{name: icecream.v0.1.0}, {name: icecream.v0.2.0}]", "multiple channel heads found in graph: icecream.v0.1.0, icecream.v0.2.0"},
		"a circle":   {"[{name: icecream.v0.1.0, replaces: icecream.v0.2.0}, {name: icecream.v0.2.0, replaces: icecream.v0.1.0}]", "no channel head found in graph"},
		"no bundle":  {"[{name: icecream.v0.1.0}, {name: icecream.v0.2.0, replaces: icecream.v0.1.0}, {name: icecream.v0.3.0, replaces: icecream.v0.2.0}]", "icecream.v0.3.0"},
		"not listed": {"[{name: icecream.v0.1.0}]", "icecream.v0.2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := p.in(t)
			p.fails(tc.says, append([]string{"catalog", "-package", catalog(p, tc.entries)}, bundles...)...)
		})
	}
	// Skipped is not left behind: who has 0.1.0 goes to 0.2.0 at once.
	p.ok(append([]string{"catalog", "-package", catalog(p, "[{name: icecream.v0.1.0}, {name: icecream.v0.2.0, skips: [icecream.v0.1.0]}]")}, bundles...)...)
}

// What cannot be done is said, with what to do.
func TestBadInput(t *testing.T) {
	t.Parallel()
	p := newPackager(t)
	dir := p.bundle("0.1.0")
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"bundle", "-version", "1", "-flavour", mint, filepath.Join(t.TempDir(), "b")}, "-version 1: No Major.Minor.Patch elements found"},
		{[]string{"bundle", "-version", "0.1.0", filepath.Join(t.TempDir(), "b")}, "-version and -flavour are needed"},
		{[]string{"bundle", "-version", "0.1.0", "-flavour", mint, dir}, "is not empty: remove it, or name another folder"},
		{[]string{"validate", t.TempDir()}, "is no bundle, because it has no folder manifests"},
		{[]string{"manifests", dir}, "-namespace is missing"},
		{[]string{"manifests", "-namespace", "a", "-target", "b,c", dir}, "does not support the install mode MultiNamespace"},
		{[]string{"check", "nowhere.yaml"}, "no such file"},
		{[]string{"scorecard", "-selector", "test=none", dir}, "no test has the labels test=none"},
	} {
		p.fails(tc.says, tc.args...)
	}
	for _, args := range [][]string{{}, {"bundel"}, {"validate"}, {"validate", "-such", dir}} {
		if r := p.run(args...); r.ExitCode != 2 || !strings.HasPrefix(r.Stderr, "usage: packager") {
			t.Errorf("packager %v: exit code %d, want 2 and the usage:\n%s", args, r.ExitCode, r.Stderr)
		}
	}
}
