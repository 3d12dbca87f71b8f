// Package command holds the commands of the Makefile: clusters, lessons and tests.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-go/workshop/internal/board"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/doctor"
	"github.com/k8s-go/workshop/internal/exercise/runner"
	"github.com/k8s-go/workshop/internal/kubebuilder"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/lint"
	"github.com/k8s-go/workshop/internal/nodeimage"
	"github.com/k8s-go/workshop/internal/offline"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/verify"
	"github.com/k8s-go/workshop/internal/workspace"
	"github.com/k8s-go/workshop/internal/xray/report"
)

var commands = map[string]func(ctx context.Context, ws workspace.Workspace, args []string) error{
	"up":           up,
	"down":         down,
	"status":       status,
	"shell":        shell,
	"doctor":       examine,
	"pack":         makePack,
	"board":        showBoard,
	"trainers":     verify.WriteTrainers,
	"tour":         tour,
	"step":         step,
	"readme":       updateREADME,
	"logs":         logs,
	"node-image":   nodeImage,
	"image":        controllerImage,
	"new":          newRepository,
	"test":         test,
	"test-step":    testStep,
	"test-unit":    testUnit,
	"test-e2e":     testE2E,
	"test-browser": testBrowser,
	"test-race":    testRace,
	"chaos":        chaos,
	"judge":        judgeController,
	"bench":        bench,
	"exercise":     runner.Begin,
	"check":        runner.Check,
	"watch":        runner.Watch,
	"hint":         runner.Hint,
	"solution":     runner.Solution,
	"reset":        runner.Reset,
	"progress":     runner.ShowProgress,
	"prove":        prove,
	"web":          serveWeb,
	"kubebuilder":  kubebuilder.Print,
	"lint":         lint.Run,
	"verify":       verify.Run,
}

// Run runs one command of the Makefile.
func Run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("this is called by the Makefile; type make for what there is")
	}
	ws, err := workspace.Find()
	if err != nil {
		return err
	}
	// make passes variables in the environment; a person may write them here, as for make.
	for _, arg := range args[1:] {
		if name, value, ok := strings.Cut(arg, "="); ok {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
	}
	return commands[args[0]](ctx, ws, args[1:])
}

// choose returns the cluster that CLUSTER asks for, or the best there is.
func choose(ctx context.Context, ws workspace.Workspace) (*cluster.Cluster, error) {
	c, why, err := cluster.Select(ctx, ws, os.Getenv("CLUSTER"))
	if err != nil {
		return nil, err
	}
	fmt.Printf("Cluster: %s (%s)\n", c.Name(), why)
	return c, nil
}

// chooseUp returns that cluster when it is up. It says first what this machine
// lacks, before the cluster or a lesson stumbles over it.
func chooseUp(ctx context.Context, ws workspace.Workspace) (*cluster.Cluster, error) {
	c, err := choose(ctx, ws)
	if err != nil {
		return nil, err
	}
	if err := doctor.RequireTools(ctx, ws); err != nil {
		return nil, err
	}
	return c, c.Up(ctx, os.Stdout)
}

// keepUp is chooseUp for a command that leaves the cluster there when it ends, unless a shell or a test
// of ours runs it, which has a cluster already.
func keepUp(ctx context.Context, ws workspace.Workspace) (*cluster.Cluster, error) {
	c, err := chooseUp(ctx, ws)
	if err != nil || insideOurs(ws) {
		return c, err
	}
	return c, c.Keep()
}

// insideOurs says whether this command runs in make shell, a terminal of make web, a lesson or a test.
func insideOurs(ws workspace.Workspace) bool {
	return strings.HasPrefix(os.Getenv("KUBECONFIG"), ws.Path("")) || os.Getenv(report.Variable) != ""
}

// withCluster calls f with a cluster that is up. One that was not there before
// is removed afterwards, also when f fails or is interrupted.
func withCluster(ctx context.Context, ws workspace.Workspace, f func(c *cluster.Cluster) error) error {
	c, err := chooseUp(ctx, ws)
	if err != nil {
		return err
	}
	return release(ctx, ws, c, f)
}

