package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/k8s-go/workshop/internal/build"
	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/workspace"
)

// kwok is a real control plane as local processes, with simulated nodes.
type kwok struct{ ws workspace.Workspace }

const kwokNodes = 2

// kwokComponents maps the control plane's binaries to the names of kwokctl's pid files.
var kwokComponents = map[string]string{
	"etcd":                    "etcd",
	"kube-apiserver":          "kube-apiserver",
	"kube-controller-manager": "kube-controller-manager",
	"kube-scheduler":          "kube-scheduler",
	"kwok":                    "kwok-controller",
}

func (k *kwok) Name() string       { return "kwok" }
func (k *kwok) Containers() bool   { return false }
func (k *kwok) Kubeconfig() string { return k.dir("kubeconfig") }

func (k *kwok) binaries() []string {
	return append(slices.Collect(maps.Keys(kwokComponents)), "kwokctl")
}

func (k *kwok) dir(elem ...string) string {
	return k.ws.State(append([]string{"kwok"}, elem...)...)
}

func (k *kwok) clusterDir(elem ...string) string {
	return k.dir(append([]string{"clusters", k.ws.ID()}, elem...)...)
}

func (k *kwok) State(ctx context.Context) (State, string) {
	running, err := processes(ctx, k.ws)
	if err != nil {
		return Broken, err.Error()
	}
	if _, err := os.Stat(k.dir()); errors.Is(err, os.ErrNotExist) && len(running) == 0 {
		return Absent, "no cluster"
	}
	if missing := missingComponents(running); len(missing) > 0 {
		return Broken, strings.Join(missing, ", ") + " not running"
	}
	want, err := build.ControlPlane.Stamp(k.ws)
	if err != nil {
		return Broken, err.Error()
	}
	if have, err := os.ReadFile(k.dir("stamp")); err != nil || string(have) != want {
		return Broken, "not started completely, or of another version than scripts/controlplane pins"
	}
	if err := healthy(ctx, k.Kubeconfig()); err != nil {
		return Broken, err.Error()
	}
	version, _, _ := strings.Cut(want, " ")
	return Ready, fmt.Sprintf("Kubernetes %s, control plane as local processes, %d simulated nodes", version, kwokNodes)
}

