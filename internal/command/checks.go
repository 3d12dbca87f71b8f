package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/testrun"
	"github.com/k8s-go/workshop/internal/workspace"
)

// test runs the unit tests and every step's e2e tests, or those of one step,
// on one cluster.
func test(ctx context.Context, ws workspace.Workspace, args []string) error {
	pattern := "./..."
	if len(args) > 0 {
		s, err := ws.Step(strings.Join(args, " "))
		if err != nil {
			return err
		}
		pattern = "./" + s.Name + "/..."
	}
	// One mistake of each exercise is tried; another seed tries others.
	seed := os.Getenv(exercise.SeedEnv)
	if seed == "" {
		seed = strconv.Itoa(rand.IntN(1_000_000))
	}
	fmt.Printf("Exercises: make prove SEED=%s tries the same mistakes again, make prove all of them\n", seed)
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		packages, err := listTests(ctx, ws, pattern)
		if err != nil {
			return err
		}
		// Real containers take the processor that simulated ones leave to the tests.
		atOnce := 2
		if len(args) > 0 {
			atOnce = 4 // a step that is tested alone mostly waits for its own controllers
		}
		if containers, err := c.Containers(ctx); err != nil || containers {
			atOnce = 1
		}
		return runTests(ctx, ws, append(c.Environ(), exercise.SeedEnv+"="+seed), packages, atOnce)
	})
}

// testUnit runs the tests that need no cluster.
func testUnit(ctx context.Context, ws workspace.Workspace, _ []string) error {
	packages, err := listTests(ctx, ws, "./...")
	if err != nil {
		return err
	}
	return runTests(ctx, ws, workspace.Environ(), slices.DeleteFunc(packages, func(p testrun.Package) bool { return p.NeedsCluster }), 2)
}

// browserTests are compiled only where they can run: with this flag.
const browserTests = "-tags=browser"

// testBrowser clicks through the page of make web in a real browser.
func testBrowser(ctx context.Context, ws workspace.Workspace, _ []string) error {
	browser := findBrowser()
	if browser == nil {
		return errors.New("neither chromium nor google-chrome is on PATH: apt-get install chromium, and run make test-browser again")
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		return execute(ctx, ws, append(c.Environ(), browser...), "go", "test", browserTests, "-vet=off", "-count=1", "-timeout=20m", "-run=Browser", "./internal/web")
	})
}

// findBrowser returns the variable that names a browser to tests, if there is one.
func findBrowser() []string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if browser, err := exec.LookPath(name); err == nil {
			return []string{"WORKSHOP_BROWSER=" + browser}
		}
	}
	return nil
}

// chaos plays every fault to the controllers of step 06, on a cluster of its own:
// for so many seeds, or for one that is given. Or it ends the leader of step 07 that
// many times.
func chaos(ctx context.Context, ws workspace.Workspace, args []string) error {
	seeds, seed, failovers := args[0], args[1], args[2]
	if failovers != "" {
		return withCluster(ctx, ws, func(c *cluster.Cluster) error {
			return execute(ctx, ws, append(c.Environ(), "FAILOVERS="+failovers), "go", "test", "-vet=off", "-count=1", "-v", "-timeout=60m", "-run=^TestInCluster$", "./07-in-cluster")
		})
	}
	flags := []string{"-seeds", seeds}
	if seed != "" {
		flags = []string{"-seed", seed}
	}
	program := ws.Path("chaos", "chaos")
	if err := execute(ctx, ws, workspace.Environ(), "go", "build", "-o", program, "./06-controller/chaos"); err != nil {
		return err
	}
	return execute(ctx, ws, workspace.Environ(), program, flags...)
}

func listTests(ctx context.Context, ws workspace.Workspace, pattern string, flags ...string) ([]testrun.Package, error) {
	done := progress.Start(os.Stdout, "Compiling the tests")
	packages, err := testrun.List(ctx, ws.Root, pattern, flags...)
	done(err)
	return packages, err
}

