package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/build"
	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/nodeimage"
	"github.com/k8s-go/workshop/internal/workspace"
)

// kind is a cluster of real nodes, which are containers, with real containers in them.
type kind struct{ ws workspace.Workspace }

// nodeImages are the images of the release notes of kind v0.33.0, by minor version.
var nodeImages = map[string]string{
	"1.37": "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5",
	"1.36": "kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed",
	"1.35": "kindest/node:v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0",
	"1.34": "kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d",
}

// PauseImage is in every kind cluster: a program that does nothing until it is
// told to stop, for pods that really have to run. NextPauseImage is the same
// under another tag, for what has to be rolled out.
const (
	PauseImage     = "workshop/pause:1"
	NextPauseImage = "workshop/pause:2"
)

func (k *kind) Name() string       { return "kind" }
func (k *kind) Containers() bool   { return true }
func (k *kind) Kubeconfig() string { return k.dir("kubeconfig") }
func (k *kind) binaries() []string { return nil }

func (k *kind) dir(elem ...string) string {
	return k.ws.State(append([]string{"kind"}, elem...)...)
}

func (k *kind) State(ctx context.Context) (State, string) {
	_, err := os.Stat(k.dir())
	known := err == nil
	e, err := engine.Find(ctx)
	if err != nil {
		if known {
			return Broken, err.Error()
		}
		return Absent, err.Error()
	}
	nodes, err := k.nodes(ctx, e)
	if err != nil {
		return Broken, err.Error()
	}
	if len(nodes) == 0 && !known {
		return Absent, "no cluster"
	}
	image, err := os.ReadFile(k.dir("image"))
	if err != nil || len(nodes) == 0 {
		return Broken, "not started completely, or its node is gone"
	}
	if want := os.Getenv("K8S_VERSION"); want != "" && !strings.Contains(string(image), ":v"+want+".") {
		return Broken, fmt.Sprintf("it runs %s, K8S_VERSION asks for %s", image, want)
	}
	if err := healthy(ctx, k.Kubeconfig()); err != nil {
		return Broken, err.Error()
	}
	return Ready, fmt.Sprintf("%s, real containers in %s %s", image, e.Name, e.Version)
}

// nodes lists the containers of the cluster, also of one that was left half-made.
func (k *kind) nodes(ctx context.Context, e engine.Engine) ([]string, error) {
	output, err := e.Run(ctx, "ps", "--all", "--quiet", "--filter", "label=io.x-k8s.kind.cluster="+k.ws.ID())
	return strings.Fields(output), err
}

func (k *kind) up(ctx context.Context, out io.Writer) error {
	e, err := engine.Find(ctx)
	if err != nil {
		return fmt.Errorf("CLUSTER=kind: %w", err)
	}
	if e.Name != "docker" {
		fmt.Fprintf(out, "The container engine is %s %s: kind supports it, but this workshop is tested with docker only\n", e.Name, e.Version)
	}
	if err := diskspace.Require(k.ws.State(), 3<<30, "a kind cluster"); err != nil {
		return err
	}
	if _, detail := k.State(ctx); detail != "no cluster" {
		fmt.Fprintf(out, "Starting the kind cluster anew: %s\n", detail)
	}
	// A half-made cluster of a run that was killed goes first.
	if err := k.down(ctx, io.Discard); err != nil {
		return err
	}
	image, err := k.image(ctx, e, out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.dir(), 0o755); err != nil {
		return err
	}
	start := time.Now()
	if err := k.create(ctx, e, image, out); err != nil {
		return errors.Join(err, k.down(context.WithoutCancel(ctx), io.Discard))
	}
	fmt.Fprintf(out, "kind cluster started in %.1fs\n", time.Since(start).Seconds())
	return nil
}

