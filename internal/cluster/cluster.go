// Package cluster starts, finds and removes the clusters that lessons and
// tests run on. Each kind of cluster is one file with one provider.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/lock"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/workspace"
)

// State is what there is of a cluster.
type State string

const (
	Absent State = "absent"
	Broken State = "broken" // half-made, or a part of it is gone: Up repairs it
	Ready  State = "ready"
)

// A Status is a state and what more there is to say about it, such as the
// cluster's version or what is missing.
type Status struct {
	State  State
	Detail string
	Used   string // why a broken one may be repaired and not made anew: others use it
}

// A provider makes one kind of cluster.
type provider interface {
	name() string
	kubeconfig() string
	containers(ctx context.Context) (bool, error)
	status(ctx context.Context) Status
	// binaries names what up needs of pinned.ControlPlane, fetch gets all else, and
	// missing says what of that is not here.
	binaries() []string
	fetch(ctx context.Context, out io.Writer) (Parts, error)
	missing(ctx context.Context) (tools []string, image string, err error)
	// up gets what status said just before.
	up(ctx context.Context, before Status, out io.Writer) error
	down(ctx context.Context, out io.Writer) error
	loadImages(ctx context.Context, out io.Writer, images []string) error
	exportLogs(ctx context.Context, dir string) error
	auditLog() string
	// components are what kill and start take.
	components() []string
	kill(ctx context.Context, component string) error
	start(ctx context.Context, component string) error
}

// further is what most kinds of clusters do not have.
type further struct{}

func (further) fetch(context.Context, io.Writer) (Parts, error)             { return Parts{}, nil }
func (further) missing(context.Context) (tools []string, _ string, _ error) { return nil, "", nil }
func (further) auditLog() string                                            { return "" }
func (further) components() []string                                        { return nil }
func (further) kill(context.Context, string) error                          { return errors.ErrUnsupported }
func (further) start(context.Context, string) error                         { return errors.ErrUnsupported }

// A Cluster is one cluster of a clone, whether or not it is up.
type Cluster struct {
	ws      workspace.Workspace
	p       provider
	seen    *Status // what Select saw
	created bool
	use     *flock.Flock // as long as this process uses it, see hold
}

// All returns the clusters that a clone can have, in the order in which they are
// documented, and after them the further ones that it has.
func All(ws workspace.Workspace) []*Cluster {
	all := []*Cluster{{ws: ws, p: &kind{ws: ws}}, {ws: ws, p: &kwok{ws: ws}}, {ws: ws, p: &existing{ws: ws}}}
	for _, k := range furtherKwok(ws) {
		all = append(all, &Cluster{ws: ws, p: k})
	}
	return all
}

// Select returns the cluster named want and why. With want empty that is what
// this clone has, whole or else broken, and else the best that this machine can run.
func Select(ctx context.Context, ws workspace.Workspace, want string) (*Cluster, string, error) {
	all := All(ws)
	var names []string
	for _, c := range all {
		if c.Name() == want {
			why := "CLUSTER=" + want
			if want != "kind" && forKind() {
				why += "; K8S_VERSION and AUDIT_POLICY are for kind, and change nothing here"
			}
			return c, why, nil
		}
		names = append(names, c.Name())
	}
	if want != "" {
		return nil, "", fmt.Errorf("CLUSTER=%s is not known: use one of %s", want, strings.Join(names, ", "))
	}
	if forKind() {
		return all[0], "K8S_VERSION and AUDIT_POLICY are for kind", nil
	}
	own := all[:2] // somebody's own cluster, and one made for a purpose, are used only when asked for
	var broken *Cluster
	for _, c := range own {
		status := c.p.status(ctx)
		c.seen = &status
		if status.State == Ready {
			return c, "it is up", nil
		}
		if status.State == Broken && broken == nil {
			broken = c
		}
	}
	if broken != nil {
		return broken, "it is there, though broken: " + broken.seen.Detail, nil
	}
	e, err := engine.Find(ctx, "docker") // the others are not tested, so they are used only when asked for
	if err != nil {
		return own[1], err.Error(), nil
	}
	return own[0], fmt.Sprintf("%s %s answers", e.Name, e.Version), nil
}

// forKind reports whether somebody has asked for what kind alone can do.
func forKind() bool { return os.Getenv("K8S_VERSION") != "" || os.Getenv("AUDIT_POLICY") != "" }

// Name is the value of CLUSTER that chooses this cluster.
func (c *Cluster) Name() string { return c.p.name() }

// Kubeconfig is the file that reaches the cluster once it is up.
func (c *Cluster) Kubeconfig() string { return c.p.kubeconfig() }

