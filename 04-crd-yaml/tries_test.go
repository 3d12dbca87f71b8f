package crdyaml

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/exercise/check"
)

// A try is judged by examples: specs that the API server has to store or to refuse.
// The first examples are tried on objects that do not exist yet. If before is set,
// there is an object with that spec, and the examples change it.
type tryExamples struct {
	before   string
	examples []tryExample
	mistakes map[string]string // explained by exactly these wrong answers, each as "name: answer"
	more     *tryExamples      // examples for another object, after these
}

// tryExample is a spec, and what is stored of it; refused if that is empty.
type tryExample struct{ name, spec, stored string }

const (
	accepted = "accepted"
	refused  = "refused"
	noKey    = "an error" // which refuses, too: the rule reads a field that is not there
)

var tries = map[string]tryExamples{
	"anchors": {
		examples: []tryExample{
			{"12h", `{every: 12h}`, `{every: 12h}`},
			{"7d", `{every: 7d}`, `{every: 7d}`},
			{"168h", `{every: 168h}`, `{every: 168h}`},
			{"never", `{every: never}`, `{every: never}`},
			{"x12h", `{every: x12h}`, ""},
			{"12hx", `{every: 12hx}`, ""},
			{"xnever", `{every: xnever}`, ""},
			{"neverx", `{every: neverx}`, ""},
			{"h", `{every: h}`, ""},
			{"12", `{every: "12"}`, ""},
			{"12m", `{every: 12m}`, ""},
			{"NEVER", `{every: NEVER}`, ""},
			{"a bar", `{every: "12|"}`, ""},
			{"two units", `{every: 1h2d}`, ""},
			{"a sign", `{every: -12h}`, ""},
			{"a space", `{every: 12 h}`, ""},
			{"a point", `{every: 1.5h}`, ""},
			{"nothing", `{every: ""}`, ""},
			{"a second line", `{every: "12h\nx"}`, ""},
			{"a line before", `{every: "x\n12h"}`, ""},
		},
		mistakes: map[string]string{
			"x12h: accepted, 12hx: accepted, xnever: accepted, neverx: accepted, two units: accepted, a sign: accepted, a point: accepted, " +
				"a second line: accepted, a line before: accepted": "no anchors",
			"12hx: accepted, xnever: accepted, two units: accepted, a second line: accepted":                                      "anchors outside of the alternatives",
			"x12h: accepted, neverx: accepted, two units: accepted, a sign: accepted, a point: accepted, a line before: accepted": "anchors outside of the alternatives",
		},
	},
	"between": {
		examples: []tryExample{
			{"2 to 3", `{minCopies: 2, maxCopies: 3}`, `{minCopies: 2, maxCopies: 3}`},
			{"2 to 2", `{minCopies: 2, maxCopies: 2}`, `{minCopies: 2, maxCopies: 2}`},
			{"from 2", `{minCopies: 2}`, `{minCopies: 2}`},
			{"nothing", `{}`, `{minCopies: 1}`},
			{"to 3", `{maxCopies: 3}`, `{minCopies: 1, maxCopies: 3}`},
			{"3 to 2", `{minCopies: 3, maxCopies: 2}`, ""},
			{"to 0", `{maxCopies: 0}`, ""},
			{"from many", `{minCopies: 1000000}`, `{minCopies: 1000000}`},
			{"to many", `{maxCopies: 1000000}`, `{minCopies: 1, maxCopies: 1000000}`},
		},
		mistakes: map[string]string{
			"2 to 2: refused": "equal is refused",
			"from 2: refused, nothing: refused, from many: refused":                     "false without the field",
			"from 2: an error, nothing: an error, from many: an error":                  "a missing field is an error",
			"2 to 2: refused, from 2: an error, nothing: an error, from many: an error": "a missing field is an error",
		},
	},
	"grow": {
		before: `{volumes: [a, b]}`,
		examples: []tryExample{
			{"add c", `{volumes: [a, b, c]}`, `{volumes: [a, b, c]}`},
			{"another order", `{volumes: [b, a]}`, `{volumes: [b, a]}`},
			{"remove b", `{volumes: [a]}`, ""},
			{"c in place of b", `{volumes: [a, c]}`, ""},
			{"c and d in place of b", `{volumes: [a, c, d]}`, ""},
			{"bc in place of b", `{volumes: [a, bc]}`, ""},
		},
		mistakes: map[string]string{
			"add c: refused, another order: refused, add a to none: refused":                         "every change is refused",
			"c in place of b: accepted, c and d in place of b: accepted, bc in place of b: accepted": "only the number counts",
		},
		more: &tryExamples{before: `{volumes: []}`, examples: []tryExample{
			{"none to none", `{volumes: []}`, `{volumes: []}`},
			{"add a to none", `{volumes: [a]}`, `{volumes: [a]}`},
		}},
	},
	"defaults": {
		examples: []tryExample{
			{"nothing", `{}`, `{retry: {wait: 1m, times: 3}}`},
			{"only wait", `{retry: {wait: 5m}}`, `{retry: {wait: 5m, times: 3}}`},
			{"once", `{retry: {wait: 5m, times: 1}}`, `{retry: {wait: 5m, times: 1}}`},
			{"no wait", `{retry: {times: 1}}`, ""},
		},
		mistakes: map[string]string{
			"nothing: refused": "required instead of a default",
			"nothing: stored otherwise, no wait: accepted": "wait no longer required",
		},
	},
}

