package clientset

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/e2e-framework/klient/k8s"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

const (
	rolloutOld    = cluster.PauseImage
	rolloutNew    = cluster.NextPauseImage
	rolloutRecord = "workshop.k8s-go.dev/staged-rollout"
)

// rolloutTest has a namespace with the Deployments web-1, web-2, ... that the
// selector app=web matches, all seen by their controller.
type rolloutTest struct {
	*testenv.Env
	t     testing.TB
	names []string
}

func newRolloutTest(t *testing.T, n int, edit func(i int, d *appsv1.Deployment)) *rolloutTest {
	t.Helper()
	r := &rolloutTest{Env: testenv.New(t), t: t}
	for i := 1; i <= n; i++ {
		d := rolloutDeployment(fmt.Sprintf("web-%d", i), "web")
		if edit != nil {
			edit(i, d)
		}
		r.create(d)
		r.names = append(r.names, d.Name)
	}
	return r
}

func rolloutDeployment(name, app string) *appsv1.Deployment {
	labels := map[string]string{"app": app, "name": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": name}}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64)
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: rolloutOld, ImagePullPolicy: corev1.PullNever}} // the images are in the nodes
	return d
}

// never keeps a Deployment from being available, on simulated nodes too.
func never(d *appsv1.Deployment) {
	d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = 3600, new(int32(7200))
}

func (r *rolloutTest) create(d *appsv1.Deployment) {
	r.t.Helper()
	if _, err := r.Client.AppsV1().Deployments(r.Namespace).Create(r.Context(), d, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.ShowOnFailure(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: d.Name}})
	r.Eventually(time.Minute, func(context.Context) error {
		d := r.get(d.Name)
		if d.Status.ObservedGeneration < d.Generation || d.Status.Replicas != *d.Spec.Replicas {
			return fmt.Errorf("%s has %d replicas", d.Name, d.Status.Replicas)
		}
		return nil
	})
}

func (r *rolloutTest) get(name string) *appsv1.Deployment {
	r.t.Helper()
	d, err := r.Client.AppsV1().Deployments(r.Namespace).Get(r.Context(), name, metav1.GetOptions{})
	fatal.If(r.t, err)
	return d
}

func (r *rolloutTest) all() (ds map[string]*appsv1.Deployment, resourceVersion string) {
	r.t.Helper()
	list, err := r.Client.AppsV1().Deployments(r.Namespace).List(r.Context(), metav1.ListOptions{})
	fatal.If(r.t, err)
	ds = map[string]*appsv1.Deployment{}
	for i := range list.Items {
		ds[list.Items[i].Name] = &list.Items[i]
	}
	return ds, list.ResourceVersion
}

func (r *rolloutTest) edit(name string, edit func(d *appsv1.Deployment)) {
	r.t.Helper()
	patient := retry.DefaultBackoff // the Deployment's controllers are writing, too
	patient.Steps += 2
	err := retry.RetryOnConflict(patient, func() error {
		d := r.get(name)
		edit(d)
		_, err := r.Client.AppsV1().Deployments(r.Namespace).Update(r.Context(), d, metav1.UpdateOptions{})
		return err
	})
	fatal.If(r.t, err)
}

// quota limits a resource of the namespace and waits until that is enforced.
func (r *rolloutTest) quota(kind corev1.ResourceName, n int64) {
	r.t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "full"}}
	q.Spec.Hard = corev1.ResourceList{kind: *resource.NewQuantity(n, resource.DecimalSI)}
	quotas := r.Client.CoreV1().ResourceQuotas(r.Namespace)
	if _, err := quotas.Create(r.Context(), q, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	counted := func(o k8s.Object) bool { return o.(*corev1.ResourceQuota).Status.Used != nil }
	full := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "full"}}
	r.WaitFor(time.Minute, r.Conditions().ResourceMatch(full, counted), full)
}

func (r *rolloutTest) command(args ...string) testenv.Command {
	r.t.Helper()
	return testenv.Command{Path: r.Program("./02-clientset/staged-rollout"), Timeout: 3 * time.Minute,
		Args: append([]string{"-namespace", r.Namespace, "-selector", "app=web"}, args...)}
}

// run runs the tool and checks its exit code and a part of its standard error.
func (r *rolloutTest) run(exitCode int, stderr string, args ...string) testenv.Result {
	r.t.Helper()
	result := r.Run(r.command(args...))
	if result.ExitCode != exitCode || !strings.Contains(result.Stderr, stderr) {
		r.t.Fatalf("%v: exit code %d, want %d and %q\n%s%s", args, result.ExitCode, exitCode, stderr, result.Stdout, result.Stderr)
	}
	return result
}

