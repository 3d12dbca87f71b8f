package controller

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	typedicecream "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

const icecreamProgram = "./06-controller/icecream"

// An icecreamTest is a namespace with an icecream controller in it.
type icecreamTest struct {
	*icecreamtest.Test
	icecreams   typedicecream.IcecreamInterface
	deployments typedappsv1.DeploymentInterface
}

// newIcecreamTest prepares a controller that does not run yet.
func newIcecreamTest(t *testing.T, changes ...testenv.ProgramOption) *icecreamTest {
	t.Helper()
	e := testenv.New(t)
	return icecreamTestOf(t, e, e.Program(icecreamProgram, changes...))
}

// icecreamTestOf prepares another program than the controller of the lesson.
func icecreamTestOf(t testing.TB, e *testenv.Env, program string) *icecreamTest {
	t.Helper()
	f := icecreamtest.Of(t, e, program)
	return &icecreamTest{Test: f, icecreams: f.Icecreams, deployments: f.Deployments}
}

func (f *icecreamTest) create(name, deployment string, replicas int32) *v1alpha1.Icecream {
	f.T.Helper()
	return f.Create(name, deployment, replicas)
}

func (f *icecreamTest) patch(name, patch string) { f.T.Helper(); f.Patch(name, patch) }

func (f *icecreamTest) patchDeployment(name, patch string) *appsv1.Deployment {
	f.T.Helper()
	return f.PatchDeployment(name, patch)
}

func (f *icecreamTest) foreign(name string, owners ...metav1.OwnerReference) *appsv1.Deployment {
	f.T.Helper()
	return f.Foreign(name, owners...)
}

func (f *icecreamTest) until(name string, check func(*v1alpha1.Icecream) error) *v1alpha1.Icecream {
	f.T.Helper()
	return f.Until(name, check)
}

func (f *icecreamTest) requests(verb, resource string) []faultproxy.Request {
	return f.Requests(verb, resource)
}

func (f *icecreamTest) gone(deployment string) { f.T.Helper(); f.Gone(deployment) }

func (f *icecreamTest) lookedAt(wrong func() error) error { f.T.Helper(); return f.LookedAt(wrong) }

func (f *icecreamTest) all(ice *v1alpha1.Icecream) []appsv1.Deployment {
	f.T.Helper()
	return f.All(ice)
}

const collected = icecreamtest.Collected

var (
	condition    = icecreamtest.Condition
	isAvailable  = icecreamtest.IsAvailable
	isRefused    = icecreamtest.IsRefused
	deploymentOf = icecreamtest.DeploymentOf
)

// What step 10's controller has to pass, too.

func prepared(t *testing.T) *icecreamtest.Test { t.Helper(); return newIcecreamTest(t).Test }

func TestIcecream(t *testing.T)                      { icecreamtest.Makes(t, prepared) }
func TestIcecreamAutoscaled(t *testing.T)            { icecreamtest.Autoscaled(t, prepared) }
func TestIcecreamRefuses(t *testing.T)               { icecreamtest.Refuses(t, prepared) }
func TestIcecreamCorrectsDrift(t *testing.T)         { icecreamtest.CorrectsDrift(t, prepared) }
func TestIcecreamRenamesToAForeignName(t *testing.T) { icecreamtest.RenamesToAForeignName(t, prepared) }
func TestIcecreamNamesAtMostAHundredNodes(t *testing.T) {
	icecreamtest.NamesAtMostAHundredNodes(t, prepared)
}
func TestIcecreamRetiresWhatHasLostItsMark(t *testing.T) {
	icecreamtest.RetiresWhatHasLostItsMark(t, prepared)
}
func TestIcecreamFollowsLabels(t *testing.T) { icecreamtest.FollowsLabels(t, prepared) }
func TestIcecreamRetiresNothingOnAStaleSpec(t *testing.T) {
	icecreamtest.RetiresNothingOnAStaleSpec(t, prepared)
}

