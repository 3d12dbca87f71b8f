package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedicecream "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

// BenchmarkIcecreams measures how long the controller needs for 200 Icecreams,
// from the first request to create one, against two baselines of the same run.
//
// x-deployments compares the time until every Icecream reports that it is
// available with the time until 200 Deployments are, which the benchmark creates
// directly. Bar: at most 1.3.
//
// x-faster-synced compares the time until each Icecream has a Deployment and a
// status with the time that k8s.io/sample-controller with its defaults needs to
// do the same for 200 Foos. Bar: at least 10. What follows, until the pods run,
// is the work of kube-controller-manager, which sends 20 requests a second;
// x-faster-available includes that. The sample-controller is built outside of
// this module; where it cannot be had, the two metrics are missing.
func BenchmarkIcecreams(b *testing.B) {
	const count = 200
	var deployments, icecreams, foos times
	for b.Loop() {
		deployments.add(createDeployments(b, count))
		icecreams.add(createIcecreams(b, count))
		foos.add(createFoos(b, count))
	}
	b.ReportMetric(icecreams.synced.Seconds()/float64(b.N), "s-synced")
	b.ReportMetric(icecreams.available.Seconds()/float64(b.N), "s-available")
	b.ReportMetric(icecreams.available.Seconds()/deployments.available.Seconds(), "x-deployments")
	if foos.synced > 0 {
		b.ReportMetric(foos.synced.Seconds()/float64(b.N), "s-synced-sample-controller")
		b.ReportMetric(foos.synced.Seconds()/icecreams.synced.Seconds(), "x-faster-synced")
		b.ReportMetric(foos.available.Seconds()/icecreams.available.Seconds(), "x-faster-available")
	}
}

// times are how long it takes until all objects have come so far.
type times struct{ synced, available time.Duration }

func (t *times) add(more times) {
	t.synced, t.available = t.synced+more.synced, t.available+more.available
}

func createDeployments(b *testing.B, count int) times {
	b.Helper()
	e := testenv.New(b)
	defer clearAway(b, e, schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"})
	return race(b, e, count, func(ctx context.Context, name string) error {
		d := deploymentOf(name)
		d.Spec.Replicas = ptr.To[int32](1)
		_, err := e.Client.AppsV1().Deployments(e.Namespace).Create(ctx, d, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context) (synced, available int, err error) {
		list, err := e.Client.AppsV1().Deployments(e.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return 0, 0, err
		}
		for _, d := range list.Items {
			if d.Status.AvailableReplicas == 1 {
				available++
			}
		}
		return len(list.Items), available, nil
	})
}

func newIcecreamBench(b *testing.B) (*testenv.Env, typedicecream.IcecreamInterface) {
	b.Helper()
	e := testenv.New(b)
	crdtest.Share(b, e, icecreams)
	client, err := versioned.NewForConfig(e.Config)
	fatal.If(b, err)
	return e, client.IcecreamV1alpha1().Icecreams(e.Namespace)
}

func createIcecream(ctx context.Context, own typedicecream.IcecreamInterface, name string) error {
	_, err := own.Create(ctx, &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IcecreamSpec{DeploymentName: name}}, metav1.CreateOptions{})
	return err
}

// lookAtIcecreams counts those that have a Deployment and a status, and those that are available.
func lookAtIcecreams(ctx context.Context, own typedicecream.IcecreamInterface) (synced, available int, err error) {
	list, err := own.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, 0, err
	}
	for _, ice := range list.Items {
		if meta.IsStatusConditionTrue(ice.Status.Conditions, v1alpha1.ConditionOwned) {
			synced++
		}
		if meta.IsStatusConditionTrue(ice.Status.Conditions, v1alpha1.ConditionAvailable) {
			available++
		}
	}
	return synced, available, nil
}

func createIcecreams(b *testing.B, count int) times {
	b.Helper()
	e, own := newIcecreamBench(b)
	s := startProgram(b, e, nil, e.Program(icecreamProgram), "-namespace", e.Namespace)
	defer s.Stop()
	defer clearAway(b, e, v1alpha1.IcecreamResource)
	return race(b, e, count,
		func(ctx context.Context, name string) error { return createIcecream(ctx, own, name) },
		func(ctx context.Context) (synced, available int, err error) { return lookAtIcecreams(ctx, own) })
}

