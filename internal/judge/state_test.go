package judge

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/fatal"
)

func objects(t *testing.T, texts ...string) (all []unstructured.Unstructured) {
	t.Helper()
	for _, text := range texts {
		data, err := yaml.YAMLToJSON([]byte(text))
		fatal.If(t, err)
		o := unstructured.Unstructured{}
		fatal.If(t, o.UnmarshalJSON(data))
		all = append(all, o)
	}
	return all
}

const owner = `
apiVersion: v1
kind: Owner
metadata: {name: o, uid: UID-4000-8000-000000000001, resourceVersion: "7", generation: 3, creationTimestamp: "2026-01-01T00:00:00Z"}
status: {observedGeneration: 3, at: "2026-01-01T00:00:00Z", nodes: [a], child: c-RANDOM, said: "made c-RANDOM.", conditions: [{type: Ready, observedGeneration: 2, message: x}]}
`

const child = `
apiVersion: v1
kind: Child
metadata: {name: c-RANDOM, generateName: c-, namespace: judge-RANDOM, uid: UID-4000-8000-000000000002, ownerReferences: [{kind: Owner, uid: UID-4000-8000-000000000001}]}
spec: {size: NUMBER, address: c.judge-RANDOM.svc, selector: "uid=UID-4000-8000-000000000001", other: 99999999-0000-4000-8000-000000000009}
`

func read(t *testing.T, uid string, texts ...string) state {
	t.Helper()
	for i := range texts {
		texts[i] = strings.ReplaceAll(texts[i], "UID", uid)
	}
	return stateOf(objects(t, texts...), map[string][][]string{"Owner": {{"status", "nodes"}, {"status", "conditions", "*", "message"}}}, nil)
}

// What differs from run to run is no difference.
func TestStateLeavesOutWhatIsFleeting(t *testing.T) {
	a := read(t, "11111111-1111", strings.ReplaceAll(owner, "RANDOM", "x1"), strings.ReplaceAll(strings.ReplaceAll(child, "RANDOM", "x1"), "NUMBER", "1"))
	b := read(t, "22222222-2222", strings.NewReplacer("2026-01-01T00:00:00Z", "2027-01-01T00:00:00.25+02:00", "nodes: [a]", "nodes: [b]", "RANDOM", "y2").Replace(owner), strings.ReplaceAll(strings.ReplaceAll(child, "RANDOM", "y2"), "NUMBER", "1"))
	if d := compare(a, b); !d.empty() {
		t.Errorf("%+v", d)
	}
	want := map[string]any{"apiVersion": "v1", "kind": "Owner", "metadata": map[string]any{"name": "o"},
		"status": map[string]any{"observedGeneration": "<current>", "at": "<time>", "child": "c-*", "said": "made c-*.", "conditions": []any{map[string]any{"type": "Ready", "observedGeneration": "<behind>"}}}}
	if diff := cmp.Diff(want, a.of("Owner o")[0].content); diff != "" {
		t.Error(diff)
	}
	if got := a.of("Child c-*")[0].content["spec"].(map[string]any); got["selector"] != "uid=<uid of Owner o>" || got["other"] != "<uid of something gone>" || got["address"] != "c.<namespace>.svc" {
		t.Errorf("%v", got)
	}
}

func TestCompare(t *testing.T) {
	one := func(random, number string) string {
		return strings.ReplaceAll(strings.ReplaceAll(child, "RANDOM", random), "NUMBER", number)
	}
	want := read(t, "11111111-1111", owner, one("a", "1"))
	d := compare(want, read(t, "11111111-1111", owner, one("a", "1"), one("b", "2")))
	if len(d.extra) != 1 || len(d.missing)+len(d.changed) > 0 || d.extra[0].String() != "Child c-*" {
		t.Errorf("two instead of one: %+v", d)
	}
	d = compare(want, read(t, "11111111-1111", owner, one("a", "2")))
	if len(d.changed) != 1 || cmp.Diff([]string{"spec.size is 2 instead of 1"}, d.changed[0].fields) != "" {
		t.Errorf("another number: %+v", d)
	}
	if d = compare(want, read(t, "11111111-1111", owner, strings.Replace(one("a", "1"), "spec: {", "spec: {nothing: null, ", 1))); !d.empty() {
		t.Errorf("null: %+v", d)
	}
	if d = compare(want, read(t, "11111111-1111", owner)); len(d.missing) != 1 {
		t.Errorf("none: %+v", d)
	}
}