// In a namespace that is being deleted nothing can be created. One try is
// enough, and neither a refused Deployment nor a refused Event is an error.
func TestIcecreamInANamespaceThatGoes(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	delivered := deliveries(t, f.Proxy)
	// The controller has just decided to create a Deployment.
	late := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Stall})
	f.Start("-resync", "1s")
	ice := f.create("vanilla", "cone", 0)
	f.Struck(late, 1)
	f.Eventually(time.Minute, func(context.Context) error { return delivered(ice.ResourceVersion) })
	f.holdVanilla()
	// The controller does not hear that the Icecream is being deleted, too.
	held := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold})
	fatal.If(t, f.Client.CoreV1().Namespaces().Delete(f.Context(), f.Namespace, metav1.DeleteOptions{}))
	late.Remove()
	f.Eventually(namespaceGoes, func(context.Context) error {
		if posts := f.requests("create", "deployments"); posts[0].Code != http.StatusForbidden {
			return fmt.Errorf("POSTs %v", posts)
		}
		return nil
	})
	if err := f.Hold(3500*time.Millisecond, func() error { // three resyncs
		if n := len(f.requests("create", "deployments")); n > 1 {
			return fmt.Errorf("tried again: %d POSTs", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	held.Remove()
	f.Stop()
	if log := f.Process.Stderr(); strings.Contains(log, "Server rejected event") || strings.Contains(log, "Trying again later") {
		t.Errorf("the log:\n%s", log)
	}
}

// holdVanilla gives the Icecream vanilla a finalizer, which goes when the test ends.
func (f *icecreamTest) holdVanilla() {
	f.T.Helper()
	f.Patch("vanilla", `{"metadata":{"finalizers":["test.k8s-go.openshift.org/hold"]}}`)
	f.AtEnd(func(ctx context.Context) error {
		_, err := f.icecreams.Patch(ctx, "vanilla", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	})
}

// A namespace goes in which many Deployments have been deleted, or in which many Icecreams are new. One or two of
// the Icecreams find that out for all.
func TestManyIcecreamsInANamespaceThatGoes(t *testing.T) {
	t.Parallel()
	for name, isNew := range map[string]bool{"new": true, "deleted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manyInANamespaceThatGoes(t, isNew)
		})
	}
}

func manyInANamespaceThatGoes(t *testing.T, isNew bool) {
	f := newIcecreamTest(t)
	f.Start()
	const many = 20
	made := 0 // POSTs before
	create := func() {
		for n := range many {
			f.create(fmt.Sprintf("vanilla-%d", n), fmt.Sprintf("cone-%d", n), 0)
		}
	}
	if !isNew {
		create()
		for n := range many {
			f.until(fmt.Sprintf("vanilla-%d", n), icecreamtest.IsAvailable)
		}
		made = many
	}
	going := make(chan struct{})
	waits := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Call, Times: -1, Call: func(ctx context.Context, _ faultproxy.Request) error {
		select {
		case <-going:
		case <-ctx.Done():
		}
		return ctx.Err()
	}})
	if isNew {
		create()
	} else {
		fatal.If(t, f.deployments.DeleteCollection(f.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	f.Struck(waits, 1)
	time.Sleep(time.Second) // the workers meet them all
	fatal.If(t, f.Client.CoreV1().Namespaces().Delete(f.Context(), f.Namespace, metav1.DeleteOptions{}))
	close(going)
	if err := f.Hold(5*time.Second, func() error {
		if n := len(f.requests("create", "deployments")) - made; n > 2 {
			return fmt.Errorf("%d POSTs into a namespace that goes", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A Deployment is in the way, and goes before the cache has shown it: no event ever tells of it.
func TestIcecreamAfterADeploymentThatNoEventToldOf(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	foreign := f.foreign("cone")
	f.Start()
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isRefused)
	// The name is free for a moment, which wakes the controller. Its POST meets another one, of which the watch says nothing.
	watch := faultproxy.Match{Verb: "watch*", Resource: "deployments"}
	var held *faultproxy.Injection
	met := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		var err error
		if held, err = f.Proxy.Inject(faultproxy.Rule{Match: watch, Fault: faultproxy.Hold, Times: -1}); err != nil {
			return err
		}
		_, err = f.deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: foreign.Name}, Spec: foreign.Spec}, metav1.CreateOptions{})
		return err
	}})
	fatal.If(t, f.deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}))
	f.Struck(met, 1)
	f.Eventually(time.Minute, func(context.Context) error {
		if posts := f.requests("create", "deployments"); len(posts) == 0 || posts[0].Code != http.StatusConflict {
			return fmt.Errorf("POSTs %v", posts)
		}
		return nil
	})
	time.Sleep(time.Second) // it has looked at what it met, and reported nothing new
	fatal.If(t, f.deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}))
	gone := f.Inject(faultproxy.Rule{Match: watch, Fault: faultproxy.ErrorEvent, Code: http.StatusGone}) // it lists anew, and sees neither
	f.Proxy.Cut(watch)
	held.Remove()
	f.Struck(gone, 1)
	f.until("vanilla", isAvailable)
}

