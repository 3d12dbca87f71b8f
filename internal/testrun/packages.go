package testrun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Package is one that has tests.
type Package struct {
	ImportPath   string
	NeedsCluster bool // its tests use the test environment
	Definitions  bool // its tests install CustomResourceDefinitions, which are cluster-wide
	Benchmarks   bool
}

const (
	testEnvironment = workspace.Module + "/internal/testenv"
	definitionTests = workspace.Module + "/internal/crdtest"
)

// ofEnvironment are the packages that offer the test environment to others, and whose
// own tests do without it.
var ofEnvironment = []string{testEnvironment, workspace.Module + "/internal/exercise/check"}

// List compiles the packages that match the patterns, which have spaces between them,
// and returns those that have tests. The flags are those of go build. What a package
// needs is what its tests import, so there is no list to keep up to date.
func List(ctx context.Context, dir, patterns string, flags ...string) ([]Package, error) {
	type listed struct {
		ImportPath, Dir                 string
		Deps, TestGoFiles, XTestGoFiles []string
	}
	var output bytes.Buffer
	// -export compiles. Otherwise two lanes that start with an empty build cache
	// would both compile all of client-go. What does not compile go test will report.
	err := proc.Go(ctx, proc.Cmd{Dir: dir, Out: &output, Args: slices.Concat([]string{"list", "-e", "-export", "-test",
		"-json=ImportPath,Dir,Deps,TestGoFiles,XTestGoFiles"}, flags, strings.Fields(patterns))})
	if err != nil {
		return nil, fmt.Errorf("listing the packages with tests: %w", err)
	}
	var packages []Package
	byTest := map[string]listed{} // the package of "example.org/p.test"
	for decoder := json.NewDecoder(&output); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the output of go list: %w", err)
		}
		byTest[p.ImportPath+".test"] = p
		tested, isTest := byTest[p.ImportPath]
		if !isTest {
			continue
		}
		benchmarks, err := anyMatch(benchmark, tested.Dir, slices.Concat(tested.TestGoFiles, tested.XTestGoFiles))
		if err != nil {
			return nil, err
		}
		// What is compiled for this test is called "example.org/q [example.org/p.test]".
		uses := func(pkg string) bool {
			return slices.ContainsFunc(p.Deps, func(d string) bool { return d == pkg || strings.HasPrefix(d, pkg+" ") })
		}
		packages = append(packages, Package{
			ImportPath:   tested.ImportPath,
			NeedsCluster: !slices.Contains(ofEnvironment, tested.ImportPath) && uses(testEnvironment),
			Definitions:  uses(definitionTests),
			Benchmarks:   benchmarks,
		})
	}
}

var benchmark = regexp.MustCompile(`(?m)^func Benchmark`)

func anyMatch(re *regexp.Regexp, dir string, files []string) (bool, error) {
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || re.Match(data) {
			return err == nil, err
		}
	}
	return false, nil
}

// parallel is how many tests of a package run at the same time for each package
// that does. Most of them wait for the API server, so there may be more than cores.
const parallel = 3

// flags are those of every go test, with so many tests of a package at the same time.
// Vet is part of make lint, and the symbol table of no use: stack traces do without.
// -count=1: the cluster is an input that Go cannot see.
func flags(tests int) []string {
	return []string{fmt.Sprintf("-parallel=%d", tests), "-vet=off", "-ldflags=-s -w", "-count=1", "-timeout=30m"}
}

// Lanes sorts packages into jobs for Run that share one cluster. Packages with definitions
// take turns in one of them; beside it run atOnce of the others at a time, and with 0 of
// them before these.
func Lanes(packages []Package, atOnce int) [][]string {
	var shared, definitions []string
	for _, p := range packages {
		if p.Definitions {
			definitions = append(definitions, p.ImportPath)
		} else {
			shared = append(shared, p.ImportPath)
		}
	}
	if atOnce == 0 {
		shared, definitions = nil, slices.Concat(shared, definitions)
	}
	var lanes [][]string
	if len(shared) > 0 {
		lanes = append(lanes, slices.Concat(flags(parallel*max(atOnce, 1)), []string{fmt.Sprintf("-p=%d", atOnce)}, shared))
	}
	if len(definitions) > 0 {
		lanes = append(lanes, slices.Concat(flags(parallel*max(atOnce, 1)), []string{"-p=1"}, definitions))
	}
	return lanes
}

// Apart sorts packages into jobs for seats with a cluster each: first one for all that need none,
// two at a time, which keep the processor busy while the first of the others mostly wait; then one
// for each package that needs a cluster: what is no step, in which one test waits for long, and then
// the steps, from the last to the first, so that no long one is left for the end. Of each of these,
// so many tests run at the same time.
func Apart(packages []Package, tests int) [][]string {
	notAStep := func(p Package) int { return strings.Count(p.ImportPath, "/internal/") }
	packages = slices.SortedFunc(slices.Values(packages), func(a, b Package) int {
		return cmp.Or(cmp.Compare(notAStep(b), notAStep(a)), cmp.Compare(b.ImportPath, a.ImportPath))
	})
	var jobs [][]string
	none := append(flags(parallel), "-p=2")
	units := slices.Clone(none)
	for _, p := range packages {
		if p.NeedsCluster {
			jobs = append(jobs, append(flags(tests), p.ImportPath))
		} else {
			units = append(units, p.ImportPath)
		}
	}
	if len(units) > len(none) {
		jobs = slices.Insert(jobs, 0, units)
	}
	return jobs
}
