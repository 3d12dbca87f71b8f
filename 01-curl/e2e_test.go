package curl

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestREADME(t *testing.T) {
	t.Parallel()
	testenv.README(t)
}

// run runs one of the step's scripts in the test's namespace and fails the
// test unless it succeeds.
func run(t *testing.T, e *testenv.Env, script string, args ...string) testenv.Result {
	t.Helper()
	if script == "gone.sh" { // which an interrupt kills before it can remove its definition
		e.AtEnd(func(ctx context.Context) error { return definitions(e).Delete(ctx, notes(e), metav1.DeleteOptions{}) })
	}
	r := e.Run(testenv.Command{Path: "01-curl/" + script, Args: args, Env: []string{"WORKSHOP_NAMESPACE=" + e.Namespace}, Timeout: 5 * time.Minute})
	if r.ExitCode != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return r
}

func definitions(e *testenv.Env) dynamic.ResourceInterface {
	return e.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}

// notes is the name of the definition that gone.sh makes.
func notes(e *testenv.Env) string { return "notes." + e.Namespace + ".k8s-go.openshift.org" }

func configMap(t *testing.T, e *testenv.Env, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(e.Context(), name, metav1.GetOptions{})
	fatal.If(t, err)
	e.ShowOnFailure(cm)
	return cm
}

func createConfigMap(t *testing.T, e *testenv.Env, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Create(e.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	fatal.If(t, err)
	return cm
}

func TestPagesAddUp(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	for i := range 20 {
		createConfigMap(t, e, fmt.Sprintf("page-%02d", i))
	}
	// The CA bundle that every namespace gets would appear between two lists.
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "kube-root-ca.crt"}}
	e.WaitFor(time.Minute, e.Exists(bundle), bundle)
	r := run(t, e, "pages.sh", "7")

	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	var want []string
	for _, cm := range list.Items {
		want = append(want, cm.Name)
	}
	got := strings.Fields(r.Stdout)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects of all pages together (-cluster +pages):\n%s", diff)
	}
	if pages := strings.Count(r.Stderr, "page "); pages != 3 {
		t.Errorf("%d pages of 7 for 21 objects, want 3:\n%s", pages, r.Stderr)
	}
}

func TestAnnotateKeepsTheRest(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	run(t, e, "annotate.sh", "owner", "anna")
	run(t, e, "annotate.sh", "team", `"quoted" & odd`)
	ns, err := e.Client.CoreV1().Namespaces().Get(e.Context(), e.Namespace, metav1.GetOptions{})
	fatal.If(t, err)
	want := map[string]string{"owner": "anna", "team": `"quoted" & odd`}
	if diff := cmp.Diff(want, ns.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if len(ns.Labels) < 2 {
		t.Errorf("labels %v: PUT has lost what it did not mean to change", ns.Labels)
	}
}

func TestPatchTypes(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	run(t, e, "patch.sh")
	d, err := e.Client.AppsV1().Deployments(e.Namespace).Get(e.Context(), "patched", metav1.GetOptions{})
	fatal.If(t, err)
	e.ShowOnFailure(d)
	got := map[string]string{}
	for _, c := range d.Spec.Template.Spec.Containers {
		got[c.Name] = c.Image
	}
	// web was set by apply, log was lost to the merge patch, metrics came with apply.
	want := map[string]string{"web": "example/web:4", "metrics": "example/metrics:1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(d.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "patch-sh" && f.Operation == metav1.ManagedFieldsOperationApply &&
			strings.Contains(f.FieldsV1.GetRawString(), `"k:{\"name\":\"metrics\"}"`)
	}) {
		t.Errorf("no field manager patch-sh has applied the container metrics: %v", d.ManagedFields)
	}
}