// An Icecream is being deleted, which its watch does not say yet, and the name that it waits for becomes free.
func TestIcecreamThatGoesGetsNoChild(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	f.foreign("cone")
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isRefused)
	before := len(f.requests("create", "deployments")) // one, if its cache did not show the foreign one yet
	f.holdVanilla()
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold})
	fatal.If(t, f.icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{}))
	f.Struck(held, 1)
	fatal.If(t, f.Client.AppsV1().Deployments(f.Namespace).Delete(f.Context(), "cone", metav1.DeleteOptions{}))
	if err := f.Hold(2*time.Second, func() error {
		if posts := f.requests("create", "deployments")[before:]; len(posts) > 0 {
			return fmt.Errorf("POSTs %v", posts)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	held.Remove()
}

func TestIcecreamProgram(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start("-workers", "1", "-listen", "localhost:0")
	if code, body := f.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, body := f.Get("/metrics"); code != http.StatusOK || !strings.Contains(body, "workqueue_depth") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	elsewhere := newIcecreamTest(t)
	elsewhere.create("vanilla", "cone", 0)
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	if list, err := elsewhere.deployments.List(f.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("in a namespace that is not the controller's: %v %v", list.Items, err)
	}
	fatal.If(t, f.Process.Signal(os.Interrupt))
	if r := f.Process.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d after SIGINT", r.ExitCode)
	}
	for want, args := range map[string][]string{
		"reading the kubeconfig": {"-kubeconfig", "/no/such/file"},
		"-resync 1ms: it has to": {"-kubeconfig", f.Proxy.Kubeconfig, "-resync", "1ms"},
		"-namespace No/Such: a":  {"-kubeconfig", f.Proxy.Kubeconfig, "-namespace", "No/Such"},
		`unexpected argument "s`: {"-kubeconfig", f.Proxy.Kubeconfig, "start"},
		"listening for health":   {"-kubeconfig", f.Proxy.Kubeconfig, "-listen", "no-such-host.invalid:0"},
	} {
		if r := f.Run(testenv.Command{Path: f.Command.Path, Args: args}); r.ExitCode != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: exit code %d, want 1 and %q\n%s", args, r.ExitCode, want, r.Stderr)
		}
	}
}

