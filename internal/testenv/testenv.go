// Package testenv is the harness of the e2e tests: it finds or starts the
// cluster, gives each test a namespace of its own, runs the lesson's programs
// and shows on failure what they printed and what the cluster held.
//
// A test looks at the cluster through Env.Client, never through the program
// that it tests. Tests that share nothing but the cluster may run in parallel.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
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
	// resources is e2e-framework's client for objects of any type.
	resources *resources.Resources
	// down removes the cluster that setup has started; nil if it was up before.
	down func(context.Context) error
	// goneWithin is how long a test's namespace may take to go.
	goneWithin time.Duration

	definitions    sync.Once
	definitionsErr error
	freeThem       func() error // holds their lock, which is released when this process ends

	mu         sync.Mutex
	programs   map[string]*program
	namespaces []string
}

var shared *suite

// An Option changes how Main runs the tests of a package.
type Option func(*suite)

// NamespacesGoneWithin limits how long Main waits, after the last test, for the
// namespaces of the tests to go. The default is ten minutes.
func NamespacesGoneWithin(d time.Duration) Option { return func(s *suite) { s.goneWithin = d } }

// Main runs the tests of a package on the cluster that CLUSTER chooses. A
// cluster that is up is used and left up; otherwise Main starts one and removes
// it afterwards. Call Main from TestMain; it exits the process.
func Main(m *testing.M, options ...Option) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s := &suite{ctx: ctx, programs: map[string]*program{}, goneWithin: 10 * time.Minute}
	for _, option := range options {
		option(s)
	}
	e := env.NewWithConfig(envconf.New()).WithContext(ctx)
	var unclean error
	e.Setup(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
		shared = s
		return ctx, s.setup(ctx)
	}, func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
		return ctx, s.connect(s.cluster.Kubeconfig())
	})
	e.Finish(func(ctx context.Context, _ *envconf.Config) (context.Context, error) {
		unclean = s.finish()
		return ctx, unclean
	})
	code := exitCode(e.Run(m), unclean, os.Stderr)
	stop()
	os.Exit(code)
}

// exitCode turns a run red whose tests have passed and whose clean-up has not:
// e2e-framework logs such an error only at a verbosity that nobody sets.
func exitCode(tests int, unclean error, out io.Writer) int {
	if unclean == nil {
		return tests
	}
	fmt.Fprintf(out, "error: cleaning up after the tests: %v\n", unclean)
	return max(tests, 1)
}

func (s *suite) setup(ctx context.Context) (err error) {
	if s.ws, err = workspace.Find(); err != nil {
		return err
	}
	if further := os.Getenv(exercise.ClusterEnv); further != "" {
		s.cluster, err = cluster.NewKwok(s.ws, further, cluster.KwokOptions{})
	} else {
		s.cluster, _, err = cluster.Select(ctx, s.ws, os.Getenv("CLUSTER"))
	}
	if err != nil {
		return err
	}
	if err := s.cluster.Up(ctx, os.Stderr); err != nil {
		return fmt.Errorf("no cluster for the tests: %w", err)
	}
	if s.cluster.Created() {
		s.down = func(ctx context.Context) error { return s.cluster.Release(ctx, io.Discard) }
	}
	if err := pruneUnused(s.ws.Path("programs"), time.Now().AddDate(0, 0, -7)); err != nil {
		return fmt.Errorf("removing programs that no test needs any more: %w", err)
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
	if s.resources, err = resources.New(s.config); err != nil {
		return err
	}
	s.dynamic, err = dynamic.NewForConfig(s.config)
	return err
}

// finish leaves the cluster as it was found.
func (s *suite) finish() error {
	ctx := context.WithoutCancel(s.ctx)
	if s.down != nil {
		if err := s.down(ctx); err != nil {
			return fmt.Errorf("removing the cluster that the tests have started: %w", err)
		}
		return nil
	}
	// Each was deleted when its test ended; here they are only waited for. A learner
	// whose files are checked need not wait.
	if os.Getenv(exercise.WorkEnv) != "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.namespaces
	return poll.Until(ctx, 100*time.Millisecond, s.goneWithin, func(ctx context.Context) error {
		var errs []error
		left = slices.DeleteFunc(left, func(name string) bool {
			err := s.gone(ctx, name)
			errs = append(errs, err)
			return err == nil
		})
		return errors.Join(errs...)
	})
}

// gone returns nil if a namespace no longer exists, and else why that is so.
func (s *suite) gone(ctx context.Context, name string) error {
	ns, err := s.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for namespace %s of a test: %w", name, err)
	}
	why := "nobody has deleted it"
	if ns.DeletionTimestamp != nil {
		why = "it is being deleted"
	}
	for _, c := range ns.Status.Conditions { // such as finalizers that nobody removes
		if c.Status == corev1.ConditionTrue {
			why += "; " + c.Message
		}
	}
	return fmt.Errorf("namespace %s of a test is still there: %s", name, why)
}

