package judge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/workspace"
)

func step(verb, kind, name string) *Step {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind}}
	o.SetName(name)
	return &Step{Verb: verb, Object: o}
}

// Each classic fault has a sentence of its own.
func TestDiagnosis(t *testing.T) {
	cut, gone410 := &Case{When: "after its watches were cut"}, &Case{Level: 3, When: "after its watches were answered with 410 Gone"}
	create409 := faultproxy.Request{Verb: "create", Resource: "configmaps", Code: 409}
	update := faultproxy.Request{Verb: "update", Resource: "configmaps", Code: 200}
	second := difference{extra: []entry{{Kind: "Deployment", Name: "cone-*"}}}
	for name, test := range map[string]struct {
		c    *Case
		f    failure
		want string
	}{
		"nothing for a new object": {&Case{}, failure{kind: waited, step: step(wait, "Deployment", "x"), cause: step(apply, "Icecream", "x")}, "It did not do what Icecream x asks for: Deployment x is not as it should be."},
		"reacts to Added only": {&Case{}, failure{kind: waited, step: step(wait, "Deployment", "x"), cause: step(patch, "Icecream", "x"), others: []*failure{
			{kind: waited, step: step(gone, "Deployment", "y"), cause: step(patch, "Icecream", "y")}}}, "It did not act when Icecream x was changed, nor at other changes: it reacts to new objects only"},
		"Added only, and a drift": {&Case{}, failure{kind: waited, step: step(wait, "ConfigMap", "d-copy"), cause: step(patch, "ConfigMap", "d-copy"), others: []*failure{
			{kind: waited, step: step(wait, "ConfigMap", "x-copy"), cause: step(patch, "ConfigMap", "x")},
			{kind: waited, step: step(gone, "ConfigMap", "y-copy"), cause: step(patch, "ConfigMap", "y")}}}, "It did not act when ConfigMap x was changed, nor at other changes: it reacts to new objects only"},
		"a drift and a change": {&Case{}, failure{kind: waited, step: step(wait, "ConfigMap", "d-copy"), cause: step(patch, "ConfigMap", "d-copy"), others: []*failure{
			{kind: waited, step: step(wait, "ConfigMap", "x-copy"), cause: step(patch, "ConfigMap", "x")}}}, "It did not put right what somebody had changed in ConfigMap d-copy"},
		"two drifts": {&Case{}, failure{kind: waited, step: step(wait, "Deployment", "x"), cause: step(patch, "Deployment", "x"), others: []*failure{
			{kind: waited, step: step(wait, "Service", "x"), cause: step(patch, "Service", "x")}}}, "It did not put right what somebody had changed in Deployment x"},
		"two that are kept": {&Case{}, failure{kind: waited, step: step(gone, "Deployment", "x"), cause: step(patch, "Icecream", "x"), others: []*failure{
			{kind: waited, step: step(gone, "Deployment", "y"), cause: step(patch, "Icecream", "y")}}}, "It kept Deployment x, which is no longer wanted"},
		"keeps the owner":        {&Case{}, failure{kind: waited, hint: keeps, step: step(gone, "Deployment", "x"), cause: step(remove, "Icecream", "x")}, "It does not let Icecream x go"},
		"loses a change":         {cut, failure{kind: waited, step: step(wait, "Deployment", "x"), cause: step(patch, "Icecream", "x")}, "was changed after its watches were cut"},
		"ignores deletion":       {&Case{}, failure{kind: waited, step: step(gone, "ConfigMap", "a-copy"), cause: step(remove, "ConfigMap", "a")}, "It left ConfigMap a-copy behind when ConfigMap a was deleted: it ignores deletions"},
		"never takes away":       {&Case{}, failure{kind: waited, step: step(gone, "ConfigMap", "a-copy"), cause: step(patch, "ConfigMap", "a")}, "It kept ConfigMap a-copy, which is no longer wanted"},
		"does not look after it": {&Case{}, failure{kind: waited, step: step(wait, "ConfigMap", "a-copy"), cause: step(remove, "ConfigMap", "a-copy")}, "did not make ConfigMap a-copy again"},
		"does not correct drift": {&Case{}, failure{kind: waited, step: step(wait, "ConfigMap", "a-copy"), cause: step(patch, "ConfigMap", "a-copy")}, "did not put right what somebody had changed in ConfigMap a-copy"},
		"its status is behind":   {&Case{}, failure{kind: waited, theirs: true, step: step(wait, "Icecream", "x"), cause: step(patch, "Icecream", "x")}, "It did not act when Icecream x was changed"},
		"keeps its finalizer":    {&Case{}, failure{kind: waited, theirs: true, step: step(gone, "Icecream", "x"), cause: step(remove, "Icecream", "x")}, "It does not let Icecream x go, which was deleted: it has put a finalizer there"},
		"nothing to delete":      {&Case{}, failure{kind: waited, step: step(remove, "Deployment", ""), cause: step(apply, "Icecream", "x")}, "People found no Deployment to delete: it did not make it"},
		"too early to delete":    {&Case{}, failure{kind: waited, theirs: true, step: step(remove, "Icecream", "x")}, "People found no Icecream x to delete, though they make it"},
		"two of them":            {&Case{When: "after it was killed"}, failure{kind: differs, diff: second}, "It made a second Deployment (cone-*) after it was killed"},
		"left over":              {cut, failure{kind: differs, diff: difference{extra: []entry{{Kind: "ConfigMap", Name: "a-copy"}}}}, "It left ConfigMap a-copy behind after its watches were cut"},
		"missing":                {cut, failure{kind: differs, diff: difference{missing: []entry{{Kind: "ConfigMap", Name: "a-copy"}}}}, "ConfigMap a-copy is missing at the end after its watches were cut"},
		"wrong":                  {cut, failure{kind: differs, diff: difference{changed: []change{{entry{Kind: "ConfigMap", Name: "a"}, []string{`data.n is "1" instead of "2"`}}}}}, `ConfigMap a is wrong at the end after its watches were cut: data.n is "1" instead of "2".`},
		"dies at 410":            {gone410, failure{kind: died, code: 1}, "It ended by itself with exit code 1 after its watches were answered with 410 Gone"},
		"panics":                 {cut, failure{kind: died, code: 2, detail: "panic: nil map"}, "It panicked after its watches were cut"},
		"creates blindly":        {&Case{When: "after a new start"}, failure{kind: restless, restarted: true, requests: []faultproxy.Request{create409, create409}}, "It goes on creating configmaps that exist already after a new start (409 AlreadyExists)"},
		"writes at rest":         {&Case{}, failure{kind: restless, requests: []faultproxy.Request{update, update}}, "It goes on writing although nothing changes"},
		"is too slow":            {&Case{When: "with a thousand objects"}, failure{kind: unfinished, detail: "1m30s"}, "It was still at work after 1m30s with a thousand objects"},
		"writes at a restart":    {&Case{}, failure{kind: restless, restarted: true, requests: []faultproxy.Request{update, create409}}, "It writes after a restart although nothing has changed"},
		"two copies that fight":  {&Case{Copies: 2}, failure{kind: restless, requests: []faultproxy.Request{update}}, "Two copies go on undoing each other's writes"},
		"takes what is foreign":  {&Case{}, failure{kind: trespassed, detail: "Deployment foreign"}, "It touched somebody else's Deployment foreign"},
		"does not end":           {&Case{}, failure{kind: endless}, "It did not end within 30s of a SIGTERM"},
		"ends badly":             {&Case{}, failure{kind: badEnd, code: 3}, "It ended with exit code 3 after a SIGTERM"},
		"overwrites":             {&Case{}, failure{kind: overwrote, detail: "Deployment x"}, "It overwrote what somebody else had just written to Deployment x"},
		"makes what goes":        {&Case{When: "at the end"}, failure{kind: zombie, step: step(remove, "Icecream", "x")}, "It made something for Icecream x at the end: it ignores the deletionTimestamp"},
		"holds a namespace":      {&Case{}, failure{kind: holdsUp}, "It held up the deletion of its namespace"},
		"does not back off":      {&Case{}, failure{kind: hot}, "(AddRateLimited)"},
		"never forgets":          {&Case{}, failure{kind: forgetful}, "has to Forget a key"},
		"comes too early":        {&Case{}, failure{kind: impatient}, "It came again too early: Retry-After asked for 2s"},
		"updates blindly":        {&Case{}, failure{kind: blind}, "It updates without a resourceVersion"},
		"deletes by name":        {&Case{}, failure{kind: anonymous}, "It deletes by the name alone"},
		"says nothing":           {&Case{}, failure{kind: silent, step: step(apply, "Icecream", "x")}, "It says nothing in the status of Icecream x"},
		"writes much":            {&Case{}, failure{kind: talkative}, "It writes more often than the contract allows"},
		"asks much":              {&Case{}, failure{kind: busyAtRest}, "It goes on asking the API server"},
		"grows":                  {&Case{}, failure{kind: growing}, "The more objects there are, the more it needs for each"},
		"is dead":                {cut, failure{kind: differs, hint: dead}, "It has stopped working after its watches were cut"},
		"only the owner wakes":   {&Case{}, failure{kind: waited, hint: deaf, theirs: true, step: step(wait, "Icecream", "x"), cause: step(patch, "Icecream", "x")}, "It did not report on Icecream x until something else woke it"},
		"nothing wakes":          {&Case{}, failure{kind: waited, hint: stubborn, step: step(wait, "Deployment", "x"), cause: step(remove, "Deployment", "x")}, "its own status, for the truth"},
		"status at the main":     {&Case{}, failure{kind: waited, hint: mainPoint, theirs: true, step: step(wait, "Icecream", "x")}, "It writes the status of Icecream x to the main endpoint"},
		"finalizer first":        {&Case{}, failure{kind: waited, hint: letGo, step: step(wait, "Pod", "p"), cause: step(remove, "Policy", "x")}, "It let Policy x go before it had undone its work at Pod p"},
		"gives up a status":      {&Case{}, failure{kind: waited, hint: gaveUp, theirs: true, step: step(wait, "Icecream", "x")}, "It gave up a status of Icecream x"},
		"writes after its end":   {&Case{}, failure{kind: undead}, "still wrote after it had ended"},
	} {
		got, cure := test.c.diagnosis(&test.f)
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: %s\nwant %s", name, got, test.want)
		}
		if cures[cure].heading == "" {
			t.Errorf("%s has no cure", name)
		}
	}
	// A create that finds a bystander is right to go on trying, and says nothing about what is waited for.
	s := &scene{bystanders: map[string]*unstructured.Unstructured{"u": {Object: map[string]any{"metadata": map[string]any{"name": "foreign"}}}}}
	for body, want := range map[string]bool{`{"metadata":{"name":"foreign"}}`: true, `{"metadata":{"name":"own"}}`: false} {
		r := create409
		r.Body = []byte(body)
		if s.meetsBystander(r, "x") != want || s.meetsBystander(r, "foreign") {
			t.Errorf("%s: %t", body, !want)
		}
	}
	status := faultproxy.Request{Verb: "update", Resource: "icecreams/status"}
	for want, r := range map[string]faultproxy.Request{"repair": update, "report": status} {
		if _, cure := (&Case{}).diagnosis(&failure{kind: restless, requests: []faultproxy.Request{r}}); cure != want {
			t.Errorf("writes of %s at rest: the cure is %q, want %q", r.Resource, cure, want)
		}
	}
}

