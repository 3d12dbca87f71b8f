package cluster

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/interrupt"
	"github.com/k8s-go/workshop/internal/nodeimage"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/progress"
	"github.com/k8s-go/workshop/internal/workspace"
)

// kind is a cluster of real nodes, which are containers, with real containers in them.
type kind struct {
	further
	ws    workspace.Workspace
	found *engine.Engine // what engine has found
}

// nodeImages are the images of the release notes of kind v0.33.0, by minor version.
var nodeImages = map[string]string{
	"1.37": "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5",
	"1.36": "kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed",
	"1.35": "kindest/node:v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0",
	"1.34": "kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d",
}

//go:embed kind-audit.yaml
var kindAudit []byte

// kindTool is kind itself, which is a tool of the root module.
var kindTool = pinned.Tools{Module: ".", Dir: "tools", NeedsFree: 1 << 30}

func (k *kind) name() string                             { return "kind" }
func (k *kind) containers(context.Context) (bool, error) { return true, nil }
func (k *kind) kubeconfig() string                       { return k.dir("kubeconfig") }
func (k *kind) binaries() []string                       { return nil }

func (k *kind) dir(elem ...string) string {
	return k.ws.Path(append([]string{"kind"}, elem...)...)
}

// made returns which engine holds the cluster of this clone, and its name there. Another engine may be
// the first that answers by now, and a clone that was moved has another ID. In a copy of a clone, the
// file is about the cluster of the other one.
func (k *kind) made() (of []string, name string) {
	data, _ := os.ReadFile(k.dir("made"))
	made := strings.SplitN(strings.TrimSpace(string(data)), " ", 3)
	if len(made) < 2 || len(made) == 3 && k.copied(made[2]) {
		return nil, k.ws.ID()
	}
	return made[:1], made[1]
}

// copied reports whether the clone in root has made this one's cluster, and is another one that still has it.
func (k *kind) copied(root string) bool {
	own, err := os.Stat(k.dir("made"))
	if err != nil {
		return false
	}
	other := (&kind{ws: workspace.Workspace{Root: root}}).dir("made")
	theirs, err := os.Stat(other)
	if err != nil || os.SameFile(own, theirs) {
		return false
	}
	a, err := os.ReadFile(k.dir("made"))
	b, otherErr := os.ReadFile(other)
	return errors.Join(err, otherErr) == nil && bytes.Equal(a, b)
}

// engine finds the container engine once.
func (k *kind) engine(ctx context.Context) (engine.Engine, error) {
	if k.found != nil {
		return *k.found, nil
	}
	of, _ := k.made()
	e, err := engine.Find(ctx, of...)
	if err == nil {
		k.found = &e
	}
	return e, err
}

// fetch gets kind itself and the node image.
func (k *kind) fetch(ctx context.Context, out io.Writer) (Parts, error) {
	e, err := k.engine(ctx)
	if err != nil {
		return Parts{}, err
	}
	if err := kindTool.Build(ctx, k.ws, out, "kind"); err != nil {
		return Parts{}, err
	}
	image, err := k.image(ctx, e, out)
	return Parts{Files: kindTool.Files("kind"), Image: image}, err
}

func (k *kind) missing(ctx context.Context) (tools []string, image string, err error) {
	if tools, err = kindTool.Missing(k.ws, "kind"); err != nil {
		return nil, "", err
	}
	e, err := k.engine(ctx)
	if err != nil {
		return nil, "", err
	}
	if present, err := k.present(ctx, e); err != nil || present != "" {
		return tools, "", err
	}
	_, _, release, err := k.versions()
	name, _, _ := strings.Cut(release, "@")
	return tools, fmt.Sprintf("the node image %s in %s", name, e.Name), err
}

func (k *kind) status(ctx context.Context) Status {
	_, err := os.Stat(k.dir())
	known := err == nil
	e, err := k.engine(ctx)
	if err != nil {
		if known {
			return Status{State: Broken, Detail: err.Error()}
		}
		return Status{State: Absent, Detail: err.Error()}
	}
	nodes, err := k.nodes(ctx, e)
	if err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	if len(nodes) == 0 && !known {
		return Status{State: Absent, Detail: "no cluster"}
	}
	image, err := os.ReadFile(k.dir("image"))
	if err != nil || len(nodes) == 0 {
		return Status{State: Broken, Detail: "not started completely, or its node is gone"}
	}
	if other := k.other(string(image)); other != "" {
		return Status{State: Broken, Detail: other}
	}
	if err := Healthy(ctx, k.kubeconfig()); err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	detail := fmt.Sprintf("%s, real containers in %s %s", image, e.Name, e.Version)
	if own, _, _, err := k.versions(); err == nil && os.Getenv("K8S_VERSION") == "" && !runs(string(image), own) {
		detail += fmt.Sprintf("; this clone is for Kubernetes %s, which make down and make up give you", own)
	}
	return Status{State: Ready, Detail: detail}
}

