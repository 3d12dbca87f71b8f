package crdgo

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/testenv"
)

// echo reads documents into a learner's type and prints what a client sends of them.
const echo = `package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	learner "github.com/k8s-go/workshop/work/05-crd-go/%s"
)

func main() {
	for _, document := range os.Args[1:] {
		var spec learner.%s
		decoder := json.NewDecoder(strings.NewReader(document))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&spec); err != nil {
			fmt.Println(err)
			continue
		}
		data, err := json.Marshal(spec)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(string(data))
	}
}
`

// echoed returns what becomes of each document in a type of the learner's package.
func echoed(c *check.C, folder, kind string, documents ...string) []string {
	c.T.Helper()
	r := c.Run(testenv.Command{Path: c.ProgramOf("echo", fmt.Sprintf(echo, folder, kind)), Args: documents})
	lines := strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\n")
	if r.ExitCode != 0 || len(lines) != len(documents) {
		c.Failf("Go reads and writes the documents", "exit code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	return lines
}

// fields are those of a document; nil if it is none.
func fields(document string) map[string]any {
	var found map[string]any
	if json.Unmarshal([]byte(document), &found) != nil {
		return nil
	}
	return found
}

func checkTag(c *check.C) {
	const whole, short = `{"flavor":"caramel","milliLiters":40,"sugarFree":true}`, `{"flavor":"mint","milliLiters":0}`
	const nothing, zero = `{}`, `{"flavor":"","milliLiters":0}`
	lines := echoed(c, "tag", "SauceSpec", whole, short, nothing)
	got, unset := fields(lines[0]), fields(lines[1])
	_, sent := unset["sugarFree"]
	switch expected := "a client that has read " + whole + " sends the same"; {
	case got != nil && !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(fields(whole)))), strings.Contains(lines[0], "unknown field"):
		c.Mistake("tag differs", expected, lines[0])
	case !equality.Semantic.DeepEqual(got, fields(whole)):
		c.Fail(expected, lines[0])
	case sent:
		c.Mistake("no omitempty", "a client that has read "+short+" sends no sugarFree", lines[1])
	case !equality.Semantic.DeepEqual(unset, fields(short)):
		c.Fail("a client that has read "+short+" sends the same", lines[1])
	case !equality.Semantic.DeepEqual(fields(lines[2]), fields(zero)):
		c.Fail("a client that has set nothing sends "+zero+", because both are required", lines[2])
	}
}

// apiMarkers are the lines of a Go file that say what a schema asks of its fields.
var apiMarkers = regexp.MustCompile(`(?m)^\s*//\s*(\+kubebuilder:.*)$`)

func checkPointer(c *check.C) {
	const nothing, zero, whole = `{}`, `{"lid":false,"scoops":0}`, `{"lid":true,"note":"with a fork","scoops":3}`
	lines := echoed(c, "pointer", "CupSpec", nothing, zero, whole)
	none, zeros := fields(lines[0]), fields(lines[1])
	switch {
	case !equality.Semantic.DeepEqual(fields(lines[2]), fields(whole)):
		c.Fail("a client that has read "+whole+" sends the same", lines[2])
	case len(none) > 0:
		c.Mistake("always sent", "a client that has set nothing sends {}", lines[0])
	case none != nil && zeros != nil && len(zeros) < 2:
		c.Mistake("zero is lost", "a client that has set 0 and false sends "+zero, lines[1])
	case none == nil || !equality.Semantic.DeepEqual(zeros, fields(zero)):
		c.Fail("a client that has set 0 and false sends "+zero, lines[1])
	}
	data, err := os.ReadFile(c.Path("spec.go"))
	c.Must(err)
	var markers []string
	for _, found := range apiMarkers.FindAllStringSubmatch(string(data), -1) {
		markers = append(markers, strings.TrimSpace(found[1]))
	}
	for _, want := range []string{"+kubebuilder:default=1", "+kubebuilder:validation:Minimum=0", "+kubebuilder:default=true"} {
		if !slices.Contains(markers, want) {
			c.Failf("the marker "+want+", as it was", "%q", markers)
		}
	}
}