// Env is the cluster as one test sees it. It is for that test alone: a subtest
// gets its own, in the same namespace, from For.
type Env struct {
	Namespace string // the test's own; deleted when the test ends
	Config    *rest.Config
	Client    kubernetes.Interface
	Dynamic   dynamic.Interface

	// Flooded is called when one of the test's proxies has had more requests than it remembers, and
	// somebody asks for them. Without it, or if it returns, the test fails.
	Flooded func(forgotten int)

	t        testing.TB
	test     uintptr // the test's function
	suite    *suite
	watch    []k8s.Object // printed if the test fails
	reported *atomic.Bool // whether this test or a subtest has printed the namespace's events
}

// Cluster is the cluster that the tests run on.
func (e *Env) Cluster() *cluster.Cluster { return e.suite.cluster }

// Existing is the same cluster as CLUSTER=existing: that of a clone which knows nothing but its kubeconfig.
func (e *Env) Existing() *cluster.Cluster {
	e.t.Helper()
	e.t.Setenv("KUBECONFIG", e.Cluster().Kubeconfig())
	clone := workspace.Workspace{Root: e.t.TempDir()}
	data, err := os.ReadFile(e.Cluster().Kubeconfig())
	fatal.If(e.t, err)
	fatal.If(e.t, os.MkdirAll(clone.Path("existing"), 0o755))
	fatal.If(e.t, os.WriteFile(clone.Path("existing", "kubeconfig"), data, 0o600))
	c, _, err := cluster.Select(e.Context(), clone, "existing")
	fatal.If(e.t, err)
	return c
}

// ClusterName is kind, kwok or existing. Call it in a test.
func ClusterName() string { return shared.cluster.Name() }

// Workspace is the clone that the tests are in.
func (e *Env) Workspace() workspace.Workspace { return e.suite.ws }

// New gives a test a namespace of its own.
func New(t testing.TB) *Env {
	t.Helper()
	if shared == nil {
		t.Fatal("testenv.New without testenv.Main: add func TestMain(m *testing.M) { testenv.Main(m) }")
	}
	s := shared
	if s.ctx.Err() != nil {
		t.Fatalf("creating the test's namespace: %v", context.Cause(s.ctx))
	}
	// An interrupt must not cut this off: the server could carry it out all the
	// same, and nobody would know the name.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Minute)
	defer cancel()
	ns, err := s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: map[string]string{label: "true"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating the test's namespace: %v", err)
	}
	s.mu.Lock()
	s.namespaces = append(s.namespaces, ns.Name)
	s.mu.Unlock()
	t.Cleanup(func() {
		if err := s.client.CoreV1().Namespaces().Delete(context.WithoutCancel(s.ctx), ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting namespace %s: %v", ns.Name, err)
		}
	})
	// Before the controller-manager has made its ServiceAccount, no pod can be created there.
	if err := poll.Until(s.ctx, 20*time.Millisecond, time.Minute, func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		t.Fatalf("waiting for the ServiceAccount of namespace %s: %v", ns.Name, err)
	}
	return s.env(t, ns.Name, &atomic.Bool{})
}

