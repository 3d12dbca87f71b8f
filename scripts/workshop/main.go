// Command workshop is what the Makefile calls: clusters, lessons and tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-go/workshop/internal/build"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/doctor"
	"github.com/k8s-go/workshop/internal/nodeimage"
	"github.com/k8s-go/workshop/internal/workspace"
)

var commands = map[string]func(ctx context.Context, ws workspace.Workspace, args []string) error{
	"up":         up,
	"down":       down,
	"status":     status,
	"shell":      shell,
	"doctor":     examine,
	"tour":       tour,
	"step":       step,
	"readme":     updateREADME,
	"logs":       logs,
	"node-image": nodeImage,
	"test":       test,
	"test-unit":  testUnit,
	"bench":      bench,
	"lint":       lint,
	"verify":     verify,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(os.Stderr, "Interrupted; what was begun has been taken back")
			os.Exit(130)
		}
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("this is called by the Makefile; type make for what there is")
	}
	ws, err := workspace.Find()
	if err != nil {
		return err
	}
	return commands[args[0]](ctx, ws, args[1:])
}

// choose returns the cluster that CLUSTER asks for, or the best there is.
func choose(ctx context.Context, ws workspace.Workspace) (cluster.Provider, error) {
	p, why, err := cluster.Select(ctx, ws, os.Getenv("CLUSTER"))
	if err != nil {
		return nil, err
	}
	fmt.Printf("Cluster: %s (%s)\n", p.Name(), why)
	return p, nil
}

// chooseUp returns that cluster when it is up.
func chooseUp(ctx context.Context, ws workspace.Workspace) (cluster.Provider, error) {
	p, err := choose(ctx, ws)
	if err != nil {
		return nil, err
	}
	return p, cluster.Up(ctx, ws, p, os.Stdout)
}

// requireTools says what is missing before a lesson stumbles over it.
func requireTools(ctx context.Context, ws workspace.Workspace) error {
	var report strings.Builder
	if err := doctor.Report(&report, doctor.Tools(ctx, ws)); err != nil {
		return fmt.Errorf("%w\n%s", err, report.String())
	}
	return nil
}

// withCluster calls f with a cluster that is up. One that was not there before
// is removed afterwards, also when f fails or is interrupted.
func withCluster(ctx context.Context, ws workspace.Workspace, f func(p cluster.Provider) error) (err error) {
	if err := requireTools(ctx, ws); err != nil {
		return err
	}
	p, err := choose(ctx, ws)
	if err != nil {
		return err
	}
	before, _ := p.State(ctx)
	if err := cluster.Up(ctx, ws, p, os.Stdout); err != nil {
		return err
	}
	if before == cluster.Absent {
		defer func() {
			err = errors.Join(err, cluster.Down(context.WithoutCancel(ctx), ws, p, os.Stdout))
		}()
	}
	err = f(p)
	if err != nil && ctx.Err() == nil && before == cluster.Absent {
		// They would go with the cluster.
		err = errors.Join(err, exportLogs(ctx, ws, p))
	}
	return err
}

func exportLogs(ctx context.Context, ws workspace.Workspace, p cluster.Provider) error {
	dir := ws.State("logs", p.Name())
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := p.ExportLogs(ctx, dir); err != nil {
		return fmt.Errorf("exporting the cluster's logs: %w", err)
	}
	fmt.Printf("The cluster's logs are in %s\n", dir)
	return nil
}

func logs(ctx context.Context, ws workspace.Workspace, _ []string) error {
	p, err := choose(ctx, ws)
	if err != nil {
		return err
	}
	if state, detail := p.State(ctx); state == cluster.Absent {
		return fmt.Errorf("there is no %s cluster to take logs from (%s)", p.Name(), detail)
	}
	return exportLogs(ctx, ws, p)
}

func nodeImage(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return nodeimage.Build(ctx, ws, os.Stdout)
}

func up(ctx context.Context, ws workspace.Workspace, _ []string) error {
	p, err := chooseUp(ctx, ws)
	if err != nil {
		return err
	}
	state, detail := p.State(ctx)
	fmt.Printf("%s is %s: %s\n  make shell   opens a shell with kubectl and KUBECONFIG set for it\n", p.Name(), state, detail)
	return nil
}

// down removes the cluster that CLUSTER names, or every cluster of this clone.
func down(ctx context.Context, ws workspace.Workspace, _ []string) error {
	providers := cluster.All(ws)
	if want := os.Getenv("CLUSTER"); want != "" {
		p, _, err := cluster.Select(ctx, ws, want)
		if err != nil {
			return err
		}
		providers = []cluster.Provider{p}
	}
	var errs []error
	for _, p := range providers {
		errs = append(errs, cluster.Down(ctx, ws, p, os.Stdout))
	}
	return errors.Join(errs...)
}

func status(ctx context.Context, ws workspace.Workspace, _ []string) error {
	for _, p := range cluster.All(ws) {
		state, detail := p.State(ctx)
		fmt.Printf("%-9s %-7s %s\n", p.Name(), state, detail)
		if state == cluster.Ready {
			fmt.Printf("%-9s %-7s export KUBECONFIG=%s\n", "", "", p.Kubeconfig())
		}
	}
	return nil
}

func shell(ctx context.Context, ws workspace.Workspace, _ []string) error {
	p, err := chooseUp(ctx, ws)
	if err != nil {
		return err
	}
	sh := os.Getenv("SHELL")
	if sh == "" {
		sh = "bash"
	}
	path, err := exec.LookPath(sh)
	if err != nil {
		return fmt.Errorf("SHELL: %w", err)
	}
	fmt.Printf("kubectl and KUBECONFIG are those of the %s cluster; exit or Ctrl-D to leave (the cluster stays, make down removes it)\n", p.Name())
	// The shell takes this process's place, and with it the terminal and its signals.
	// Lessons write to TMPDIR, which many systems leave unset.
	return syscall.Exec(path, []string{sh}, append(cluster.Environ(ws, p), "TMPDIR="+os.TempDir()))
}

func examine(ctx context.Context, ws workspace.Workspace, _ []string) error {
	return doctor.Report(os.Stdout, doctor.Examine(ctx, ws))
}

// execute runs a program to its end and shows its output. It gets a process
// group of its own, so that an interrupt reaches it once, with everything that
// it started, and so that it may clean up before this process goes on.
func execute(ctx context.Context, ws workspace.Workspace, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = ws.Root, env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	err := cmd.Run()
	if ctx.Err() != nil {
		// Whatever ignored the interrupt.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return ctx.Err()
	}
	return err
}

// tools are the linters and the test runner, pinned in scripts/tools/go.mod.
var tools = build.Set{Module: "scripts/tools", Out: "tools", NeedsFree: 1 << 30}
