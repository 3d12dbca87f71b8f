package informer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestREADME(t *testing.T) { testenv.README(t) }

// caughtUp waits until the server's cache holds what was written so far. A watch
// without a resourceVersion does not wait for that, and may begin with the past.
func caughtUp(t testing.TB, e *testenv.Env) {
	t.Helper()
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{})
	if err == nil {
		_, err = e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(),
			metav1.ListOptions{ResourceVersion: list.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	}
	fatal.If(t, err)
}

// set creates or changes a ConfigMap so that it has v.
func set(t testing.TB, e *testenv.Env, name, v string) {
	t.Helper()
	_, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Apply(e.Context(),
		applycorev1.ConfigMap(name, e.Namespace).WithData(map[string]string{"v": v}), metav1.ApplyOptions{FieldManager: "test", Force: true})
	fatal.If(t, err)
}

// remove deletes a ConfigMap. A list waits until the server's cache is up to date, and
// a watch-list that begins afterwards does not show the ConfigMap any more.
func remove(t testing.TB, e *testenv.Env, name string) {
	t.Helper()
	configMaps := e.Client.CoreV1().ConfigMaps(e.Namespace)
	if err := configMaps.Delete(e.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := configMaps.List(e.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// prints waits until a running program has printed the text.
func prints(t *testing.T, e *testenv.Env, p *testenv.Process, text string) {
	t.Helper()
	e.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Stdout(), text) {
			return fmt.Errorf("%q is not in the output:\n%s%s", text, p.Stdout(), p.Stderr())
		}
		return nil
	})
}

// start starts one of the programs through the proxy's kubeconfig.
func start(t *testing.T, e *testenv.Env, name, kubeconfig string, args ...string) *testenv.Process {
	t.Helper()
	return e.Start(testenv.Command{Path: program(t, e, name), Args: append([]string{"-kubeconfig", kubeconfig, "-namespace", e.Namespace}, args...)})
}

// interrupt ends a program as Ctrl-C does and expects a good end.
func interrupt(t *testing.T, p *testenv.Process) testenv.Result {
	t.Helper()
	fatal.If(t, p.Signal(os.Interrupt))
	r := p.Wait()
	if r.ExitCode != 0 {
		t.Errorf("exit code %d after an interrupt\n%s", r.ExitCode, r.Stderr)
	}
	return r
}

// run runs a program to its end, with variables, and expects an exit code.
func run(t *testing.T, e *testenv.Env, name, kubeconfig string, environ []string, exitCode int, args ...string) testenv.Result {
	t.Helper()
	r := e.Run(testenv.Command{Path: program(t, e, name), Env: environ, Args: append([]string{"-kubeconfig", kubeconfig, "-namespace", e.Namespace}, args...)})
	if r.ExitCode != exitCode {
		t.Fatalf("%s: exit code %d, want %d\n%s%s", name, r.ExitCode, exitCode, r.Stdout, r.Stderr)
	}
	return r
}