// runs reports whether a node image is of a minor version, such as 1.36.
func runs(image, version string) bool { return strings.Contains(image, ":v"+version+".") }

// other says how the cluster that was made from an image differs from what is asked for, or "".
func (k *kind) other(image string) string {
	if want := os.Getenv("K8S_VERSION"); want != "" && !runs(image, want) {
		return fmt.Sprintf("it runs %s, K8S_VERSION asks for %s", image, want)
	}
	if os.Getenv("AUDIT_POLICY") == "" {
		return ""
	}
	want, err := k.auditPolicy()
	if err != nil {
		return err.Error()
	}
	if policy, err := os.ReadFile(k.dir("audit", "policy.yaml")); err != nil || !bytes.Equal(policy, want) {
		return "its audit policy is not that of AUDIT_POLICY"
	}
	return ""
}

// nodes lists the containers of the cluster, also of one that was left half-made.
func (k *kind) nodes(ctx context.Context, e engine.Engine) ([]string, error) {
	_, name := k.made()
	output, err := e.Run(ctx, "ps", "--all", "--quiet", "--filter", "label=io.x-k8s.kind.cluster="+name)
	return strings.Fields(output), err
}

func (k *kind) up(ctx context.Context, before Status, out io.Writer) error {
	e, err := k.engine(ctx)
	if err != nil {
		return fmt.Errorf("CLUSTER=kind: %w", err)
	}
	if e.Name != "docker" {
		fmt.Fprintf(out, "The container engine is %s %s: kind supports it, but this workshop is tested with docker only\n", e.Name, e.Version)
	}
	if err := diskspace.Require(k.ws.Path(), 3<<30, "a kind cluster"); err != nil {
		return err
	}
	start := time.Now()
	if image, err := os.ReadFile(k.dir("image")); err == nil && k.other(string(image)) == "" {
		fmt.Fprintf(out, "Repairing the kind cluster: %s\n", before.Detail)
		err := k.revive(ctx, e)
		if err == nil {
			fmt.Fprintf(out, "kind cluster repaired in %.1fs; its objects are still there\n", time.Since(start).Seconds())
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		before.Detail = fmt.Sprintf("it could not be repaired (%v)", err)
	}
	if before.Used != "" {
		return fmt.Errorf("%s: %s; and %s", k.name(), before.Detail, before.Used)
	}
	// First what may fail: until then, a cluster that is there stays.
	policy, err := k.auditPolicy()
	if err != nil {
		return err
	}
	parts, err := k.fetch(ctx, out)
	if err != nil {
		return err
	}
	if before.State == Broken {
		fmt.Fprintf(out, "Making a new kind cluster: %s\n", before.Detail)
	}
	// Also a half-made one of a run that was killed.
	if err := k.down(ctx, io.Discard); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(k.dir(), 0o755), os.WriteFile(k.dir("made"), []byte(e.Name+" "+k.ws.ID()+" "+k.ws.Root+"\n"), 0o644)); err != nil {
		return err
	}
	start = time.Now()
	if err := k.create(ctx, parts.Image, policy, out); err != nil {
		return errors.Join(err, interrupt.CleanUp(k.down(context.WithoutCancel(ctx), io.Discard)))
	}
	fmt.Fprintf(out, "kind cluster started in %.1fs\n", time.Since(start).Seconds())
	return nil
}

// revive starts what the engine has stopped, and gives a cluster that was whole the time
// which it needs after a restart of the machine.
func (k *kind) revive(ctx context.Context, e engine.Engine) error {
	nodes, err := k.nodes(ctx, e)
	if err == nil && len(nodes) == 0 {
		err = errors.New("its node is gone")
	}
	if err == nil {
		_, err = e.Run(ctx, append([]string{"start"}, nodes...)...)
	}
	if err == nil {
		err = poll.Until(ctx, time.Second, time.Minute, func(ctx context.Context) error { return Healthy(ctx, k.kubeconfig()) })
	}
	return err
}