func runTests(ctx context.Context, ws workspace.Workspace, env []string, packages []testrun.Package, atOnce int) error {
	return testrun.Run{Dir: ws.Root, Env: env, Out: os.Stdout, Lanes: testrun.Lanes(packages, atOnce)}.Tests(ctx)
}

// bench runs the benchmarks, one package after the other, on a cluster that
// nothing else uses.
func bench(ctx context.Context, ws workspace.Workspace, _ []string) error {
	packages, err := listTests(ctx, ws, "./...", browserTests)
	if err != nil {
		return err
	}
	args := []string{"test", browserTests, "-p=1", "-vet=off", "-run=^$", "-bench=.", "-timeout=60m"}
	for _, p := range packages {
		if p.Benchmarks {
			args = append(args, p.ImportPath)
		}
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		return execute(ctx, ws, append(c.Environ(), findBrowser()...), "go", args...)
	})
}

// lint checks form: gofmt, go vet, staticcheck, shellcheck and actionlint.
func lint(ctx context.Context, ws workspace.Workspace, _ []string) error {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		return fmt.Errorf("shellcheck is not on PATH: apt-get install shellcheck, or brew install shellcheck")
	}
	if err := tools.Build(ctx, ws, os.Stdout, "staticcheck", "actionlint"); err != nil {
		return err
	}
	goFiles, scripts, err := sources(ws)
	if err != nil {
		return err
	}
	packages, err := writtenPackages(ctx, ws)
	if err != nil {
		return err
	}
	output, err := proc.Output(ctx, proc.Cmd{Path: "gofmt", Args: append([]string{"-l"}, goFiles...)})
	if err != nil {
		return err
	}
	if len(output) > 0 {
		return fmt.Errorf("gofmt would change these files; run gofmt -w on them:\n%s", output)
	}
	fmt.Println("ok  gofmt")
	for _, check := range []struct {
		name    string
		command []string
	}{
		{"go vet", []string{"go", "vet", browserTests, "./..."}},
		{"staticcheck", append([]string{ws.Path("tools", "staticcheck"), browserTests}, packages...)},
		{"shellcheck", append([]string{shellcheck, "--external-sources", "--source-path=SCRIPTDIR"}, scripts...)},
		{"actionlint", []string{ws.Path("tools", "actionlint"), "-shellcheck=" + shellcheck, "-pyflakes="}},
	} {
		if err := execute(ctx, ws, workspace.Environ(), check.command[0], check.command[1:]...); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		fmt.Println("ok  " + check.name)
	}
	return nil
}

// writtenPackages lists the packages of the root module that people write. The
// generators of k8s.io/code-generator call what they themselves mark as deprecated.
func writtenPackages(ctx context.Context, ws workspace.Workspace) ([]string, error) {
	all, err := goList(ctx, ws, "./...")
	return slices.DeleteFunc(all, func(pkg string) bool {
		return strings.Contains(pkg, "/pkg/generated/")
	}), err
}

// goList returns the packages of the root module that match the patterns.
func goList(ctx context.Context, ws workspace.Workspace, patterns ...string) ([]string, error) {
	output, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: append([]string{"list"}, patterns...), Dir: ws.Root, Env: workspace.Environ()})
	return strings.Fields(output), err
}

// sources lists the Go files and the bash scripts of the clone.
func sources(ws workspace.Workspace) (goFiles, scripts []string, err error) {
	err = filepath.WalkDir(ws.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == ".workshop" || d.Name() == "node_modules" ||
				path == exercise.Work(ws) { // which is the learner's
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) == ".go" {
			goFiles = append(goFiles, path)
		} else if isBash(path) {
			scripts = append(scripts, path)
		}
		return nil
	})
	return goFiles, scripts, err
}

func isBash(path string) bool {
	if filepath.Ext(path) == ".sh" {
		return true
	}
	if filepath.Ext(path) != "" {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	line := make([]byte, 32)
	n, _ := f.Read(line)
	return strings.HasPrefix(string(line[:n]), "#!/usr/bin/env bash")
}