func equal(t *testing.T, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// reads are the requests by which a program learns what there is, in order.
func reads(p *testenv.Proxy, resource string) []string {
	var verbs []string
	for _, r := range p.Requests(faultproxy.Match{Resource: resource}) {
		if r.Verb == "list" || strings.HasPrefix(r.Verb, "watch") {
			verbs = append(verbs, r.Verb)
		}
	}
	return verbs
}

func TestTwoHandlersOneWatch(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	set(t, e, "a", "1")
	r := start(t, e, "shared-informer", p.Kubeconfig)
	prints(t, e, r, "watching\n")
	set(t, e, "a", "2")
	set(t, e, "b", "1")
	prints(t, e, r, "ADDED b=1\n")
	remove(t, e, "b")
	prints(t, e, r, "DELETED b\n")
	interrupt(t, r)
	equal(t, "LISTED a=1\nwatching\nMODIFIED a=2\nADDED b=1\nDELETED b\nmirror: a=2\nsecond handler: 4 changes, informer stopped: true\n", r.Stdout())
	if diff := cmp.Diff([]string{"watch-list"}, reads(p, "configmaps")); diff != "" {
		t.Errorf("requests of two handlers (-want +got):\n%s", diff)
	}
}

// A handler that is slow has still heard of the whole first list before the
// program says that it watches, while the cache is full long before.
func TestSlowHandlerIsWaitedFor(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	for _, name := range []string{"a", "b", "c"} {
		set(t, e, name, "1")
	}
	const listed = "kind = \"LISTED\"\n"
	slow := e.Program("./03-informer/shared-informer",
		testenv.Replace("main.go", listed, listed+"\t\t\t\t<-time.After(200 * time.Millisecond)\n"),
		testenv.Replace("main.go", "\t\"syscall\"\n", "\t\"syscall\"\n\t\"time\"\n"))
	r := e.Run(testenv.Command{Path: slow, Args: []string{"-namespace", e.Namespace, "-until", "a"}})
	if want := "LISTED a=1\nLISTED b=1\nLISTED c=1\nwatching\n"; !strings.HasPrefix(inOrder(r.Stdout, 3), want) || r.ExitCode != 0 {
		t.Errorf("exit code %d, and the output does not begin with\n%s\n%s%s", r.ExitCode, want, r.Stdout, r.Stderr)
	}
}

// inOrder sorts the first n lines: a first list has no order.
func inOrder(output string, n int) string {
	lines := strings.SplitAfter(output, "\n")
	if len(lines) > n {
		slices.Sort(lines[:n])
	}
	return strings.Join(lines, "")
}

func TestListerIsBehind(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	hold := p.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Event: "MODIFIED", Object: "counter", Fault: faultproxy.Hold})
	r := start(t, e, "lister", p.Kubeconfig)
	prints(t, e, r, "  server: v=1\n")
	e.Eventually(time.Minute, func(context.Context) error { // the event may come later than the answers
		if n := hold.Struck(); n != 1 {
			return fmt.Errorf("%d events held", n)
		}
		return nil
	})
	hold.Remove()
	if result := r.Wait(); result.ExitCode != 0 {
		t.Fatalf("exit code %d", result.ExitCode)
	}
	first, rest, _ := strings.Cut(r.Stdout(), "\n")
	if !strings.HasPrefix(first, "100000 reads from the cache in ") || !strings.HasSuffix(first, ", the same pointer each time: true") {
		t.Errorf("first line %q", first)
	}
	equal(t, "written: v=1\n  cache: v=0\n  server: v=1\nthe event has arrived\n  cache: v=1\n", rest)
	gets := p.Count(faultproxy.Match{Verb: "get", Resource: "configmaps"})
	if gets != 1 || len(reads(p, "configmaps")) != 1 {
		t.Errorf("%d gets, %v: reading the cache must not cost a request", gets, reads(p, "configmaps"))
	}
}

func TestReadOnlyCache(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	const detector = "KUBE_CACHE_MUTATION_DETECTOR=true"
	const corrupted = "I have:          me\nothers read:     me\nthe server has:  nobody\n"
	const clean = "I have:          me\nothers read:     nobody\nthe server has:  nobody\n"
	equal(t, corrupted, run(t, e, "read-only-cache", p.Kubeconfig, nil, 0).Stdout)
	equal(t, clean, run(t, e, "read-only-cache", p.Kubeconfig, nil, 0, "-copy").Stdout)
	caught := run(t, e, "read-only-cache", p.Kubeconfig, []string{detector}, 2)
	if !strings.HasPrefix(caught.Stdout, corrupted+"CACHE *v1.ConfigMap[") || !strings.Contains(caught.Stderr, "panic: cache *v1.ConfigMap modified") {
		t.Errorf("the mutation detector has not spoken up:\n%s%s", caught.Stdout, caught.Stderr)
	}
	equal(t, clean+"the mutation detector has found nothing\n", run(t, e, "read-only-cache", p.Kubeconfig, []string{detector}, 0, "-copy").Stdout)
	cm, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(e.Context(), "shared", metav1.GetOptions{})
	if err != nil || cm.Data["owner"] != "nobody" {
		t.Errorf("in the cluster: %v %v", cm.Data, err)
	}
}