// Containers reports whether pods run as real containers there. An existing
// cluster is asked, so it has to be up.
func (c *Cluster) Containers(ctx context.Context) (bool, error) { return c.p.containers(ctx) }

// State looks at the cluster without changing it. The string says more, such as
// the version or what is missing.
func (c *Cluster) State(ctx context.Context) (State, string) {
	status := c.p.status(ctx)
	return status.State, status.Detail
}

// Use begins to use the cluster as Up does, if it is ready, and returns what State does.
func (c *Cluster) Use(ctx context.Context, out io.Writer) (state State, detail string, err error) {
	unlock, _, err := lockClone(ctx, c.ws, out)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := c.hold(); err != nil {
		return "", "", err
	}
	if state, detail = c.State(ctx); state != Ready {
		err = c.letGo()
	}
	return state, detail, err
}

// Up makes the cluster ready: it starts one, repairs one, or finds that nothing
// is to be done. If it fails or is cancelled, nothing of a cluster that it had
// begun to make is left.
func (c *Cluster) Up(ctx context.Context, out io.Writer) (err error) {
	if err := c.leaves(); err != nil {
		return err
	}
	start := time.Now()
	// Every cluster is used with the kubectl of the pinned version. Others may remove their clusters meanwhile.
	if err := pinned.ControlPlane.Build(ctx, c.ws, out, append(c.p.binaries(), "kubectl")...); err != nil {
		return err
	}
	built := time.Since(start) > time.Second
	unlock, waited, err := lockClone(ctx, c.ws, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := c.leaves(); err != nil {
		return err
	}
	used, err := c.used()
	if err != nil {
		return err
	}
	if err := c.hold(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.letGo())
		}
	}()
	before := c.seen
	if before == nil || built || waited || before.State != Ready { // another command may have made it since
		status := c.p.status(ctx)
		before = &status
	}
	c.seen = nil
	if before.State == Ready {
		return nil
	}
	if used && before.State == Broken {
		before.Used = fmt.Sprintf("another command or shell of this clone uses the %s cluster: end it first, or remove the cluster under it: make down CLUSTER=%[1]s", c.Name())
	}
	if err := c.p.up(ctx, *before, out); err != nil {
		return err
	}
	if c.created = before.State == Absent; c.created {
		if err := c.forget(); err != nil { // what somebody wanted to keep is gone
			return err
		}
	}
	if note, err := c.skew(); err != nil {
		fmt.Fprintf(out, "Note: version skew was not checked: %v\n", err)
	} else if note != "" {
		fmt.Fprintln(out, note)
	}
	return nil
}

// leaves fails if the cluster is somebody's own, and others would be left in another one than they think.
func (c *Cluster) leaves() error {
	e, ok := c.p.(*existing)
	if !ok || e.leaves() == "" {
		return nil
	}
	used, err := c.used()
	if used {
		err = fmt.Errorf("CLUSTER=existing: another command or shell of this clone uses context %s, and would go on in the other one: end it first, or choose that context again in KUBECONFIG", e.leaves())
	}
	return err
}

// Created reports whether Up has made the cluster, so that whoever called Up
// also has to remove it.
func (c *Cluster) Created() bool { return c.created }

// Adopt makes Release remove a cluster that Up has found, as if Up had made it.
func (c *Cluster) Adopt() { c.created = true }

// Release ends the use of a cluster: if Up has made it, and nobody else uses it, it
// is removed. It also works after an interrupt has ended ctx.
func (c *Cluster) Release(ctx context.Context, out io.Writer) error {
	if !c.created {
		return c.letGo()
	}
	return interrupt.CleanUp(c.remove(context.WithoutCancel(ctx), out, false))
}

// Down removes the cluster with everything that Up made. A cluster that is not
// there is no error.
func (c *Cluster) Down(ctx context.Context, out io.Writer) error { return c.remove(ctx, out, true) }