func image(d *appsv1.Deployment) string {
	return d.Spec.Template.Spec.Containers[len(d.Spec.Template.Spec.Containers)-1].Image
}

// images returns "web-1=... " for all Deployments of the test, only the tags.
func (r *rolloutTest) images() string {
	r.t.Helper()
	ds, _ := r.all()
	var b []string
	for _, name := range r.names {
		_, tag, _ := strings.Cut(image(ds[name]), ":")
		b = append(b, tag)
	}
	return strings.Join(b, " ")
}

// whole fails the test if a Deployment has an image without its record, or the
// record without the image.
func (r *rolloutTest) whole() {
	r.t.Helper()
	ds, _ := r.all()
	for _, name := range r.names {
		if _, recorded := ds[name].Annotations[rolloutRecord]; recorded != (image(ds[name]) == rolloutNew) {
			r.t.Errorf("half-written: %s has %s, record %q", name, image(ds[name]), ds[name].Annotations[rolloutRecord])
		}
	}
}

// same fails the test unless the Deployments are as before, but for what the
// controller says about them.
func (r *rolloutTest) same(before map[string]*appsv1.Deployment) {
	r.t.Helper()
	after, _ := r.all()
	for name, was := range before {
		now := after[name]
		if diff := cmp.Diff(was.Spec, now.Spec); diff != "" {
			r.t.Errorf("spec of %s (-before +after):\n%s", name, diff)
		}
		if text, recorded := now.Annotations[rolloutRecord]; recorded {
			r.t.Errorf("%s still has the record %s", name, text)
		}
	}
}

// history replays what happened to the Deployments since a resourceVersion, as
// another client sees it, and calls f for each state.
func (r *rolloutTest) history(since string, f func(now, before *appsv1.Deployment)) {
	r.t.Helper()
	end, _ := r.all()
	// Somebody always changes: one more write tells where the replay ends.
	r.edit(r.names[0], func(d *appsv1.Deployment) { d.Labels["replay"] = "ends" })
	for range 3 { // a busy API server may end a watch early
		states, isWhole := r.replay(since)
		if !isWhole {
			continue
		}
		seen := map[string]*appsv1.Deployment{}
		for _, d := range states {
			if end[d.Name] != nil {
				f(d, seen[d.Name])
				seen[d.Name] = d
			}
		}
		return
	}
	r.t.Fatal("the replay has no end")
}

// replay returns the states since a resourceVersion up to the one that ends the replay, and
// whether it has come to that.
func (r *rolloutTest) replay(since string) (states []*appsv1.Deployment, isWhole bool) {
	r.t.Helper()
	w, err := r.Client.AppsV1().Deployments(r.Namespace).Watch(r.Context(), metav1.ListOptions{ResourceVersion: since, TimeoutSeconds: new(int64(20))})
	fatal.If(r.t, err)
	defer w.Stop()
	for event := range w.ResultChan() {
		d, ok := event.Object.(*appsv1.Deployment)
		if !ok {
			r.t.Fatalf("watch: %v", event.Object)
		}
		if d.Labels["replay"] != "" {
			return states, true
		}
		states = append(states, d)
	}
	return nil, false
}

func available(d *appsv1.Deployment) bool {
	n := *d.Spec.Replicas
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == n && s.AvailableReplicas == n && s.Replicas == n
}

// changesOfImage returns "web-1=2" and so on in the order in which they
// happened. Before each, the Deployments in after[name] must have been available
// with the new image.
func (r *rolloutTest) changesOfImage(since string, after map[string][]string) []string {
	r.t.Helper()
	var changes []string
	now := map[string]*appsv1.Deployment{}
	last := map[string]string{}
	r.history(since, func(d, _ *appsv1.Deployment) {
		now[d.Name] = d
		if last[d.Name] == "" {
			last[d.Name] = rolloutOld
		}
		if image(d) == last[d.Name] {
			return
		}
		last[d.Name] = image(d)
		_, tag, _ := strings.Cut(image(d), ":")
		changes = append(changes, d.Name+"="+tag)
		for _, name := range after[d.Name] {
			if p := now[name]; p == nil || image(p) != rolloutNew || !available(p) {
				r.t.Errorf("%s was changed before %s was available", d.Name, name)
			}
		}
	})
	return changes
}