func TestResyncAsksNobody(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	r := run(t, e, "resync", p.Kubeconfig, nil, 0)
	equal(t, "resync 1: resync-a resync-b resync-c, 0 changed\nresync 2: resync-a resync-b resync-c, 0 changed\nresync 3: resync-a resync-b resync-c, 0 changed\n", r.Stdout)
	if diff := cmp.Diff([]string{"watch-list"}, reads(p, "configmaps")); diff != "" {
		t.Errorf("requests in three resync periods (-want +got):\n%s", diff)
	}
	if n := p.Count(faultproxy.Match{}); n != 4 {
		t.Errorf("%d requests, want the three that make the objects and one watch", n)
	}
}

func TestIndexersFindWhatSelectorsFind(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	r := run(t, e, "indexers", p.Kubeconfig, nil, 0)
	var want strings.Builder
	nodeA, nodeB := "node-a."+e.Namespace, "node-b."+e.Namespace
	fmt.Fprintf(&want, "keys of node: [%q %q]\n", nodeA, nodeB)
	want.WriteString("keys of app and tier: [\"blog/db\" \"blog/web\" \"shop/db\" \"shop/web\"]\n")
	for _, l := range []struct{ lookup, fields, labels string }{
		{"node " + nodeA, "spec.nodeName=" + nodeA, ""}, {"node " + nodeB, "spec.nodeName=" + nodeB, ""},
		{"app and tier shop/web", "", "app=shop,tier=web"}, {"app and tier shop/db", "", "app=shop,tier=db"}, {"app and tier blog/db", "", "app=blog,tier=db"},
	} {
		list, err := e.Client.CoreV1().Pods(e.Namespace).List(e.Context(), metav1.ListOptions{FieldSelector: l.fields, LabelSelector: l.labels})
		fatal.If(t, err)
		fmt.Fprintf(&want, "%s:", l.lookup)
		for _, pod := range list.Items {
			fmt.Fprintf(&want, " %s", pod.Name)
		}
		want.WriteString("\n")
		if len(list.Items) == 0 {
			t.Errorf("no pod for %s", l.lookup)
		}
	}
	equal(t, want.String(), r.Stdout)
	if diff := cmp.Diff([]string{"watch-list"}, reads(p, "pods")); diff != "" {
		t.Errorf("requests for five look-ups (-want +got):\n%s", diff)
	}
}

func TestTransformDropsManagedFields(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	r := run(t, e, "transform", p.Kubeconfig, nil, 0)
	var plain, stripped, percent int
	if _, err := fmt.Sscanf(r.Stdout, "as the server sends them: %d bytes for each object\nwithout managedFields:    %d bytes, %d %% less\n", &plain, &stripped, &percent); err != nil {
		t.Fatalf("%v in\n%s", err, r.Stdout)
	}
	list, err := e.Client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{LabelSelector: "lesson=transform"})
	fatal.If(t, err)
	size := func() int {
		text, err := json.Marshal(list.Items)
		fatal.If(t, err)
		return len(text) / len(list.Items)
	}
	if len(list.Items) != 20 || size() != plain {
		t.Errorf("%d objects of %d bytes in the cluster, the program says %d bytes", len(list.Items), size(), plain)
	}
	for i := range list.Items {
		if len(list.Items[i].ManagedFields) == 0 {
			t.Fatal("the cluster's objects have lost their managedFields")
		}
		list.Items[i].ManagedFields = nil
	}
	if size() != stripped || percent != 100*(plain-stripped)/plain || percent < 10 {
		t.Errorf("without managedFields: %d bytes, the program says %d, %d %%", size(), stripped, percent)
	}
}

