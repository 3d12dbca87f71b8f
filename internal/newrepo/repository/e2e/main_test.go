// Package e2e tests the controller on a real cluster, that of KUBECONFIG, where it installs this
// clone's CRD. So it needs E2E_CONTROLLER, too, which only make test sets: a plain go test would
// otherwise change whatever cluster a shell names. make test starts a kind cluster if there is none.
//
// The tests are features of sigs.k8s.io/e2e-framework. This file holds what they stand
// on: the CRD, a namespace, and the controller.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/wait"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/yaml"

	"example.org/widgets/api/v1alpha1"
	"example.org/widgets/internal/controller"
)

const (
	crdFile  = "../config/crd/stable.example.org_widgets.yaml"
	patience = time.Minute
)

var cluster env.Environment

func TestMain(m *testing.M) {
	if os.Getenv("KUBECONFIG") == "" || os.Getenv("E2E_CONTROLLER") == "" {
		fmt.Println("Not tested: only make test has a cluster for this, that of KUBECONFIG or one of its own")
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns an error also if the tests passed, and left something behind: the
// framework logs that at a verbosity that nobody sets.
func run(m *testing.M) (code int, unclean error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop() // an interrupt fails the tests; then they clean up as after any failure
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return 1, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // polling is not slowed down
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return 1, err
	}
	client, err := klient.New(config)
	if err != nil {
		return 1, err
	}
	if cluster, err = env.NewWithContext(ctx, envconf.New().WithClient(client)); err != nil {
		return 1, err
	}
	s := &suite{}
	cluster.Setup(s.refuseTwo, s.define, s.createNamespace, s.startController)
	for _, f := range []env.Func{s.stopController, s.deleteNamespace, s.undefine} { // also after a set-up that failed
		cluster.Finish(func(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
			_, err := f(context.WithoutCancel(ctx), cfg)
			unclean = errors.Join(unclean, err)
			return ctx, err
		})
	}
	code = cluster.Run(m)
	if code != 0 {
		_, _ = os.Stderr.WriteString("The controller's log:\n" + controllerLog())
	}
	return code, errors.Join(unclean, os.RemoveAll(s.dir))
}

// A suite is what the set-up has to undo.
type suite struct {
	crd       *unstructured.Unstructured // nil if it was there before
	namespace *corev1.Namespace
	dir       string
	process   *exec.Cmd // nil if the controller runs as a pod
}

// refuseTwo returns an error where the controller to test would not be the only one.
func (s *suite) refuseTwo(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
	if deployed {
		return ctx, nil
	}
	var other appsv1.Deployment
	err := cfg.Client().Resources().Get(ctx, controller.Manager, controller.Manager, &other)
	if err == nil && *other.Spec.Replicas > 0 {
		return ctx, fmt.Errorf("the controller is deployed in this cluster, and could do the work of the one that is tested; first: kubectl scale deployment %[1]s --namespace %[1]s --replicas 0", controller.Manager)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return ctx, fmt.Errorf("looking for a controller that is deployed: %w", err)
	}
	return ctx, nil
}

// define installs the CRD.
func (s *suite) define(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
	text, err := os.ReadFile(crdFile)
	if err != nil {
		return ctx, err
	}
	var crd unstructured.Unstructured
	if err := yaml.UnmarshalStrict(text, &crd.Object); err != nil {
		return ctx, fmt.Errorf("reading %s: %w", crdFile, err)
	}
	r := cfg.Client().Resources()
	before := crd.DeepCopy()
	err = r.Get(ctx, crd.GetName(), "", before)
	if err != nil && !apierrors.IsNotFound(err) {
		return ctx, fmt.Errorf("looking for the CRD: %w", err)
	}
	isNew := err != nil
	apply := k8s.Patch{PatchType: types.ApplyYAMLPatchType, Data: text}
	asMakeDoes := func(o *metav1.PatchOptions) { o.FieldManager, o.Force = "kubectl", new(true) } // or the next make run would leave what is no longer in the file
	if err := r.Patch(ctx, &crd, apply, asMakeDoes); err != nil {
		return ctx, fmt.Errorf("installing the CRD: %w", err)
	}
	if isNew {
		s.crd = &crd
	}
	return ctx, eventually(ctx, "the CRD is served", func(ctx context.Context) error {
		return r.List(ctx, &v1alpha1.WidgetList{})
	})
}

func (s *suite) undefine(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
	if s.crd == nil {
		return ctx, nil
	}
	r := cfg.Client().Resources()
	if err := r.Delete(ctx, s.crd); err != nil {
		return ctx, fmt.Errorf("deleting the CRD: %w", err)
	}
	return ctx, eventually(ctx, "the CRD is gone", func(ctx context.Context) error {
		return gone(r.Get(ctx, s.crd.GetName(), "", s.crd))
	})
}

// createNamespace creates a namespace for these tests alone.
func (s *suite) createNamespace(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "widget-test-"}}
	if err := cfg.Client().Resources().Create(ctx, namespace); err != nil {
		return ctx, fmt.Errorf("creating the namespace: %w", err)
	}
	s.namespace = namespace
	cfg.WithNamespace(namespace.Name)
	return ctx, nil
}

