package testrun

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/k8s-go/workshop/internal/fatal"
)

// What a package needs follows from what its tests import, directly or not.
func TestList(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const m = "github.com/k8s-go/workshop/"
	for name, text := range map[string]string{
		"go.mod":                        "module github.com/k8s-go/workshop\n\ngo 1.26\n",
		"internal/testenv/testenv.go":   "package testenv",
		"internal/testenv/unit_test.go": "package testenv",
		"internal/crdtest/crdtest.go":   "package crdtest\n\nimport _ \"" + m + "internal/testenv\"",
		"internal/crdtest/own_test.go":  "package crdtest_test\n\nimport (\n_ \"" + m + "internal/crdtest\"\n_ \"" + m + "internal/testenv\"\n)",
		"unit/unit.go":                  "package unit",
		"unit/unit_test.go":             "package unit\n\nimport \"testing\"\n\nfunc BenchmarkX(b *testing.B) {}",
		"outside/outside_test.go":       "package outside_test\n\nimport _ \"" + m + "internal/testenv\"",
		"types/types_test.go":           "package types\n\nimport _ \"" + m + "internal/crdtest\"",
		"program/main.go":               "package main\n\nfunc main() {}",
	} {
		path := filepath.Join(dir, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o755))
		fatal.If(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	packages, err := List(t.Context(), dir, "./...")
	fatal.If(t, err)
	want := []Package{
		{ImportPath: m + "internal/crdtest", NeedsCluster: true, Definitions: true},
		{ImportPath: m + "internal/testenv"},
		{ImportPath: m + "outside", NeedsCluster: true},
		{ImportPath: m + "types", NeedsCluster: true, Definitions: true},
		{ImportPath: m + "unit", Benchmarks: true},
	}
	slices.SortFunc(packages, func(a, b Package) int { return slices.Compare([]string{a.ImportPath}, []string{b.ImportPath}) })
	if diff := cmp.Diff(want, packages); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	one, err := List(t.Context(), dir, "./types/...")
	if diff := cmp.Diff(want[3:4], one); err != nil || diff != "" {
		t.Errorf("one package: %v (-want +got):\n%s", err, diff)
	}
	two, err := List(t.Context(), dir, "./types/... ./unit")
	if diff := cmp.Diff(want[3:], two); err != nil || diff != "" {
		t.Errorf("two patterns: %v (-want +got):\n%s", err, diff)
	}
	lanes := Lanes(packages, 2)
	if len(lanes) != 2 || !slices.Contains(lanes[0], m+"unit") || !slices.Equal(lanes[1][len(lanes[1])-2:], []string{m + "internal/crdtest", m + "types"}) {
		t.Errorf("lanes %q: packages with definitions must share one, and no other", lanes)
	}
	lanes = Lanes(packages, 0)
	if len(lanes) != 1 || !slices.Contains(lanes[0], "-p=1") || !slices.Contains(lanes[0], m+"unit") || !slices.Contains(lanes[0], m+"types") {
		t.Errorf("lanes %q: with nothing beside the definitions there must be one", lanes)
	}
}

// Each package that needs a cluster is a job, after one for all the others: first what is no step, and then the last step before the first.
func TestApart(t *testing.T) {
	t.Parallel()
	const m = "github.com/k8s-go/workshop/"
	var got [][]string
	for _, job := range Apart([]Package{{ImportPath: m + "02-two", NeedsCluster: true}, {ImportPath: m + "02-two/unit"}, {ImportPath: m + "10-ten", NeedsCluster: true, Definitions: true},
		{ImportPath: m + "internal/outside", NeedsCluster: true}, {ImportPath: m + "internal/unit"}}, 4) {
		got = append(got, slices.DeleteFunc(job, func(arg string) bool { return arg[0] == '-' }))
	}
	if diff := cmp.Diff([][]string{{m + "internal/unit", m + "02-two/unit"}, {m + "internal/outside"}, {m + "10-ten"}, {m + "02-two"}}, got); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	if jobs := Apart([]Package{{ImportPath: m + "01-one", NeedsCluster: true}}, 4); len(jobs) != 1 {
		t.Errorf("jobs %q", jobs)
	}
}