func TestSubresources(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "subresources.sh")
	if want := "\nstatus: conditions Audited, Available, Progressing; spec.replicas 2\n"; !strings.Contains(r.Stdout, want) {
		t.Errorf("the conditions of the controller have to stay: want %s in\n%s", want, r.Stdout)
	}
	d, err := e.Client.AppsV1().Deployments(e.Namespace).Get(e.Context(), "scaled", metav1.GetOptions{})
	fatal.If(t, err)
	e.ShowOnFailure(d)
	if *d.Spec.Replicas != 2 {
		t.Errorf("spec.replicas = %d, want the 2 of the scale subresource, not the 9 that went to status", *d.Spec.Replicas)
	}
	if !slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == "Audited" }) {
		t.Errorf("no condition Audited in %v", d.Status.Conditions)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "errors.sh")
	want := []string{
		`^404 NotFound: configmaps "missing" not found$`,
		`^409 AlreadyExists: configmaps "errors" already exists$`,
		`^409 Conflict: Operation cannot be fulfilled on configmaps "errors"`,
		`^422 Invalid: ConfigMap "Not_A_Name" is invalid: metadata.name`,
		`^400 BadRequest: `,
		`^403 Forbidden: .*User "system:serviceaccount:` + e.Namespace + `:nobody" cannot list`,
		`^401 Unauthorized: `,
	}
	got := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d answers, want %d:\n%s", len(got), len(want), r.Stdout)
	}
	for i := range want {
		if !regexp.MustCompile(want[i]).MatchString(got[i]) {
			t.Errorf("answer %d is %q, want %s", i+1, got[i], want[i])
		}
	}
	// Not one of the refused requests has left something behind.
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	fatal.If(t, err)
	if len(list.Items) != 1 || list.Items[0].Name != "errors" {
		t.Errorf("%d ConfigMaps, want the one that could be created", len(list.Items))
	}
}