// checkTry installs the CRD in a group of its own, and compares the API server's answers
// to all examples with those that are due.
func checkTry(name string) func(*check.C) {
	try := tries[name]
	return func(c *check.C) {
		crd := &definition{}
		c.ReadYAML("crd.yaml", "a CustomResourceDefinition", crd)
		crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
		if err := crdtest.Create(c.T, c.Env, crd); err != nil {
			for mistake, answer := range map[string]string{"default of another type": "must be of type object", "default without wait": "].default.wait: Required value"} {
				if c.Knows(mistake) && strings.Contains(err.Error(), answer) {
					c.Mistake(mistake, "a CRD that the API server takes", err.Error())
				}
			}
			c.Fail("a CRD that the API server takes", err.Error())
		}
		c.Must(crdwait.Established(c.Context(), c.Config, crd.Name))

		// Server-side apply also creates, and is not held back while a CRD is new.
		apply := func(name, spec string, dryRun ...string) (*unstructured.Unstructured, error) {
			data, err := json.Marshal(object(crd, name, parseSpec(c, spec)))
			c.Must(err)
			return resource(c.Env, crd, "").Patch(c.Context(), name, types.ApplyYAMLPatchType, data,
				metav1.PatchOptions{FieldManager: "try", DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
		}
		var wrong, expected, held []string
		for name, tried := "tried", &try; tried != nil; name, tried = name+"-more", tried.more {
			if tried.before != "" {
				if _, err := apply(name, tried.before); err != nil {
					c.Fail("a new Backup with the spec "+tried.before+" is accepted", err.Error())
				}
			}
			for _, x := range tried.examples {
				object, err := apply(name, x.spec, metav1.DryRunAll)
				if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
					c.T.Fatal(err)
				}
				want, got, why := accepted, accepted, ""
				if x.stored == "" {
					want = refused
				}
				if err != nil {
					got, why = refused, ": "+err.Error()
					if want != refused && strings.Contains(why, "no such key") {
						got = noKey
					}
				} else if x.stored != "" {
					if diff := cmp.Diff(parseSpec(c, x.stored), field(object, "spec")); diff != "" {
						got, why = "stored otherwise", " (-want +stored):\n"+diff
					}
				}
				if got == want {
					continue
				}
				what := "the spec " + x.spec
				if tried.before != "" {
					what = "the change from " + tried.before + " to " + x.spec
				}
				wrong = append(wrong, x.name+": "+got)
				expected = append(expected, what+" is "+want)
				held = append(held, what+" is "+got+why)
			}
		}
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		if len(wrong) == 0 {
			for _, rule := range slices.Concat(spec.XValidations, spec.Properties["volumes"].XValidations) {
				if rule.Message == "" && rule.MessageExpression == "" {
					c.Fail("a rule with a message", "none for "+strings.TrimSpace(rule.Rule))
				}
			}
			return
		}
		mistake := try.mistakes[strings.Join(wrong, ", ")]
		if mistake == "wait no longer required" && slices.Contains(spec.Properties["retry"].Required, "wait") {
			mistake = "" // wait has a default of its own
		}
		if mistake != "" {
			c.Mistake(mistake, expected[0], strings.Join(held, "\n"))
		}
		c.Fail(expected[0], strings.Join(held, "\n"))
	}
}

// parseSpec reads YAML with numbers as the dynamic client has them.
func parseSpec(c *check.C, text string) map[string]any {
	c.T.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	c.Must(err)
	o := &unstructured.Unstructured{}
	c.Must(o.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "x", "spec": ` + string(data) + `}`)))
	spec, _ := field(o, "spec").(map[string]any)
	return spec
}