func TestRolloutGoesStageByStage(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 4, func(i int, d *appsv1.Deployment) {
		*replicasOf(d) = int32(i % 3) // 1, 2, 0, 1
		if i == 2 {
			c := d.Spec.Template.Spec.Containers[0]
			c.Name, c.Image = "side", rolloutNew
			d.Spec.Template.Spec.Containers = []corev1.Container{c, d.Spec.Template.Spec.Containers[0]}
		}
	})
	r.create(rolloutDeployment("other", "other"))
	before, since := r.all()
	result := r.run(0, "", "-image", rolloutNew, "-container", "main", "-stages", "1,75%,100%")

	changes := r.changesOfImage(since, map[string][]string{
		"web-2": {"web-1"}, "web-3": {"web-1"},
		"web-4": {"web-1", "web-2", "web-3"},
	})
	if diff := cmp.Diff([]string{"web-1=2", "web-2=2", "web-3=2", "web-4=2"}, changes); diff != "" {
		t.Errorf("changes of images (-want +got):\n%s", diff)
	}
	if !strings.Contains(result.Stdout, "updated, ") || !strings.Contains(result.Stdout, "stage 3 of 3 is available") {
		t.Errorf("no progress in\n%s", result.Stdout)
	}
	for _, name := range r.names {
		before[name].Spec.Template.Spec.Containers[len(before[name].Spec.Template.Spec.Containers)-1].Image = rolloutNew
	}
	r.same(before)
	for _, m := range r.get("other").ManagedFields {
		if m.Manager == "staged-rollout" {
			t.Error("a Deployment that does not match was written to")
		}
	}
}

func replicasOf(d *appsv1.Deployment) *int32 {
	if d.Spec.Replicas == nil {
		d.Spec.Replicas = new(int32(1))
	}
	return d.Spec.Replicas
}

func TestRolloutByAnnotation(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 3, func(i int, d *appsv1.Deployment) {
		d.Annotations = map[string]string{"workshop.k8s-go.dev/stage": []string{"", "10", "2", "2"}[i]}
	})
	_, since := r.all()
	r.run(0, "", "-image", rolloutNew)
	want := []string{"web-2=2", "web-3=2", "web-1=2"}
	if diff := cmp.Diff(want, r.changesOfImage(since, map[string][]string{"web-1": {"web-2", "web-3"}})); diff != "" {
		t.Errorf("changes of images (-want +got):\n%s", diff)
	}
}

// The quota leaves room for the ReplicaSet of one stage. The controller then
// says at once that it cannot make the next one.
func TestRolloutRollsBack(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 4, nil)
	r.quota("count/replicasets.apps", 5)
	before, since := r.all()
	result := r.run(1, "exceeded quota", "-image", rolloutNew, "-stages", "1,75%,100%")
	if !strings.Contains(result.Stderr, "stage 2 of 3: ") || !strings.Contains(result.Stderr, "3 Deployments are back") {
		t.Errorf("which stage failed, and what was done about it?\n%s", result.Stderr)
	}
	r.same(before)
	if g := r.get("web-4").Generation; g != before["web-4"].Generation {
		t.Errorf("web-4 of stage 3 was touched: generation %d", g)
	}
	want := []string{"web-1=2", "web-2=2", "web-3=2", "web-3=1", "web-2=1", "web-1=1"}
	if diff := cmp.Diff(want, r.changesOfImage(since, map[string][]string{"web-2": {"web-1"}})[:6]); diff != "" {
		t.Errorf("changes of images (-want +got):\n%s", diff)
	}
}

// Here the ReplicaSet can be made, but no pod: what remains is the deadline.
func TestRolloutDeadline(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 2, nil)
	r.quota("pods", 2)
	before, _ := r.all()
	result := r.run(1, "stage 1 of 1: not available within 6s: web-1: 0 of 1 updated", "-image", rolloutNew, "-stages", "100%", "-timeout", "6s")
	if !strings.Contains(result.Stderr, "exceeded quota: full") || !strings.Contains(result.Stderr, "2 Deployments are back") {
		t.Errorf("the reason is not in\n%s", result.Stderr)
	}
	r.same(before)
}

// stuck starts a rollout of three Deployments in three stages and returns when
// it waits for the second, which cannot get there.
func stuck(t *testing.T) (*rolloutTest, *testenv.Process, map[string]*appsv1.Deployment) {
	t.Helper()
	r := newRolloutTest(t, 3, func(i int, d *appsv1.Deployment) {
		if i == 2 {
			never(d)
		}
	})
	before, _ := r.all()
	p := r.Start(r.command("-image", rolloutNew, "-stages", "1,2,3"))
	r.Eventually(time.Minute, func(context.Context) error {
		if got := r.images(); got != "2 2 1" {
			return errors.New(got)
		}
		return nil
	})
	return r, p, before
}

