package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// Components returns the parts of a kwok cluster that Kill and Start know, in
// the order in which they start; of every other cluster there are none.
func (c *Cluster) Components() []string { return c.p.components() }

// Kill kills a component of a kwok cluster, as a crash would, and waits until it
// is gone. Kill the API server before etcd: one that has lost its etcd can hang.
func (c *Cluster) Kill(ctx context.Context, component string) error {
	if err := c.mustHave(component); err != nil {
		return err
	}
	return c.p.kill(ctx, component)
}

// Start starts a component of a kwok cluster that Kill has ended, on the same
// data and ports, and waits until the API server answers if it is that one. One
// that runs already is left alone.
func (c *Cluster) Start(ctx context.Context, component string) error {
	if err := c.mustHave(component); err != nil {
		return err
	}
	return c.p.start(ctx, component)
}

func (c *Cluster) mustHave(component string) error {
	names := c.Components()
	switch {
	case len(names) == 0:
		return fmt.Errorf("CLUSTER=%s: its components cannot be stopped or started one by one; use CLUSTER=kwok", c.Name())
	case !slices.Contains(names, component):
		return fmt.Errorf("a kwok cluster has no %q, but %s", component, strings.Join(names, ", "))
	}
	return nil
}

// AuditLog is the file on this machine into which the cluster's API server
// writes its audit log; empty without one. A kind cluster has one, with the
// policy that AUDIT_POLICY named when it was made, or else with ours.
func (c *Cluster) AuditLog() string { return c.p.auditLog() }

// start starts one component as kwokctl does, from what kwokctl has written
// down. kwokctl itself starts them only together, and takes any process that
// has the number in a pid file for the component.
func (k *kwok) start(ctx context.Context, name string) error {
	running, err := k.processes(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(missingComponents(running), name) {
		return nil
	}
	c, err := k.readComponent(name)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(k.clusterDir("logs", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer log.Close()
	// Not through proc: it has to outlive this process.
	cmd := exec.Command(c.Binary, c.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.WorkDir, log, log
	cmd.Env = k.environ()
	for _, e := range c.Envs {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { _ = cmd.Wait() }() // else it stays as a zombie while this process lives
	if err := os.WriteFile(k.clusterDir("pids", name+".pid"), fmt.Append(nil, cmd.Process.Pid), 0o640); err != nil {
		return err
	}
	if name != "kube-apiserver" {
		return nil
	}
	if err := poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
		return Healthy(ctx, k.kubeconfig())
	}); err != nil {
		return fmt.Errorf("starting %s: %w%s", name, err, k.lastLogLines())
	}
	return nil
}

// componentSpec is what kwokctl writes down of a component.
type componentSpec struct {
	Name    string   `json:"name"`
	Binary  string   `json:"binary"`
	Args    []string `json:"args"`
	WorkDir string   `json:"workDir"`
	Envs    []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"envs"`
}

func (k *kwok) readComponent(name string) (componentSpec, error) {
	path := k.clusterDir("kwok.yaml")
	file, err := os.Open(path)
	if err != nil {
		return componentSpec{}, err
	}
	defer file.Close()
	// One document is the cluster's, the others are the stages of nodes and pods.
	decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		var document struct {
			Components []componentSpec `json:"components"`
		}
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return componentSpec{}, fmt.Errorf("%s does not say how to start %s", path, name)
		}
		if err != nil {
			return componentSpec{}, fmt.Errorf("%s: %w", path, err)
		}
		for _, c := range document.Components {
			if c.Name == name {
				return c, nil
			}
		}
	}
}

// processes returns the processes of the cluster by the name of their binary.
// They are those whose executable is one of the workshop's own binaries and
// whose working directory is the cluster's: kwokctl starts them there. So a
// component without its pid file is found too, and neither the components of
// another cluster of this clone nor what somebody else has started.
func (k *kwok) processes(ctx context.Context) (map[string][]*process.Process, error) {
	bin, dir, err := realPaths(k.ws, k.name())
	if err != nil {
		return nil, err
	}
	all, err := process.ProcessesWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	found := map[string][]*process.Process{}
	for _, p := range all {
		// Linux marks what was replaced or removed since; one that has ended
		// meanwhile or is not ours to see has neither.
		exe, err := p.ExeWithContext(ctx)
		exe = strings.TrimSuffix(exe, " (deleted)")
		if err != nil && runtime.GOOS == "darwin" { // which does not name a file that was replaced; how it was called is known
			if args, argsErr := p.CmdlineSliceWithContext(ctx); argsErr == nil && len(args) > 0 && filepath.Dir(args[0]) == k.ws.Bin("") {
				exe, err = filepath.Join(bin, filepath.Base(args[0])), nil
			}
		}
		if err != nil || filepath.Dir(exe) != bin {
			continue
		}
		cwd, err := p.CwdWithContext(ctx)
		cwd = strings.TrimSuffix(cwd, " (deleted)")
		if err == nil && (cwd == dir || strings.HasPrefix(cwd, dir+string(filepath.Separator))) {
			found[filepath.Base(exe)] = append(found[filepath.Base(exe)], p)
		}
	}
	return found, nil
}

// realPaths returns the folder of the binaries and that of a cluster as the
// operating system reports them, without symbolic links.
func realPaths(ws workspace.Workspace, cluster string) (bin, dir string, err error) {
	state, err := filepath.EvalSymlinks(ws.Path())
	if errors.Is(err, os.ErrNotExist) {
		state, err = ws.Path(), nil // gone, maybe under the feet of its processes
	}
	bin, dir = filepath.Join(state, "bin"), filepath.Join(state, cluster)
	if real, err := filepath.EvalSymlinks(bin); err == nil {
		bin = real // binaries may be shared by a link
	}
	return bin, dir, err
}

func missingComponents(running map[string][]*process.Process) []string {
	var missing []string
	for _, p := range kwokComponents {
		if len(running[p.binary]) == 0 {
			missing = append(missing, p.name)
		}
	}
	return missing
}

// killAll ends everything that runs in the cluster's folder, kwokctl included.
// Nothing in a throw-away cluster needs a graceful end, and an apiserver whose
// etcd went first can take minutes for one.
func (k *kwok) killAll(ctx context.Context) error { return k.kill(ctx, "") }

// kill ends a component, or everything without a name, and waits until it is gone.
func (k *kwok) kill(ctx context.Context, component string) error {
	killed := map[int32]*process.Process{}
	err := poll.Until(ctx, 20*time.Millisecond, 10*time.Second, func(ctx context.Context) error {
		running, err := k.processes(ctx)
		if err != nil {
			return poll.Stop(err)
		}
		for binary, ps := range running {
			if component != "" && binary != binaryOf(component) {
				continue
			}
			for _, p := range ps {
				if err := p.KillWithContext(ctx); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
					return poll.Stop(fmt.Errorf("ending process %d: %w", p.Pid, err))
				}
				killed[p.Pid] = p
			}
		}
		left := 0
		for _, p := range killed {
			// It loses its executable, by which processes finds it, before it has ended.
			if !proc.Ended(ctx, p) {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes are left", left)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ending the processes of %s: %w", k.dir(), err)
	}
	return nil
}

func binaryOf(component string) string {
	for _, p := range kwokComponents {
		if p.name == component {
			return p.binary
		}
	}
	return ""
}