func (k *kwok) up(ctx context.Context, out io.Writer) error {
	if err := diskspace.Require(k.ws.State(), 512<<20, "a cluster"); err != nil {
		return err
	}
	stamp, err := build.ControlPlane.Stamp(k.ws)
	if err != nil {
		return err
	}
	start := time.Now()
	verb := "started"
	if have, err := os.ReadFile(k.dir("stamp")); err == nil && string(have) == stamp {
		err := k.restart(ctx, out)
		if err == nil {
			fmt.Fprintf(out, "kwok cluster repaired in %.1fs; its objects are still there\n", time.Since(start).Seconds())
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(out, "It could not be repaired (%v); starting anew\n", err)
		verb = "started anew"
	}
	if err := k.create(ctx, stamp); err != nil {
		// Taken back also when it was Ctrl-C that ended it.
		return errors.Join(err, k.down(context.WithoutCancel(ctx), io.Discard))
	}
	fmt.Fprintf(out, "kwok cluster %s in %.1fs\n", verb, time.Since(start).Seconds())
	return nil
}

// restart starts those components that are gone, on the data of the others.
func (k *kwok) restart(ctx context.Context, out io.Writer) error {
	running, err := processes(ctx, k.ws)
	if err != nil {
		return err
	}
	missing := missingComponents(running)
	fmt.Fprintf(out, "Repairing the kwok cluster: %s not running\n", strings.Join(missing, ", "))
	// kwokctl trusts a pid file as long as any process has that pid.
	for _, name := range missing {
		if err := os.Remove(k.clusterDir("pids", kwokComponents[name]+".pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	if err := k.kwokctl(ctx, "start", "cluster", "--wait", "30s"); err != nil {
		return err
	}
	return waitReady(ctx, k.Kubeconfig(), kwokNodes, 30*time.Second)
}

func (k *kwok) create(ctx context.Context, stamp string) error {
	// A half-made cluster of a run that was killed goes first.
	if err := k.down(ctx, io.Discard); err != nil {
		return err
	}
	if err := os.MkdirAll(k.dir(), 0o755); err != nil {
		return err
	}
	err := k.kwokctl(ctx, "create", "cluster",
		"--config", filepath.Join(k.ws.Root, "scripts", "controlplane", "kwok.yaml"),
		"--kubeconfig", k.Kubeconfig(),
		"--etcd-binary", k.ws.Bin("etcd"),
		"--kube-apiserver-binary", k.ws.Bin("kube-apiserver"),
		"--kube-controller-manager-binary", k.ws.Bin("kube-controller-manager"),
		"--kube-scheduler-binary", k.ws.Bin("kube-scheduler"),
		"--kwok-controller-binary", k.ws.Bin("kwok"),
		"--wait", "60s")
	if err == nil {
		err = k.kwokctl(ctx, "scale", "node", "--replicas", fmt.Sprint(kwokNodes))
	}
	if err == nil {
		err = waitReady(ctx, k.Kubeconfig(), kwokNodes, 60*time.Second)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("the kwok cluster did not start: %w%s", err, k.lastLogLines())
	}
	return os.WriteFile(k.dir("stamp"), []byte(stamp), 0o644)
}

func (k *kwok) ExportLogs(_ context.Context, dir string) error {
	return os.CopyFS(dir, os.DirFS(k.clusterDir("logs")))
}

func (k *kwok) kwokctl(ctx context.Context, args ...string) error {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, k.ws.Bin("kwokctl"), append([]string{"--name", k.ws.ID()}, args...)...)
	cmd.Env = append(Environ(k.ws, k), "KWOK_WORKDIR="+k.dir())
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kwokctl %s: %w\n%s", strings.Join(args[:2], " "), err, lastLines(output.String(), 5))
	}
	return nil
}

func (k *kwok) down(ctx context.Context, out io.Writer) error {
	if err := killProcesses(ctx, k.ws); err != nil {
		return err
	}
	if _, err := os.Stat(k.dir()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(k.dir()); err != nil {
		return err
	}
	fmt.Fprintln(out, "kwok cluster removed")
	return nil
}

// lastLogLines returns the end of each component's log, to tell why it did not start.
func (k *kwok) lastLogLines() string {
	var b strings.Builder
	for _, name := range kwokComponents {
		data, err := os.ReadFile(k.clusterDir("logs", name+".log"))
		if err == nil && len(data) > 0 {
			fmt.Fprintf(&b, "\n--- end of the log of %s\n%s", name, lastLines(string(data), 4))
		}
	}
	return b.String()
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// processes returns the processes whose executable is one of the workshop's
// own binaries, by name. That holds for the components of a cluster whose pid
// files are gone too, and for no process that somebody else started.
func processes(ctx context.Context, ws workspace.Workspace) (map[string][]*process.Process, error) {
	bin, err := filepath.EvalSymlinks(ws.Bin(""))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := process.ProcessesWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	found := map[string][]*process.Process{}
	for _, p := range all {
		// Linux marks a binary that was replaced since; one that ended
		// meanwhile or is not ours to see has no executable.
		exe, err := p.ExeWithContext(ctx)
		exe = strings.TrimSuffix(exe, " (deleted)")
		if err == nil && filepath.Dir(exe) == bin {
			found[filepath.Base(exe)] = append(found[filepath.Base(exe)], p)
		}
	}
	return found, nil
}

func missingComponents(running map[string][]*process.Process) []string {
	var missing []string
	for name := range kwokComponents {
		if len(running[name]) == 0 {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// killProcesses ends everything that runs from the workshop's bin folder and
// waits until it is gone. Nothing in a throw-away cluster needs a graceful
// end, and an apiserver whose etcd went first can take minutes for one.
func killProcesses(ctx context.Context, ws workspace.Workspace) error {
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		running, err := processes(ctx, ws)
		if err != nil {
			return false, err
		}
		for _, ps := range running {
			for _, p := range ps {
				if err := p.KillWithContext(ctx); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
					return false, fmt.Errorf("ending process %d: %w", p.Pid, err)
				}
			}
		}
		return len(running) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("ending the processes of %s: %w", ws.Bin(""), err)
	}
	return nil
}