// What the comments of ../transform say of client-go: an object may pass the
// transformer twice, as those of a first list do, and a tombstone never does.
func TestTransformerSeesNoTombstone(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	set(t, e, "a", "1")
	client, err := kubernetes.NewForConfig(p.Config())
	fatal.If(t, err)
	var mu sync.Mutex
	passed := map[string]int{} // calls of the transformer by the object's name, or by type for what has none
	transform := func(obj any) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			passed[cm.Name]++
		} else {
			passed[fmt.Sprintf("%T", obj)]++
		}
		return obj, nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(e.Namespace), informers.WithTransform(transform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name!=kube-root-ca.crt" }))
	deleted := make(chan any, 1)
	registration, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) { deleted <- obj },
	})
	fatal.If(t, err)
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		t.Fatal("the cache was not filled")
	}
	p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: 410})
	stall := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list"}, Fault: faultproxy.Stall})
	p.Cut(faultproxy.Watches)
	e.Eventually(time.Minute, func(context.Context) error {
		if stall.Struck() == 0 {
			return errors.New("the informer does not list again")
		}
		return nil
	})
	remove(t, e, "a")
	stall.Remove()
	select {
	case obj := <-deleted:
		if _, ok := obj.(cache.DeletedFinalStateUnknown); !ok {
			t.Errorf("the handler got a %T, no tombstone: this run has proved nothing", obj)
		}
	case <-ctx.Done():
		t.Fatal("the handler has not heard of the deletion")
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(map[string]int{"a": 2}, passed); diff != "" {
		t.Errorf("calls of the transformer (-want +got):\n%s", diff)
	}
}

func TestTombstones(t *testing.T) {
	t.Parallel()
	for name, careless := range map[string]bool{"expected": false, "unexpected": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			p := e.Proxy()
			set(t, e, "seen", "1")
			set(t, e, "unseen", "1")
			args := []string{"-until", "end"}
			if careless {
				args = append(args, "-careless")
			}
			r := start(t, e, "tombstones", p.Kubeconfig, args...)
			prints(t, e, r, "watching\n")
			remove(t, e, "seen")
			prints(t, e, r, "seen deleted, last state v=1\n") // with a watch that works, nobody needs a tombstone

			gone := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: 410})
			stall := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list"}, Fault: faultproxy.Stall})
			if n := p.Cut(faultproxy.Watches); n != 1 {
				t.Fatalf("%d watches cut", n)
			}
			e.Eventually(time.Minute, func(context.Context) error {
				if gone.Struck() != 1 || stall.Struck() != 1 {
					return fmt.Errorf("not both: %d answers 410, %d lists stalled", gone.Struck(), stall.Struck())
				}
				return nil
			})
			set(t, e, "unseen", "2") // nor does the informer know of this
			remove(t, e, "unseen")
			stall.Remove()
			if careless {
				result := r.Wait()
				if result.ExitCode != 2 || !strings.Contains(result.Stderr, "interface conversion: interface {} is cache.DeletedFinalStateUnknown, not *v1.ConfigMap") {
					t.Errorf("exit code %d, want a crash\n%s", result.ExitCode, result.Stderr)
				}
				return
			}
			prints(t, e, r, e.Namespace+"/unseen is gone, last seen with v=1\n")
			set(t, e, "end", "")
			if result := r.Wait(); result.ExitCode != 0 {
				t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
			}
		})
	}
}

func TestFiltered(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	observations := p.Observe(e.Context())
	r := run(t, e, "filtered", p.Kubeconfig, nil, 0)
	equal(t, "in the cache: car sky\nthe informer says that sky is deleted\nthe server says that sky is grey\n", r.Stdout)
	watches := p.Requests(faultproxy.Watches)
	if len(watches) != 1 || !strings.Contains(watches[0].Query, "labelSelector=color%3Dblue") || watches[0].Namespace != e.Namespace {
		t.Fatalf("%d watches: %+v", len(watches), watches)
	}
	var sent []string // without bookmarks, of which the server may send more than one
	for o := range observations {
		if o.Moment == faultproxy.EventPassed && o.Event.Type != "BOOKMARK" {
			sent = append(sent, o.Event.Type+" "+o.Event.Name)
		}
		if o.Moment == faultproxy.Ended && o.Request.ID == watches[0].ID {
			break
		}
	}
	slices.Sort(sent)
	if diff := cmp.Diff([]string{"ADDED car", "ADDED sky", "DELETED sky"}, sent); diff != "" {
		t.Errorf("events that the server sent (-want +got):\n%s", diff)
	}
	if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Get(e.Context(), "sky", metav1.GetOptions{}); err != nil {
		t.Errorf("what the informer calls deleted should be there: %v", err)
	}
}

