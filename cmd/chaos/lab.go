package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A lab is what all cases share: the cluster, and the programs.
type lab struct {
	ws      workspace.Workspace
	cluster *cluster.Cluster
	config  *rest.Config
	client  kubernetes.Interface
	objects versioned.Interface
	audit   *audit
	lock    *flock.Flock // of the cluster's name: another make chaos would remove it
	dir     string       // for what the cases need, removed at the end
}

// openLab starts the cluster and builds the programs. close has to follow, also
// after an error.
func openLab(ctx context.Context) (*lab, error) {
	l := &lab{}
	var err error
	if l.ws, err = workspace.Find(); err != nil {
		return l, err
	}
	if err := os.MkdirAll(l.ws.Path("chaos"), 0o755); err != nil {
		return l, err
	}
	lock := flock.New(l.ws.Path("chaos", "lock"))
	if free, err := lock.TryLock(); err != nil || !free {
		return l, cmp.Or(err, errors.New("another make chaos of this clone runs: wait for it to end"))
	}
	l.lock = lock
	if l.dir, err = os.MkdirTemp("", "chaos"); err != nil {
		return l, err
	}
	for _, s := range subjects {
		if err := l.build(ctx, s.name, "./06-controller/"+s.name); err != nil {
			return l, err
		}
	}
	if err := l.buildJumping(ctx); err != nil {
		return l, err
	}
	if l.cluster, err = cluster.NewKwok(l.ws, "chaos", cluster.KwokOptions{
		AuditPolicy: auditPolicy,
		// So many scenes at once are more than its clients would allow themselves.
		ExtraArgs: map[string][]string{
			"kube-controller-manager": {"kube-api-qps=500", "kube-api-burst=1000"},
			"kube-apiserver":          {"audit-log-maxsize=100000"}, // MB: the log is read as one file
		},
	}); err != nil {
		return l, err
	}
	// Nothing of an interrupted run is used: its audit log is not ours.
	if err := l.cluster.Down(ctx, io.Discard); err != nil {
		return l, err
	}
	if err := l.cluster.Up(ctx, os.Stdout); err != nil {
		return l, err
	}
	if l.config, err = l.cluster.Config(); err != nil {
		return l, err
	}
	l.config.QPS = -1
	if l.client, err = kubernetes.NewForConfig(l.config); err != nil {
		return l, err
	}
	if l.objects, err = versioned.NewForConfig(l.config); err != nil {
		return l, err
	}
	l.audit = followAudit(ctx, l.cluster.AuditLog())
	return l, l.define(ctx, "controller.nicoleh.io_icecreams.yaml", "policy.k8s-go.openshift.org_healthcheckpolicies.yaml")
}

func (l *lab) close() error {
	var errs []error
	if l.cluster != nil {
		errs = append(errs, l.cluster.Down(context.Background(), io.Discard))
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}

// binary is where a program is kept, so that the next run links only what has changed.
func (l *lab) binary(name string) string { return l.ws.Path("chaos", name) }

func (l *lab) build(ctx context.Context, name, pkg string, args ...string) error {
	args = append([]string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", l.binary(name)}, append(args, pkg)...)
	if err := proc.Go(ctx, proc.Cmd{Args: args, Dir: l.ws.Root}); err != nil {
		return fmt.Errorf("building %s: %w", pkg, err)
	}
	return nil
}

const jumping = "healthcheckpolicy-jumping"

// buildJumping builds healthcheckpolicy with a clock that jumps. Only the
// argument of New changes.
func (l *lab) buildJumping(ctx context.Context) error {
	const program, real, ours = "06-controller/healthcheckpolicy", crash.RealClock, crash.JumpingClock
	folder := filepath.Join(l.ws.Root, program)
	source, err := os.ReadFile(filepath.Join(folder, "main.go"))
	if err != nil {
		return err
	}
	if n := strings.Count(string(source), real); n != 1 {
		return fmt.Errorf("%s/main.go holds %s %d times, not once: the clock cannot be exchanged", program, real, n)
	}
	dir := l.ws.Path("chaos")
	changed, added, overlay := filepath.Join(dir, "main.go.txt"), filepath.Join(dir, "clock.go.txt"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(folder, "main.go"): changed, filepath.Join(folder, "jumping_clock.go"): added,
	}})
	if err != nil {
		return err
	}
	for file, text := range map[string]string{changed: strings.Replace(string(source), real, ours, 1), added: crash.JumpingClockSource, overlay: string(replace)} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return l.build(ctx, jumping, "./"+program, "-overlay", overlay)
}

// define installs definitions of step 05.
func (l *lab) define(ctx context.Context, files ...string) error {
	client, err := clientset.NewForConfig(l.config)
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(l.ws.Root, "05-crd-go", "config", "crd", file))
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("installing %s: %w", crd.Name, err)
		}
		if err := crdwait.Established(ctx, l.config, crd.Name); err != nil {
			return err
		}
	}
	return nil
}
