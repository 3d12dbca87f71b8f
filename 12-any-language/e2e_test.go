package anylanguage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestREADME(t *testing.T) {
	runtime(t, "python")
	runtime(t, "node")
	testenv.README(t)
}

// found is what runtime has found: once, because Python takes its time for that, and Node.js may
// install packages.
var (
	found   = map[string]string{}
	finding sync.Mutex
)

// runtime returns what runs a language's programs, and skips the test with the reason where
// there is nothing.
func runtime(t testing.TB, language string) string {
	t.Helper()
	switch language {
	case "bash", "perl":
		path, err := exec.LookPath(language)
		if err != nil {
			t.Skip(err)
		}
		return path
	}
	finding.Lock()
	defer finding.Unlock()
	if path, ok := found[language]; ok {
		return path
	}
	var said strings.Builder
	command := exec.CommandContext(t.Context(), "./runtimes.sh", language)
	command.Stderr = &said
	path, err := command.Output()
	if err != nil {
		t.Skipf("%s%v", said.String(), err)
	}
	found[language] = strings.TrimSpace(string(path))
	return found[language]
}

// A controller is one of this step.
type controller struct{ language, file, hook string }

var controllers = map[string]controller{
	"bash":    {language: "bash", file: "icecream.sh"},
	"Python":  {language: "python", file: "icecream.py"},
	"Node.js": {language: "node", file: "icecream.mjs"},
	"Perl":    {language: "perl", file: "from-the-lesson/icecream.pl"},
	"hook jq": {hook: "icecream.jq"},
}

// hooks decide as "hook jq" does, in other languages.
var hooks = map[string]controller{
	"Python":  {language: "python", hook: "icecream.py"},
	"Node.js": {language: "node", hook: "icecream.mjs"},
}

// decision is the command, run in the clone's root, that hook asks for the decision.
func (c controller) decision(t testing.TB) []string {
	t.Helper()
	program := []string{"jq", "-c", "-f"}
	if c.language != "" {
		program = []string{runtime(t, c.language)}
	}
	return append(program, filepath.Join("12-any-language", "hook", "hooks", c.hook))
}

// prepare prepares a controller that does not run yet, with its patch in mends or without.
func (c controller) prepare(t testing.TB, mended bool) *icecreamtest.Test {
	t.Helper()
	if c.hook != "" {
		decision, e := c.decision(t), testenv.New(t)
		f := icecreamtest.Of(t, e, e.Program("./12-any-language/hook"), "-parent", "icecreams.v1alpha1.controller.nicoleh.io", "-child", "deployments.v1.apps", "--")
		f.Command.Args = append(f.Command.Args, decision...)
		return f
	}
	path, dir := runtime(t, c.language), "12-any-language"
	if mended {
		dir = copies(t)
	}
	return c.in(t, path, dir)
}

// in prepares a controller whose file is in dir.
func (c controller) in(t testing.TB, runtime, dir string) *icecreamtest.Test {
	t.Helper()
	f := icecreamtest.Of(t, testenv.New(t), runtime)
	f.Command.Args = []string{filepath.Join(dir, c.file), "--namespace", f.Namespace}
	f.Command.Env = append(f.Command.Env, "KUBECONFIG="+f.Proxy.Kubeconfig)
	return f
}

// copies makes a folder with copies of the controllers, with these patches, or those in mends.
func copies(t testing.TB, patches ...string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "./mended.sh", append([]string{dir}, patches...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "12-any-language")
}

// start starts a controller, and waits until it follows both resources.
func start(f *icecreamtest.Test) {
	f.T.Helper()
	before := time.Now() // The proxy may not have seen yet that the watches of one that was killed are over.
	f.Process = f.Runner.Start(f.Command)
	f.Eventually(time.Minute, func(context.Context) error {
		if err := f.Crash(); err != nil {
			return fmt.Errorf("%w\n%s", err, f.Process.Stderr())
		}
		if n := watches(f, before); n < 2 {
			return fmt.Errorf("%d watches are open", n)
		}
		return nil
	})
}

// watches counts those that are under way, and were asked for after a time.
func watches(f *icecreamtest.Test, after time.Time) (n int) {
	for _, r := range f.Proxy.Requests(faultproxy.Watches) {
		if r.Took == 0 && r.Started.After(after) {
			n++
		}
	}
	return n
}