// The lessons have the headings that the judge names.
func TestCures(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	for name, c := range cures {
		lesson, err := os.ReadFile(filepath.Join(ws.Root, c.lesson, "README.md"))
		fatal.If(t, err)
		if !strings.Contains(string(lesson), "\n### "+c.heading+"\n") {
			t.Errorf("%s: there is no %s", name, c)
		}
	}
}

func TestRole(t *testing.T) {
	got := role("sweet", []faultproxy.Request{
		{Verb: "get", Path: "/version"},
		{Verb: "watch-list", Group: "apps", Resource: "deployments", Namespace: "n"},
		{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "n", Code: 200},
		{Verb: "create", Resource: "configmaps", Namespace: "n"},
		{Verb: "create", Resource: "secrets", Namespace: "n"},
		{Verb: "patch", Resource: "services", Namespace: "n", Code: 201},
		{Verb: "list", Resource: "nodes"},
	})
	const want = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: sweet}
rules:
- {apiGroups: [""], resources: [configmaps, secrets], verbs: [create]}
- {apiGroups: [""], resources: [services], verbs: [create, patch]}
- {apiGroups: [apps], resources: [deployments], verbs: [list, patch, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sweet}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list]}
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		cases         []Result
		reached, code int
	}{
		"all":           {[]Result{{Level: 1, Verdict: passed}, {Level: 2, Verdict: passed}}, 3, 0},
		"not the third": {[]Result{{Level: 1, Verdict: passed}, {Level: 3, Verdict: failed}, {Level: 3, Verdict: unjudged}}, 2, 1},
		"who knows":     {[]Result{{Level: 1, Verdict: passed}, {Level: 2, Verdict: unjudged}}, 1, 2},
	} {
		v := &Verdict{Asked: 3, Cases: test.cases}
		reached := 0
		for level := 1; level <= v.Asked && v.through(level); level++ {
			reached = level
		}
		if reached != test.reached || v.ExitCode() != test.code {
			t.Errorf("%s: level %d, code %d", name, reached, v.ExitCode())
		}
	}
}
