// Package crdtest installs CustomResourceDefinitions for the length of a test.
// They are cluster-wide, so a test that needs a variant of one gives it a group
// of its own, see Rename.
package crdtest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/lesson"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Label marks the definitions that the workshop made. Only those are replaced
// or deleted, whatever cluster the tests run on.
const Label = lesson.StepLabel

// Read reads a definition from a YAML file. An unknown field fails the test.
func Read(t testing.TB, path string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal.If(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return crd
}

// Rename moves a definition into a group of its own and takes its short names
// and categories away, so that it does not disturb others in the cluster.
func Rename(crd *apiextensionsv1.CustomResourceDefinition, group string) {
	crd.Spec.Group = group
	crd.Name = crd.Spec.Names.Plural + "." + group
	crd.Spec.Names.ShortNames, crd.Spec.Names.Categories = nil, nil
}

// Client returns a client for definitions.
func Client(t testing.TB, e *testenv.Env) clientset.Interface {
	t.Helper()
	c, err := clientset.NewForConfig(e.Config)
	fatal.If(t, err)
	return c
}

// Create creates a definition that is removed when the test ends. One that an
// interrupted run has left behind is replaced; one that is not ours fails the
// test. It returns the server's error, and does not wait until the definition
// can be used.
func Create(t testing.TB, e *testenv.Env, crd *apiextensionsv1.CustomResourceDefinition) error {
	t.Helper()
	t.Cleanup(func() { Remove(t, e, crd.Name) })
	return create(t, e, crd)
}

func create(t testing.TB, e *testenv.Env, crd *apiextensionsv1.CustomResourceDefinition) error {
	t.Helper()
	e.OwnDefinitions()
	client := Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	old, err := client.Get(e.Context(), crd.Name, metav1.GetOptions{})
	switch {
	case err == nil && old.Labels[Label] == "":
		t.Fatalf("the cluster has a CustomResourceDefinition %s that the workshop did not make", crd.Name)
	case err == nil:
		Remove(t, e, crd.Name)
	case !apierrors.IsNotFound(err):
		t.Fatal(err)
	}
	crd = crd.DeepCopy()
	if crd.Labels[Label] == "" {
		metav1.SetMetaDataLabel(&crd.ObjectMeta, Label, "test")
	}
	// An interrupt must not cut this off: the server could carry it out after Remove
	// has looked.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.Context()), time.Minute)
	defer cancel()
	_, err = client.Create(ctx, crd, metav1.CreateOptions{})
	return err
}

// Install creates definitions as Create does and waits until they can be used.
//
// The first object takes two seconds more: for so long the server holds back
// the creation of objects of a definition that is younger than that.
func Install(t testing.TB, e *testenv.Env, crds ...*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	var names []string
	t.Cleanup(func() { Remove(t, e, names...) })
	for _, crd := range crds {
		names = append(names, crd.Name)
		fatal.If(t, create(t, e, crd))
	}
	fatal.If(t, crdwait.Established(e.Context(), e.Config, names...))
}

// Remove deletes definitions of ours with all their objects, and waits for the
// end. A definition that is not there is no error.
func Remove(t testing.TB, e *testenv.Env, names ...string) {
	t.Helper()
	ctx := context.WithoutCancel(e.Context())
	client := Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	var deleted []string
	for _, name := range names {
		crd, err := client.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil && crd.Labels[Label] == "" {
			t.Errorf("not deleting %s: it is not the workshop's", name)
			continue
		}
		if err == nil {
			// Only as it was read: with its label, and not another one of its name.
			err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &crd.UID}})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting %s: %v", name, err)
			continue
		}
		deleted = append(deleted, name)
		// An interrupted test's controller has ended, too. An admission policy that the
		// test has just removed may still refuse the write for a moment.
		if err := poll.Until(ctx, 100*time.Millisecond, time.Minute, func(ctx context.Context) error {
			err := lesson.Release(ctx, e.Config, name)
			if _, left := client.Get(ctx, name, metav1.GetOptions{}); err == nil && !apierrors.IsNotFound(left) {
				err = fmt.Errorf("%s is still there (%v)", name, left)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	if err := crdwait.Gone(ctx, e.Config, deleted...); err != nil {
		t.Error(err)
	}
	if len(deleted) > 0 {
		if err := e.Cluster().ForgetDiscovery(); err != nil {
			t.Error(err)
		}
	}
}