func TestRolloutResumes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		signal   os.Signal
		exitCode int
		stderr   string
	}{
		{os.Interrupt, 130, "interrupted: 2 of 3 Deployments have the new image; the same command again goes on, with -rollback it undoes that"},
		{os.Kill, -1, ""},
	} {
		t.Run(tc.signal.String(), func(t *testing.T) {
			t.Parallel()
			r, p, _ := stuck(t)
			fatal.If(t, p.Signal(tc.signal))
			if result := p.Wait(); result.ExitCode != tc.exitCode || !strings.Contains(result.Stderr, tc.stderr) {
				t.Errorf("exit code %d, want %d and %q:\n%s", result.ExitCode, tc.exitCode, tc.stderr, result.Stderr)
			}
			r.whole()
			first := r.get("web-1").Generation

			// Two rollouts at a time would lose what to go back to.
			r.run(1, "unfinished rollout of container main to "+rolloutNew, "-image", "example.com/other:1", "-stages", "100%")
			r.whole()

			r.edit("web-2", func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 0 })
			result := r.run(0, "", "-image", rolloutNew, "-stages", "1,2,3")
			if !strings.Contains(result.Stdout, "web-2: has "+rolloutNew+" already") {
				t.Errorf("it does not say that web-2 was done:\n%s", result.Stdout)
			}
			if got := r.images(); got != "2 2 2" {
				t.Errorf("images %s", got)
			}
			ds, _ := r.all()
			for name, d := range ds {
				if d.Annotations[rolloutRecord] != "" {
					t.Errorf("%s still has its record", name)
				}
			}
			// A Deployment's annotations count too: removing the record is the one change.
			if g := ds["web-1"].Generation; g != first+1 {
				t.Errorf("web-1 was written to again: generation %d, then %d", first, g)
			}
			if ds["web-2"].Spec.MinReadySeconds != 0 {
				t.Error("the change of somebody else was lost")
			}
		})
	}
}

// What an earlier run has changed goes back as well when the later one fails.
func TestRolloutResumedRollsBackAll(t *testing.T) {
	t.Parallel()
	r, p, before := stuck(t)
	fatal.If(t, p.Signal(os.Interrupt))
	p.Wait()
	r.run(1, "2 Deployments are back", "-image", rolloutNew, "-stages", "1,2,3", "-timeout", "1s")
	r.same(before)
}

func TestRolloutUndo(t *testing.T) {
	t.Parallel()
	r, p, before := stuck(t)
	fatal.If(t, p.Signal(os.Interrupt))
	p.Wait()
	if result := r.run(0, "", "-rollback", "-dry-run"); !strings.Contains(result.Stdout, "web-2: "+rolloutNew+" -> "+rolloutOld) {
		t.Errorf("no plan in\n%s", result.Stdout)
	}
	if got := r.images(); got != "2 2 1" {
		t.Errorf("a dry run has written: %s", got)
	}
	r.run(0, "", "-rollback", "-image", "example.com/other:1") // a rollout that never was
	if got := r.images(); got != "2 2 1" {
		t.Errorf("another rollout was undone: %s", got)
	}
	result := r.run(0, "", "-rollback")
	if at2, at1 := strings.Index(result.Stdout, "web-2:"), strings.Index(result.Stdout, "web-1:"); at2 < 0 || at2 > at1 {
		t.Errorf("not the newest first:\n%s", result.Stdout)
	}
	r.same(before)
	if result := r.run(0, "", "-rollback"); !strings.Contains(result.Stdout, "no Deployment is in an unfinished rollout") {
		t.Errorf("the second time:\n%s", result.Stdout)
	}
}

// Somebody acts on a Deployment that the rollout waits for.
func TestRolloutStopsWhenOthersInterfere(t *testing.T) {
	t.Parallel()
	t.Run("image", func(t *testing.T) {
		t.Parallel()
		r, p, _ := stuck(t)
		r.edit("web-2", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "example.com/theirs:9" })
		if result := p.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "somebody else has set the image of web-2 to example.com/theirs:9") {
			t.Errorf("exit code %d:\n%s", result.ExitCode, result.Stderr)
		}
		if got := r.images(); got != "1 9 1" {
			t.Errorf("images %s: theirs must stay, ours go", got)
		}
	})
	t.Run("delete", func(t *testing.T) {
		t.Parallel()
		r, p, before := stuck(t)
		fatal.If(t, r.Client.AppsV1().Deployments(r.Namespace).Delete(r.Context(), "web-2", metav1.DeleteOptions{}))
		if result := p.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "web-2 is gone") || !strings.Contains(result.Stderr, "1 Deployment is back") {
			t.Errorf("exit code %d:\n%s", result.ExitCode, result.Stderr)
		}
		delete(before, "web-2")
		r.same(before)
	})
}

