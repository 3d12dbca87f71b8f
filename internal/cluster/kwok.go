package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// kwok is a real control plane as local processes, with simulated nodes.
type kwok struct {
	further
	ws      workspace.Workspace
	suffix  string // tells a further cluster of this clone from the first one
	options KwokOptions
}

// KwokOptions are what a further kwok cluster does not have in common with the
// first one of its clone.
type KwokOptions struct {
	// AuditPolicy is an audit policy as YAML; Cluster.AuditLog then says where
	// the API server writes its log.
	AuditPolicy string `json:"auditPolicy,omitempty"`
	// FeatureGates are those of the API server, the controller manager and the scheduler.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// ExtraArgs are further flags, by component and without dashes:
	// {"etcd": {"snapshot-count=100"}}.
	ExtraArgs map[string][]string `json:"extraArgs,omitempty"`
}

const kwokNodes = 2

// kwokComponents are the parts of a kwok cluster in the order in which they are
// started, under the names that Kill and Start take.
var kwokComponents = []part{
	{"etcd", "etcd"},
	{"kube-apiserver", "kube-apiserver"},
	{"kube-controller-manager", "kube-controller-manager"},
	{"kube-scheduler", "kube-scheduler"},
	{"kwok-controller", "kwok"},
}

type part struct{ name, binary string }

var suffixPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?$`)

// NewKwok returns a further kwok cluster of the clone, with a state and options
// of its own. It is not up yet. Its Name is "kwok-" and then the given name;
// make status lists it and make down removes it like any other.
func NewKwok(ws workspace.Workspace, name string, options KwokOptions) (*Cluster, error) {
	if !suffixPattern.MatchString(name) {
		return nil, fmt.Errorf("%q cannot name a cluster: use at most 22 small letters, digits and dashes", name)
	}
	return &Cluster{ws: ws, p: &kwok{ws: ws, suffix: name, options: options}}, nil
}

// furtherKwok finds the further kwok clusters of a clone.
func furtherKwok(ws workspace.Workspace) []*kwok {
	entries, _ := os.ReadDir(ws.Path()) // nothing was made yet where it is missing
	var found []*kwok
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), "kwok-")
		if !ok || !e.IsDir() || !suffixPattern.MatchString(suffix) {
			continue
		}
		k := &kwok{ws: ws, suffix: suffix}
		// Without its options it is one that was left half-made: Up makes it
		// anew without options, and Down removes it.
		if data, err := os.ReadFile(k.dir("options.json")); err == nil {
			_ = json.Unmarshal(data, &k.options)
		}
		found = append(found, k)
	}
	return found
}

func (k *kwok) name() string {
	if k.suffix == "" {
		return "kwok"
	}
	return "kwok-" + k.suffix
}

func (k *kwok) containers(context.Context) (bool, error) { return false, nil }
func (k *kwok) kubeconfig() string                       { return k.dir("kubeconfig") }

func (k *kwok) binaries() []string {
	names := []string{"kwokctl"}
	for _, c := range kwokComponents {
		names = append(names, c.binary)
	}
	return names
}

func (k *kwok) components() []string {
	var names []string
	for _, c := range kwokComponents {
		names = append(names, c.name)
	}
	return names
}

func (k *kwok) auditLog() string {
	if k.options.AuditPolicy == "" {
		return ""
	}
	return k.clusterDir("logs", "audit.log")
}

func (k *kwok) dir(elem ...string) string {
	return k.ws.Path(append([]string{k.name()}, elem...)...)
}

// clusterDir is where kwokctl keeps the cluster: below .kwok in its home folder.
func (k *kwok) clusterDir(elem ...string) string {
	return k.dir(append([]string{".kwok", "clusters", k.ws.ID()}, elem...)...)
}

// commonConfig is what all clusters have in common.
func (k *kwok) commonConfig() string {
	return filepath.Join(k.ws.Root, "scripts", "controlplane", "kwok.yaml")
}

// stamp identifies what the cluster is made of: same stamp, same cluster.
func (k *kwok) stamp() (string, error) {
	stamp, err := pinned.ControlPlane.Stamp(k.ws)
	if err != nil {
		return "", err
	}
	config, err := os.ReadFile(k.commonConfig())
	if err != nil {
		return "", err
	}
	stamp += fmt.Sprintf("%x\n", sha256.Sum256(config))
	if k.suffix == "" {
		return stamp, nil
	}
	options, err := json.Marshal(k.options)
	return stamp + string(options) + "\n", err
}

func (k *kwok) status(ctx context.Context) Status {
	running, err := k.processes(ctx)
	if err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	if _, err := os.Stat(k.dir()); errors.Is(err, os.ErrNotExist) && len(running) == 0 {
		return Status{State: Absent, Detail: "no cluster"}
	}
	if missing := missingComponents(running); len(missing) > 0 {
		return Status{State: Broken, Detail: strings.Join(missing, ", ") + " not running"}
	}
	want, err := k.stamp()
	if err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	if have, err := os.ReadFile(k.dir("stamp")); err != nil || string(have) != want {
		return Status{State: Broken, Detail: "not started completely, or of other versions or options than are asked for now"}
	}
	if err := Healthy(ctx, k.kubeconfig()); err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	version, err := pinned.KubernetesVersion(k.ws)
	if err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	return Status{State: Ready, Detail: fmt.Sprintf("Kubernetes %s, control plane as local processes, %d simulated nodes", version, kwokNodes)}
}

func (k *kwok) up(ctx context.Context, before Status, out io.Writer) error {
	if err := diskspace.Require(k.ws.Path(), 512<<20, "a cluster"); err != nil {
		return err
	}
	stamp, err := k.stamp()
	if err != nil {
		return err
	}
	start := time.Now()
	verb := "started"
	have, err := os.ReadFile(k.dir("stamp"))
	switch {
	case err == nil && string(have) == stamp:
		err := k.repair(ctx, out)
		if err == nil {
			fmt.Fprintf(out, "%s cluster repaired in %.1fs; its objects are still there\n", k.name(), time.Since(start).Seconds())
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if before.Used != "" {
			return fmt.Errorf("%s: it could not be repaired (%w); and %s", k.name(), err, before.Used)
		}
		fmt.Fprintf(out, "It could not be repaired (%v); starting a new one\n", err)
		verb = "started anew"
	case before.Used != "":
		return fmt.Errorf("%s: %s; and %s", k.name(), before.Detail, before.Used)
	case err == nil:
		fmt.Fprintf(out, "The %s cluster is of other versions or options than are asked for now; starting a new one, without its objects\n", k.name())
		verb = "started anew"
	}
	if err := k.create(ctx, stamp); err != nil {
		// Removed also when it was Ctrl-C that ended it.
		return errors.Join(err, interrupt.CleanUp(k.down(context.WithoutCancel(ctx), io.Discard)))
	}
	fmt.Fprintf(out, "%s cluster %s in %.1fs\n", k.name(), verb, time.Since(start).Seconds())
	return nil
}

// repair starts those components that are gone, on the data of the others. One
// that ends only now, because it has missed the API server, is started as well.
func (k *kwok) repair(ctx context.Context, out io.Writer) error {
	for round := 0; ; round++ {
		missing, err := k.revive(ctx)
		switch {
		case err != nil:
			return err
		case len(missing) == 0 && round == 0: // others may be using it: a moment without etcd is no reason to end it
			if err := poll.Until(ctx, time.Second, 20*time.Second, func(ctx context.Context) error { return Healthy(ctx, k.kubeconfig()) }); err != nil {
				return fmt.Errorf("all of it runs, and the API server does not answer: %w", err)
			}
			return nil
		case len(missing) == 0:
			return nil
		case round == 3:
			return fmt.Errorf("%s ended again and again%s", strings.Join(missing, ", "), k.lastLogLines())
		}
		fmt.Fprintf(out, "Repairing the %s cluster: %s not running\n", k.name(), strings.Join(missing, ", "))
		if err := waitReady(ctx, k.kubeconfig(), kwokNodes, 30*time.Second); err != nil {
			return err
		}
	}
}

func (k *kwok) create(ctx context.Context, stamp string) error {
	// A half-made cluster of a run that was killed goes first.
	if err := k.down(ctx, io.Discard); err != nil {
		return err
	}
	if err := os.MkdirAll(k.dir(), 0o755); err != nil {
		return err
	}
	config, err := k.config()
	if err != nil {
		return err
	}
	err = k.kwokctl(ctx, "create", "cluster",
		"--config", config,
		"--kubeconfig", k.kubeconfig(),
		"--etcd-binary", k.ws.Bin("etcd"),
		"--kube-apiserver-binary", k.ws.Bin("kube-apiserver"),
		"--kube-controller-manager-binary", k.ws.Bin("kube-controller-manager"),
		"--kube-scheduler-binary", k.ws.Bin("kube-scheduler"),
		"--kwok-controller-binary", k.ws.Bin("kwok"),
		"--wait", "60s")
	for range 2 { // what ends only now, because it has missed the API server, is started as well
		if missing, reviveErr := k.revive(ctx); reviveErr == nil && len(missing) > 0 {
			err = nil // whether it helps, the next steps show
		}
		if err == nil {
			err = k.kwokctl(ctx, "scale", "node", "--replicas", fmt.Sprint(kwokNodes))
		}
		if err == nil {
			err = waitReady(ctx, k.kubeconfig(), kwokNodes, 60*time.Second)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("the %s cluster did not start: %w%s", k.name(), err, k.lastLogLines())
	}
	return os.WriteFile(k.dir("stamp"), []byte(stamp), 0o644)
}

// revive starts the components that do not run, and returns their names. While a cluster comes up,
// kwok's controller gives up when the API server needs more than about 15 s, as it does on a slow
// disk, and kube-controller-manager soon after.
func (k *kwok) revive(ctx context.Context) (missing []string, err error) {
	running, err := k.processes(ctx)
	if err != nil {
		return nil, err
	}
	missing = missingComponents(running)
	for _, name := range missing {
		if err := k.start(ctx, name); err != nil {
			return missing, err
		}
	}
	return missing, nil
}

// config writes the file that tells kwokctl how to run the cluster, and returns
// its path: what all clusters have in common, and ports and options of this one.
func (k *kwok) config() (string, error) {
	options, err := json.Marshal(k.options)
	if err != nil {
		return "", err
	}
	ports, err := freeport.Of("127.0.0.1", len(kwokPorts))
	if err != nil {
		return "", err
	}
	common := k.commonConfig()
	config, err := os.ReadFile(common)
	if err != nil {
		return "", err
	}
	if config, err = k.options.apply(config, ports, k.dir("audit-policy.yaml")); err != nil {
		return "", fmt.Errorf("%s: %w", common, err)
	}
	for name, data := range map[string][]byte{"options.json": options, "audit-policy.yaml": []byte(k.options.AuditPolicy), "config.yaml": config} {
		if err := os.WriteFile(k.dir(name), data, 0o644); err != nil {
			return "", err
		}
	}
	return k.dir("config.yaml"), nil
}

// kwokPorts are kwokctl's options for the ports that its components listen on.
var kwokPorts = []string{"etcdPort", "etcdPeerPort", "kubeApiserverPort", "kubeControllerManagerPort", "kubeSchedulerPort", "kwokControllerPort"}

// apply adds ports and options to a KwokctlConfiguration. The options do not go
// on kwokctl's command line, which panics at some orders of --extra-args.
func (o KwokOptions) apply(config []byte, ports []int, auditPolicy string) ([]byte, error) {
	type arg struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type patch struct {
		Name      string `json:"name"`
		ExtraArgs []arg  `json:"extraArgs"`
	}
	var c struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Options    map[string]any `json:"options"`
		Patches    []patch        `json:"componentsPatches"`
	}
	if err := yaml.UnmarshalStrict(config, &c); err != nil {
		return nil, err
	}
	for i, name := range kwokPorts {
		c.Options[name] = ports[i]
	}
	if o.AuditPolicy != "" {
		c.Options["kubeAuditPolicy"] = auditPolicy
	}
	var gates []string
	for name, on := range o.FeatureGates {
		gates = append(gates, fmt.Sprintf("%s=%v", name, on))
	}
	if slices.Sort(gates); len(gates) > 0 {
		c.Options["kubeFeatureGates"] = strings.Join(gates, ",")
	}
	for component, flags := range o.ExtraArgs {
		if binaryOf(component) == "" {
			return nil, fmt.Errorf("there is no component %q to give flags to", component)
		}
		p := patch{Name: component}
		for _, flag := range flags {
			key, value, ok := strings.Cut(flag, "=")
			if !ok || strings.HasPrefix(key, "-") {
				return nil, fmt.Errorf("flag %q of %s is not of the form key=value", flag, component)
			}
			p.ExtraArgs = append(p.ExtraArgs, arg{key, value})
		}
		c.Patches = append(c.Patches, p)
	}
	return yaml.Marshal(c)
}

func (k *kwok) loadImages(_ context.Context, out io.Writer, images []string) error {
	fmt.Fprintf(out, "Nothing to load: the nodes of a %s cluster are simulated and pull no images (%s)\n", k.name(), strings.Join(images, ", "))
	return nil
}

func (k *kwok) exportLogs(_ context.Context, dir string) error {
	err := os.CopyFS(dir, os.DirFS(k.clusterDir("logs")))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it never came so far
	}
	return err
}

// environ is that of kwokctl and of all components. kwokctl keeps the cluster in the home folder, and kwok reads
// its configuration there; KWOK_WORKDIR, the other way to tell it where, is cut at a space. To collect garbage
// less often, up to a limit, leaves the processor to others.
func (k *kwok) environ() []string {
	env := slices.DeleteFunc(environ(k.ws, k), func(kv string) bool { return strings.HasPrefix(kv, "KWOK_") })
	return append(env, "HOME="+k.dir(), "GOGC=400", "GOMEMLIMIT=800MiB")
}

// kwokctl runs kwokctl on the cluster.
func (k *kwok) kwokctl(ctx context.Context, args ...string) error {
	return proc.Run(ctx, proc.Cmd{
		Path: k.ws.Bin("kwokctl"), Args: append([]string{"--name", k.ws.ID()}, args...),
		// In this folder kill finds it too, if the one who started it was killed.
		Dir: k.dir(),
		Env: k.environ(),
	})
}

func (k *kwok) down(ctx context.Context, out io.Writer) error {
	if err := k.killAll(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(k.dir()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(k.dir()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s cluster removed\n", k.name())
	return nil
}

// lastLogLines returns the end of each component's log, to tell why it did not start.
func (k *kwok) lastLogLines() string {
	var b strings.Builder
	for _, c := range kwokComponents {
		data, err := os.ReadFile(k.clusterDir("logs", c.name+".log"))
		if err == nil && len(data) > 0 {
			fmt.Fprintf(&b, "\n--- end of the log of %s\n%s", c.name, proc.LastLines(string(data), 4))
		}
	}
	return b.String()
}