// remove removes the cluster, though others use it only if it has to be gone.
func (c *Cluster) remove(ctx context.Context, out io.Writer, always bool) (err error) {
	unlock, _, err := lockClone(ctx, c.ws, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	c.seen, c.created = nil, false
	if err := c.letGo(); err != nil {
		return err
	}
	if !always {
		if used, err := c.used(); err != nil {
			return err
		} else if used || c.kept() {
			why := "another command uses it"
			if !used {
				why = "make up, or another command that leaves it there, has found it"
			}
			fmt.Fprintf(out, "The %s cluster stays, because %s; make down removes it\n", c.Name(), why)
			return nil
		}
	}
	return errors.Join(c.p.down(ctx, out), c.forget())
}

// Parts is what Up needs that was built or pulled.
type Parts struct {
	Files []string // below .workshop
	Image string   // which the container engine holds; empty if none is needed
}

// Fetch builds or pulls whatever Up needs and is not there yet. It starts nothing.
func (c *Cluster) Fetch(ctx context.Context, out io.Writer) (parts Parts, err error) {
	names := append(c.p.binaries(), "kubectl")
	if err := pinned.ControlPlane.Build(ctx, c.ws, out, names...); err != nil {
		return Parts{}, err
	}
	unlock, _, err := lockClone(ctx, c.ws, out) // another command may pull the same
	if err != nil {
		return Parts{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	parts, err = c.p.fetch(ctx, out)
	parts.Files = append(parts.Files, pinned.ControlPlane.Files(names...)...)
	return parts, err
}

// Missing says what Up would have to build or pull; nothing if it needs no network.
func (c *Cluster) Missing(ctx context.Context) ([]string, error) {
	missing, err := pinned.ControlPlane.Missing(c.ws, append(c.p.binaries(), "kubectl")...)
	if err != nil {
		return nil, err
	}
	tools, image, err := c.p.missing(ctx)
	missing = append(missing, tools...)
	if image != "" {
		missing = append(missing, image)
	}
	return missing, err
}

// HasImage reports whether a container engine holds the node image of a kind cluster.
func (c *Cluster) HasImage(ctx context.Context) bool {
	_, image, err := c.p.missing(ctx)
	return err == nil && image == ""
}

// LoadImages makes images available to the cluster's nodes: names that the
// container engine of this machine knows, or files that docker save has made.
func (c *Cluster) LoadImages(ctx context.Context, out io.Writer, images ...string) error {
	return c.p.loadImages(ctx, out, images)
}

// ExportLogs writes the logs of the cluster's parts below dir.
func (c *Cluster) ExportLogs(ctx context.Context, dir string) error {
	return c.p.exportLogs(ctx, dir)
}

// Environ returns the environment in which programs and kubectl reach the
// cluster, read no preferences from ~/.kube and write nothing to it.
func (c *Cluster) Environ() []string { return environ(c.ws, c.p) }

func environ(ws workspace.Workspace, p provider) []string {
	env := workspace.Without(workspace.Environ(), "CLUSTER", "KUBECONFIG", "KUBECACHEDIR", "KUBERC", "PATH")
	return append(env,
		"CLUSTER="+p.name(),
		"KUBECONFIG="+p.kubeconfig(),
		"KUBECACHEDIR="+kubectlCache(p),
		"KUBERC=off",
		"PATH="+ws.Bin("")+string(filepath.ListSeparator)+os.Getenv("PATH"),
	)
}

// ForgetDiscovery makes kubectl ask the cluster again which kinds there are, and in which
// versions. It remembers that for six hours (ToDiscoveryClient in k8s.io/cli-runtime), and
// would go on asking for the version of a definition that has been replaced. A kubectl
// that runs may be writing there: what it knows is moved aside before it is deleted.
func (c *Cluster) ForgetDiscovery() error {
	aside, err := os.MkdirTemp(kubectlCache(c.p), "forgotten-")
	if err == nil {
		defer func() {
			for tries := 0; os.RemoveAll(aside) != nil && tries < 10; tries++ {
				// A file has been made there by a write that was under way.
			}
		}()
		err = os.Rename(filepath.Join(kubectlCache(c.p), "discovery"), filepath.Join(aside, "discovery"))
	}
	if errors.Is(err, fs.ErrNotExist) { // kubectl has not asked yet
		return nil
	}
	return err
}

func kubectlCache(p provider) string {
	return filepath.Join(filepath.Dir(p.kubeconfig()), "kubectl-cache")
}

// Config returns a client configuration for the cluster; see Config.
func (c *Cluster) Config() (*rest.Config, error) { return Config(c.Kubeconfig()) }

// Client returns a clientset made from Config.
func (c *Cluster) Client() (kubernetes.Interface, error) { return client(c.Kubeconfig()) }

// lockClone keeps two commands of one clone from changing its clusters at the same
// time. It reports whether it had to wait for another one.
func lockClone(ctx context.Context, ws workspace.Workspace, out io.Writer) (unlock func() error, waited bool, err error) {
	if err := os.MkdirAll(ws.Path(), 0o755); err != nil {
		return nil, false, err
	}
	return lock.Acquire(ctx, ws.Path("lock"), out, "Another command of this clone is changing its cluster; waiting for it to end")
}