// release calls f with a cluster that is up, and removes the cluster if Up has made it.
func release(ctx context.Context, ws workspace.Workspace, c *cluster.Cluster, f func(c *cluster.Cluster) error) (err error) {
	defer func() { err = errors.Join(err, c.Release(ctx, os.Stdout)) }()
	err = f(c)
	if err != nil && ctx.Err() == nil && c.Created() {
		// They would go with the cluster. The error that counts is that of f.
		if exportErr := exportLogs(ctx, ws, c); exportErr != nil {
			fmt.Fprintf(os.Stderr, "Note: %v\n", exportErr)
		}
	}
	return err
}

func exportLogs(ctx context.Context, ws workspace.Workspace, c *cluster.Cluster) error {
	dir := ws.Path("logs", c.Name())
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := c.ExportLogs(ctx, dir); err != nil {
		return fmt.Errorf("exporting the cluster's logs: %w", err)
	}
	fmt.Printf("The cluster's logs are in %s\n", dir)
	return nil
}

func logs(ctx context.Context, ws workspace.Workspace, _ []string) error {
	c, err := choose(ctx, ws)
	if err != nil {
		return err
	}
	if state, detail := c.State(ctx); state == cluster.Absent {
		return fmt.Errorf("there is no %s cluster to take logs from (%s)", c.Name(), detail)
	}
	return exportLogs(ctx, ws, c)
}

func nodeImage(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return nodeimage.Build(ctx, ws, os.Stdout)
}

func up(ctx context.Context, ws workspace.Workspace, _ []string) error {
	c, err := keepUp(ctx, ws)
	if err != nil {
		return err
	}
	state, detail := c.State(ctx)
	if state != cluster.Ready {
		return fmt.Errorf("%s was ready and is %s again: %s; make up repairs it", c.Name(), state, detail)
	}
	fmt.Printf("%s is %s: %s\n  make shell   opens a shell with kubectl and KUBECONFIG set for it\n", c.Name(), state, detail)
	return nil
}

// down removes the cluster that CLUSTER names, or every cluster of this clone.
func down(ctx context.Context, ws workspace.Workspace, _ []string) error {
	clusters := cluster.All(ws)
	if want := os.Getenv("CLUSTER"); want != "" {
		c, _, err := cluster.Select(ctx, ws, want)
		if err != nil {
			return err
		}
		// With those that checks and tests have made for themselves, such as kwok-checks.
		clusters = append([]*cluster.Cluster{c}, slices.DeleteFunc(clusters, func(other *cluster.Cluster) bool {
			return !strings.HasPrefix(other.Name(), c.Name()+"-")
		})...)
	}
	var errs []error
	var said strings.Builder
	for _, c := range clusters {
		errs = append(errs, c.Down(ctx, io.MultiWriter(os.Stdout, &said)))
	}
	err := errors.Join(errs...)
	if err == nil && said.Len() == 0 {
		fmt.Println("There was no cluster to remove")
	}
	return err
}

func status(ctx context.Context, ws workspace.Workspace, _ []string) error {
	width := 0
	for _, c := range cluster.All(ws) {
		width = max(width, len(c.Name()))
	}
	for _, c := range cluster.All(ws) {
		state, detail := c.State(ctx)
		fmt.Printf("%-*s %-7s %s\n", width, c.Name(), state, detail)
		if state == cluster.Ready {
			fmt.Printf("%-*s %-7s export KUBECONFIG='%s'\n", width, "", "", c.Kubeconfig())
		}
		if log := c.AuditLog(); log != "" {
			fmt.Printf("%-*s %-7s audit log: %s\n", width, "", "", log)
		}
	}
	return nil
}

func shell(ctx context.Context, ws workspace.Workspace, _ []string) error {
	if _, err := os.Stat(os.Getenv(report.Variable)); err == nil {
		// Another shell would go past the proxy, and the page would not see its prompts.
		fmt.Println("This terminal is such a shell already: kubectl and KUBECONFIG are set. Go on with the next command of the lesson.")
		return nil
	}
	prefix, err := lesson.ParsePrefix(os.Getenv(lesson.PrefixVariable))
	if err != nil {
		return err
	}
	path, err := exec.LookPath(lessonShell(os.Getenv("SHELL")))
	if err != nil {
		return fmt.Errorf("SHELL: %w", err)
	}
	c, err := keepUp(ctx, ws)
	if err != nil {
		return err
	}
	fmt.Printf("kubectl and KUBECONFIG are those of the %s cluster; exit or Ctrl-D to leave (the cluster stays, make down removes it)\n", c.Name())
	if prefix != "" {
		if err := showLessons(ws, prefix); err != nil {
			return err
		}
	}
	// The shell takes this process's place, and with it the terminal and its signals.
	temp, err := ownTemp()
	if err != nil {
		return err
	}
	env := append(workspace.Without(c.Environ(), lesson.PrefixVariable), "TMPDIR="+temp, prefix.Environ())
	args, more, err := shellArgs(ws, c.Name(), path, env)
	if err != nil {
		return err
	}
	if err := c.Pass(); err != nil {
		return err
	}
	return syscall.Exec(path, args, append(env, more...))
}