func TestRolloutDryRun(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 3, func(_ int, d *appsv1.Deployment) { *replicasOf(d) = 0 })
	r.Eventually(time.Minute, func(context.Context) error { // until the controllers have nothing more to write
		ds, _ := r.all()
		for _, d := range ds {
			if !slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Reason == "NewReplicaSetAvailable" }) {
				return fmt.Errorf("%s is not settled", d.Name)
			}
		}
		return nil
	})
	before, _ := r.all()
	unchanged := func() {
		t.Helper()
		after, _ := r.all()
		for name := range before {
			if was, is := before[name].ResourceVersion, after[name].ResourceVersion; was != is {
				t.Errorf("%s was written to: resourceVersion %s, then %s", name, was, is)
			}
		}
	}
	want := "stage 1 of 2\n  web-1: " + rolloutOld + " -> " + rolloutNew + "\nstage 2 of 2\n  web-2: " + rolloutOld + " -> " + rolloutNew +
		"\n  web-3: " + rolloutOld + " -> " + rolloutNew + "\ndry run: the server accepts this; nothing was written\n"
	if diff := cmp.Diff(want, r.run(0, "", "-image", rolloutNew, "-stages", "1,100%", "-dry-run").Stdout); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	unchanged()
	// The server is asked in every run, before anything is written. It refuses
	// the last Deployment, whose annotations leave no room for a record.
	r.edit("web-3", func(d *appsv1.Deployment) { d.Annotations["full"] = strings.Repeat("x", 256<<10-160) })
	r.Eventually(time.Minute, func(context.Context) error {
		if d := r.get("web-3"); d.Status.ObservedGeneration < d.Generation {
			return errors.New("not observed")
		}
		return nil
	})
	before, _ = r.all()
	refused := "web-3: Deployment.apps \"web-3\" is invalid: metadata.annotations: Too long"
	for _, dryRun := range []string{"-dry-run=true", "-dry-run=false"} {
		if result := r.run(1, refused, "-image", rolloutNew, "-stages", "1,100%", dryRun); !strings.Contains(result.Stderr, "nothing was written") {
			t.Errorf("%s", result.Stderr)
		}
		unchanged()
	}
}

func rolloutKubeconfig(t testing.TB, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"], config.AuthInfos["test"] = cluster, user
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	fatal.If(t, clientcmd.WriteToFile(*config, path))
	return path
}

// rolloutWrites are the writes of the tool, without its rehearsals.
var rolloutWrites = faultproxy.Match{Verb: "patch", Resource: "deployments", If: faultproxy.Request.Write}

// struck waits until a fault has happened.
func (r *rolloutTest) struck(i *faultproxy.Injection) {
	r.t.Helper()
	r.Eventually(time.Minute, func(context.Context) error {
		if i.Struck() == 0 {
			return errors.New("the request has not come")
		}
		return nil
	})
}

// Somebody writes exactly between the tool's read and its write.
func TestRolloutLosesNoUpdate(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 2, func(_ int, d *appsv1.Deployment) { *replicasOf(d) = 0 })
	proxy := r.Proxy()
	write := proxy.MustInject(faultproxy.Rule{Match: rolloutWrites, Fault: faultproxy.Stall})
	p := r.Start(r.command("-kubeconfig", proxy.Kubeconfig, "-image", rolloutNew, "-stages", "100%"))
	r.struck(write)
	r.edit("web-1", func(d *appsv1.Deployment) {
		*d.Spec.Replicas = 1
		d.Spec.Template.Spec.Containers[0].Image = "example.com/hotfix:1"
	})
	r.quota("count/replicasets.apps", 1) // and the rollout will have to go back
	write.Remove()
	if result := p.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "are back") {
		t.Fatalf("exit code %d, want 1 and %q\n%s%s", result.ExitCode, "are back", result.Stdout, result.Stderr)
	}
	d := r.get("web-1")
	if *d.Spec.Replicas != 1 {
		t.Errorf("%d replicas: who scaled the Deployment meanwhile has lost that", *d.Spec.Replicas)
	}
	// The image to go back to is the one that was replaced, not the one of the plan.
	if image(d) != "example.com/hotfix:1" {
		t.Errorf("back at %s, want what was there when the rollout wrote", image(d))
	}
	// The controller writes too, so there may be more conflicts than the provoked one.
	if n := proxy.Count(rolloutWrites); n < 5 {
		t.Errorf("%d patches, want at least 5: one conflict, two there, two back", n)
	}
}