// checkMarker has the API server judge Sauces.
func checkMarker(c *check.C) {
	written, failed := generate(c, "crd")
	switch {
	case strings.Contains(failed, "must apply maxlength"):
		c.Mistake("limit at the wrong level", "controller-gen makes a CRD of the types", failed)
	case failed != "":
		c.Fail("controller-gen makes a CRD of the types", failed)
	}
	crd := definition(c, written)
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	if err := crdtest.Create(c.T, c.Env, crd); err != nil {
		c.Fail("the API server takes the CRD", err.Error())
	}
	c.Must(crdwait.Established(c.Context(), c.Config, crd.Name))
	gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1alpha1", Resource: crd.Spec.Names.Plural}
	// refused returns why the API server does not take a Sauce; "" if it does.
	refused := func(allergens ...any) string {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"flavor": "caramel", "allergens": allergens}}}
		o.SetGroupVersionKind(gvr.GroupVersion().WithKind(crd.Spec.Names.Kind))
		o.SetGenerateName("sauce-")
		_, err := c.Dynamic.Resource(gvr).Namespace(c.Namespace).Create(c.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			c.Must(err)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	}
	longest := strings.Repeat("é", 20)
	if why := refused("milk", "eggs", longest); why != "" {
		c.Fail("three allergens, one of them of 20 characters, are accepted", why)
	}
	if why := refused("milk"); why != "" {
		c.Fail("one allergen is accepted", why)
	}
	if refused("milk", "eggs", "nuts", "soy") == "" {
		c.Mistake("no limit of the list", "the API server refuses four allergens", "it has accepted them")
	}
	if refused(longest+"é") == "" {
		c.Mistake("no limit of the items", "the API server refuses an allergen of 21 characters", "it has accepted it")
	}
}

// pages sends and reads with a learner's types what a client does to get the first page of
// a list: the options of the request, and the answer of the API server.
const pages = `package main

import (
	"encoding/json"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	learner "github.com/k8s-go/workshop/work/05-crd-go/register"
)

func main() {
	scheme, gv := runtime.NewScheme(), schema.GroupVersion{Group: "controller.nicoleh.io", Version: "v1alpha1"}
	must(learner.AddToScheme(scheme))
	_, err := runtime.NewParameterCodec(scheme).EncodeParameters(&metav1.ListOptions{Limit: 1}, gv)
	must(err)
	list, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode([]byte(os.Args[1]), nil, nil)
	must(err)
	_, err = scheme.New(gv.WithKind("Icecream"))
	must(err)
	must(json.NewEncoder(os.Stdout).Encode(list))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
`

// checkRegister has the learner's types read a page of Icecreams of the API server.
func checkRegister(c *check.C) {
	copies, failed := generate(c, "object")
	if failed != "" {
		c.Fail("controller-gen makes deep copies of the types", failed)
	}
	if strings.Contains(copies, "func (in *IcecreamList) DeepCopyInto(") && !strings.Contains(copies, "func (in *IcecreamList) DeepCopyObject(") {
		c.Mistake("no object marker", "controller-gen makes DeepCopyObject for IcecreamList", "it makes only DeepCopy")
	}
	// They stay beside the types, for the learner's editor. Without a change nothing is
	// written, or make watch would begin again.
	file := c.Path("zz_generated.deepcopy.go")
	if old, err := os.ReadFile(file); err != nil || string(old) != copies {
		c.Must(os.WriteFile(file, []byte(copies), 0o644))
	}
	program := c.ProgramOf("pages", pages)

	crdtest.Share(c.T, c.Env, generatedCRDs[1])
	for _, name := range []string{"cone", "cup"} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"deploymentName": name}}}
		o.SetGroupVersionKind(v1alpha1.IcecreamKind)
		o.SetName(name)
		_, err := c.Dynamic.Resource(v1alpha1.IcecreamResource).Namespace(c.Namespace).Create(c.Context(), o, metav1.CreateOptions{})
		c.Must(err)
	}
	answer, err := c.Client.Discovery().RESTClient().Get().AbsPath("/apis/controller.nicoleh.io/v1alpha1/namespaces", c.Namespace, "icecreams").
		Param("limit", "1").SetHeader("Accept", "application/json").DoRaw(c.Context())
	c.Must(err)
	r := c.Run(testenv.Command{Path: program, Args: []string{string(answer)}})
	switch {
	case strings.Contains(r.Stderr, "ListOptions"):
		c.Mistake("options not registered", "a request for one Icecream, with limit=1", r.Stderr)
	case strings.Contains(r.Stderr, `no kind "Icecream`):
		c.Mistake("kind not registered", "a Go type for Icecream and for IcecreamList in controller.nicoleh.io/v1alpha1", r.Stderr)
	case r.ExitCode != 0:
		c.Failf("exit code 0", "exit code %d: %s", r.ExitCode, r.Stderr)
	}
	var got struct {
		Metadata struct {
			Continue string `json:"continue"`
		} `json:"metadata"`
		Items []struct {
			Spec struct {
				DeploymentName string `json:"deploymentName"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil {
		c.Failf("the list as JSON, and nothing else on standard output", "%v in %s", err, r.Stdout)
	}
	switch {
	case len(got.Items) == 0:
		c.Mistake("items lost", "one Icecream in items", r.Stdout)
	case len(got.Items) != 1 || got.Items[0].Spec.DeploymentName != "cone":
		c.Fail("the Icecream cone in items", r.Stdout)
	case got.Metadata.Continue == "":
		c.Fail("the continue token of the API server in metadata", r.Stdout)
	}
}