// image returns the node image for K8S_VERSION: the released one if it is here or
// can be pulled, else one that is built here.
func (k *kind) image(ctx context.Context, e engine.Engine, out io.Writer) (string, error) {
	own, want, release, err := k.versions()
	if err != nil {
		return "", err
	}
	if image, err := k.present(ctx, e); err != nil || image != "" {
		if built, nameErr := nodeimage.Name(k.ws); nameErr == nil && image == built {
			fmt.Fprintf(out, "Using %s, which was built here\n", image)
		}
		return image, err
	}
	name, _, _ := strings.Cut(release, "@")
	done := progress.Start(out, "Pulling "+name)
	from := release
	if e.Name == "podman" {
		from = "docker.io/" + release // it asks a terminal which registry a short name means
	}
	_, pullErr := e.Run(ctx, "pull", "--quiet", from)
	done(pullErr)
	if pullErr == nil {
		return release, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if want != own {
		return "", fmt.Errorf("the node image for Kubernetes %s is neither here nor can it be pulled, and only %s can be built here: %w", want, own, pullErr)
	}
	if err := nodeimage.Possible(e); err != nil {
		return "", fmt.Errorf("the node image is neither here nor can it be pulled (%w), and it cannot be built: %w", pullErr, err)
	}
	fmt.Fprintln(out, "It is neither here nor can it be pulled; building one from Go modules and Debian packages")
	if err := nodeimage.Build(ctx, k.ws, out); err != nil {
		return "", err
	}
	return nodeimage.Name(k.ws)
}

// auditPolicy is the file that AUDIT_POLICY names, or else our own. A relative path begins at the root of the
// clone: tests run in the folders of their packages.
func (k *kind) auditPolicy() ([]byte, error) {
	file := os.Getenv("AUDIT_POLICY")
	if file == "" {
		return kindAudit, nil
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(k.ws.Root, file)
	}
	policy, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("AUDIT_POLICY: %w", err)
	}
	return policy, nil
}

// versions returns the minor version of the control plane that is built here, the
// one that K8S_VERSION asks for, and the image that is pinned for the latter.
func (k *kind) versions() (own, want, release string, err error) {
	version, err := pinned.KubernetesVersion(k.ws)
	if err != nil {
		return "", "", "", err
	}
	own = strings.TrimPrefix(semver.MajorMinor(version), "v")
	want = cmp.Or(os.Getenv("K8S_VERSION"), own)
	release, ok := nodeImages[want]
	if !ok {
		known := slices.Sorted(maps.Keys(nodeImages))
		return "", "", "", fmt.Errorf("K8S_VERSION=%s: no node image is pinned for it; there are %s", want, strings.Join(known, ", "))
	}
	return own, want, release, nil
}

// present returns the node image for K8S_VERSION that the engine holds already, or "".
func (k *kind) present(ctx context.Context, e engine.Engine) (string, error) {
	own, want, release, err := k.versions()
	if err != nil {
		return "", err
	}
	if want == own {
		current, err := nodeimage.Current(ctx, k.ws, e)
		if err != nil {
			return "", err
		}
		if current {
			return nodeimage.Name(k.ws)
		}
	}
	// An image that came out of a pack has its name, but no registry's digest.
	name, _, _ := strings.Cut(release, "@")
	for _, image := range []string{release, name} {
		if _, err := e.Run(ctx, "image", "inspect", image); err == nil {
			return image, nil
		}
	}
	return "", ctx.Err()
}

// config is the cluster's configuration for kind. A node image of our own has no
// network plugin daemon, but a static configuration for its one node. The API
// server reads the audit policy in the given folder, and writes its log there.
func config(ownImage bool, auditDir string) string {
	return fmt.Sprintf(`kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking:
  disableDefaultCNI: %v
kubeadmConfigPatches:
# From 1.35 on kubelet refuses a host with cgroup v1 unless it is told not to.
- |
  kind: KubeletConfiguration
  apiVersion: kubelet.config.k8s.io/v1beta1
  failCgroupV1: false
- |
  kind: ClusterConfiguration
  apiServer:
    extraArgs: {audit-policy-file: /audit/policy.yaml, audit-log-path: /audit/audit.log}
    extraVolumes: [{name: audit, hostPath: /audit, mountPath: /audit, readOnly: false, pathType: Directory}]
nodes:
- role: control-plane
  extraMounts: [{hostPath: %q, containerPath: /audit}]
`, ownImage, auditDir)
}

