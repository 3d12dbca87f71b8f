// Package nodeimage builds a kind node image from Go modules and Debian
// packages, for machines that can reach those and no container registry.
package nodeimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// binaries are the node's own: containerd, the CNI plugins and CoreDNS.
var binaries = pinned.Tools{
	Module: "scripts/nodeimage", Dir: "nodeimage/bin", NeedsFree: 2 << 30,
	// As in kind's own build of containerd: snapshotters that no kind node uses.
	Tags: []string{"no_aufs", "no_zfs", "no_btrfs", "no_devmapper"},
}

// fromControlPlane are those binaries of the control plane that the image holds.
var fromControlPlane = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy",
	"kube-scheduler", "kubeadm", "kubectl", "kubelet"}

const stampLabel = "dev.k8s-go.workshop.stamp"

// Name returns the image's name; its tag is the Kubernetes version that
// scripts/controlplane pins.
func Name(ws workspace.Workspace) (string, error) {
	version, err := pinned.KubernetesVersion(ws)
	return "workshop/node:" + version, err
}

// Current reports whether the engine holds the image, made of what is pinned now.
func Current(ctx context.Context, ws workspace.Workspace, e engine.Engine) (bool, error) {
	name, err := Name(ws)
	if err != nil {
		return false, err
	}
	want, err := stamp(ws)
	if err != nil {
		return false, err
	}
	have, err := e.Run(ctx, "image", "inspect", "--format", `{{index .Config.Labels "`+stampLabel+`"}}`, name)
	return err == nil && have == want, nil
}

// Build builds the image unless it is current.
func Build(ctx context.Context, ws workspace.Workspace, out io.Writer) error {
	e, err := engine.Find(ctx)
	if err != nil {
		return err
	}
	name, err := Name(ws)
	if err != nil {
		return err
	}
	current, err := Current(ctx, ws, e)
	if err != nil {
		return err
	}
	if current {
		fmt.Fprintf(out, "%s is there, made of what is pinned now\n", name)
		return nil
	}
	if err := Possible(e); err != nil {
		return err
	}
	if err := diskspace.Require(ws.Path(), 4<<30, "a node image"); err != nil {
		return err
	}
	if err := pinned.ControlPlane.Build(ctx, ws, out, fromControlPlane...); err != nil {
		return err
	}
	if err := binaries.Build(ctx, ws, out); err != nil {
		return err
	}
	kind, err := moduleDir(ctx, ws.Root, "sigs.k8s.io/kind")
	if err != nil {
		return err
	}
	kubernetes, err := moduleDir(ctx, filepath.Join(ws.Root, "scripts", "controlplane"), "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	stamp, err := stamp(ws)
	if err != nil {
		return err
	}
	version, err := pinned.KubernetesVersion(ws)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Assembling the node image %s\n", name)
	err = proc.Run(ctx, proc.Cmd{
		Path: filepath.Join(ws.Root, "scripts", "nodeimage", "build.sh"),
		Env: workspace.Environ("IMAGE="+name, "STAMP="+stamp, "VERSION="+version,
			"BIN="+ws.Bin(""), "NODE_BIN="+ws.Path("nodeimage", "bin"),
			"KIND="+kind, "KUBERNETES="+kubernetes, "WORK="+ws.Path("nodeimage")),
		Out: out, Err: os.Stderr,
		// Its traps clean up.
		Signal: syscall.SIGTERM, Grace: time.Minute,
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("building %s: %w", name, err)
	}
	return err
}

// Possible returns why this machine cannot build a node image, and what to do.
func Possible(e engine.Engine) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 || e.Name != "docker" {
		return errors.New("a node image can be built only as root on Linux with Docker: run this with sudo there, pull a kindest/node image on a machine that can, or use CLUSTER=kwok")
	}
	for _, tool := range []string{"mmdebstrap", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("building a node image needs %s: apt-get install mmdebstrap gcc libc6-dev, or use CLUSTER=kwok", tool)
		}
	}
	return nil
}

// moduleDir returns the folder of a module's source. go list -m names none for a
// module that was never downloaded, which kind's is not until it is built.
func moduleDir(ctx context.Context, dir, module string) (string, error) {
	output, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"mod", "download", "-json", module}, Dir: dir, Env: workspace.Environ()})
	if err != nil {
		return "", fmt.Errorf("downloading %s: %w", module, err)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal([]byte(output), &m); err != nil || m.Dir == "" {
		return "", fmt.Errorf("go mod download -json %s names no folder (%v):\n%s", module, err, output)
	}
	return m.Dir, nil
}

// stamp identifies everything that the image is made of, but for the versions
// of Debian's packages, which are the newest of their release.
func stamp(ws workspace.Workspace) (string, error) {
	h := sha256.New()
	for _, set := range []pinned.Tools{pinned.ControlPlane, binaries} {
		s, err := set.Stamp(ws)
		if err != nil {
			return "", err
		}
		io.WriteString(h, s)
	}
	kind, err := ws.ModuleVersion("go.mod", "sigs.k8s.io/kind")
	if err != nil {
		return "", err
	}
	io.WriteString(h, kind)
	err = filepath.WalkDir(filepath.Join(ws.Root, "scripts", "nodeimage"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n", d.Name(), len(data))
		h.Write(data)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