func TestMetadataOnly(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	r := run(t, e, "metadata", p.Kubeconfig, nil, 0)
	var whole, parts int
	if _, err := fmt.Sscanf(r.Stdout, "10 objects of type *v1.PartialObjectMetadata\nwhole objects: %d bytes each\nmetadata only: %d bytes each\n", &whole, &parts); err != nil {
		t.Fatalf("%v in\n%s", err, r.Stdout)
	}
	if whole < 10_000 || parts > 1000 {
		t.Errorf("%d bytes with data, %d without, of objects with 10000 bytes of data", whole, parts)
	}
}

func TestWatchList(t *testing.T) {
	t.Parallel()
	const output = "got v=0, in the initial list: true\ngot v=1\nrequests: "
	for _, tc := range []struct {
		name, env, requests string
		rule                *faultproxy.Rule
		want                []string
	}{
		{name: "default", requests: "watch with the initial state", want: []string{"watch-list"}},
		{name: "switched off", env: "KUBE_FEATURE_WatchListClient=false", requests: "list, watch", want: []string{"list", "watch"}},
		{name: "refused by the server", requests: "watch with the initial state, list, watch", want: []string{"watch-list", "list", "watch"},
			rule: &faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list"}, Fault: faultproxy.Answer, Code: 422}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			p := e.Proxy()
			if tc.rule != nil {
				p.MustInject(*tc.rule)
			}
			r := run(t, e, "watch-list", p.Kubeconfig, []string{tc.env}, 0)
			equal(t, output+tc.requests+"\n", r.Stdout)
			if diff := cmp.Diff(tc.want, reads(p, "configmaps")); diff != "" {
				t.Errorf("requests that the proxy saw (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWatchErrors(t *testing.T) {
	t.Parallel()
	configMaps := func(verb string) faultproxy.Match {
		return faultproxy.Match{Verb: verb, Resource: "configmaps"}
	}
	t.Run("forbidden", func(t *testing.T) {
		t.Parallel()
		e := testenv.New(t)
		p := e.Proxy()
		if _, err := e.Client.CoreV1().ServiceAccounts(e.Namespace).Apply(e.Context(), applycorev1.ServiceAccount("nobody", e.Namespace), metav1.ApplyOptions{FieldManager: "test"}); err != nil {
			t.Fatal(err)
		}
		token, err := e.Client.CoreV1().ServiceAccounts(e.Namespace).CreateToken(e.Context(), "nobody", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		fatal.If(t, err)
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		fatal.If(t, p.WriteKubeconfig(kubeconfig, e.Namespace, token.Status.Token))
		r := run(t, e, "watch-errors", kubeconfig, nil, 1)
		want := fmt.Sprintf(`configmaps is forbidden: User "system:serviceaccount:%s:nobody" cannot list resource "configmaps"`, e.Namespace)
		if !strings.Contains(r.Stderr, "watch-errors: giving up: ") || !strings.Contains(r.Stderr, want) {
			t.Errorf("%q and %q are not in\n%s", "giving up", want, r.Stderr)
		}
		for _, request := range p.Requests(configMaps("")) {
			if request.Code != 403 {
				t.Errorf("the server has answered %s", request)
			}
		}
	})
	t.Run("unavailable for a while", func(t *testing.T) {
		t.Parallel()
		e := testenv.New(t)
		p := e.Proxy()
		unavailable := p.MustInject(faultproxy.Rule{Match: configMaps(""), Fault: faultproxy.Answer, Code: 503, Times: 2})
		r := start(t, e, "watch-errors", p.Kubeconfig, "-until", "end")
		prints(t, e, r, "watching\n")
		set(t, e, "end", "")
		if result := r.Wait(); result.ExitCode != 0 {
			t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
		}
		equal(t, "will try again: ServiceUnavailable\nwatching\nADDED end\n", r.Stdout())
		if unavailable.Struck() != 2 {
			t.Errorf("%d answers 503", unavailable.Struck())
		}
	})
	t.Run("too many requests", func(t *testing.T) {
		t.Parallel()
		e := testenv.New(t)
		p := e.Proxy()
		busy := p.MustInject(faultproxy.Rule{Match: configMaps(""), Fault: faultproxy.Answer, Code: 429, RetryAfter: time.Second})
		r := start(t, e, "watch-errors", p.Kubeconfig, "-until", "end")
		set(t, e, "end", "")
		if result := r.Wait(); result.ExitCode != 0 {
			t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
		}
		if strings.Contains(r.Stdout(), "will try again") {
			t.Errorf("client-go waits for Retry-After by itself, and the handler should not have heard of it:\n%s", r.Stdout())
		}
		requests := p.Requests(configMaps("watch*"))
		if busy.Struck() != 1 || len(requests) != 2 || requests[1].Started.Sub(requests[0].Started) < time.Second {
			t.Errorf("%d answers 429, requests %v: want a second one after a second", busy.Struck(), requests)
		}
	})
	t.Run("history gone", func(t *testing.T) {
		t.Parallel()
		e := testenv.New(t)
		p := e.Proxy()
		r := start(t, e, "watch-errors", p.Kubeconfig, "-until", "end")
		prints(t, e, r, "watching\n")
		set(t, e, "a", "")
		prints(t, e, r, "ADDED a\n")
		gone := p.MustInject(faultproxy.Rule{Match: configMaps("watch"), Fault: faultproxy.ErrorEvent, Code: 410})
		if n := p.Cut(faultproxy.Watches); n != 1 {
			t.Fatalf("%d watches cut", n)
		}
		set(t, e, "end", "")
		if result := r.Wait(); result.ExitCode != 0 {
			t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
		}
		equal(t, "watching\nADDED a\nADDED end\n", r.Stdout()) // not a word about the 410
		if diff := cmp.Diff([]string{"watch-list", "watch", "watch-list"}, reads(p, "configmaps")); diff != "" || gone.Struck() != 1 {
			t.Errorf("%d answers 410; requests (-want +got):\n%s", gone.Struck(), diff)
		}
	})
}

// A 410 that the server itself gives: for a resource that it began to serve
// just now, version 1 is long before its memory. The proxy only rewinds the
// informer's question.
func TestRealGone(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	notesResource := createNotes(t, e)
	notes := e.Dynamic.Resource(notesResource).Namespace(e.Namespace)
	note := func(name string) {
		t.Helper()
		_, err := notes.Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": notesResource.Group + "/v1", "kind": "Note", "metadata": map[string]any{"name": name},
		}}, metav1.CreateOptions{})
		fatal.If(t, err)
	}
	note("first")

	r := start(t, e, "dynamic-informer", p.Kubeconfig, "-resource", "notes.v1."+notesResource.Group, "-until", "end")
	prints(t, e, r, "watching notes\n")
	prints(t, e, r, "ADDED Note first\n")
	note("second")
	prints(t, e, r, "ADDED Note second\n")
	rewind := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.Rewind})
	stall := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list"}, Fault: faultproxy.Stall})
	if n := p.Cut(faultproxy.Watches); n != 1 {
		t.Fatalf("%d watches cut", n)
	}
	e.Eventually(time.Minute, func(context.Context) error {
		if stall.Struck() != 1 {
			return fmt.Errorf("the informer does not list again; the watch was rewound %d times", rewind.Struck())
		}
		return nil
	})
	fatal.If(t, notes.Delete(e.Context(), "first", metav1.DeleteOptions{}))
	stall.Remove()
	prints(t, e, r, "DELETED first\n")
	note("end")
	if result := r.Wait(); result.ExitCode != 0 {
		t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
	if diff := cmp.Diff([]string{"watch-list", "watch", "watch-list"}, reads(p, "notes")); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	// The proxy's own 410 has the form of the server's.
	status := func(client dynamic.ResourceInterface, version string) metav1.Status {
		t.Helper()
		w, err := client.Watch(e.Context(), metav1.ListOptions{ResourceVersion: version})
		fatal.If(t, err)
		defer w.Stop()
		event := <-w.ResultChan()
		s, ok := event.Object.(*metav1.Status)
		if event.Type != watch.Error || !ok {
			t.Fatalf("event %s %T, want an ERROR with a Status", event.Type, event.Object)
		}
		return metav1.Status{Status: s.Status, Code: s.Code, Reason: s.Reason}
	}
	throughProxy, err := dynamic.NewForConfig(p.Config())
	fatal.If(t, err)
	p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch"}, Fault: faultproxy.ErrorEvent, Code: 410})
	list, err := notes.List(e.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	injected := status(throughProxy.Resource(notesResource).Namespace(e.Namespace), list.GetResourceVersion())
	if diff := cmp.Diff(status(notes, "1"), injected); diff != "" || injected.Code != 410 {
		t.Errorf("410 (-server +injected):\n%s", diff)
	}
}

// createNotes defines a resource in a group of the test's own and waits until
// the server serves it.
func createNotes(t *testing.T, e *testenv.Env) schema.GroupVersionResource {
	t.Helper()
	notes := schema.GroupVersionResource{Group: e.Namespace + ".informer.k8s-go.openshift.org", Version: "v1", Resource: "notes"}
	definitions := e.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := notes.GroupResource().String()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(e.Context())
		if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting the definition: %v", err)
		}
		e.Eventually(time.Minute, func(ctx context.Context) error {
			_, err := definitions.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("the definition is still there (%v)", err)
		})
	})
	_, err := definitions.Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": notes.Group, "scope": "Namespaced", "names": map[string]any{"plural": "notes", "kind": "Note"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	}}, metav1.CreateOptions{})
	fatal.If(t, err)
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := e.Dynamic.Resource(notes).Namespace(e.Namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	return notes
}