// makeAuditDir writes the policy to the folder that the node gets. The log is
// made here too: the API server, which is root, would let nobody else read it.
func (k *kind) makeAuditDir(policy []byte) error {
	if err := os.MkdirAll(k.dir("audit"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(k.dir("audit", "policy.yaml"), policy, 0o644); err != nil {
		return err
	}
	return os.WriteFile(k.dir("audit", "audit.log"), nil, 0o644)
}

func (k *kind) auditLog() string {
	file := k.dir("audit", "audit.log")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

func (k *kind) create(ctx context.Context, image string, policy []byte, out io.Writer) (err error) {
	own := !strings.HasPrefix(image, "kindest/")
	name, _, _ := strings.Cut(image, "@")
	file := k.dir("config.yaml")
	if err := k.makeAuditDir(policy); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(config(own, k.dir("audit"))), 0o644); err != nil {
		return err
	}
	done := progress.Start(out, "Creating the kind cluster from "+name)
	defer func() { done(err) }()
	if err := k.run(ctx, "create", "cluster", "--name", k.ws.ID(), "--image", image,
		"--config", file, "--kubeconfig", k.kubeconfig(), "--wait", "180s"); err != nil {
		return err
	}
	if err := k.loadPause(ctx); err != nil {
		return err
	}
	if err := waitReady(ctx, k.kubeconfig(), 1, 2*time.Minute); err != nil {
		return err
	}
	if err := waitSystemPods(ctx, k.kubeconfig(), 3*time.Minute); err != nil {
		return err
	}
	return os.WriteFile(k.dir("image"), []byte(name), 0o644)
}

func (k *kind) loadImages(ctx context.Context, _ io.Writer, images []string) error {
	e, err := k.engine(ctx)
	if err != nil {
		return err
	}
	for _, image := range images {
		what := "docker-image" // of whichever engine it is
		if info, err := os.Stat(image); err == nil && info.Mode().IsRegular() {
			what = "image-archive"
		} else if _, err := e.Run(ctx, "image", "inspect", image); err != nil {
			return fmt.Errorf("%s is neither a file nor an image of %s: build it or pull it first: %w", image, e.Name, err)
		}
		_, name := k.made()
		if err := k.run(ctx, "load", what, image, "--name", name); err != nil {
			return fmt.Errorf("loading %s: %w", image, err)
		}
	}
	return nil
}

// run runs kind. An interrupt ends it at once, together with the docker commands
// that it runs; what they made is then removed by name.
func (k *kind) run(ctx context.Context, args ...string) error {
	e, err := k.engine(ctx)
	if err != nil {
		return err
	}
	var output proc.Buffer
	err = proc.Run(ctx, proc.Cmd{Path: k.ws.Path("tools", "kind"), Args: args,
		Env: append(environ(k.ws, k), "KIND_EXPERIMENTAL_PROVIDER="+e.Name), Out: &output, Err: &output})
	if err == nil || ctx.Err() != nil {
		return err
	}
	return k.explain(ctx, strings.Join(args[:2], " "), err, output.String())
}

// explain makes an error of what kind printed, which can be thousands of lines:
// all of them go into a file, and its own error message stays.
func (k *kind) explain(ctx context.Context, command string, err error, output string) error {
	file := k.ws.Path("logs", "kind.log")
	if writeErr := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(output), 0o644)); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	of, _ := k.made()
	if _, engineErr := engine.Find(ctx, of...); engineErr != nil {
		return fmt.Errorf("kind %s: the container engine went away meanwhile: %w", command, engineErr)
	}
	message := "no message"
	for line := range strings.Lines(output) {
		if m, ok := strings.CutPrefix(line, "ERROR: "); ok {
			message = strings.TrimSpace(m)
		}
	}
	return fmt.Errorf("kind %s: %s (%w); all that it printed is in %s", command, message, err, file)
}

func (k *kind) down(ctx context.Context, out io.Writer) error {
	_, statErr := os.Stat(k.dir())
	e, err := k.engine(ctx)
	if err != nil {
		if errors.Is(statErr, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("the kind cluster cannot be removed now; run make down again when it can: %w", err)
	}
	nodes, err := k.nodes(ctx, e)
	if err != nil {
		return err
	}
	if len(nodes) == 0 && errors.Is(statErr, os.ErrNotExist) {
		return nil
	}
	// Until they are gone: of a container that is being made, the engine says that there is none to remove, though it lists it.
	if err := poll.Until(ctx, 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		if len(nodes) == 0 {
			return nil
		}
		// Not through kind, which is not built where its first use failed.
		_, err := e.Run(ctx, append([]string{"rm", "--force", "--volumes"}, nodes...)...)
		if err == nil {
			nodes, err = k.nodes(ctx, e)
		}
		if err != nil {
			return poll.Stop(err)
		}
		if len(nodes) > 0 {
			return fmt.Errorf("%s still has %s", e.Name, strings.Join(nodes, ", "))
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Fprintln(out, "kind cluster removed")
	return os.RemoveAll(k.dir())
}

func (k *kind) exportLogs(ctx context.Context, dir string) error {
	if err := kindTool.Build(ctx, k.ws, io.Discard, "kind"); err != nil {
		return err
	}
	_, name := k.made()
	err := k.run(ctx, "export", "logs", dir, "--name", name)
	// kind fails if any of its commands does, such as crictl images, which our
	// own node image does not have; the logs are there all the same.
	nodes, _ := os.ReadDir(dir)
	for _, n := range nodes {
		if _, statErr := os.Stat(filepath.Join(dir, n.Name(), "kubelet.log")); statErr == nil && ctx.Err() == nil {
			return nil
		}
	}
	return err
}