// createFoos returns zeros if the sample-controller cannot be had.
func createFoos(b *testing.B, count int) times {
	b.Helper()
	program, definition, err := sampleController(b)
	if err != nil {
		b.Logf("no comparison with the sample-controller, because it cannot be built: %v", err)
		return times{}
	}
	e := testenv.New(b)
	crd := crdtest.Read(b, definition)
	crdtest.Install(b, e, crd)
	foos := schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1alpha1", Resource: crd.Spec.Names.Plural}
	client := e.Dynamic.Resource(foos).Namespace(e.Namespace)
	// It takes its kubeconfig from a flag only.
	s := e.Start(testenv.Command{Path: "/bin/sh", Args: []string{"-c", `exec "$0" -kubeconfig "$KUBECONFIG"`, program}, Timeout: 20 * time.Minute})
	defer s.Kill()
	defer clearAway(b, e, foos)
	return race(b, e, count, func(ctx context.Context, name string) error {
		_, err := client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": foos.GroupVersion().String(), "kind": "Foo", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"deploymentName": name, "replicas": int64(1)},
		}}, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context) (synced, available int, err error) {
		if code := s.ExitCode(); code >= 0 {
			return 0, 0, poll.Stop(fmt.Errorf("the sample-controller has ended with exit code %d:\n%s", code, s.Stderr()))
		}
		list, err := client.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return 0, 0, err
		}
		for _, foo := range list.Items {
			replicas, written, err := unstructured.NestedInt64(foo.Object, "status", "availableReplicas")
			if err != nil {
				return 0, 0, err
			}
			if written {
				synced++
			}
			if replicas == 1 {
				available++
			}
		}
		return synced, available, nil
	})
}

// sampleController builds the sample-controller of this client-go's version. Its
// source stays in Go's module cache, and its dependencies are its own.
func sampleController(b *testing.B) (program, definition string, err error) {
	b.Helper()
	const module = "k8s.io/sample-controller@v0.36.3"
	dir := b.TempDir()
	output, err := proc.Output(b.Context(), proc.Cmd{Path: "go", Args: []string{"mod", "download", "-json", module}, Dir: dir})
	if err != nil {
		return "", "", err
	}
	var source struct{ Dir string }
	if err := json.Unmarshal([]byte(output), &source); err != nil {
		return "", "", fmt.Errorf("reading what go mod download says: %w", err)
	}
	program = filepath.Join(dir, "sample-controller")
	if err := proc.Go(b.Context(), proc.Cmd{Args: []string{"build", "-buildvcs=false", "-o", program, "."}, Dir: source.Dir}); err != nil {
		return "", "", err
	}
	return program, filepath.Join(source.Dir, "artifacts", "examples", "crd-status-subresource.yaml"), nil
}

// race creates objects, 16 at the same time, and measures how long it takes from
// the first request until all of them have come so far. It looks
// twice a second, because looking costs the server something, too.
func race(b *testing.B, e *testenv.Env, count int, create func(ctx context.Context, name string) error,
	look func(ctx context.Context) (synced, available int, err error)) times {
	b.Helper()
	started := time.Now()
	workqueue.ParallelizeUntil(e.Context(), 16, count, func(i int) {
		if err := create(e.Context(), fmt.Sprintf("object-%03d", i)); err != nil {
			b.Error(err)
		}
	})
	if b.Failed() {
		b.FailNow()
	}
	var t times
	err := poll.Until(e.Context(), 500*time.Millisecond, 15*time.Minute, func(ctx context.Context) error {
		synced, available, err := look(ctx)
		if err != nil {
			return err
		}
		if synced == count && t.synced == 0 {
			t.synced = time.Since(started)
		}
		if available < count {
			return fmt.Errorf("of %d objects, %d have a status and %d are available", count, synced, available)
		}
		t.available = time.Since(started)
		return nil
	})
	fatal.If(b, err)
	return t
}

// clearAway deletes the objects, and waits until nothing is left of what was made
// for them, so that the next ones do not share the controllers of the cluster with them.
func clearAway(b *testing.B, e *testenv.Env, resource schema.GroupVersionResource) {
	b.Helper()
	ctx := context.WithoutCancel(e.Context())
	background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if err := e.DeleteAll(ctx, resource, background); err != nil {
		b.Error(err)
		return
	}
	if b.Failed() {
		return // the namespace goes anyway
	}
	e.Eventually(10*time.Minute, func(ctx context.Context) error {
		for _, r := range []schema.GroupVersionResource{resource,
			appsv1.SchemeGroupVersion.WithResource("deployments"), appsv1.SchemeGroupVersion.WithResource("replicasets"), corev1.SchemeGroupVersion.WithResource("pods")} {
			list, err := left(ctx, e.Dynamic, r, e.Namespace)
			if err != nil {
				return err
			}
			if list > 0 {
				return fmt.Errorf("%d %s are left", list, r.Resource)
			}
		}
		return nil
	})
}

func left(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, namespace string) (int, error) {
	list, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, fmt.Errorf("looking for %s that are left: %w", resource.Resource, err)
	}
	return len(list.Items), nil
}
