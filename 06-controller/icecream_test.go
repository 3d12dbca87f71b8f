package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedicecream "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

const icecreamProgram = "./06-controller/icecream"

// A parlour is a namespace with an icecream controller in it. The controller
// reaches the cluster through the proxy, the test does not.
type parlour struct {
	*testenv.Env
	t           testing.TB
	proxy       *testenv.Proxy
	icecreams   typedicecream.IcecreamInterface
	deployments typedappsv1.DeploymentInterface
	program     string
	args        []string
	environ     []string
	running     *testenv.Process
	address     string // of health and metrics
}

// openParlour builds the controller, with changes to its source if there are any.
func openParlour(t *testing.T, changes ...testenv.ProgramOption) *parlour {
	t.Helper()
	e := testenv.New(t)
	return newParlour(t, e, e.Program(icecreamProgram, changes...))
}

func newParlour(t testing.TB, e *testenv.Env, program string) *parlour {
	t.Helper()
	crdtest.Share(t, e, icecreams)
	client, err := versioned.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	p := &parlour{Env: e, t: t, proxy: e.Proxy(), program: program,
		icecreams: client.IcecreamV1alpha1().Icecreams(e.Namespace), deployments: e.Client.AppsV1().Deployments(e.Namespace)}
	p.args = []string{"-kubeconfig", p.proxy.Kubeconfig, "-namespace", e.Namespace}
	return p
}

// start starts the controller, and waits until it is ready.
func (p *parlour) start(args ...string) {
	p.t.Helper()
	p.args = append(p.args, args...)
	p.restart()
}

var listening = regexp.MustCompile(`"Listening".* address="?([0-9.:]+)`)

// restart starts the controller with the arguments of the last start.
func (p *parlour) restart() {
	p.t.Helper()
	p.running = p.Start(testenv.Command{Path: p.program, Args: p.args, Timeout: 4 * time.Minute,
		Env: append([]string{"KUBE_CACHE_MUTATION_DETECTOR=true"}, p.environ...)})
	p.Eventually(30*time.Second, func(context.Context) error {
		found := listening.FindStringSubmatch(p.running.Stderr())
		if found == nil {
			return errors.New("the controller has not logged its address")
		}
		p.address = found[1]
		if code, body := p.get("/readyz"); code != http.StatusOK {
			return fmt.Errorf("/readyz: %d %s", code, body)
		}
		return nil
	})
}

func (p *parlour) get(path string) (code int, body string) { return get(p.address, path) }

// stop ends the controller as a cluster does, and expects a good end.
func (p *parlour) stop() {
	p.t.Helper()
	if err := p.running.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if r := p.running.Wait(); r.ExitCode != 0 {
		p.t.Errorf("exit code %d after SIGTERM", r.ExitCode)
	}
}

func (p *parlour) create(name, deployment string, replicas int32) *v1alpha1.Icecream {
	p.t.Helper()
	ice, err := p.icecreams.Create(p.Context(), &v1alpha1.Icecream{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IcecreamSpec{DeploymentName: deployment, Replicas: &replicas},
	}, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return ice
}

// patch changes an Icecream as kubectl patch --type merge does.
func (p *parlour) patch(name, patch string) {
	p.t.Helper()
	if _, err := p.icecreams.Patch(p.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *parlour) patchDeployment(name, patch string) *appsv1.Deployment {
	p.t.Helper()
	d, err := p.deployments.Patch(p.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// foreign creates a Deployment that somebody else wants.
func (p *parlour) foreign(name string, owners ...metav1.OwnerReference) *appsv1.Deployment {
	p.t.Helper()
	d, err := p.deployments.Create(p.Context(), deploymentOf(name, owners...), metav1.CreateOptions{FieldManager: "somebody"})
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func deploymentOf(name string, owners ...metav1.OwnerReference) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: "workshop/pause:1"}}},
			},
		},
	}
}