// icecreamGuards are the guards of the controller.
var icecreamGuards = controllertest.Guards{Program: icecreamProgram, Without: "controller/without.go", Changes: map[string][]testenv.ProgramOption{
	"preconditions": {testenv.Replace("controller/controller.go", "Preconditions:     &metav1.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion},",
		`Preconditions: map[bool]*metav1.Preconditions{false: {UID: &old.UID, ResourceVersion: &old.ResourceVersion}}[without("preconditions")],`)},
	"resourceVersion of an apply": {testenv.Replace("controller/controller.go", ".WithResourceVersion(d.ResourceVersion)",
		`.WithResourceVersion(map[bool]string{false: d.ResourceVersion}[without("resourceVersion of an apply")])`)},
	"waiting for the new one": {
		testenv.Replace("controller/controller.go", "ours && available(ice, deployment)", `ours && (without("waiting for the new one") || available(ice, deployment))`),
		testenv.Replace("controller/controller.go", "!available(ice, now)", `!available(ice, now) && !without("waiting for the new one")`),
	},
	"ownership":   {testenv.Replace("controller/controller.go", "\treturn false\n}\n\n// correct", "\treturn without(\"ownership\")\n}\n\n// correct")},
	"catching up": {testenv.Replace("controller/controller.go", "if behind {", `if behind && !without("catching up") {`)},
	"no-op check of the status": {testenv.Replace("controller/controller.go", "if equality.Semantic.DeepEqual(ice.Status, status) {",
		`if equality.Semantic.DeepEqual(ice.Status, status) && !without("no-op check of the status") {`)},
	"no-op check of the Deployment": {testenv.Replace("controller/controller.go", `if drift == "" ||`, `if drift == "" && !without("no-op check of the Deployment") ||`)},
	"no-op check of the Event":      {testenv.Replace("controller/controller.go", "if wrote || retired || reported {", `if wrote || retired || reported || without("no-op check of the Event") {`)},
	"deletion check": {
		testenv.Replace("controller/controller.go", "!exists || o.(*v1alpha1.Icecream).DeletionTimestamp != nil",
			`!exists || !without("deletion check") && o.(*v1alpha1.Icecream).DeletionTimestamp != nil`),
		testenv.Replace("controller/controller.go", "err := c.confirm(ctx, ice); err != nil {\n\t\treturn nil, false, err", `err := c.confirm(ctx, ice); err != nil && !without("deletion check") {`+"\n\t\treturn nil, false, err"),
	},
	"look at a restored refusal": {testenv.Replace("controller/controller.go", "ours && old != nil", `(ours || without("look at a restored refusal")) && old != nil`)},
	"going on":                   {testenv.Replace("controller/controller.go", "for _, old := range olds {\n\t\t// The", "for _, old := range olds {\n\t\tif len(kept) > 0 && without(\"going on\") {\n\t\t\tbreak\n\t\t}\n\t\t// The")},
	"look at a conflict": {
		testenv.Replace("../loop/answers.go", "\t\"net/http\"\n", "\t\"net/http\"\n\t\"os\"\n"),
		testenv.Replace("../loop/answers.go", "if failed != nil && !apierrors", "if os.Getenv(\"WITHOUT\") == \"look at a conflict\" || failed != nil && !apierrors"),
	},
	"conflict handling": {
		testenv.Replace("../loop/loop.go", "\t\"fmt\"\n", "\t\"fmt\"\n\t\"os\"\n"),
		testenv.Replace("../loop/loop.go", "\tl.queue.AddRateLimited(key)\n",
			"\tif !stale(err) || os.Getenv(\"WITHOUT\") != \"conflict handling\" {\n\t\tl.queue.AddRateLimited(key)\n\t}\n"),
	},
}}

// Each guard is there for a claim, which holds with it, and not without it.
func TestIcecreamGuards(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		claim  func(f *icecreamtest.Test) error
		guards map[string]string // and what the claim says without each
	}{
		{icecreamtest.DeletesOnlyItsOwn, map[string]string{"preconditions": "deleted"}},
		{icecreamtest.TakesNothingBack, map[string]string{"resourceVersion of an apply": "taken back"}},
		{icecreamtest.KeepsTheOldOne, map[string]string{"waiting for the new one": "too early"}},
		{icecreamtest.RefusesAnOrphan, map[string]string{"ownership": "taken back"}},
		{icecreamtest.LooksAtNoOldCache, map[string]string{"catching up": "written again"}},
		{icecreamtest.IsQuiet, map[string]string{
			"no-op check of the status":     "update icecreams/status",
			"no-op check of the Deployment": "patch deployments",
			"no-op check of the Event":      "Events",
		}},
		{icecreamtest.LetsGo, map[string]string{"deletion check": "created"}},
		{icecreamtest.CorrectsARestoredRefusal, map[string]string{"look at a restored refusal": "stays"}},
		{icecreamtest.ReportsARefusalOfAnyCode, map[string]string{"look at a conflict": "is not reported"}},
		{icecreamtest.DeletesWhatItMay, map[string]string{"going on": "is kept"}},
		{icecreamtest.TriesAgainAfterAConflict, map[string]string{"conflict handling": "given up"}},
	} {
		guards := slices.Sorted(maps.Keys(tc.guards))
		t.Run(guards[0], func(t *testing.T) {
			t.Parallel()
			if err := tc.claim(prepared(t)); err != nil {
				t.Error(err)
			}
		})
		for _, guard := range guards {
			t.Run("without "+guard, func(t *testing.T) {
				t.Parallel()
				e := testenv.New(t)
				f := icecreamTestOf(t, e, icecreamGuards.Build(t, e, guard))
				f.Command.Env = append(f.Command.Env, controllertest.WithoutEnv+"="+guard)
				if err := tc.claim(f.Test); err == nil || !strings.Contains(err.Error(), tc.guards[guard]) {
					t.Errorf("without the guard: %v; want an error with %q", err, tc.guards[guard])
				}
			})
		}
	}
}