func TestWorkqueue(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := e.Run(testenv.Command{Path: program(t, e, "workqueue")})
	if r.ExitCode != 0 {
		t.Errorf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	equal(t, `added 3 times, waiting: 1
added again while being processed, waiting: 0
after Done, waiting: 1
failure 1: back in 40ms
failure 2: back in 80ms
failure 3: back in 160ms
failure 4: back in 320ms
after Forget, failures: 0
shutting down: pod-c is not taken any more, waiting: 1
the drain waits for pod-a
drained, waiting: 1
a worker has processed pod-b
the worker has ended, waiting: 0
`, r.Stdout)
	if least := (40 + 80 + 160 + 320) * time.Millisecond; r.Took < least {
		t.Errorf("it took %s, less than the delays together, %s", r.Took, least)
	}
}

func TestInterruptEndsWatchers(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	for _, name := range []string{"naive-watch", "retry-watch", "repaired-watch", "shared-informer", "tombstones", "dynamic-informer", "watch-errors"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := e.For(t)
			r := start(t, e, name, p.Kubeconfig)
			prints(t, e, r, "watching")
			interrupt(t, r)
		})
	}
}

// A program that is told to stop before it has begun has not failed.
func TestInterruptBeforeTheFirstList(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"shared-informer", "tombstones", "dynamic-informer", "watch-errors", "first-loop", "port-list"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			e.StopsBeforeItsCaches("configmaps", testenv.Command{Path: e.Program("./03-informer/" + name), Args: []string{"-namespace", e.Namespace}})
		})
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	p := e.Proxy()
	p.Down()
	for _, tc := range []struct{ name, program, kubeconfig, want string }{
		{"no kubeconfig", "shared-informer", filepath.Join(t.TempDir(), "none"), "reading the kubeconfig"},
		{"server down", "retry-watch", p.Kubeconfig, "listing: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, e.For(t), tc.program, tc.kubeconfig, nil, 1)
			if !strings.Contains(r.Stderr, tc.program+": "+tc.want) {
				t.Errorf("%q is not in\n%s", tc.want, r.Stderr)
			}
		})
	}
	r := run(t, e, "dynamic-informer", p.Kubeconfig, nil, 1, "-resource", "pods")
	if !strings.Contains(r.Stderr, "is not resource.version.group") {
		t.Errorf("%s", r.Stderr)
	}
}