// For gives a subtest an Env of its own in the same namespace. What the subtest
// starts ends with the subtest, and its failure shows what belongs to it alone.
func (e *Env) For(t testing.TB) *Env { return e.suite.env(t, e.Namespace, e.reported) }

func (s *suite) env(t testing.TB, namespace string, reported *atomic.Bool) *Env {
	e := &Env{Namespace: namespace, Config: s.config, Client: s.client, Dynamic: s.dynamic, t: t, test: testFunction(), suite: s, reported: reported}
	t.Cleanup(func() {
		if t.Failed() {
			e.report(context.WithoutCancel(s.ctx))
		}
	})
	return e
}

// own fails a test that uses the Env of its parent. A failure there would end the
// wrong test, what it starts would outlive it, and one failure would print the
// output of all its siblings.
func (e *Env) own() {
	e.t.Helper()
	if now := testFunction(); now != 0 && e.test != 0 && now != e.test {
		e.t.Fatalf("a subtest of %s uses its parent's Env: give it its own, e := e.For(t)", e.t.Name())
	}
}

// testFunction returns the test function on whose stack its caller runs. It is 0
// in other goroutines, which cannot end a test, and in clean-ups.
func testFunction() uintptr {
	pcs := make([]uintptr, 256)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for inner := (runtime.Frame{}); ; {
		frame, more := frames.Next()
		if frame.Function == "testing.tRunner" && !strings.HasPrefix(inner.Function, "testing.") {
			return inner.Entry
		}
		if !more {
			return 0
		}
		inner = frame
	}
}

// OwnDefinitions waits until no other package tests with the definitions of the
// lessons, and keeps them for this package until its tests end. Definitions are
// cluster-wide; `make test` runs such packages one after the other, and
// `go test ./...` does not.
func (e *Env) OwnDefinitions() {
	e.t.Helper()
	fatal.If(e.t, e.suite.ownDefinitions())
}

func (s *suite) ownDefinitions() error {
	s.definitions.Do(func() {
		var err error
		if s.freeThem, err = s.cluster.OwnDefinitions(s.ctx, io.Discard); err != nil {
			s.definitionsErr = fmt.Errorf("waiting until another package has tested with the lessons' definitions: %w", err)
		}
	})
	return s.definitionsErr
}

// WhileNobodyDefines waits as OwnDefinitions does, but only until the test ends:
// for a test that disturbs discovery in the whole cluster.
func (e *Env) WhileNobodyDefines() {
	e.t.Helper()
	unlock, err := e.suite.cluster.OwnDefinitions(e.suite.ctx, io.Discard)
	if err != nil {
		e.t.Fatalf("waiting until no package tests with definitions: %v", err)
	}
	e.t.Cleanup(func() {
		if err := unlock(); err != nil {
			e.t.Errorf("unlocking the definitions: %v", err)
		}
	})
}

// AtEnd does something when the test ends, such as deleting what is in no namespace. What is gone already is fine.
func (e *Env) AtEnd(do ...func(context.Context) error) {
	e.t.Helper()
	e.t.Cleanup(func() {
		for _, f := range do {
			if err := f(context.WithoutCancel(e.suite.ctx)); err != nil && !apierrors.IsNotFound(err) {
				e.t.Error(err)
			}
		}
	})
}

// FreeAtEnd does Free when the test ends, for a program that was killed leaves its finalizers, which keep the
// namespace. Call it before the program starts, so that it has ended.
func (e *Env) FreeAtEnd(resource schema.GroupVersionResource) {
	e.t.Helper()
	e.AtEnd(func(ctx context.Context) error { return e.Free(ctx, resource) })
}