func TestWatchSeesEventsInOrder(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	configMaps := e.Client.CoreV1().ConfigMaps(e.Namespace)
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "kube-root-ca.crt"}}
	e.WaitFor(time.Minute, e.Exists(bundle), bundle)
	list, err := configMaps.List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	createConfigMap(t, e, "before") // history, when the watch begins
	watch := e.Start(testenv.Command{Path: "01-curl/watch.sh", Args: []string{list.ResourceVersion, "10"}, Env: []string{"WORKSHOP_NAMESPACE=" + e.Namespace}})
	e.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(watch.Stdout(), "ADDED before") {
			return fmt.Errorf("the watch has not begun: %s%s", watch.Stdout(), watch.Stderr())
		}
		return nil
	})
	createConfigMap(t, e, "live")
	if _, err := configMaps.Patch(e.Context(), "live", types.MergePatchType, []byte(`{"data":{"a":"1"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, configMaps.Delete(e.Context(), "live", metav1.DeleteOptions{}))
	if r := watch.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d at the end of the watch", r.ExitCode)
	}
	want := "ADDED before {}\nADDED live {}\nMODIFIED live {\"a\":\"1\"}\nDELETED live {\"a\":\"1\"}\n"
	if diff := cmp.Diff(want, watch.Stdout()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "gone.sh")
	want := "watch from 1:\nERROR 410 Expired\nwatch from the list:\nADDED  seen\n"
	if diff := cmp.Diff(want, r.Stdout); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := definitions(e).Get(ctx, notes(e), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the definition that gone.sh made is still there (%v)", err)
	})
}

func TestLostUpdate(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "lost-update.sh")
	if !strings.Contains(r.Stdout, "anna: HTTP 200\nbert: HTTP 200\n") {
		t.Errorf("both writers should be told that all went well:\n%s", r.Stdout)
	}
	if !strings.Contains(r.Stdout, "lost: anna\n") {
		t.Errorf("the script does not say whose update is lost:\n%s", r.Stdout)
	}
	want := map[string]string{"start": "yes", "bert": "was here"}
	if diff := cmp.Diff(want, configMap(t, e, "board").Data); diff != "" {
		t.Errorf("what is left of two updates (-want +got):\n%s", diff)
	}
}

func TestStopAtConflict(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "stop-at-conflict.sh")
	m := regexp.MustCompile(`(?m)^(anna|bert) stopped: 409 Conflict$`).FindAllString(r.Stdout, -1)
	if len(m) != 1 {
		t.Errorf("want exactly one writer stopped by a 409:\n%s", r.Stdout)
	}
	if cm := configMap(t, e, "race"); len(cm.Data) == 0 {
		t.Error("nobody has written anything: what was the conflict about?")
	}
}

func TestCounterIsExact(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := run(t, e, "counter.sh", "4", "10")
	if got := configMap(t, e, "counter").Annotations["count"]; got != "40" {
		t.Errorf("count = %s, want 4 writers * 10 rounds = 40", got)
	}
	if regexp.MustCompile(`after 0 conflicts`).MatchString(r.Stdout) {
		t.Error("the writers never met: this run has proved nothing")
	}
}

// Without the resourceVersion the same script must lose updates; if it did not,
// TestCounterIsExact would prove nothing.
func TestCounterNeedsResourceVersion(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	script, err := os.ReadFile("counter.sh")
	fatal.If(t, err)
	broken := strings.Replace(string(script), "jq '.metadata", "jq 'del(.metadata.resourceVersion) | .metadata", 1)
	if broken == string(script) {
		t.Fatal("counter.sh has changed: this test no longer knows how to break it")
	}
	dir := t.TempDir()
	connect, err := os.ReadFile("connect.sh")
	fatal.If(t, err)
	for name, text := range map[string]string{"counter.sh": broken, "connect.sh": string(connect)} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	r := e.Run(testenv.Command{Path: filepath.Join(dir, "counter.sh"), Args: []string{"4", "5"}, Env: []string{"WORKSHOP_NAMESPACE=" + e.Namespace}, Timeout: 5 * time.Minute})
	if r.ExitCode != 0 {
		t.Fatalf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	if got := configMap(t, e, "counter").Annotations["count"]; got == "20" {
		t.Error("no update was lost without resourceVersion")
	}
}

// A page that does not come, or a writer that gives up, is no success.
func TestScriptsEndWithWhatFailed(t *testing.T) {
	t.Parallel()
	for script, rule := range map[string]faultproxy.Rule{
		"pages.sh 5":          {Match: faultproxy.Match{Verb: "list", Resource: "configmaps"}},
		"counter.sh 3 2":      {Match: faultproxy.Match{Verb: "update", Resource: "configmaps"}},
		"watch.sh 1 1":        {Match: faultproxy.Watches},
		"gone.sh":             {Match: faultproxy.Watches},
		"stop-at-conflict.sh": {Match: faultproxy.Match{Verb: "update", Resource: "configmaps"}},
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			p := e.Proxy()
			rule.Fault, rule.Code = faultproxy.Answer, http.StatusInternalServerError
			p.MustInject(rule)
			name, args, _ := strings.Cut(script, " ")
			r := e.Run(testenv.Command{Path: "01-curl/" + name, Args: strings.Fields(args), Env: []string{"WORKSHOP_NAMESPACE=" + e.Namespace, "KUBECONFIG=" + p.Kubeconfig}})
			if r.ExitCode == 0 {
				t.Errorf("exit code 0 after an answer 500\n%s%s", r.Stdout, r.Stderr)
			}
		})
	}
}

// "Break it" runs a script again, and so does everybody who wants a second look.
func TestScriptsRunTwice(t *testing.T) {
	t.Parallel()
	args := map[string][]string{
		"annotate.sh": {"owner", "anna"},
		"counter.sh":  {"2", "2"},
		"pages.sh":    {"5"},
		"watch.sh":    {"0", "1"},
	}
	scripts, err := filepath.Glob("*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, script := range scripts {
		if script == "connect.sh" { // it is sourced
			continue
		}
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			for range 2 {
				run(t, e, script, args[script]...)
			}
		})
	}
}

// connect.sh and faults.sh may be sourced in one shell: whichever comes last,
// nothing of either is left when the shell ends.
func TestSourcedInOneShell(t *testing.T) {
	t.Parallel()
	const connect, faults = "01-curl/connect.sh", "03-informer/faults.sh"
	for name, tc := range map[string]struct {
		shell   []string
		files   []string
		folders string // in TMPDIR: faults.sh removes its first one when it is sourced again
	}{
		// Each comes after the other and before it.
		"bash":       {[]string{"bash", "-u"}, []string{connect, faults, connect}, "3"},
		"zsh":        {[]string{"zsh", "-f"}, []string{faults, connect, faults}, "2"},
		"zsh, typed": {[]string{"zsh", "-f", "-i"}, []string{connect, connect, connect}, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			shell, err := exec.LookPath(tc.shell[0])
			if err != nil {
				t.Skipf("%s is not installed", tc.shell[0])
			}
			// The caller's own trap stays too, in bash; zsh has none that can be read.
			tmp := filepath.Join(t.TempDir(), "with a space")
			fatal.If(t, os.Mkdir(tmp, 0o755))
			script := `trap 'echo the trap of before' EXIT
before=$PATH
source ` + strings.Join(tc.files, " && source ") + ` || exit
[[ $PATH == "$before" ]] && api /api/v1/namespaces/$NAMESPACE | jq -r .metadata.name
ls "$TMPDIR" | wc -l`
			r := e.Run(testenv.Command{Path: shell, Args: append(tc.shell[1:], "-c", script), Env: []string{
				"WORKSHOP_NAMESPACE=" + e.Namespace, "TMPDIR=" + tmp, "HTTPS_PROXY=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1", "NO_PROXY=", "no_proxy=",
			}, Timeout: 3 * time.Minute})
			if got := strings.Fields(r.Stdout); r.ExitCode != 0 || len(got) < 2 || got[0] != e.Namespace || got[1] != tc.folders ||
				!strings.Contains(r.Stdout, "the trap of before") {
				t.Errorf("exit code %d, want the namespace, %s folders and the trap of before:\n%s%s", r.ExitCode, tc.folders, r.Stdout, r.Stderr)
			}
			left, err := os.ReadDir(tmp)
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v (%v)", left, err)
			}
		})
	}
}

// The scripts work with what people have: a proxy for everything, options in a
// ~/.curlrc, and the curl of Ubuntu 22.04, which has no --json.
func TestOddCurl(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	home, bin := t.TempDir(), t.TempDir()
	curl, err := exec.LookPath("curl")
	fatal.If(t, err)
	for path, text := range map[string]string{
		filepath.Join(home, ".curlrc"): "include\nproxy = http://127.0.0.1:1\nuser-agent = odd\n",
		filepath.Join(bin, "curl"): "#!/bin/sh\nfor a; do [ \"$a\" = --json ] && { echo 'curl: option --json: is unknown' >&2; exit 2; }; done\n" +
			"exec '" + curl + "' \"$@\"\n",
	} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o755))
	}
	bash, err := exec.LookPath("bash")
	fatal.If(t, err)
	r := e.Run(testenv.Command{Path: bash, Args: []string{"-c", `PATH=$0:$PATH exec 01-curl/lost-update.sh`, bin}, Env: []string{
		"WORKSHOP_NAMESPACE=" + e.Namespace, "HOME=" + home,
		"HTTPS_PROXY=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1", "NO_PROXY=", "no_proxy=",
	}})
	want := "anna: HTTP 200\nbert: HTTP 200\nin the cluster: bert, start\nlost: anna\n"
	if diff := cmp.Diff(want, r.Stdout); diff != "" || r.ExitCode != 0 {
		t.Errorf("exit code %d, output (-want +got):\n%s%s", r.ExitCode, diff, r.Stderr)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	empty := filepath.Join(t.TempDir(), "kubeconfig")
	down := filepath.Join(t.TempDir(), "kubeconfig")
	for path, text := range map[string]string{
		empty: "apiVersion: v1\nkind: Config\n",
		down: `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
			"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
			"clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "eA=="}}],
			"users": [{"name": "x", "user": {"token": "t"}}]}`,
	} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, tc := range []struct {
		name, env, script, arg, want string
	}{
		{"empty kubeconfig", "KUBECONFIG=" + empty, "pages.sh", "5", "run make shell first"},
		{"server down", "KUBECONFIG=" + down, "annotate.sh", "owner", "curl: ("},
		{"namespace missing", "WORKSHOP_NAMESPACE=no-such-namespace", "patch.sh", "", "404"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := e.For(t).Run(testenv.Command{Path: "01-curl/" + tc.script, Args: []string{tc.arg, "x"}, Env: []string{"WORKSHOP_NAMESPACE=" + e.Namespace, tc.env}})
			if r.ExitCode == 0 || !strings.Contains(r.Stdout+r.Stderr, tc.want) {
				t.Errorf("exit code %d, want another than 0 and %q in\n%s%s", r.ExitCode, tc.want, r.Stdout, r.Stderr)
			}
		})
	}
}
