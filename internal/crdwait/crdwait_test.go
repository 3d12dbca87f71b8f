package crdwait_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// definition is the least that a server takes.
func definition(plural, shortName string) *apiextensionsv1.CustomResourceDefinition {
	const group = "crdwait.k8s-go.openshift.org"
	open := true
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}}}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: strings.ToUpper(plural[:1]) + plural[1:], ShortNames: []string{shortName}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v1beta1", false)},
		},
	}
}

// create creates a definition that is removed when the test ends.
func create(t *testing.T, e *testenv.Env, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	client, err := clientset.NewForConfig(e.Config)
	fatal.If(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(e.Context())
		if err := definitions.Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		if err := crdwait.Gone(ctx, e.Config, crd.Name); err != nil {
			t.Error(err)
		}
	})
	if _, err := definitions.Create(e.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A definition may be created while somebody waits, and is usable in every
// version right after.
func TestEstablished(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := definition("lates", "late")
	done := make(chan error, 1)
	go func() { done <- crdwait.Established(e.Context(), e.Config, crd.Name) }()
	create(t, e, crd)
	fatal.If(t, <-done)
	client, err := dynamic.NewForConfig(e.Config)
	fatal.If(t, err)
	for _, version := range []string{"v1", "v1beta1"} {
		gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: "lates"}
		if _, err := client.Resource(gvr).List(e.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("list of %s: %v", version, err)
		}
	}
}

// waits returns the error of a wait that is given up once it had time for many
// answers of the server.
func waits(t *testing.T, e *testenv.Env, wait func(ctx context.Context) error) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), 3*time.Second)
	defer cancel()
	err := wait(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want one of the deadline", err)
		return ""
	}
	return err.Error()
}

func TestErrorSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	got := waits(t, e, func(ctx context.Context) error { return crdwait.Established(ctx, e.Config, "no.such.definition") })
	if !strings.Contains(got, `CustomResourceDefinition no.such.definition: `) || !strings.Contains(got, `"no.such.definition" not found`) {
		t.Errorf("no definition: %q", got)
	}
	taker, loser := definition("takers", "taken"), definition("losers", "taken")
	create(t, e, taker)
	fatal.If(t, crdwait.Established(e.Context(), e.Config, taker.Name))
	create(t, e, loser)
	got = waits(t, e, func(ctx context.Context) error { return crdwait.Established(ctx, e.Config, taker.Name, loser.Name) })
	if !strings.Contains(got, loser.Name+": ") || !strings.Contains(got, `its names are not accepted: ShortNamesConflict: "taken" is already in use`) {
		t.Errorf("name taken: %q", got)
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	if err := crdwait.Gone(e.Context(), e.Config, "no.such.definition"); err != nil {
		t.Errorf("what never was is gone: %v", err)
	}
	crd := definition("stayers", "stay")
	create(t, e, crd)
	got := waits(t, e, func(ctx context.Context) error { return crdwait.Gone(ctx, e.Config, crd.Name) })
	if !strings.Contains(got, crd.Name) || !strings.Contains(got, "it still exists") {
		t.Errorf("%q", got)
	}
}
