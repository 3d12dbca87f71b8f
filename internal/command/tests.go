package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/mem"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/exercise/runner"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/testrun"
	"github.com/k8s-go/workshop/internal/workspace"
)

// test runs the unit tests and every step's e2e tests; on kwok on several clusters, see onFurther.
func test(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return testOnCluster(ctx, ws, "./...", 1, all)
}

// testE2E leaves out what would show nothing new on a second cluster: the unit tests, and
// those of the workshop's own machinery.
func testE2E(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return testOnCluster(ctx, ws, "./...", 1, func(p testrun.Package) bool { return p.NeedsCluster && ofAStep.MatchString(p.ImportPath) })
}

// ofAStep matches the packages in the numbered folders.
var ofAStep = regexp.MustCompile(`/\d\d-[a-z-]+(/|$)`)

func all(testrun.Package) bool { return true }

// clusters is how many kwok clusters the tests get, with a package each at a time. For almost
// half of a package's time its tests only wait, so two cores are busy with three of them.
func clusters() int {
	n := min(4, runtime.NumCPU()+1)
	// A control plane needs 0.6 GiB, and the programs, compilers and tests beside it as much.
	if m, err := mem.VirtualMemory(); err == nil {
		n = min(n, int(m.Available>>30))
	}
	return max(1, n)
}

// testStep runs one step's e2e tests. A step that is tested alone mostly waits for
// its own controllers, so more of it runs at once.
func testStep(ctx context.Context, ws workspace.Workspace, _ []string) error {
	s, err := ws.Step(os.Getenv("N"))
	if err != nil {
		return err
	}
	return testOnCluster(ctx, ws, "./"+s.Name+"/...", 4, all)
}

func testOnCluster(ctx context.Context, ws workspace.Workspace, pattern string, atOnce int, wanted func(testrun.Package) bool) error {
	// Of each exercise one wrong program is tried; another seed tries others.
	seed := os.Getenv(exercise.SeedEnv)
	if seed == "" {
		seed = strconv.Itoa(rand.IntN(1_000_000))
	}
	fmt.Printf("Exercises: make prove SEED=%s tries the same mistakes again, make prove all of them\n", seed)
	var chosen []string
	for _, of := range []struct{ variable, flag string }{{"ONLY", "-run="}, {"SKIP", "-skip="}} {
		names := os.Getenv(of.variable)
		if _, err := regexp.Compile(names); err != nil {
			return fmt.Errorf("%s is not a regular expression of tests: %w", of.variable, err)
		}
		if names != "" {
			fmt.Printf("Not all tests: %s=%s\n", of.variable, names)
			chosen = append(chosen, of.flag+names)
		}
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		packages, err := listTests(ctx, ws, pattern)
		if err != nil {
			return err
		}
		packages = slices.DeleteFunc(packages, func(p testrun.Package) bool { return !wanted(p) })
		var steps []string
		for _, p := range packages {
			step, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, workspace.Module+"/"), "/")
			steps = append(steps, step)
		}
		lesson.CompileModules(ctx, ws, steps, os.Stdout)
		run := func(jobs, seats [][]string) error {
			for i := range jobs {
				jobs[i] = append(slices.Clone(chosen), jobs[i]...)
			}
			return runJobs(ctx, ws, quickly(append(c.Environ(), exercise.SeedEnv+"="+seed)), jobs, seats)
		}
		definitions := 0
		for _, p := range packages {
			if p.Definitions {
				definitions++
			}
		}
		if c.Components() != nil && definitions > 1 {
			return onFurther(ctx, ws, clusters()-1, [][]string{nil}, func(seats [][]string) error { return run(testrun.Apart(packages, 6), seats) })
		}
		// Real containers take the processor that simulated ones leave to the tests.
		if containers, err := c.Containers(ctx); err != nil || containers {
			atOnce = min(1, runtime.NumCPU()/4)
		}
		return run(testrun.Lanes(packages, atOnce), nil)
	})
}

// onFurther calls f with seats for tests: those that there are, and n more with a kwok cluster
// each. On one cluster, packages that install definitions would have to wait for one another,
// and a control plane that runs as local processes is up in seconds.
func onFurther(ctx context.Context, ws workspace.Workspace, n int, seats [][]string, f func(seats [][]string) error) error {
	if n == 0 {
		return f(seats)
	}
	c, err := cluster.NewKwok(ws, fmt.Sprintf("tests-%d", len(seats)+1), cluster.KwokOptions{})
	if err != nil {
		return err
	}
	if err := c.Up(ctx, os.Stdout); err != nil {
		return err
	}
	c.Adopt() // if it was there, a run before was killed: nobody else makes one of this name
	return release(ctx, ws, c, func(c *cluster.Cluster) error {
		return onFurther(ctx, ws, n-1, append(seats, c.Environ()), f)
	})
}