// owned waits until an Icecream is available, with a Deployment that it controls.
func owned(f *icecreamtest.Test, name, deployment string, replicas int32) {
	f.T.Helper()
	f.Until(name, func(ice *v1alpha1.Icecream) error {
		d, err := f.Deployments.Get(f.Context(), deployment, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !metav1.IsControlledBy(d, ice) || *d.Spec.Replicas != replicas {
			return fmt.Errorf("its Deployment has %d replicas and the owners %+v, want %d and %s", *d.Spec.Replicas, d.OwnerReferences, replicas, name)
		}
		if ice.Status.AvailableReplicas == nil || *ice.Status.AvailableReplicas != replicas {
			return fmt.Errorf("its status is %+v, want %d replicas available", ice.Status, replicas)
		}
		return icecreamtest.IsAvailable(ice)
	})
}

// Each of them does the same, with nothing, with people, with the wire and with itself in its way.
func TestControllers(t *testing.T) {
	t.Parallel()
	for name, c := range controllers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testController(t, c.prepare(t, false))
		})
		if _, err := os.Stat(filepath.Join("mends", c.file+".patch")); err == nil {
			t.Run(name+" mended", func(t *testing.T) {
				t.Parallel()
				testController(t, c.prepare(t, true))
			})
		}
	}
}

// A hook in another language gives the answers of the one in jq, which TestControllers tries, and hook runs it.
func TestHooks(t *testing.T) {
	t.Parallel()
	const question = `{"parent": {"metadata": {"name": "vanilla", "uid": "1234", "generation": 3}, "spec": {"deploymentName": "cone", "replicas": %d}}, "children": %s, "refused": %q, "taken": %q}`
	const none = `[]`
	// Beside the Deployment is one of an earlier name, which somebody's finalizer keeps.
	has := func(status string) string {
		return `[{"metadata": {"name": "bowl"}, "status": {"replicas": 5, "availableReplicas": 5}}, {"metadata": {"name": "cone"}, "status": {` + status + `}}]`
	}
	questions := []struct {
		replicas                            int
		children, refused, taken, condition string
	}{
		{1, none, "", "", "False Progressing "},
		{0, none, "", "", "True Available "},
		{1, has(``), "", "", "False Progressing "},
		{2, has(`"replicas": 2`), "", "", "False Progressing "},
		{2, has(`"replicas": 2, "availableReplicas": 1`), "", "", "False Progressing "},
		{2, has(`"replicas": 2, "availableReplicas": 2`), "", "", "True Available "},
		{2, has(`"replicas": 3, "availableReplicas": 3`), "", "", "True Available "},
		{2, `[{"metadata": {"name": "an earlier one"}, "status": {"replicas": 2, "availableReplicas": 2}}]`, "", "", "False Progressing "},
		{1, none, "no more pods", "", "False Refused no more pods"},
		{1, has(`"replicas": 1, "availableReplicas": 1`), "no more pods", "", "False Refused no more pods"},
		{1, none, "", "cone is another's", "False ErrResourceExists cone is another's"},
		{1, none, "no more pods", "cone is another's", "False Refused no more pods"},
	}
	answers := map[string]map[string]any{} // those of jq
	for _, q := range questions {
		asked := fmt.Sprintf(question, q.replicas, q.children, q.refused, q.taken)
		answers[asked] = answer(t, controllers["hook jq"], asked)
		conditions, _, _ := unstructured.NestedSlice(answers[asked], "status", "conditions")
		says := ""
		for _, c := range conditions {
			c := c.(map[string]any)
			says += fmt.Sprintf("%s %s %s", c["status"], c["reason"], c["message"])
		}
		if says != q.condition {
			t.Errorf("%s: the condition is %q, want %q", asked, says, q.condition)
		}
	}
	for name, c := range hooks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for asked, want := range answers {
				if diff := cmp.Diff(want, answer(t, c, asked)); diff != "" {
					t.Errorf("%s (-jq +%s):\n%s", asked, name, diff)
				}
			}
			f := c.prepare(t, false)
			start(f)
			f.Create("vanilla", "cone", 1)
			owned(f, "vanilla", "cone", 1)
		})
	}
}

func TestHookNoticesAFreeNameByItself(t *testing.T) {
	t.Parallel()
	f := controllers["hook jq"].prepare(t, false)
	if err := icecreamtest.ForTasks["notices a free name by itself"](f, func() { f.Process = f.Runner.Start(f.Command) }); err != nil {
		t.Error(err)
	}
}