func TestRolloutAmongOtherWriters(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 4, nil)
	ctx, stop := context.WithCancel(r.Context())
	defer stop()
	deployments := r.Client.AppsV1().Deployments(r.Namespace)
	counts, scales := make([]int, 4), make([]int32, 4)
	var writers sync.WaitGroup
	for i, name := range r.names {
		writers.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				// PUT with what was read, as controllers do.
				d, err := deployments.Get(r.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				if d.Annotations == nil {
					d.Annotations = map[string]string{}
				}
				d.Annotations["count"] = fmt.Sprint(counts[i] + 1)
				if _, err := deployments.Update(r.Context(), d, metav1.UpdateOptions{}); err == nil {
					counts[i]++
				}
				scale := 1 + scales[i]%2
				if _, err := deployments.Patch(r.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, scale), metav1.PatchOptions{}, "scale"); err == nil {
					scales[i] = scale
				}
				select {
				case <-ctx.Done():
				case <-time.After(20*time.Millisecond + time.Since(began)): // on a slow machine others need their time, too
				}
			}
		})
	}
	r.Eventually(time.Minute, func(context.Context) error {
		for _, name := range r.names {
			if r.get(name).Annotations["count"] == "" {
				return fmt.Errorf("nobody has written to %s", name)
			}
		}
		return nil
	})
	p := r.Start(r.command("-image", rolloutNew, "-stages", "2,100%", "-timeout", "1m"))
	// Under constant scaling no Deployment need ever be complete at once.
	r.Eventually(time.Minute, func(context.Context) error {
		if got := r.images(); !strings.HasPrefix(got, "2 2") {
			return errors.New(got)
		}
		return nil
	})
	stop()
	writers.Wait()
	if result := p.Wait(); result.ExitCode != 0 {
		t.Fatalf("exit code %d\n%s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	for i, name := range r.names {
		d := r.get(name)
		if d.Annotations["count"] != fmt.Sprint(counts[i]) || *d.Spec.Replicas != scales[i] {
			t.Errorf("%s: count %s, replicas %d; want %d, %d", name, d.Annotations["count"], *d.Spec.Replicas, counts[i], scales[i])
		}
		if image(d) != rolloutNew || d.Annotations[rolloutRecord] != "" {
			t.Errorf("%s: image %s, record %q", name, image(d), d.Annotations[rolloutRecord])
		}
		if counts[i] == 0 {
			t.Errorf("nobody wrote to %s: this run has proved nothing", name)
		}
	}
}

// Ctrl-C while a write is on its way: the write is carried through.
func TestRolloutInterruptedDuringWrite(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 2, nil)
	proxy := r.Proxy()
	write := proxy.MustInject(faultproxy.Rule{Match: rolloutWrites, Fault: faultproxy.Stall})
	p := r.Start(r.command("-kubeconfig", proxy.Kubeconfig, "-image", rolloutNew, "-stages", "100%"))
	r.struck(write)
	err := p.Signal(os.Interrupt)
	r.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(p.Stderr(), "stopping after the current write") {
			return errors.New("no reaction")
		}
		return nil
	})
	write.Remove()
	if result := p.Wait(); err != nil || result.ExitCode != 130 || !strings.Contains(result.Stderr, "1 of 2 Deployments have the new image") {
		t.Errorf("%v, exit code %d\n%s", err, result.ExitCode, result.Stderr)
	}
	r.whole()
	if got := r.images(); got != "2 1" {
		t.Errorf("images %s, want the current write done and no other", got)
	}
}