// testUnit runs the tests that need no cluster.
func testUnit(ctx context.Context, ws workspace.Workspace, _ []string) error {
	packages, err := listTests(ctx, ws, "./...")
	if err != nil {
		return err
	}
	return runTests(ctx, ws, quickly(workspace.Environ()), slices.DeleteFunc(packages, func(p testrun.Package) bool { return p.NeedsCluster }), 2)
}

// racing are the packages with goroutines of their own, in their tests or in the
// programs that these start: the loop and the controllers, and what serves several
// requests at the same time.
const racing = "./06-controller/... ./07-in-cluster/... ./internal/exercise/check ./internal/faultproxy/... ./internal/poll ./internal/proc ./internal/web ./internal/xray/..."

// notRacing are those of their tests that start nothing else than the others do: lessons,
// programs with a mistake, what runs in pods, what is checked by a list, and two that
// send megabytes, for which the race detector takes minutes.
const notRacing = "-skip=^Test(README|WholeLessonInATerminal|LongLineIsBounded|MessagesAreBounded|Exercises|FindTheBugs|Guards|InCluster|RightsGranted.*|New.*|.*Sees?(TheWrong|AWrong|AnOld).*)$"

// testRace runs the tests that can race under the race detector, and builds the
// programs that they start with it.
func testRace(ctx context.Context, ws workspace.Workspace, _ []string) error {
	// See workspace.Environ.
	if err := errors.Join(os.Setenv("GOFLAGS", "-buildvcs=false -race"), os.Setenv("CGO_ENABLED", "1")); err != nil {
		return err
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		packages, err := listTests(ctx, ws, racing)
		if err != nil {
			return err
		}
		run := func(jobs, seats [][]string) error {
			for i := range jobs {
				jobs[i] = append([]string{notRacing}, jobs[i]...)
			}
			return runJobs(ctx, ws, c.Environ(), jobs, seats)
		}
		if c.Components() != nil {
			return onFurther(ctx, ws, min(1, clusters()-1), [][]string{nil}, func(seats [][]string) error { return run(testrun.Apart(packages, 8), seats) })
		}
		return run(testrun.Lanes(packages, 4), nil)
	})
}