// answer asks a decision one question.
func answer(t *testing.T, c controller, question string) (answer map[string]any) {
	t.Helper()
	command := c.decision(t)
	decide := exec.CommandContext(t.Context(), command[0], command[1:]...)
	decide.Dir, decide.Stdin = "..", strings.NewReader(question)
	out, err := decide.Output()
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", question, err, out)
	}
	return answer
}

func testController(t *testing.T, f *icecreamtest.Test) {
	start(f)
	f.Create("vanilla", "cone", 1)
	owned(f, "vanilla", "cone", 1)
	fatal.If(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ice, err := f.Icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err == nil {
			meta.SetStatusCondition(&ice.Status.Conditions, metav1.Condition{Type: "Audited", Status: metav1.ConditionTrue, Reason: "ByHand"})
			_, err = f.Icecreams.UpdateStatus(f.Context(), ice, metav1.UpdateOptions{})
		}
		return err
	}))
	// With an annotation of 140 kB; Linux passes at most 128 KiB to a program in one argument.
	f.Patch("vanilla", `{"metadata":{"annotations":{"large":"`+strings.Repeat("x", 140_000)+`"}},"spec":{"replicas":2}}`)
	owned(f, "vanilla", "cone", 2)
	if ice := f.Until("vanilla", icecreamtest.IsAvailable); !meta.IsStatusConditionTrue(ice.Status.Conditions, "Audited") {
		t.Errorf("somebody else's condition is gone: %+v", ice.Status.Conditions)
	}
	f.PatchDeployment("cone", `{"spec":{"replicas":5}}`)
	f.Eventually(time.Minute, func(context.Context) error {
		if n := *f.Deployment("cone").Spec.Replicas; n != 2 {
			return fmt.Errorf("it has %d replicas", n)
		}
		return nil
	})
	deleteDeployment(f, "cone")
	owned(f, "vanilla", "cone", 2)

	// What is not theirs stays as it is, and when it goes, they go on.
	before := f.Foreign("cup")
	f.Create("mint", "cup", 1)
	f.Until("mint", icecreamtest.Condition("Available", metav1.ConditionFalse, v1alpha1.ReasonErrResourceExists))
	if err := icecreamtest.Unchanged(before, f.Deployment("cup")); err != nil {
		t.Errorf("somebody else's Deployment: %v", err)
	}
	deleteDeployment(f, "cup")
	owned(f, "mint", "cup", 1)

	// The wire: a lost answer, watches that are cut, versions that are gone.
	f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Lose})
	f.Create("lost", "lost", 1)
	owned(f, "lost", "lost", 1)
	gone := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: 2})
	f.Proxy.Cut(faultproxy.Watches)
	deleteDeployment(f, "lost")
	f.Struck(gone, 1)
	owned(f, "lost", "lost", 1)

	// It ends at once, and the world goes on without it.
	f.Kill()
	f.Patch("vanilla", `{"spec":{"replicas":1}}`)
	deleteDeployment(f, "cup")
	start(f)
	owned(f, "vanilla", "cone", 1)
	owned(f, "mint", "cup", 1)

	f.Signal(syscall.SIGTERM)
	f.Eventually(10*time.Second, func(context.Context) error {
		if n := watches(f, time.Time{}); n > 0 {
			return fmt.Errorf("it has ended, and %d of its watches are open", n)
		}
		return nil
	})
}

// What a claim says holds for bash once it is mended, and for the hooks, whose loop is client-go's. It does
// not hold before, or nothing would be mended. The lesson shows the mends of Python and Node.js at work.
func TestMends(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, controller string
		mended           bool
		claim            func(*icecreamtest.Test) error
		holds            bool
	}{
		{"Retry-After, bash", "bash", false, comesLater, false},
		{"Retry-After, bash mended", "bash", true, comesLater, true},
		{"Retry-After, hook", "hook jq", false, comesLater, true},
		{"no look before the lists are complete, hook", "hook jq", false, complete, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := test.claim(controllers[test.controller].prepare(t, test.mended))
			if t.Logf("%v", err); (err == nil) != test.holds {
				t.Errorf("%v, want that it holds: %t", err, test.holds)
			}
		})
	}
}