// The order of conditions is no difference, and what differs in one is said of that one.
func TestConditions(t *testing.T) {
	of := func(conditions string) state {
		return stateOf(objects(t, "{kind: A, apiVersion: v1, metadata: {name: a}, status: {conditions: ["+conditions+"]}}"), nil, nil)
	}
	want := of("{type: Ready, status: 'True'}, {type: Owned, status: 'True'}")
	for conditions, says := range map[string][]string{
		"{type: Owned, status: 'True'}, {type: Ready, status: 'True'}":                                nil,
		"{type: Owned, status: 'True'}, {type: Ready, status: 'True'}, {type: judge.test/rival}":      nil,
		"{type: Owned, status: 'False'}, {type: Ready, status: 'True'}":                               {`status.conditions[Owned].status is "False" instead of "True"`},
		"{type: Ready, status: 'True'}":                                                               {`status.conditions[Owned] is missing instead of {"status":"True","type":"Owned"}`},
		"{type: Owned, status: 'True'}, {type: Ready, status: 'True'}, {type: Other, status: 'True'}": {`status.conditions[Other] is {"status":"True","type":"Other"} instead of missing`},
	} {
		var got []string
		for _, c := range compare(want, of(conditions)).changed {
			got = append(got, c.fields...)
		}
		if diff := cmp.Diff(says, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", conditions, diff)
		}
	}
	if got := fields("ports", []any{map[string]any{"port": 1}}, []any{map[string]any{"port": 2}}); cmp.Diff([]string{"ports[0].port is 2 instead of 1"}, got) != "" {
		t.Error(got)
	}
}

// Where the contract leaves the name to the controller, it does not count.
func TestUnnamed(t *testing.T) {
	for _, controller := range []string{"", ", controller: true"} { // which not everybody writes
		testUnnamed(t, controller)
	}
}

func testUnnamed(t *testing.T, controller string) {
	made := func(name string) []unstructured.Unstructured {
		return objects(t, "{kind: Owner, apiVersion: v1, metadata: {name: o, uid: u}}",
			"{kind: Child, apiVersion: v1, metadata: {name: "+name+", uid: c, ownerReferences: [{kind: Owner, name: o, uid: u"+controller+"}]}}",
			"{kind: Child, apiVersion: v1, metadata: {name: left, ownerReferences: [{kind: Owner, name: gone, uid: v, controller: true}]}}")
	}
	unnamed := map[string]bool{"Child": true}
	want := stateOf(made("o-1234"), nil, unnamed)
	if d := compare(want, stateOf(made("o-5678"), nil, unnamed)); !d.empty() || len(want.of("Child o-*")) != 1 || len(want.of("Child left")) != 1 {
		t.Errorf("%+v in %v", d, want)
	}
	if d := compare(stateOf(made("o-1234"), nil, nil), stateOf(made("o-5678"), nil, nil)); len(d.missing) != 1 || len(d.extra) != 1 {
		t.Errorf("a name that the contract has: %+v", d)
	}
	c := &Contract{End: []Resource{{Kind: "Owner"}, {Kind: "Child"}}, Hundred: []Step{{Object: &made("x")[0]}}}
	if got := c.unnamed(); len(got) != 1 || !got["Child"] {
		t.Errorf("unnamed: %v", got)
	}
}

// What the API server chooses for a Service is no difference, but what the controller does.
func TestServices(t *testing.T) {
	service := func(spec string) state {
		return stateOf(objects(t, "{kind: Service, apiVersion: v1, metadata: {name: a}, spec: {"+spec+"}}"), nil, nil)
	}
	want := service("clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80, nodePort: 30001}]")
	for spec, same := range map[string]bool{
		"clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2], ports: [{port: 80, nodePort: 30002}]": true,
		"clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2], ports: [{port: 81, nodePort: 30001}]": false,
		"clusterIP: None, clusterIPs: [None], ports: [{port: 80}]":                          false,
	} {
		if d := compare(want, service(spec)); d.empty() != same {
			t.Errorf("%s: %+v", spec, d)
		}
	}
}

func TestHolds(t *testing.T) {
	o := objects(t, "{kind: A, spec: {n: 1, gone: x}, list: [{type: A, status: 'True'}, {type: B, status: 'False'}], none: []}")[0].Object
	for text, want := range map[string]bool{
		"{kind: A, spec: {n: 1}}":                       true,
		"{kind: A, spec: {n: 2}}":                       false,
		"{kind: A, spec: {other: null}}":                true,
		"{kind: A, spec: {gone: null}}":                 false,
		"{kind: A, spec: {n: {m: 1}}}":                  false,
		"{kind: A, list: [{type: B, status: 'False'}]}": true,
		"{kind: A, list: [{type: B, status: 'True'}]}":  false,
		"{kind: A, missing: {other: null}}":             true,
		"{kind: A, none: []}":                           true,
		"{kind: A, list: []}":                           false,
		"{kind: A, missing: {a: 1}}":                    false,
	} {
		if wanted := objects(t, text)[0].Object; holds(o, wanted) != want {
			t.Errorf("%s: it lacks %q", text, lacks("", wanted, o))
		}
	}
}
