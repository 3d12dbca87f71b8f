package crdtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const group = "crdtest.k8s-go.openshift.org"

const text = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: things, kind: Thing, shortNames: [crdtestthing], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
`

// definition is the one above, in a group of its own.
func definition(t *testing.T, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	path := filepath.Join(t.TempDir(), "crd.yaml")
	fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
	crd := crdtest.Read(t, path)
	crdtest.Rename(crd, name+"."+group)
	return crd
}

// recorder is a test that is expected to fail.
type recorder struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()           {}
func (r *recorder) Cleanup(f func())  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any) { r.failures = append(r.failures, fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.Error(args...); runtime.Goexit() }
func (r *recorder) Errorf(format string, args ...any) {
	r.Error(fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// failures runs f as a test of its own with its clean-up, and returns how it failed.
func failures(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	return strings.Join(r.failures, "\n")
}

func exists(t *testing.T, e *testenv.Env, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions().Get(e.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	fatal.If(t, err)
	return crd
}

// A definition that somebody else has made is neither replaced nor deleted.
func TestLeavesForeignDefinitionsAlone(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := definition(t, "foreign")
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	foreign, err := client.Create(e.Context(), crd, metav1.CreateOptions{})
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := client.Delete(context.WithoutCancel(e.Context()), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if got := failures(t, func(t testing.TB) { _ = crdtest.Create(t, e, crd) }); !strings.Contains(got, crd.Name+" that the workshop did not make") {
		t.Errorf("Create: %q", got)
	}
	if got := failures(t, func(t testing.TB) { crdtest.Remove(t, e, crd.Name) }); !strings.Contains(got, "not deleting "+crd.Name) {
		t.Errorf("Remove: %q", got)
	}
	if now := exists(t, e, crd.Name); now == nil || now.UID != foreign.UID || now.DeletionTimestamp != nil {
		t.Errorf("somebody else's definition is %v now", now)
	}
}

// One of ours that an interrupted run has left behind is replaced, and removed
// when the test ends.
func TestReplacesAndRemovesOurs(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := definition(t, "ours")
	left := crd.DeepCopy()
	left.Labels = map[string]string{crdtest.Label: "98"}
	old, err := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions().Create(e.Context(), left, metav1.CreateOptions{})
	fatal.If(t, err)
	// An object of it has a finalizer, and its controller has ended as well.
	fatal.If(t, crdwait.Established(e.Context(), e.Config, crd.Name))
	held := &unstructured.Unstructured{Object: map[string]any{"apiVersion": crd.Spec.Group + "/v1", "kind": "Thing",
		"metadata": map[string]any{"name": "held", "finalizers": []any{"crdtest.k8s-go.openshift.org/nobody"}}}}
	resource := schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1", Resource: crd.Spec.Names.Plural}
	client, err := dynamic.NewForConfig(e.Config)
	fatal.If(t, err)
	if _, err := client.Resource(resource).Namespace(e.Namespace).Create(e.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := failures(t, func(tb testing.TB) {
		crdtest.Install(tb, e, crd)
		if now := exists(t, e, crd.Name); now == nil || now.UID == old.UID || now.Labels[crdtest.Label] == "" {
			t.Errorf("want a new definition that is marked as ours, got %v", now)
		}
	})
	if got != "" {
		t.Errorf("Install: %s", got)
	}
	if exists(t, e, crd.Name) != nil {
		t.Error("it is still there after the end of the test")
	}
}

// Two packages with definitions take turns, whoever starts them.
func TestPackagesTakeTurns(t *testing.T) {
	t.Parallel()
	if os.Getenv("CRDTEST_TURN") != "" {
		e := testenv.New(t)
		fmt.Println("asked")
		e.OwnDefinitions()
		fmt.Println("got it")
		return
	}
	e := testenv.New(t)
	e.OwnDefinitions()
	e.OwnDefinitions() // has them already
	binary, err := os.Executable()
	fatal.If(t, err)
	p := e.Start(testenv.Command{Path: binary, Args: []string{"-test.run=^TestPackagesTakeTurns$"}, Env: []string{"CRDTEST_TURN=1"}})
	e.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Stdout(), "asked") {
			return errors.New("the other package has not come to its turn")
		}
		return nil
	})
	// It tries ten times a second.
	select {
	case <-p.Done():
		t.Error("it has ended")
	case <-time.After(time.Second):
	}
	if err := p.Signal(os.Interrupt); err != nil { // it cleans up
		t.Error(err)
	}
	if r := p.Wait(); strings.Contains(r.Stdout, "got it") || !strings.Contains(r.Stdout, "waiting until another package has tested") {
		t.Errorf("two packages have the definitions:\n%s", r.Stdout)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	crd := definition(t, "read")
	if crd.Name != "things.read."+group || crd.Spec.Group != "read."+group || crd.Spec.Names.ShortNames != nil || crd.Spec.Names.Categories != nil {
		t.Errorf("%+v", crd)
	}
	path := filepath.Join(t.TempDir(), "crd.yaml")
	fatal.If(t, os.WriteFile(path, []byte(text+"  storedVersions: [v1]\n"), 0o644))
	if got := failures(t, func(t testing.TB) { crdtest.Read(t, path) }); !strings.Contains(got, `unknown field "storedVersions"`) {
		t.Errorf("an unknown field: %q", got)
	}
}