// Whoever decides nothing, as a program with a misspelt field does, deletes nothing.
func TestHookNeedsADecision(t *testing.T) {
	t.Parallel()
	f := controllers["hook jq"].prepare(t, false)
	program := len(f.Command.Args) - len(controllers["hook jq"].decision(t))
	f.Command.Args = append(f.Command.Args[:program], "sh", "-c", `cat >/dev/null; echo '{"childs": []}'`)
	ice := f.Create("vanilla", "cone", 1)
	f.Foreign("cone", *metav1.NewControllerRef(ice, v1alpha1.IcecreamKind))
	start(f)
	f.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(f.Process.Stderr(), "did not say which children") {
			return errors.New("it says nothing: " + f.Process.Stderr())
		}
		return nil
	})
	f.Deployment("cone") // which is there
}

// While the API server asks for patience, the hook's workers do what is due elsewhere.
func TestHookFreesItsWorkers(t *testing.T) {
	t.Parallel()
	f := controllers["hook jq"].prepare(t, false)
	start(f)
	if err := icecreamtest.FreesTheWorkers(f, 4, "update"); err != nil {
		t.Error(err)
	}
}

// What somebody else adds to a list of the hook's stays there, in its place.
func TestHookKeepsASidecar(t *testing.T) {
	t.Parallel()
	f := controllers["hook jq"].prepare(t, false)
	start(f)
	f.Create("vanilla", "cone", 0)
	owned(f, "vanilla", "cone", 0)
	before, err := f.Deployments.Patch(f.Context(), "cone", types.JSONPatchType, []byte(`[
		{"op": "add", "path": "/spec/template/spec/containers/0", "value": {"name": "first", "image": "workshop/pause:2", "command": ["/first"]}},
		{"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "last", "image": "workshop/pause:2"}},
		{"op": "replace", "path": "/spec/replicas", "value": 5}]`), metav1.PatchOptions{})
	fatal.If(t, err)
	owned(f, "vanilla", "cone", 0)
	if diff := cmp.Diff(before.Spec.Template, f.Deployment("cone").Spec.Template); diff != "" {
		t.Errorf("it has changed more than the replicas (-before +now):\n%s", diff)
	}
}

// As long as the hook cannot make what is wanted, it deletes nothing.
func TestHookKeepsTheOldOne(t *testing.T) {
	t.Parallel()
	for reason, hinder := range map[string]func(f *icecreamtest.Test) (allow func()){
		v1alpha1.ReasonErrResourceExists: func(f *icecreamtest.Test) func() {
			f.Foreign("cup")
			return func() { fatal.If(f.T, f.Deployments.Delete(f.Context(), "cup", metav1.DeleteOptions{})) }
		},
		"Refused": func(f *icecreamtest.Test) func() {
			return f.Inject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1}).Remove
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			f := controllers["hook jq"].prepare(t, false)
			start(f)
			f.Create("vanilla", "cone", 1)
			owned(f, "vanilla", "cone", 1)
			before := f.Deployment("cone")
			allow := hinder(f)
			f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
			f.Until("vanilla", icecreamtest.Condition("Available", metav1.ConditionFalse, reason))
			if err := icecreamtest.Unchanged(before, f.Deployment("cone")); err != nil {
				t.Errorf("the old Deployment: %v", err)
			}
			allow()
			owned(f, "vanilla", "cup", 1)
			f.Gone("cone")
		})
	}
}

// The status says what the API server refuses. It keeps the first words for it, because each write of a
// status is an event, after which each of these programs would ask at once.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bash", "Python", "Node.js", "hook jq"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := controllers[name].prepare(t, false)
			start(f)
			f.Create("vanilla", "cone", 0)
			owned(f, "vanilla", "cone", 0)
			f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "deployments"}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
			f.Patch("vanilla", `{"spec":{"replicas":1}}`)
			f.Until("vanilla", icecreamtest.Condition("Available", metav1.ConditionFalse, "Refused"))

			f.Inject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusBadRequest})
			others := f.Inject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusUnprocessableEntity, Times: -1})
			f.Create("mint", "cup", 1)
			f.Struck(others, 2) // before the second, it has reported the first
			ice := f.Until("mint", icecreamtest.Condition("Available", metav1.ConditionFalse, "Refused"))
			if c := meta.FindStatusCondition(ice.Status.Conditions, "Available"); !strings.Contains(c.Message, http.StatusText(http.StatusBadRequest)) {
				t.Errorf("the condition is %+v, want the words of the first refusal", c)
			}
		})
	}
}