// A watch that ends and a list that fails say nothing about the Deployments.
func TestRolloutOutlivesLostConnections(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 2, nil)
	proxy := r.Proxy()
	cut := proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Lose})
	end := proxy.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.End, After: 1})
	unavailable := proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "list", Resource: "deployments"},
		Fault: faultproxy.Answer, Code: http.StatusServiceUnavailable, After: 2})
	// Nor does the server answer all that the tool asks about one Deployment.
	busy := map[string]*faultproxy.Injection{}
	for _, verb := range []string{"get", "patch"} {
		busy[verb] = proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: verb, Resource: "deployments"}, Fault: faultproxy.Answer, Code: http.StatusServiceUnavailable, Times: 2})
	}
	r.edit("web-1", never) // so that there is something to watch for
	p := r.Start(r.command("-kubeconfig", proxy.Kubeconfig, "-image", rolloutNew, "-stages", "1,2"))
	r.Eventually(time.Minute, func(context.Context) error {
		if n := proxy.Open(faultproxy.Watches); n != 1 || cut.Struck()+end.Struck()+unavailable.Struck() != 3 {
			return fmt.Errorf("%d watches open; %d cut, %d ended, %d lists answered 503", n, cut.Struck(), end.Struck(), unavailable.Struck())
		}
		return nil
	})
	r.edit("web-1", func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 0 })
	if result := p.Wait(); result.ExitCode != 0 {
		t.Errorf("exit code %d\n%s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
	for verb, rule := range busy {
		if n := rule.Struck(); n != 2 {
			t.Errorf("%d of 2 answers 503 to a %s", n, verb)
		}
	}
	if got := r.images(); got != "2 2" {
		t.Errorf("images %s", got)
	}
}

// The rights that the tool's documentation names are enough, and each is needed.
func TestRolloutRights(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, verbs, want string
		exitCode          int
	}{
		{"all", "get list watch patch", "", 0},
		{"none", "", "cannot list resource \"deployments\"", 1},
		{"no list", "get watch patch", "cannot list resource \"deployments\"", 1},
		{"no get", "list watch patch", "cannot get resource \"deployments\"", 1},
		{"no patch", "get list watch", "cannot patch resource \"deployments\"", 1},
		{"no watch", "get list patch", "cannot watch resource \"deployments\"", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRolloutTest(t, 2, nil)
			r.edit("web-1", func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 1 }) // not available at once
			before, _ := r.all()
			result := r.Run(r.command("-kubeconfig", r.as(tc.verbs), "-image", rolloutNew, "-stages", "1,2"))
			if result.ExitCode != tc.exitCode || !strings.Contains(result.Stderr, tc.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", result.ExitCode, tc.exitCode, tc.want, result.Stderr)
			}
			if strings.Contains(result.Stderr, "panic") || strings.Count(result.Stderr, "\n") > 3 {
				t.Errorf("not a clear line:\n%s", result.Stderr)
			}
			if tc.exitCode != 0 {
				r.same(before)
			}
		})
	}
}

// as returns the kubeconfig of a new ServiceAccount with these verbs on Deployments.
func (r *rolloutTest) as(verbs string) string {
	r.t.Helper()
	meta := metav1.ObjectMeta{Name: "limited", Namespace: r.Namespace}
	_, err := r.Client.CoreV1().ServiceAccounts(r.Namespace).Create(r.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err == nil && verbs != "" {
		_, err = r.Client.RbacV1().Roles(r.Namespace).Create(r.Context(), &rbacv1.Role{ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: strings.Fields(verbs)}}}, metav1.CreateOptions{})
		if err == nil {
			_, err = r.Client.RbacV1().RoleBindings(r.Namespace).Create(r.Context(), &rbacv1.RoleBinding{ObjectMeta: meta,
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: meta.Name, Namespace: r.Namespace}}}, metav1.CreateOptions{})
		}
	}
	fatal.If(r.t, err)
	token, err := r.Client.CoreV1().ServiceAccounts(r.Namespace).CreateToken(r.Context(), meta.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	fatal.If(r.t, err)
	cluster := &clientcmdapi.Cluster{Server: r.Config.Host, CertificateAuthority: r.Config.CAFile, CertificateAuthorityData: r.Config.CAData,
		InsecureSkipTLSVerify: r.Config.Insecure, TLSServerName: r.Config.ServerName}
	kubeconfig := rolloutKubeconfig(r.t, cluster, &clientcmdapi.AuthInfo{Token: token.Status.Token})
	// The authorizer learns of a new role by a watch of its own.
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	fatal.If(r.t, err)
	r.ready(config, strings.Fields(verbs))
	return kubeconfig
}