// ownTemp returns the folder for temporary files. Lessons write to TMPDIR under names of their
// own, and many systems leave it unset: in /tmp two people of one machine would then meet.
func ownTemp() (string, error) {
	if dir := os.Getenv("TMPDIR"); dir != "" {
		return dir, nil
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("workshop-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if own, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(own.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s is not a folder of yours alone: set TMPDIR to one that is", dir)
	}
	return dir, nil
}

// showLessons writes the lessons for somebody who shares the cluster, and says where.
func showLessons(ws workspace.Workspace, prefix lesson.Prefix) error {
	steps, err := ws.Steps()
	if err != nil {
		return err
	}
	fmt.Printf("Your namespaces on this cluster begin with %s; these are the lessons with your names in them:\n", prefix)
	for _, s := range steps {
		if err := prefix.Check(s); err != nil {
			fmt.Printf("  %v\n", err)
			break
		}
		files, err := prefix.Documents(ws, s)
		if err != nil {
			return err
		}
		fmt.Printf("  %s\n", files[0])
	}
	return nil
}

// lessonShell returns the reader's own shell if lessons work in it, else the bash that doctor has looked at:
// /bin/bash is older on macOS.
func lessonShell(own string) string {
	if own == "/bin/bash" {
		return "bash"
	}
	switch filepath.Base(own) {
	case "bash", "zsh":
		return own
	}
	return "bash"
}

// examine checks this machine, with OFFLINE=1 also for all that a network would
// bring. scripts/doctor.sh, which calls it, has checked the programs before.
func examine(ctx context.Context, ws workspace.Workspace, args []string) error {
	var before doctor.Count
	if len(args) == 3 {
		if _, err := fmt.Sscan(args[1]+" "+args[2], &before.Failed, &before.Checks); err != nil {
			return fmt.Errorf("doctor.sh counts %q: %w", args[1:], err)
		}
	}
	if len(args) > 0 && args[0] != "" {
		return doctor.Report(os.Stdout, doctor.ExamineOffline(ctx, ws), before)
	}
	return doctor.Report(os.Stdout, doctor.Examine(ctx, ws), before)
}

// makePack writes an archive with all that a machine without a network needs.
func makePack(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return offline.Pack(ctx, ws, os.Getenv("CLUSTER"), pathOf("PACK"), os.Stdout)
}

// showBoard shows a trainer the learners' progress files in a folder.
func showBoard(ctx context.Context, _ workspace.Workspace, _ []string) error {
	dir := pathOf("DIR")
	if dir == "" {
		return errors.New("which folder? Give it as DIR=/path/of/a/share, where each learner writes make -s progress JSON=1 >/path/of/a/share/anna.json")
	}
	return board.Watch(ctx, dir, os.Stdout)
}

// pathOf returns a variable that names a file or a folder. DIR=~/room is what bash makes a whole path of, and other shells leave.
func pathOf(variable string) string {
	path := os.Getenv(variable)
	if home, err := os.UserHomeDir(); err == nil && strings.HasPrefix(path, "~/") {
		path = filepath.Join(home, path[2:])
	}
	return path
}

// execute runs a program to its end and shows its output. An interrupt reaches
// it and everything that it started, and it may clean up before this process goes on.
func execute(ctx context.Context, ws workspace.Workspace, env []string, name string, args ...string) error {
	return proc.Run(ctx, proc.Cmd{Path: name, Args: args, Dir: ws.Root, Env: env,
		Out: os.Stdout, Err: os.Stderr, Grace: time.Minute})
}