var creates = faultproxy.Match{Verb: "create", Resource: "deployments"}

// waits: the server is busy for longer than this takes, and the object changes again and again.
func waits(f *icecreamtest.Test) error {
	start(f)
	f.Inject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: 30 * time.Second, Times: -1})
	f.Create("vanilla", "cone", 1)
	f.Eventually(time.Minute, func(context.Context) error {
		if f.Proxy.Count(creates) == 0 {
			return errors.New("it has not tried to make a Deployment")
		}
		return nil
	})
	for i := range 10 {
		f.Patch("vanilla", fmt.Sprintf(`{"metadata":{"annotations":{"changed":"%d"}}}`, i))
		time.Sleep(200 * time.Millisecond)
	}
	// One that was queued before the answer came may be sent, too.
	if n := f.Proxy.Count(creates); n > 2 {
		return fmt.Errorf("%d requests, and Retry-After asked for 30 s of patience", n)
	}
	return nil
}

// complete: the list of Deployments comes late.
func complete(f *icecreamtest.Test) error {
	start(f)
	f.Create("vanilla", "cone", 1)
	owned(f, "vanilla", "cone", 1)
	f.Kill()
	before := f.Proxy.Count(creates)
	// An informer of client-go lists by a watch.
	slow := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list", Resource: "deployments"}, Fault: faultproxy.Slow, Delay: 2 * time.Second})
	start(f)
	f.Create("mint", "cup", 1)
	owned(f, "mint", "cup", 1)
	f.Struck(slow, 1)
	if n := f.Proxy.Count(creates) - before; n != 1 {
		return fmt.Errorf("%d Deployments were to be created, and one was missing", n)
	}
	return nil
}

// comesLater: one answer asks for ten seconds.
func comesLater(f *icecreamtest.Test) error {
	start(f)
	f.Inject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: 10 * time.Second})
	f.Create("vanilla", "cone", 1)
	owned(f, "vanilla", "cone", 1)
	all := f.Proxy.Requests(creates)
	if gap := all[1].Started.Sub(all[0].Started); gap < 10*time.Second-100*time.Millisecond {
		return fmt.Errorf("it came again after %s, and Retry-After asked for 10 s", gap.Round(100*time.Millisecond))
	}
	return nil
}

// A client of each group has classes whose types are all there.
func TestTypedClient(t *testing.T) {
	t.Parallel()
	python := runtime(t, "python")
	f := icecreamtest.Of(t, testenv.New(t), python) // for its CRD
	for group, has := range map[string]string{
		"apis/controller.nicoleh.io/v1alpha1": "Icecream.spec IcecreamSpec.replicas",
		"apis/apps/v1":                        "DeploymentSpec.template Container.image",
		"api/v1":                              "Pod.spec PersistentVolumeClaimSpec.storageClassName",
	} {
		var document []byte
		f.Eventually(time.Minute, func(ctx context.Context) (err error) { // a new kind is published some time after it is served
			document, err = f.Client.Discovery().RESTClient().Get().AbsPath("/openapi/v3", group).DoRaw(ctx)
			return err
		})
		generate := exec.CommandContext(t.Context(), "jq", "-r", "-f", "typed/client.jq")
		generate.Stdin = bytes.NewReader(document)
		client, err := generate.Output()
		fatal.If(t, err)
		check := exec.CommandContext(t.Context(), python, "-c", checkTypes, has)
		check.Stdin = bytes.NewReader(client)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", group, err, out)
		}
	}
}

// checkTypes runs a client, resolves the type of each field, and looks for those that are named.
const checkTypes = `
import sys, types, typing
client = types.ModuleType("client")
sys.modules["client"] = client
exec(sys.stdin.read(), client.__dict__)
hints = {n: typing.get_type_hints(c, client.__dict__) for n, c in vars(client).items() if typing.is_typeddict(c)}
for name in sys.argv[1].split():
    of, field = name.split(".")
    assert field in hints[of], f"{name} is missing"
`

func deleteDeployment(f *icecreamtest.Test, name string) {
	f.T.Helper()
	uid := f.Deployment(name).UID
	fatal.If(f.T, f.Deployments.Delete(f.Context(), name, metav1.DeleteOptions{}))
	f.Eventually(time.Minute, func(ctx context.Context) error {
		d, err := f.Deployments.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && d.UID != uid {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}