// Free takes all finalizers of a resource's objects in the test's namespace away.
func (e *Env) Free(ctx context.Context, resource schema.GroupVersionResource) error {
	objects := e.Dynamic.Resource(resource).Namespace(e.Namespace)
	all, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range all.Items {
		if _, err := objects.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Context ends when the test run is interrupted.
func (e *Env) Context() context.Context { return e.suite.ctx }

// NeedsContainers skips the test, with that reason, where pods do not run as
// real containers.
func (e *Env) NeedsContainers() {
	e.t.Helper()
	e.own()
	containers, err := e.suite.cluster.Containers(e.suite.ctx)
	fatal.If(e.t, err)
	if !containers {
		e.t.Skipf("needs running containers, which the nodes of CLUSTER=%s only simulate; run it with CLUSTER=kind", e.suite.cluster.Name())
	}
}

// NeedsImages skips the test, with that reason, where pods cannot run an image that no
// registry has.
func (e *Env) NeedsImages() {
	e.t.Helper()
	e.NeedsContainers()
	if e.suite.cluster.Name() != "kind" {
		e.t.Skipf("needs nodes that take an image without a registry; run it with CLUSTER=kind")
	}
}

// MakeImage builds the image of a program, which it gets as a folder of the clone, and puts
// it on the nodes, as make image does. It returns what that says.
func (e *Env) MakeImage(program string) string {
	e.t.Helper()
	said, err := proc.Output(e.suite.ctx, proc.Cmd{Path: e.Program("./cmd/workshop"), Args: []string{"image"}, Dir: e.suite.ws.Root, Grace: time.Minute,
		Env: append(e.suite.cluster.Environ(), "PROGRAM="+program)})
	if err != nil {
		e.t.Fatalf("make image PROGRAM=%s: %v\n%s", program, err, said)
	}
	return said
}

// Kubectl runs the workshop's kubectl at the root of the clone, and returns what it prints.
func (e *Env) Kubectl(ctx context.Context, args ...string) (string, error) {
	return proc.Output(ctx, proc.Cmd{Path: e.suite.ws.Bin("kubectl"), Args: args, Dir: e.suite.ws.Root, Env: e.suite.cluster.Environ(), Grace: time.Minute})
}

// LoadImages makes images available to the cluster's nodes: names that this
// machine's container engine knows, or files that docker save has made.
func (e *Env) LoadImages(images ...string) {
	e.t.Helper()
	e.own()
	var out proc.Buffer
	if err := e.suite.cluster.LoadImages(e.suite.ctx, &out, images...); err != nil {
		e.t.Fatalf("loading the images %s: %v\n%s", strings.Join(images, ", "), err, out.String())
	}
}

// Eventually polls ten times a second until f returns nil, for at most timeout,
// and fails the test with f's last error.
func (e *Env) Eventually(timeout time.Duration, f func(ctx context.Context) error) {
	e.t.Helper()
	e.own()
	fatal.If(e.t, poll.Until(e.suite.ctx, 100*time.Millisecond, timeout, f))
}

// README runs the README of the step whose test calls it, block by block. With
// READMES=proxy in the environment it reaches the cluster through the fault proxy, as
// in a terminal of make web, and must not notice.
func README(t *testing.T) {
	t.Helper()
	s := shared
	dir, err := os.Getwd()
	fatal.If(t, err)
	step, err := s.ws.Step(filepath.Base(dir))
	fatal.If(t, err)
	owned, err := lesson.Owns(step)
	fatal.If(t, err)
	if len(owned) > 0 {
		fatal.If(t, s.ownDefinitions())
	}
	var proxy *faultproxy.Proxy
	var environ []string
	if os.Getenv("READMES") == "proxy" {
		var kubeconfig string
		proxy, kubeconfig = s.lessonProxy(t)
		environ = []string{"KUBECONFIG=" + kubeconfig}
	}
	summary, err := lesson.Run(s.ctx, s.ws, s.cluster, step, nil, false, environ...)
	fatal.If(t, err)
	if proxy != nil {
		requests, forgotten := proxy.Requests(faultproxy.Match{})
		if len(requests)+forgotten == 0 {
			t.Error("no request has passed the proxy")
		}
		t.Logf("%d requests have passed the proxy", len(requests)+forgotten)
	}
	t.Logf("%d blocks with %d commands run, %d by hand", summary.Blocks, summary.Commands, summary.ByHand)
}
