// Package testenv is the harness of the e2e tests: it finds or starts the
// cluster, gives each test a namespace of its own, runs the lesson's programs
// and shows on failure what they printed and what the cluster held.
//
// A test looks at the cluster through Env.Client or Env.Resources, never
// through the program that it tests.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/workspace"
)

// label marks every namespace that the harness made.
const label = "workshop.k8s-go.dev/test"

// suite is what the tests of one package share.
type suite struct {
	ctx     context.Context // ends with the run, or at the first interrupt
	ws      workspace.Workspace
	cluster *cluster.Cluster
	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
	binDir  string // the programs under test

	mu         sync.Mutex
	programs   map[string]*program
	namespaces []string
}

var shared *suite

// Main runs the tests of a package on the cluster that CLUSTER chooses. One
// that is up is used and left up; else one is started and removed afterwards.
// Call it from TestMain; it exits the process.
func Main(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s := &suite{ctx: ctx, programs: map[string]*program{}}
	e := env.NewWithConfig(envconf.New())
	e.Setup(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
		shared = s
		return ctx, s.setup(s.ctx)
	})
	e.Finish(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
		return ctx, s.finish()
	})
	code := e.Run(m)
	stop()
	os.Exit(code)
}

func (s *suite) setup(ctx context.Context) (err error) {
	if s.ws, err = workspace.Find(); err != nil {
		return err
	}
	if s.cluster, _, err = cluster.Select(ctx, s.ws, os.Getenv("CLUSTER")); err != nil {
		return err
	}
	if err := s.cluster.Up(ctx, os.Stderr); err != nil {
		return fmt.Errorf("no cluster for the tests: %w", err)
	}
	if err := s.connect(s.cluster.Kubeconfig()); err != nil {
		return errors.Join(err, s.finish())
	}
	if s.binDir, err = os.MkdirTemp("", "workshop-programs-"); err != nil {
		return errors.Join(err, s.finish())
	}
	return nil
}

func (s *suite) connect(kubeconfig string) (err error) {
	if s.config, err = cluster.Config(kubeconfig); err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return err
	}
	s.dynamic, err = dynamic.NewForConfig(s.config)
	return err
}

// finish leaves the cluster as it was found.
func (s *suite) finish() error {
	ctx := context.WithoutCancel(s.ctx)
	var errs []error
	if s.binDir != "" {
		errs = append(errs, os.RemoveAll(s.binDir))
	}
	if s.cluster.Created() {
		return errors.Join(append(errs, s.cluster.Release(ctx, io.Discard))...)
	}
	// Deleted when their tests ended; here only waited for.
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.namespaces {
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := s.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return true, nil
			}
			return false, err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("namespace %s of a test is still there: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Env is the cluster as one test sees it.
type Env struct {
	Namespace string // the test's own; deleted when the test ends
	Config    *rest.Config
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface
	Resources *resources.Resources // e2e-framework's client, for its wait conditions

	t     testing.TB
	suite *suite
	watch []k8s.Object // printed if the test fails
}

// New gives a test a namespace of its own.
func New(t testing.TB) *Env {
	t.Helper()
	if shared == nil {
		t.Fatal("testenv.New without testenv.Main: add func TestMain(m *testing.M) { testenv.Main(m) }")
	}
	s := shared
	ns, err := s.client.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: map[string]string{label: "true"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating the test's namespace: %v", err)
	}
	res, err := resources.New(s.config)
	if err != nil {
		t.Fatal(err)
	}
	e := &Env{
		Namespace: ns.Name, Config: s.config, Client: s.client, Dynamic: s.dynamic,
		Resources: res.WithNamespace(ns.Name), t: t, suite: s,
	}
	s.mu.Lock()
	s.namespaces = append(s.namespaces, ns.Name)
	s.mu.Unlock()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(s.ctx)
		if t.Failed() {
			e.report(ctx)
		}
		if err := s.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting namespace %s: %v", ns.Name, err)
		}
	})
	return e
}

// Context ends when the test run is interrupted.
func (e *Env) Context() context.Context { return e.suite.ctx }

// Cluster is the name of the cluster's provider: kwok, kind or existing.
func (e *Env) Cluster() string { return e.suite.cluster.Name() }

// NeedsContainers skips the test, with that reason, where pods do not run as
// real containers.
func (e *Env) NeedsContainers() {
	e.t.Helper()
	containers, err := e.suite.cluster.Containers(e.suite.ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	if !containers {
		e.t.Skipf("needs running containers, which the nodes of a %s cluster only simulate; run it with CLUSTER=kind", e.Cluster())
	}
}

// Eventually polls ten times a second until f returns nil, for at most timeout,
// and fails the test with f's last error.
func (e *Env) Eventually(timeout time.Duration, f func(ctx context.Context) error) {
	e.t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(e.suite.ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		last = f(ctx)
		return last == nil, nil
	})
	if err != nil {
		e.t.Fatalf("not within %s: %v (%v)", timeout, last, err)
	}
}

// README runs the README of the step whose test calls it, block by block.
func README(t *testing.T) {
	t.Helper()
	s := shared
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	step, err := s.ws.Step(filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	summary, err := lesson.Run(s.ctx, s.ws, s.cluster, step, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d blocks with %d commands run, %d by hand", summary.Blocks, summary.Commands, summary.ByHand)
}