func TestRolloutBadInput(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 2, func(i int, d *appsv1.Deployment) {
		if i == 2 {
			side := d.Spec.Template.Spec.Containers[0]
			side.Name = "side"
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, side)
		}
	})
	before, _ := r.all()
	home := t.TempDir()
	empty := filepath.Join(home, "empty")
	fatal.If(t, os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	good := []string{"-image", rolloutNew, "-container", "main", "-stages", "1,100%"}
	for _, tc := range []struct {
		name string
		args []string // added to, and overriding, good ones
		env  []string
		want string
	}{
		{"no match", []string{"-selector", "app=nobody"}, nil, `no Deployment in namespace ` + r.Namespace + ` matches "app=nobody"`},
		{"selector", []string{"-selector", "app in"}, nil, "-selector: "},
		{"no selector", []string{"-selector", ""}, nil, "-selector and -image are needed"},
		{"blank selector", []string{"-selector", " "}, nil, `-selector " " selects everything`},
		{"no image", []string{"-image", ""}, nil, "-selector and -image are needed"},
		{"stages", []string{"-stages", "1,half"}, nil, `-stages: "half" is neither a number from 1 nor a share`},
		{"stages shrink", []string{"-stages", "2,1,100%"}, nil, "stage 1 means 1 of 2 Deployments, but 2 are updated by then"},
		{"stages leave some", []string{"-stages", "1"}, nil, "leaves 1 of 2 Deployments behind"},
		{"no annotation", []string{"-stages", "annotation"}, nil, "web-1 has no annotation workshop.k8s-go.dev/stage"},
		{"container", []string{"-container", "db"}, nil, `web-1 has no container "db", only main; nothing was written`},
		{"which container", []string{"-container", ""}, nil, "web-2 has the containers main, side: say which one with -container; nothing was written"},
		{"timeout", []string{"-timeout", "0s"}, nil, "-timeout 0s: it must be more than zero"},
		{"argument", []string{"web-1"}, nil, `unexpected argument "web-1"`},
		{"namespace", []string{"-namespace", "no-such-namespace"}, nil, "there is no namespace no-such-namespace"},
		{"no kubeconfig", nil, []string{"KUBECONFIG=", "HOME=" + home}, "no kubeconfig found: give -kubeconfig or set KUBECONFIG"},
		{"kubeconfig missing", []string{"-kubeconfig", filepath.Join(home, "nothing")}, nil, "no such file"},
		{"kubeconfig empty", []string{"-kubeconfig", empty}, nil, "no kubeconfig found"},
		{"server down", []string{"-kubeconfig", rolloutKubeconfig(t, &clientcmdapi.Cluster{Server: "http://127.0.0.1:1"}, &clientcmdapi.AuthInfo{})}, nil, "connection refused"},
	} {
		c := r.command(append(slices.Clone(good), tc.args...)...)
		t.Run(tc.name, func(t *testing.T) {
			c.Env = tc.env
			result := r.For(t).Run(c)
			if result.ExitCode != 1 || !strings.HasPrefix(result.Stderr, "error: ") || !strings.Contains(result.Stderr, tc.want) ||
				strings.Count(result.Stderr, "\n") > 2 || result.Stdout != "" {
				t.Errorf("exit code %d, want 1 and one error with %q:\n%s%s", result.ExitCode, tc.want, result.Stdout, result.Stderr)
			}
		})
	}
	r.same(before)
}

// ready waits until each of the verbs is allowed to the user of a config.
func (r *rolloutTest) ready(config *rest.Config, verbs []string) {
	r.t.Helper()
	client, err := kubernetes.NewForConfig(config)
	fatal.If(r.t, err)
	r.Eventually(30*time.Second, func(ctx context.Context) error {
		for _, verb := range verbs {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: r.Namespace, Verb: verb, Group: "apps", Resource: "deployments"}}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if !review.Status.Allowed {
				return fmt.Errorf("%s is not allowed yet", verb)
			}
		}
		return nil
	})
}

// running waits until exactly n pods exist and run the image.
func (r *rolloutTest) running(image string, n int) {
	r.t.Helper()
	r.Eventually(time.Minute, func(ctx context.Context) error {
		pods, err := r.Client.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var bad []string
		for _, p := range pods.Items {
			if p.Status.Phase != corev1.PodRunning || p.Spec.Containers[0].Image != image {
				bad = append(bad, fmt.Sprintf("%s is %s with %s", p.Name, p.Status.Phase, p.Spec.Containers[0].Image))
			}
		}
		if len(pods.Items) != n || len(bad) > 0 {
			return fmt.Errorf("%d pods, %v", len(pods.Items), bad)
		}
		return nil
	})
}

// With real containers: pods that run the new image, and an image that is not there.
func TestRolloutOfContainers(t *testing.T) {
	t.Parallel()
	r := newRolloutTest(t, 3, func(i int, d *appsv1.Deployment) {
		d.Spec.ProgressDeadlineSeconds = new(int32(40)) // kubelet takes its time where other pods come and go
		if i == 1 {
			*replicasOf(d) = 0 // lets a broken image through to the next stage
		}
	})
	r.NeedsContainers()
	r.run(0, "", "-image", rolloutNew, "-stages", "1,2,3")
	r.running(rolloutNew, 2)
	before, _ := r.all()
	result := r.run(1, "stage 2 of 3: web-2: ", "-image", "workshop/pause:no-such-version", "-stages", "1,2,3")
	if !strings.Contains(result.Stderr, "2 Deployments are back") {
		t.Errorf("%s", result.Stderr)
	}
	r.same(before)
	r.running(rolloutNew, 2)
}