// image returns the node image for K8S_VERSION: the pinned one if it is here or
// can be pulled, else one that is built here.
func (k *kind) image(ctx context.Context, e engine.Engine, out io.Writer) (string, error) {
	version, err := build.KubernetesVersion(k.ws)
	if err != nil {
		return "", err
	}
	own := strings.TrimPrefix(semver.MajorMinor(version), "v")
	want := os.Getenv("K8S_VERSION")
	if want == "" {
		want = own
	}
	pinned, ok := nodeImages[want]
	if !ok {
		var known []string
		for v := range nodeImages {
			known = append(known, v)
		}
		slices.Sort(known)
		return "", fmt.Errorf("K8S_VERSION=%s: no node image is pinned for it; there are %s", want, strings.Join(known, ", "))
	}
	if want == own {
		current, err := nodeimage.Current(ctx, k.ws, e)
		if err != nil {
			return "", err
		}
		if current {
			name, err := nodeimage.Name(k.ws)
			fmt.Fprintf(out, "Using %s, which was built here\n", name)
			return name, err
		}
	}
	if _, err := e.Run(ctx, "image", "inspect", pinned); err == nil {
		return pinned, nil
	}
	fmt.Fprintf(out, "Pulling %s\n", pinned)
	_, pullErr := e.Run(ctx, "pull", "--quiet", pinned)
	if pullErr == nil {
		return pinned, nil
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
	fmt.Fprintf(out, "It is neither here nor can it be pulled; building one from Go modules and Debian packages\n")
	if err := nodeimage.Build(ctx, k.ws, out); err != nil {
		return "", err
	}
	return nodeimage.Name(k.ws)
}

// config is the cluster's configuration for kind. A node image of our own has no
// network plugin daemon, but a static configuration for its one node.
func config(ownImage bool) string {
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
`, ownImage)
}

func (k *kind) create(ctx context.Context, e engine.Engine, image string, out io.Writer) error {
	own := !strings.HasPrefix(image, "kindest/")
	file := k.dir("config.yaml")
	if err := os.WriteFile(file, []byte(config(own)), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(out, "Creating the kind cluster from %s\n", image)
	if err := k.kind(ctx, e, "create", "cluster", "--name", k.ws.ID(), "--image", image,
		"--config", file, "--kubeconfig", k.Kubeconfig(), "--wait", "180s"); err != nil {
		return err
	}
	if err := k.loadPause(ctx, e); err != nil {
		return err
	}
	if err := waitReady(ctx, k.Kubeconfig(), 1, 2*time.Minute); err != nil {
		return err
	}
	if err := waitSystemPods(ctx, k.Kubeconfig(), 3*time.Minute); err != nil {
		return err
	}
	return os.WriteFile(k.dir("image"), []byte(strings.Split(image, "@")[0]), 0o644)
}

// loadPause builds the pause images and puts them into the nodes.
func (k *kind) loadPause(ctx context.Context, e engine.Engine) error {
	context := k.dir("pause")
	if err := os.MkdirAll(context, 0o755); err != nil {
		return err
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(context, "pause"), "./scripts/images/pause")
	cmd.Dir, cmd.Stdout, cmd.Stderr = k.ws.Root, &output, &output
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", PauseImage, err, output.String())
	}
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte("FROM scratch\nCOPY pause /pause\nENTRYPOINT [\"/pause\"]\n"), 0o644); err != nil {
		return err
	}
	if _, err := e.Run(ctx, "build", "--quiet", "--tag", PauseImage, "--tag", NextPauseImage, context); err != nil {
		return err
	}
	return k.kind(ctx, e, "load", "docker-image", PauseImage, NextPauseImage, "--name", k.ws.ID())
}

// kind runs kind, which is a tool of the root module.
func (k *kind) kind(ctx context.Context, e engine.Engine, args ...string) error {
	binary := k.ws.State("tools", "kind")
	var output bytes.Buffer
	compile := exec.CommandContext(ctx, "go", "build", "-o", binary, "sigs.k8s.io/kind")
	compile.Dir, compile.Stdout, compile.Stderr = k.ws.Root, &output, &output
	if err := compile.Run(); err != nil {
		return fmt.Errorf("building kind: %w\n%s", err, output.String())
	}
	output.Reset()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = append(Environ(k.ws, k), "KIND_EXPERIMENTAL_PROVIDER="+e.Name)
	// A group of its own: an interrupt ends it together with the docker
	// commands that it runs, and what they made is then removed by name.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return k.explain(ctx, strings.Join(args[:2], " "), err, output.Bytes())
	}
	return nil
}

// explain makes an error of what kind printed, which can be thousands of lines:
// all of them go into a file, and its own error message stays.
func (k *kind) explain(ctx context.Context, command string, err error, output []byte) error {
	file := k.ws.State("logs", "kind.log")
	if writeErr := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, output, 0o644)); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	if _, engineErr := engine.Find(ctx); engineErr != nil {
		return fmt.Errorf("kind %s: the container engine went away meanwhile: %w", command, engineErr)
	}
	message := "no message"
	for line := range strings.Lines(string(output)) {
		if m, ok := strings.CutPrefix(line, "ERROR: "); ok {
			message = strings.TrimSpace(m)
		}
	}
	return fmt.Errorf("kind %s: %s (%w); all that it printed is in %s", command, message, err, file)
}

func (k *kind) down(ctx context.Context, out io.Writer) error {
	_, statErr := os.Stat(k.dir())
	e, err := engine.Find(ctx)
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
	if len(nodes) > 0 {
		// Not through kind, which is not built where its first use failed.
		if _, err := e.Run(ctx, append([]string{"rm", "--force", "--volumes"}, nodes...)...); err != nil {
			return err
		}
	}
	if len(nodes) == 0 && errors.Is(statErr, os.ErrNotExist) {
		return nil
	}
	fmt.Fprintln(out, "kind cluster removed")
	return os.RemoveAll(k.dir())
}

func (k *kind) ExportLogs(ctx context.Context, dir string) error {
	e, err := engine.Find(ctx)
	if err != nil {
		return err
	}
	return k.kind(ctx, e, "export", "logs", dir, "--name", k.ws.ID())
}