// Whatever a program or an earlier run has left, the next run does the same.
func TestProgramsRunTwice(t *testing.T) {
	t.Parallel()
	until := []string{"-until", "end"}
	for name, args := range map[string][]string{
		"naive-watch": until, "retry-watch": until, "repaired-watch": until, "shared-informer": until, "tombstones": until, "watch-errors": until, "dynamic-informer": until,
		"lister": nil, "read-only-cache": nil, "resync": nil, "indexers": nil, "transform": nil, "filtered": nil, "metadata": nil, "watch-list": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			kubeconfig := e.Proxy().Kubeconfig
			if args != nil {
				set(t, e, "end", "1")
			}
			// What differs: measured values, and whether the lister's cache is behind.
			measured := regexp.MustCompile(`[0-9.]+(ns|µs|ms|s| bytes| %)|cache: v=[01]\n  server`)
			var outputs [2]string
			for i := range outputs {
				outputs[i] = measured.ReplaceAllString(run(t, e, name, kubeconfig, nil, 0, args...).Stdout, "<n>")
			}
			if diff := cmp.Diff(outputs[0], outputs[1]); diff != "" || outputs[0] == "" {
				t.Errorf("output (-first +second):\n%s", diff)
			}
		})
	}
}

// faults.sh leaves nothing behind: sourced twice, together with step 01's
// connect.sh, in either order, in a temporary folder with a space in its name.
func TestFaultsScript(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh"} {
		for _, order := range []string{"01-curl/connect.sh 03-informer/faults.sh", "03-informer/faults.sh 01-curl/connect.sh"} {
			t.Run(shell+" "+order, func(t *testing.T) {
				t.Parallel()
				path, err := exec.LookPath(shell)
				if err != nil {
					t.Skipf("there is no %s on this machine", shell)
				}
				e := testenv.New(t)
				temp := filepath.Join(t.TempDir(), "with a space")
				fatal.If(t, os.Mkdir(temp, 0o700))
				first, second, _ := strings.Cut(order, " ")
				script := fmt.Sprintf(`
					trap 'touch "$TMPDIR/trapped"' EXIT
					source %s && source %s || exit 2
					[[ -f $PKI/curl ]] || exit 3
					before=$FAULTS
					source 03-informer/faults.sh || exit 4
					[[ ! -e $before && -S $FAULTS/socket ]] || exit 5
					start tombstones -until nothing && printed watching tombstones
					asked 'user-agent=tombstones*' | grep -c watch-list
					(trap '' TERM; exec sleep 1000) & # such as a controller that hangs
					FAULTS_PIDS+=($!)
					faults cut`, first, second)
				r := e.Run(testenv.Command{Path: path, Args: []string{"-c", script}, Env: []string{"TMPDIR=" + temp}})
				if r.ExitCode != 0 || r.Stdout != "1\ncut 1\n" {
					t.Errorf("exit code %d, output %q\n%s", r.ExitCode, r.Stdout, r.Stderr)
				}
				left, err := os.ReadDir(temp)
				if err != nil || len(left) != 1 || left[0].Name() != "trapped" {
					t.Errorf("left in the temporary folder: %v %v; want only what the shell's own trap makes", left, err)
				}
			})
		}
	}
}