func (s *suite) deleteNamespace(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
	if s.namespace == nil {
		return ctx, nil
	}
	return ctx, cfg.Client().Resources().Delete(ctx, s.namespace)
}

// deployed is whether the controller runs as a pod already.
var deployed = os.Getenv("E2E_CONTROLLER") == "deployed"

// logFile is where the controller logs, if it runs as a process.
var logFile string

func controllerLog() string {
	text, _ := os.ReadFile(logFile)
	return string(text)
}

// startController starts the controller as a process.
func (s *suite) startController(ctx context.Context, cfg *envconf.Config) (_ context.Context, err error) {
	if deployed {
		return ctx, nil
	}
	if s.dir, err = os.MkdirTemp("", "e2e-"); err != nil {
		return ctx, err
	}
	binary := filepath.Join(s.dir, controller.Manager)
	if output, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "../cmd/"+controller.Manager).CombinedOutput(); err != nil {
		return ctx, fmt.Errorf("building the controller: %w\n%s", err, output)
	}
	logFile = filepath.Join(s.dir, "log")
	log, err := os.Create(logFile)
	if err != nil {
		return ctx, err
	}
	defer log.Close() // the process has its own
	process := exec.Command(binary, "-namespace", cfg.Namespace(), "-lease-namespace", cfg.Namespace(), "-v=4")
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return ctx, err
	}
	s.process = process
	return ctx, nil
}

// stopController asks the process to stop, which releases its lease.
func (s *suite) stopController(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
	if s.process == nil {
		return ctx, nil
	}
	late := time.AfterFunc(patience, func() { _ = s.process.Process.Kill() })
	defer late.Stop()
	if err := errors.Join(s.process.Process.Signal(syscall.SIGTERM), s.process.Wait()); err != nil {
		return ctx, fmt.Errorf("the controller's end: %w", err)
	}
	var lease coordinationv1.Lease
	if err := cfg.Client().Resources().Get(ctx, controller.Manager, cfg.Namespace(), &lease); err != nil {
		return ctx, err
	}
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != "" {
		return ctx, fmt.Errorf("the lease was not released: %+v", lease.Spec)
	}
	return ctx, nil
}

// eventually polls until f returns nil. The framework's own defaults are 5 seconds
// between two looks and 5 minutes.
func eventually(ctx context.Context, what string, f func(ctx context.Context) error) error {
	var last error
	err := wait.For(func(ctx context.Context) (bool, error) {
		err := f(ctx)
		if ctx.Err() == nil { // else it only says that the time is over
			last = err
		}
		return err == nil, nil
	}, wait.WithContext(ctx), wait.WithImmediate(), wait.WithInterval(100*time.Millisecond), wait.WithTimeout(patience))
	if err != nil {
		return fmt.Errorf("%s: %w after %s: %v", what, err, patience, last)
	}
	return nil
}

// gone returns nil if the error of a read says that there is no such object.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		return errors.New("it is still there")
	}
	return err
}