func (p *parlour) deployment(name string) *appsv1.Deployment {
	p.t.Helper()
	d, err := p.deployments.Get(p.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// until waits until an Icecream is as it should be, and returns it.
func (p *parlour) until(name string, check func(*v1alpha1.Icecream) error) *v1alpha1.Icecream {
	p.t.Helper()
	var ice *v1alpha1.Icecream
	p.Eventually(collected, func(ctx context.Context) (err error) {
		if ice, err = p.icecreams.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(ice)
	})
	return ice
}

// condition checks the status and reason of a condition of the present generation.
func condition(kind string, status metav1.ConditionStatus, reason string) func(*v1alpha1.Icecream) error {
	return func(ice *v1alpha1.Icecream) error {
		c := meta.FindStatusCondition(ice.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != ice.Generation || ice.Status.ObservedGeneration != ice.Generation {
			return fmt.Errorf("generation %d, status %+v; want %s %s/%s", ice.Generation, ice.Status, kind, status, reason)
		}
		return nil
	}
}

var (
	isAvailable = condition("Available", metav1.ConditionTrue, "Available")
	isRefused   = condition("Owned", metav1.ConditionFalse, "ErrResourceExists")
)

// requests are those of the controller that match, without its Events.
func (p *parlour) requests(verb, resource string) []faultproxy.Request {
	return slices.DeleteFunc(p.proxy.Requests(faultproxy.Match{Verb: verb, Resource: resource}), func(r faultproxy.Request) bool {
		return r.Resource == "events"
	})
}

func (p *parlour) writes() []faultproxy.Request {
	var all []faultproxy.Request
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		all = append(all, p.requests(verb, "")...)
	}
	return all
}

// events counts the Events about an Icecream, each as often as it was repeated.
func (p *parlour) events(ice *v1alpha1.Icecream, reason string) (count int, note string) {
	p.t.Helper()
	list, err := p.Client.EventsV1().Events(p.Namespace).List(p.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, event := range list.Items {
		if event.Regarding.UID == ice.UID && event.Reason == reason {
			count, note = count+1, event.Note
			if event.Series != nil {
				count += int(event.Series.Count) - 1
			}
		}
	}
	return count, note
}

// hold waits that long, or shorter if something that must stay true no longer is.
func hold(p *parlour, d time.Duration, check func() error) error {
	p.t.Helper()
	var broken error
	end := time.Now().Add(d)
	p.Eventually(d+30*time.Second, func(context.Context) error {
		if broken = check(); broken == nil && time.Now().Before(end) {
			return errors.New("not long enough")
		}
		return nil
	})
	return broken
}

func (p *parlour) struck(i *faultproxy.Injection) {
	p.t.Helper()
	p.Eventually(30*time.Second, func(context.Context) error {
		if i.Struck() == 0 {
			return errors.New("the fault has not struck")
		}
		return nil
	})
}

func TestIcecream(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start()
	before := metav1.Now()
	p.create("vanilla", "cone", 4)
	ice := p.until("vanilla", isAvailable)

	d := p.deployment("cone")
	label := map[string]string{"controller.nicoleh.io/uid": string(ice.UID)}
	type shape struct {
		Owners          []metav1.OwnerReference
		Selector        *metav1.LabelSelector
		Labels          map[string]string
		Containers      []string
		Replicas        *int32
		CreatedBy       string
		CreatedWithPOST bool
	}
	got := shape{Owners: d.OwnerReferences, Selector: d.Spec.Selector, Labels: d.Spec.Template.Labels, Replicas: d.Spec.Replicas}
	for _, c := range d.Spec.Template.Spec.Containers {
		got.Containers = append(got.Containers, c.Image)
	}
	for _, m := range d.ManagedFields {
		if m.Subresource == "" && m.Manager != "kube-controller-manager" {
			got.CreatedBy, got.CreatedWithPOST = m.Manager, m.Operation == metav1.ManagedFieldsOperationUpdate
		}
	}
	want := shape{
		Owners: []metav1.OwnerReference{{APIVersion: "controller.nicoleh.io/v1alpha1", Kind: "Icecream", Name: "vanilla", UID: ice.UID,
			Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
		Selector: &metav1.LabelSelector{MatchLabels: label}, Labels: label, Containers: []string{"workshop/pause:1"},
		Replicas: ptr.To(int32(4)), CreatedBy: "icecream-controller", CreatedWithPOST: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Deployment (-want +got):\n%s", diff)
	}
	p.checkStatus(ice, 4)
	for _, c := range ice.Status.Conditions {
		if c.LastTransitionTime.Before(&before) && before.Sub(c.LastTransitionTime.Time) > time.Second {
			t.Errorf("condition %s changed at %s, before the Icecream existed", c.Type, c.LastTransitionTime)
		}
	}
	p.Eventually(time.Minute, func(context.Context) error {
		if n, note := p.events(ice, "Synced"); n == 0 || note != "Icecream synced successfully" {
			return fmt.Errorf("%d Events Synced, %q", n, note)
		}
		return nil
	})

	// As kubectl scale and an autoscaler do it.
	scale, err := p.icecreams.GetScale(p.Context(), "vanilla", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(autoscalingv1.ScaleStatus{Replicas: 4, Selector: "controller.nicoleh.io/uid=" + string(ice.UID)}, scale.Status); diff != "" {
		t.Errorf("scale (-want +got):\n%s", diff)
	}
	for _, replicas := range []int32{0, 1} {
		p.patch("vanilla", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		ice = p.until("vanilla", func(ice *v1alpha1.Icecream) error {
			if n := ptr.Deref(ice.Status.Replicas, -1); n != replicas { // pods that are being deleted count no longer
				return fmt.Errorf("%d replicas", n)
			}
			return isAvailable(ice)
		})
		p.Eventually(time.Minute, func(context.Context) error {
			if n := len(p.podsOf(ice)); n != int(replicas) {
				return fmt.Errorf("%d pods, want %d", n, replicas)
			}
			return nil
		})
		ice = p.until("vanilla", func(ice *v1alpha1.Icecream) error {
			if len(ice.Status.Nodes) != int(replicas) {
				return fmt.Errorf("nodes %v of %d pods", ice.Status.Nodes, replicas)
			}
			return nil
		})
		p.checkStatus(ice, replicas)
	}

	if err := p.icecreams.Delete(p.Context(), "vanilla", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.gone("cone")
	p.stop()
}

// collected is how long garbage collection can take: it looks for new kinds of
// objects, such as Icecreams, every 30 seconds.
const collected = 90 * time.Second

func (p *parlour) gone(deployment string) {
	p.t.Helper()
	p.Eventually(collected, func(ctx context.Context) error {
		_, err := p.deployments.Get(ctx, deployment, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("Deployment %s is still there (%v)", deployment, err)
	})
}

func (p *parlour) podsOf(ice *v1alpha1.Icecream) []corev1.Pod {
	p.t.Helper()
	list, err := p.Client.CoreV1().Pods(p.Namespace).List(p.Context(), metav1.ListOptions{LabelSelector: "controller.nicoleh.io/uid=" + string(ice.UID)})
	if err != nil {
		p.t.Fatal(err)
	}
	return list.Items
}

// checkStatus compares a status at rest with what the server says about the pods.
func (p *parlour) checkStatus(ice *v1alpha1.Icecream, replicas int32) {
	p.t.Helper()
	nodes := map[string]bool{}
	for _, pod := range p.podsOf(ice) {
		nodes[pod.Spec.NodeName] = true
	}
	want := v1alpha1.IcecreamStatus{
		ObservedGeneration: ice.Generation, Replicas: &replicas, AvailableReplicas: &replicas,
		Selector: "controller.nicoleh.io/uid=" + string(ice.UID), Nodes: slices.Sorted(maps.Keys(nodes)),
		Conditions: []metav1.Condition{
			{Type: "Owned", Status: metav1.ConditionTrue, Reason: "Created", ObservedGeneration: ice.Generation},
			{Type: "Available", Status: metav1.ConditionTrue, Reason: "Available", ObservedGeneration: ice.Generation},
		},
	}
	got := *ice.Status.DeepCopy()
	for i := range got.Conditions {
		got.Conditions[i].LastTransitionTime, got.Conditions[i].Message = metav1.Time{}, ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestIcecreamAutoscaled(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start()
	p.create("vanilla", "cone", 1)
	p.until("vanilla", isAvailable)
	scalers := p.Client.AutoscalingV2().HorizontalPodAutoscalers(p.Namespace)
	if _, err := scalers.Create(p.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "controller.nicoleh.io/v1alpha1", Kind: "Icecream", Name: "vanilla"},
			MinReplicas:    ptr.To(int32(3)), MaxReplicas: 4,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Without a source of metrics it still enforces the minimum, through the scale.
	p.until("vanilla", func(ice *v1alpha1.Icecream) error {
		scaler, err := scalers.Get(p.Context(), "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n := ptr.Deref(ice.Status.AvailableReplicas, 0); n != 3 || *ice.Spec.Replicas != 3 {
			return fmt.Errorf("spec %d, available %d, autoscaler: %+v", *ice.Spec.Replicas, n, scaler.Status.Conditions)
		}
		for _, c := range scaler.Status.Conditions {
			if c.Type == autoscalingv2.AbleToScale && c.Status != corev1.ConditionTrue || c.Reason == "InvalidSelector" {
				return fmt.Errorf("the autoscaler refuses the scale: %+v", c)
			}
		}
		return nil
	})
}

// What is not the Icecream's stays as it is, until it goes.
func TestIcecreamRefuses(t *testing.T) {
	t.Parallel()
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "00000000-0000-0000-0000-000000000000"}
	for name, prepare := range map[string]func(p *parlour){
		"a Deployment of somebody": func(p *parlour) { p.foreign("cone") },
		"a Deployment of another Icecream": func(p *parlour) {
			p.create("first", "cone", 0)
			p.until("first", isAvailable)
		},
		"a Deployment of somebody who is no controller": func(p *parlour) {
			configMap, err := p.Client.CoreV1().ConfigMaps(p.Namespace).Create(p.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
			if err != nil {
				p.t.Fatal(err)
			}
			other := other
			other.UID = configMap.UID
			p.foreign("cone", other)
		},
		"an orphan of an Icecream of the same name": func(p *parlour) {
			p.create("vanilla", "cone", 0)
			p.until("vanilla", isAvailable)
			if err := p.icecreams.Delete(p.Context(), "vanilla", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}); err != nil {
				p.t.Fatal(err)
			}
			p.Eventually(collected, func(ctx context.Context) error {
				if _, err := p.icecreams.Get(ctx, "vanilla", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is still there (%v)", err)
				}
				return nil
			})
			if owners := p.deployment("cone").OwnerReferences; len(owners) != 0 {
				p.t.Fatalf("not orphaned: %v", owners)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := openParlour(t)
			p.start()
			prepare(p)
			if err := p.refuses(); err != nil {
				t.Error(err)
			}
			// The name is free: nothing but the event says so.
			if _, err := p.icecreams.Get(p.Context(), "first", metav1.GetOptions{}); err == nil {
				if err := p.icecreams.Delete(p.Context(), "first", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			} else if err := p.deployments.Delete(p.Context(), "cone", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			ice := p.until("vanilla", isAvailable)
			if d := p.deployment("cone"); !metav1.IsControlledBy(d, ice) {
				t.Errorf("owners %v", d.OwnerReferences)
			}
		})
	}
}

// refuses creates an Icecream whose Deployment "cone" somebody else has.
func (p *parlour) refuses() error {
	p.t.Helper()
	before := p.deployment("cone")
	p.create("vanilla", "cone", 3)
	var broken error
	p.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if broken = unchanged(before, p.deployment("cone")); broken != nil {
			return nil
		}
		return isRefused(ice)
	})
	if broken != nil {
		return broken
	}
	ice := p.until("vanilla", condition("Available", metav1.ConditionFalse, "Progressing"))
	if ice.Status.Replicas != nil || ice.Status.AvailableReplicas != nil || ice.Status.Nodes != nil {
		return fmt.Errorf("the status counts the pods of another Deployment: %+v", ice.Status)
	}
	p.Eventually(time.Minute, func(context.Context) error {
		if n, note := p.events(ice, "ErrResourceExists"); n != 1 || !strings.Contains(note, "cone") {
			return fmt.Errorf("%d Events ErrResourceExists, %q", n, note)
		}
		return nil
	})
	if n, _ := p.events(ice, "Synced"); n != 0 {
		return fmt.Errorf("%d Events Synced", n)
	}
	p.patch("vanilla", `{"metadata":{"annotations":{"look":"again"}}}`)
	return hold(p, time.Second, func() error { return unchanged(before, p.deployment("cone")) })
}

// unchanged compares what people and controllers want of a Deployment.
func unchanged(before, now *appsv1.Deployment) error {
	plain := func(d *appsv1.Deployment) *appsv1.Deployment {
		d = d.DeepCopy()
		d.ResourceVersion, d.Status, d.ManagedFields = "", appsv1.DeploymentStatus{}, nil
		delete(d.Annotations, "deployment.kubernetes.io/revision")
		if len(d.Annotations) == 0 {
			d.Annotations = nil
		}
		return d
	}
	if diff := cmp.Diff(plain(before), plain(now)); diff != "" {
		return fmt.Errorf("the Deployment has changed:\n%s", diff)
	}
	return nil
}

func TestIcecreamCorrectsDrift(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start()
	ice := p.create("vanilla", "cone", 2)
	p.until("vanilla", isAvailable)
	// Theirs stays through all of it.
	p.patchDeployment("cone", `{"metadata":{"annotations":{"theirs":"x"},"labels":{"theirs":"x"}},"spec":{"minReadySeconds":1,"revisionHistoryLimit":3,
		"template":{"metadata":{"labels":{"theirs":"x"}},"spec":{"terminationGracePeriodSeconds":1}}}}`)
	want := p.deployment("cone")

	containers := func(image string) string {
		return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":%q,"image":%q}]}}}}`, want.Spec.Template.Spec.Containers[0].Name, image)
	}
	reference := func(fields string) string {
		return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"controller.nicoleh.io/v1alpha1","kind":"Icecream","name":"vanilla","uid":%q%s}]}}`, ice.UID, fields)
	}
	for _, drift := range []struct{ name, patch string }{
		{"replicas", `{"spec":{"replicas":7}}`},
		{"image", containers("workshop/pause:2")},
		{"a reference that is no controller's", reference(``)},
		{"a reference that is marked as no controller's", reference(`,"controller":false,"blockOwnerDeletion":false`)},
		{"a reference that blocks nothing", reference(`,"controller":true`)},
	} {
		drifted := p.patchDeployment("cone", drift.patch)
		if err := unchanged(want, drifted); err == nil {
			t.Fatalf("%s: the patch changes nothing", drift.name)
		}
		p.Eventually(time.Minute, func(context.Context) error {
			now := p.deployment("cone")
			now.Generation = want.Generation
			if err := unchanged(want, now); err != nil {
				return fmt.Errorf("%s: %w", drift.name, err)
			}
			return nil
		})
	}
	var applied bool
	for _, m := range p.deployment("cone").ManagedFields {
		applied = applied || m.Manager == "icecream-controller" && m.Operation == metav1.ManagedFieldsOperationApply
	}
	if !applied {
		t.Error("nothing was applied by the field manager icecream-controller")
	}
	// A container of somebody else's stays, too.
	p.patchDeployment("cone", fmt.Sprintf(`{"spec":{"replicas":5,"template":{"spec":{"containers":[
		{"name":%q,"image":"workshop/pause:1"},{"name":"sidecar","image":"workshop/pause:1"}]}}}}`, want.Spec.Template.Spec.Containers[0].Name))
	p.Eventually(time.Minute, func(context.Context) error {
		d := p.deployment("cone")
		if *d.Spec.Replicas != 2 || len(d.Spec.Template.Spec.Containers) != 2 {
			return fmt.Errorf("%d replicas of %d containers, want 2 and 2", *d.Spec.Replicas, len(d.Spec.Template.Spec.Containers))
		}
		return nil
	})
	// Another image is a drift of every Deployment.
	p.stop()
	p.start("-image", "workshop/pause:3")
	p.Eventually(time.Minute, func(context.Context) error {
		if image := p.deployment("cone").Spec.Template.Spec.Containers[0].Image; image != "workshop/pause:3" {
			return fmt.Errorf("image %s", image)
		}
		return nil
	})
	// Deleted is drift as well.
	if err := p.deployments.Delete(p.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Eventually(time.Minute, func(ctx context.Context) error {
		now, err := p.deployments.Get(ctx, "cone", metav1.GetOptions{})
		if err == nil && now.UID == want.UID {
			err = errors.New("the deleted one is still there")
		}
		return err
	})
}

func TestIcecreamRenamesToAForeignName(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start()
	p.create("vanilla", "cone", 2)
	p.until("vanilla", isAvailable)
	before := p.deployment("cone")
	p.foreign("cup")
	p.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	ice := p.until("vanilla", isRefused)
	if n := ptr.Deref(ice.Status.AvailableReplicas, -1); n != 2 || len(ice.Status.Nodes) == 0 {
		t.Errorf("status %+v does not tell of the Deployment that the Icecream still has", ice.Status)
	}
	if err := hold(p, time.Second, func() error { return unchanged(before, p.deployment("cone")) }); err != nil {
		t.Error(err)
	}
	if err := p.deployments.Delete(p.Context(), "cup", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.until("vanilla", isAvailable)
	p.gone("cone")
}

func TestIcecreamNamesAtMostAHundredNodes(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start()
	ice := p.create("vanilla", "cone", 0)
	p.until("vanilla", isAvailable)
	// No kubelet knows these nodes; for the controller they are nodes like others.
	var want []string
	for i := range 101 {
		node := fmt.Sprintf("node-%s-%03d", p.Namespace, 100-i)
		if i > 0 {
			want = append(want, node)
		}
		if _, err := p.Client.CoreV1().Pods(p.Namespace).Create(p.Context(), podOn(ice, node), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	p.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if diff := cmp.Diff(want, ice.Status.Nodes); diff != "" {
			return fmt.Errorf("nodes (-want +got):\n%s", diff)
		}
		return nil
	})
}

// A pod changes from one Icecream's label to another's, and both say so.
func TestIcecreamFollowsLabels(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start()
	vanilla, mint := p.create("vanilla", "cone", 0), p.create("mint", "cup", 0)
	node := "node-" + p.Namespace
	pods := p.Client.CoreV1().Pods(p.Namespace)
	pod, err := pods.Create(p.Context(), podOn(vanilla, node), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	on := func(want ...string) func(*v1alpha1.Icecream) error {
		return func(ice *v1alpha1.Icecream) error {
			if !slices.Equal(ice.Status.Nodes, want) {
				return fmt.Errorf("nodes %v, want %v", ice.Status.Nodes, want)
			}
			return isAvailable(ice)
		}
	}
	p.until("vanilla", on(node))
	p.until("mint", on())
	patch := fmt.Sprintf(`{"metadata":{"labels":{"controller.nicoleh.io/uid":%q}}}`, mint.UID)
	if _, err := pods.Patch(p.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.until("vanilla", on())
	p.until("mint", on(node))
}

// In a namespace that is being deleted nothing can be created. One try is
// enough, and neither a refused Deployment nor a refused Event is an error.
func TestIcecreamInANamespaceThatGoes(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	delivered := deliveries(t, p.proxy)
	p.start("-resync", "1s")
	p.create("vanilla", "cone", 0)
	ice := p.until("vanilla", isAvailable)
	p.Eventually(time.Minute, func(context.Context) error { return delivered(ice.ResourceVersion) })
	finalizers := func(list string) {
		_, err := p.icecreams.Patch(context.WithoutCancel(p.Context()), "vanilla", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	finalizers(`["test.k8s-go.openshift.org/hold"]`)
	t.Cleanup(func() { finalizers("null") })
	// The controller does not hear that the Icecream is being deleted, too.
	held := p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold})
	if err := p.Client.CoreV1().Namespaces().Delete(p.Context(), p.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Eventually(namespaceGoes, func(context.Context) error {
		if n := len(p.requests("create", "deployments")); n < 2 {
			return fmt.Errorf("%d POSTs", n)
		}
		return nil
	})
	if err := hold(p, 3500*time.Millisecond, func() error { // three resyncs
		if n := len(p.requests("create", "deployments")); n > 2 {
			return fmt.Errorf("tried again: %d POSTs", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	held.Remove()
	p.stop()
	if log := p.running.Stderr(); strings.Contains(log, "Server rejected event") || strings.Contains(log, "Trying again later") {
		t.Errorf("the log:\n%s", log)
	}
}

func podOn(ice *v1alpha1.Icecream, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fake-", Labels: map[string]string{"controller.nicoleh.io/uid": string(ice.UID)}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{Name: "pause", Image: "workshop/pause:1"}}},
	}
}

func TestIcecreamProgram(t *testing.T) {
	t.Parallel()
	p := openParlour(t)
	p.start("-workers", "1", "-listen", "localhost:0")
	if code, body := p.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, body := p.get("/metrics"); code != http.StatusOK || !strings.Contains(body, "workqueue_depth") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	elsewhere := openParlour(t)
	elsewhere.create("vanilla", "cone", 0)
	p.create("vanilla", "cone", 0)
	p.until("vanilla", isAvailable)
	if list, err := elsewhere.deployments.List(p.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("in a namespace that is not the controller's: %v %v", list.Items, err)
	}
	if err := p.running.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if r := p.running.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d after SIGINT", r.ExitCode)
	}
	for want, args := range map[string][]string{
		"reading the kubeconfig": {"-kubeconfig", "/no/such/file"},
		"listening for health":   {"-kubeconfig", p.proxy.Kubeconfig, "-listen", "no-such-host.invalid:0"},
	} {
		if r := p.Run(testenv.Command{Path: p.program, Args: args}); r.ExitCode != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: exit code %d, want 1 and %q\n%s", args, r.ExitCode, want, r.Stderr)
		}
	}
}

// withoutAGuard builds the controller so that the environment variable WITHOUT
// names a guard that it then does not have. It is built once for all guards.
var withoutAGuard = []testenv.ProgramOption{
	testenv.AddFile("controller/without.go", `package controller

import "os"

func without(guard string) bool { return os.Getenv("WITHOUT") == guard }
`),
	testenv.Replace("controller/controller.go", "Preconditions:     &metav1.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion},",
		`Preconditions: map[bool]*metav1.Preconditions{false: {UID: &old.UID, ResourceVersion: &old.ResourceVersion}}[without("preconditions")],`),
	testenv.Replace("controller/controller.go", ".WithResourceVersion(d.ResourceVersion)",
		`.WithResourceVersion(map[bool]string{false: d.ResourceVersion}[without("resourceVersion of an apply")])`),
	testenv.Replace("controller/controller.go", "ours && available(ice, deployment)", `ours && (without("patience") || available(ice, deployment))`),
	testenv.Replace("controller/controller.go", "\treturn false\n}\n\n// correct", "\treturn without(\"ownership\")\n}\n\n// correct"),
	testenv.Replace("controller/controller.go", "if c.written.ahead(key) {", `if c.written.ahead(key) && !without("catching up") {`),
	testenv.Replace("controller/controller.go", "if equality.Semantic.DeepEqual(ice.Status, status) {",
		`if equality.Semantic.DeepEqual(ice.Status, status) && !without("no-op check of the status") {`),
	testenv.Replace("controller/controller.go", `if drift == "" ||`, `if drift == "" && !without("no-op check of the Deployment") ||`),
	testenv.Replace("controller/controller.go", "if wrote || retired || reported {", `if wrote || retired || reported || without("no-op check of the Event") {`),
	testenv.Replace("controller/controller.go", "!exists || o.(*v1alpha1.Icecream).DeletionTimestamp != nil",
		`!exists || !without("deletion check") && o.(*v1alpha1.Icecream).DeletionTimestamp != nil`),
	testenv.Replace("../loop/loop.go", "\t\"fmt\"\n", "\t\"fmt\"\n\t\"os\"\n"),
	testenv.Replace("../loop/loop.go", "\tl.queue.AddRateLimited(key)\n",
		"\tif !stale(err) || os.Getenv(\"WITHOUT\") != \"conflict handling\" {\n\t\tl.queue.AddRateLimited(key)\n\t}\n"),
}

// Each guard is there for a claim, which holds with it, and not without it.
func TestIcecreamGuards(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		claim  func(p *parlour) error
		guards map[string]string // and what the claim says without each
	}{
		{deletesOnlyItsOwn, map[string]string{"preconditions": "deleted"}},
		{takesNothingBack, map[string]string{"resourceVersion of an apply": "taken back"}},
		{keepsTheOldOne, map[string]string{"patience": "too early"}},
		{refusesAnOrphan, map[string]string{"ownership": "taken back"}},
		{looksAtNoOldCache, map[string]string{"catching up": "written again"}},
		{isQuiet, map[string]string{
			"no-op check of the status":     "update icecreams/status",
			"no-op check of the Deployment": "patch deployments",
			"no-op check of the Event":      "Events",
		}},
		{letsGo, map[string]string{"deletion check": "created"}},
		{triesAgainAfterAConflict, map[string]string{"conflict handling": "given up"}},
	} {
		guards := slices.Sorted(maps.Keys(tc.guards))
		t.Run(guards[0], func(t *testing.T) {
			t.Parallel()
			if err := tc.claim(openParlour(t)); err != nil {
				t.Error(err)
			}
		})
		for _, guard := range guards {
			t.Run("without "+guard, func(t *testing.T) {
				t.Parallel()
				p := openParlour(t, withoutAGuard...)
				p.environ = []string{"WITHOUT=" + guard}
				if err := tc.claim(p); err == nil || !strings.Contains(err.Error(), tc.guards[guard]) {
					t.Errorf("without the guard: %v; want an error with %q", err, tc.guards[guard])
				}
			})
		}
	}
}

// answered waits until a request that was stalled has got an answer.
func (p *parlour) answered(verb, resource string, fault faultproxy.Fault) {
	p.t.Helper()
	p.Eventually(30*time.Second, func(context.Context) error {
		for _, r := range p.requests(verb, resource) {
			if slices.Contains(r.Faults, fault) && r.Took > 0 {
				return nil
			}
		}
		return errors.New("the stalled request is not answered")
	})
}

// A Deployment is replaced by another one of the same name, just before the
// controller deletes the first.
func deletesOnlyItsOwn(p *parlour) error {
	p.start()
	p.create("vanilla", "cone", 0)
	p.until("vanilla", isAvailable)
	stalled := p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete", Resource: "deployments"}, Fault: faultproxy.Stall})
	p.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	p.struck(stalled)
	if err := p.deployments.Delete(p.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	p.gone("cone")
	p.foreign("cone")
	stalled.Remove()
	p.answered("delete", "deployments", faultproxy.Stall)
	if _, err := p.deployments.Get(p.Context(), "cone", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("somebody's Deployment was deleted: %w", err)
	}
	return nil
}

// A Deployment is taken from the Icecream, just before the controller corrects it.
func takesNothingBack(p *parlour) error {
	p.start()
	p.create("vanilla", "cone", 0)
	p.until("vanilla", isAvailable)
	stalled := p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "deployments"}, Fault: faultproxy.Stall})
	p.patchDeployment("cone", `{"spec":{"replicas":1}}`)
	p.struck(stalled)
	p.patchDeployment("cone", `{"metadata":{"ownerReferences":null}}`)
	stalled.Remove()
	p.answered("patch", "deployments", faultproxy.Stall)
	if d := p.deployment("cone"); len(d.OwnerReferences) > 0 || *d.Spec.Replicas != 1 {
		return fmt.Errorf("the Deployment was taken back: owners %v, %d replicas", d.OwnerReferences, *d.Spec.Replicas)
	}
	p.until("vanilla", isRefused)
	return nil
}

// Somebody takes a Deployment from the Icecream, and changes it.
func refusesAnOrphan(p *parlour) error {
	p.start()
	p.create("vanilla", "cone", 0)
	p.until("vanilla", isAvailable)
	before := p.patchDeployment("cone", `{"metadata":{"ownerReferences":null},"spec":{"replicas":1}}`)
	var broken error
	p.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if broken = unchanged(before, p.deployment("cone")); broken != nil {
			return nil
		}
		return isRefused(ice)
	})
	if broken != nil {
		return fmt.Errorf("the Deployment was taken back: %w", broken)
	}
	return nil
}

// The new Deployment cannot have its pods for a while.
func keepsTheOldOne(p *parlour) error {
	p.start()
	p.create("vanilla", "cone", 1)
	p.until("vanilla", isAvailable)
	quotas := p.Client.CoreV1().ResourceQuotas(p.Namespace)
	if _, err := quotas.Create(p.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	p.Eventually(time.Minute, func(ctx context.Context) error {
		quota, err := quotas.Get(ctx, "full", metav1.GetOptions{})
		if err == nil && quota.Status.Used.Pods().Value() != 1 {
			err = errors.New("the quota is not in force")
		}
		return err
	})
	p.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	p.until("vanilla", condition("Available", metav1.ConditionFalse, "Progressing"))
	err := hold(p, time.Second, func() error {
		if _, err := p.deployments.Get(p.Context(), "cone", metav1.GetOptions{}); err != nil {
			return fmt.Errorf("the old Deployment went too early: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := quotas.Delete(p.Context(), "full", metav1.DeleteOptions{}); err != nil {
		return err
	}
	p.until("vanilla", isAvailable)
	p.gone("cone")
	return nil
}

// The cache shows no Deployments for a while.
func looksAtNoOldCache(p *parlour) error {
	p.start()
	behind := p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Times: -1})
	p.create("vanilla", "cone", 0)
	p.struck(behind)
	for look := range 5 {
		p.patch("vanilla", fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, look))
	}
	err := hold(p, 1500*time.Millisecond, func() error {
		if n := len(p.requests("create", "deployments")) + len(p.requests("patch", "deployments")); n != 1 {
			return fmt.Errorf("the Deployment was written again: %d times", n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	behind.Remove()
	p.until("vanilla", isAvailable)
	return nil
}

// shortest is the shortest resync that client-go grants.
const shortest = time.Second

// Nothing changes, however often the controller looks, and who looks.
func isQuiet(p *parlour) error {
	p.start("-resync", shortest.String())
	ice := p.create("vanilla", "cone", 2)
	p.until("vanilla", isAvailable)
	synced := func() int { n, _ := p.events(ice, "Synced"); return n }
	// What it does last is to send an Event.
	writes, events, since := 0, 0, time.Now()
	p.Eventually(30*time.Second, func(context.Context) error {
		w, e := len(p.writes()), synced()
		if (w != writes || e != events || e == 0) && time.Since(since) < 5*time.Second {
			writes, events = w, e
			return errors.New("it is still busy")
		}
		return nil
	})
	quiet := func() error {
		if all := p.writes(); len(all) > writes {
			return fmt.Errorf("a write for nothing: %s", all[len(all)-1])
		}
		if n := synced(); n != events {
			return fmt.Errorf("%d Events Synced for nothing", n-events)
		}
		return nil
	}
	if err := hold(p, 5*shortest/2, quiet); err != nil {
		return err
	}
	p.stop()
	p.restart()
	return hold(p, 5*shortest/2, quiet)
}

// An Icecream that is deleted in the foreground stays until its Deployment is gone.
func letsGo(p *parlour) error {
	p.start()
	p.create("vanilla", "cone", 1)
	p.until("vanilla", isAvailable)
	// Held by a finalizer, the Icecream is still there when its Deployment has gone.
	finalizers := func(list string) error {
		_, err := p.icecreams.Patch(p.Context(), "vanilla", types.MergePatchType, []byte(`{"metadata": {"finalizers": `+list+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := finalizers(`["test.k8s-go.openshift.org/hold"]`); err != nil {
		return err
	}
	if err := p.icecreams.Delete(p.Context(), "vanilla", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := p.deployments.Delete(p.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	p.create("witness", "cup", 0) // when this one is served, the deletion was looked at, too
	p.until("witness", isAvailable)
	var broken error
	if n := len(p.requests("create", "deployments")); n != 2 {
		broken = fmt.Errorf("a Deployment was created for an Icecream that is being deleted (%d)", n-1)
	}
	return errors.Join(broken, finalizers("null"))
}

// A write meets a conflict, and no event follows.
func triesAgainAfterAConflict(p *parlour) error {
	p.start()
	ice := p.create("vanilla", "cone", 0)
	p.until("vanilla", isAvailable)
	conflicts := p.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "icecreams/status"},
		Fault: faultproxy.Answer, Code: http.StatusConflict, Times: 3})
	node := "node-" + p.Namespace
	if _, err := p.Client.CoreV1().Pods(p.Namespace).Create(p.Context(), podOn(ice, node), metav1.CreateOptions{}); err != nil {
		return err
	}
	p.struck(conflicts)
	for deadline := time.Now().Add(5 * time.Second); ; {
		ice, err := p.icecreams.Get(p.Context(), "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if slices.Equal(ice.Status.Nodes, []string{node}) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the controller has given up: nodes %v, want %s", ice.Status.Nodes, node)
		}
		_ = hold(p, 100*time.Millisecond, func() error { return nil })
	}
	if strings.Contains(p.running.Stderr(), "Trying again later") {
		return fmt.Errorf("a conflict was logged as an error:\n%s", p.running.Stderr())
	}
	return nil
}