// testBrowser clicks through the page of make web in a real browser.
func testBrowser(ctx context.Context, ws workspace.Workspace, _ []string) error {
	browser := findBrowser()
	if browser == nil {
		return errors.New("neither chromium nor google-chrome is on PATH: apt-get install chromium, and run make test-browser again")
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		return runJobs(ctx, ws, append(c.Environ(), browser...), [][]string{
			{workspace.BrowserTests, "-vet=off", "-count=1", "-timeout=20m", "-run=Browser", workspace.Module + "/internal/web"}}, nil)
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
func chaos(ctx context.Context, ws workspace.Workspace, _ []string) error {
	if failovers := os.Getenv("FAILOVERS"); failovers != "" {
		return withCluster(ctx, ws, func(c *cluster.Cluster) error {
			return execute(ctx, ws, append(c.Environ(), "FAILOVERS="+failovers), "go", "test", "-vet=off", "-count=1", "-v", "-timeout=60m", "-run=^TestInCluster$", "./07-in-cluster")
		})
	}
	flags := []string{"-seeds", cmp.Or(os.Getenv("SEEDS"), "1")}
	if seed := os.Getenv("SEED"); seed != "" {
		flags = []string{"-seed", seed}
	}
	program := ws.Path("chaos", "chaos")
	if err := goBuild(ctx, ws, program, "./cmd/chaos"); err != nil {
		return err
	}
	return execute(ctx, ws, workspace.Environ(), program, flags...)
}

// goBuild builds a program of the workshop's own; what go downloads for it is shown.
func goBuild(ctx context.Context, ws workspace.Workspace, program, pkg string) error {
	return proc.Go(ctx, proc.Cmd{Args: []string{"build", "-o", program, pkg}, Dir: ws.Root, Env: workspace.Environ(), Out: os.Stdout, Err: os.Stderr})
}

// judgeCluster is the cluster that was asked for. In a shell of ours, CLUSTER says what the lessons use; the judge
// has one of its own unless the command says otherwise: other controllers may work there, and it could stop no part.
func judgeCluster(ws workspace.Workspace) string {
	name := os.Getenv("CLUSTER")
	if insideOurs(ws) && !slices.Contains(strings.Fields(os.Getenv("MAKEFLAGS")), "CLUSTER="+name) {
		return ""
	}
	return name
}

// judgeController plays everything that can go wrong to any controller; see internal/judge.
// Its exit code is the judge's.
func judgeController(ctx context.Context, ws workspace.Workspace, _ []string) error {
	program := ws.Path("judge", "judge")
	if err := goBuild(ctx, ws, program, "./cmd/judge"); err != nil {
		return err
	}
	flags := []string{"-controller", os.Getenv("CONTROLLER"), "-contract", os.Getenv("CONTRACT"), "-case", os.Getenv("CASE"), "-cluster", judgeCluster(ws)}
	for _, name := range []string{"LEVEL", "SEEDS", "SEED", "REPLAY"} {
		if value := os.Getenv(name); value != "" {
			flags = append(flags, "-"+strings.ToLower(name), value)
		}
	}
	for _, name := range []string{"JSON", "SHRINK"} {
		if os.Getenv(name) != "" {
			flags = append(flags, "-"+strings.ToLower(name))
		}
	}
	err := proc.Run(ctx, proc.Cmd{Path: program, Args: flags, Dir: ws.Root, Env: workspace.Environ(), Out: os.Stdout, Err: os.Stderr,
		Grace: 4 * time.Minute}) // it takes up to three to leave somebody's cluster as it was
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() > 0 {
		return &runner.Exit{Code: ended.ExitCode()} // it has said why
	}
	return err
}

func listTests(ctx context.Context, ws workspace.Workspace, pattern string, flags ...string) ([]testrun.Package, error) {
	done := progress.Start(os.Stdout, "Compiling the tests")
	packages, err := testrun.List(ctx, ws.Root, pattern, flags...)
	done(err)
	return packages, err
}

func runTests(ctx context.Context, ws workspace.Workspace, env []string, packages []testrun.Package, atOnce int) error {
	return runJobs(ctx, ws, env, testrun.Lanes(packages, atOnce), nil)
}

// quickly has whatever tests start, most of which lives for seconds, collect garbage less often, unless
// env has its own say: that leaves a twentieth of the processor to others.
func quickly(env []string) []string { return append([]string{"GOGC=400", "GOMEMLIMIT=1GiB"}, env...) }

// runJobs runs the tests, of which ONLY has to name one. With RERUN set, as in CI, a few that fail run once more.
func runJobs(ctx context.Context, ws workspace.Workspace, env []string, jobs, seats [][]string) error {
	return testrun.Run{Dir: ws.Root, Env: env, Out: os.Stdout, Jobs: jobs, Seats: seats, Chosen: os.Getenv("ONLY") != "", Rerun: os.Getenv("RERUN") != ""}.Tests(ctx)
}

// bench runs the benchmarks, or those of one step, one package after the other, on a
// cluster that nothing else uses.
func bench(ctx context.Context, ws workspace.Workspace, _ []string) error {
	pattern := "./..."
	if want := os.Getenv("N"); want != "" {
		s, err := ws.Step(want)
		if err != nil {
			return err
		}
		pattern = "./" + s.Name + "/..."
	}
	packages, err := listTests(ctx, ws, pattern, workspace.BrowserTests)
	if err != nil {
		return err
	}
	args := []string{"test", workspace.BrowserTests, "-p=1", "-vet=off", "-run=^$", "-bench=.", "-timeout=60m"}
	benchmarks := 0
	for _, p := range packages {
		if p.Benchmarks {
			args = append(args, p.ImportPath)
			benchmarks++
		}
	}
	if benchmarks == 0 {
		return fmt.Errorf("%s has no benchmarks", pattern)
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		return execute(ctx, ws, append(c.Environ(), findBrowser()...), "go", args...)
	})
}

// prove runs the checks of exercises against all the mistakes that they know, of
// all steps or of one; with a seed, against those that make test tries with it.
func prove(ctx context.Context, ws workspace.Workspace, _ []string) error {
	run := "^" + exercise.TestName + "$"
	var steps []string
	if os.Getenv("N") != "" || os.Getenv("TASK") != "" {
		tasks, err := runner.NamedTasks(ws)
		if err != nil {
			return err
		}
		steps = []string{tasks[0].Step.Name}
		if os.Getenv("TASK") != "" {
			run += "/^" + tasks[0].Name + "$"
		}
	} else {
		tasks, err := exercise.All(ws)
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if !slices.Contains(steps, t.Step.Name) {
				steps = append(steps, t.Step.Name)
			}
		}
	}
	return withCluster(ctx, ws, func(c *cluster.Cluster) error {
		lesson.CompileModules(ctx, ws, steps, os.Stdout)
		packages := make([]testrun.Package, len(steps))
		for i, step := range steps {
			packages[i] = testrun.Package{ImportPath: "./" + step}
		}
		lanes := testrun.Lanes(packages, 1)
		for i := range lanes {
			lanes[i] = append([]string{"-run=" + run}, lanes[i]...)
		}
		env := append(c.Environ(), exercise.SeedEnv+"="+cmp.Or(os.Getenv("SEED"), "all"))
		return testrun.Run{Dir: ws.Root, Env: env, Out: os.Stdout, Jobs: lanes}.Tests(ctx) // a mistake that is found at the second try is not found
	})
}
