package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
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
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedicecream "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

const icecreamProgram = "./06-controller/icecream"

// An icecreamTest is a namespace with an icecream controller in it.
type icecreamTest struct {
	*controllertest.Controller
	icecreams   typedicecream.IcecreamInterface
	deployments typedappsv1.DeploymentInterface
	further     int // Icecreams that lookedAt has made
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
	crdtest.Share(t, e, icecreams)
	client, err := versioned.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	f := &icecreamTest{Controller: controllertest.New(t, e, program),
		icecreams: client.IcecreamV1alpha1().Icecreams(e.Namespace), deployments: e.Client.AppsV1().Deployments(e.Namespace)}
	f.Command.Env = []string{"KUBE_CACHE_MUTATION_DETECTOR=true"}
	return f
}

func (f *icecreamTest) create(name, deployment string, replicas int32) *v1alpha1.Icecream {
	f.T.Helper()
	ice, err := f.icecreams.Create(f.Context(), &v1alpha1.Icecream{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IcecreamSpec{DeploymentName: deployment, Replicas: &replicas},
	}, metav1.CreateOptions{})
	if err != nil {
		f.T.Fatal(err)
	}
	return ice
}

// patch changes an Icecream as kubectl patch --type merge does.
func (f *icecreamTest) patch(name, patch string) {
	f.T.Helper()
	if _, err := f.icecreams.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		f.T.Fatal(err)
	}
}

func (f *icecreamTest) patchDeployment(name, patch string) *appsv1.Deployment {
	f.T.Helper()
	d, err := f.deployments.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		f.T.Fatal(err)
	}
	return d
}

// foreign creates a Deployment that somebody else wants.
func (f *icecreamTest) foreign(name string, owners ...metav1.OwnerReference) *appsv1.Deployment {
	f.T.Helper()
	d, err := f.deployments.Create(f.Context(), deploymentOf(name, owners...), metav1.CreateOptions{FieldManager: "somebody"})
	if err != nil {
		f.T.Fatal(err)
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

func (f *icecreamTest) deployment(name string) *appsv1.Deployment {
	f.T.Helper()
	d, err := f.deployments.Get(f.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.T.Fatal(err)
	}
	return d
}

// until waits until an Icecream is as it should be, and returns it.
func (f *icecreamTest) until(name string, check func(*v1alpha1.Icecream) error) *v1alpha1.Icecream {
	f.T.Helper()
	var ice *v1alpha1.Icecream
	f.Eventually(collected, func(ctx context.Context) (err error) {
		if ice, err = f.icecreams.Get(ctx, name, metav1.GetOptions{}); err != nil {
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

// requests are those of the controller so far.
func (f *icecreamTest) requests(verb, resource string) []faultproxy.Request {
	return f.Proxy.Requests(faultproxy.Match{Verb: verb, Resource: resource})
}

// events counts the Events about an Icecream, each as often as it was repeated.
func (f *icecreamTest) events(ice *v1alpha1.Icecream, reason string) (count int, note string) {
	f.T.Helper()
	list, err := f.Client.EventsV1().Events(f.Namespace).List(f.Context(), metav1.ListOptions{})
	if err != nil {
		f.T.Fatal(err)
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

func TestIcecream(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	before := metav1.Now()
	f.create("vanilla", "cone", 4)
	ice := f.until("vanilla", isAvailable)

	d := f.deployment("cone")
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
	f.checkStatus(ice, 4)
	for _, c := range ice.Status.Conditions {
		if c.LastTransitionTime.Before(&before) && before.Sub(c.LastTransitionTime.Time) > time.Second {
			t.Errorf("condition %s changed at %s, before the Icecream existed", c.Type, c.LastTransitionTime)
		}
	}
	f.Eventually(time.Minute, func(context.Context) error {
		if n, note := f.events(ice, "Synced"); n == 0 || note != "Icecream synced successfully" {
			return fmt.Errorf("%d Events Synced, %q", n, note)
		}
		return nil
	})

	// As kubectl scale and an autoscaler do it.
	scale, err := f.icecreams.GetScale(f.Context(), "vanilla", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(autoscalingv1.ScaleStatus{Replicas: 4, Selector: "controller.nicoleh.io/uid=" + string(ice.UID)}, scale.Status); diff != "" {
		t.Errorf("scale (-want +got):\n%s", diff)
	}
	for _, replicas := range []int32{0, 1} {
		f.patch("vanilla", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		ice = f.until("vanilla", func(ice *v1alpha1.Icecream) error {
			if n := ptr.Deref(ice.Status.Replicas, -1); n != replicas { // pods that are being deleted count no longer
				return fmt.Errorf("%d replicas", n)
			}
			return isAvailable(ice)
		})
		f.Eventually(time.Minute, func(context.Context) error {
			if n := len(f.podsOf(ice)); n != int(replicas) {
				return fmt.Errorf("%d pods, want %d", n, replicas)
			}
			return nil
		})
		ice = f.until("vanilla", func(ice *v1alpha1.Icecream) error {
			if len(ice.Status.Nodes) != int(replicas) {
				return fmt.Errorf("nodes %v of %d pods", ice.Status.Nodes, replicas)
			}
			return nil
		})
		f.checkStatus(ice, replicas)
	}

	if err := f.icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.gone("cone")
	f.Stop()
}

// collected is how long garbage collection can take: it looks for new kinds of
// objects, such as Icecreams, every 30 seconds.
const collected = 90 * time.Second

func (f *icecreamTest) gone(deployment string) {
	f.T.Helper()
	f.Eventually(collected, func(ctx context.Context) error {
		_, err := f.deployments.Get(ctx, deployment, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("Deployment %s is still there (%v)", deployment, err)
	})
}

func (f *icecreamTest) podsOf(ice *v1alpha1.Icecream) []corev1.Pod {
	f.T.Helper()
	list, err := f.Client.CoreV1().Pods(f.Namespace).List(f.Context(), metav1.ListOptions{LabelSelector: "controller.nicoleh.io/uid=" + string(ice.UID)})
	if err != nil {
		f.T.Fatal(err)
	}
	return list.Items
}

// checkStatus compares a status at rest with what the server says about the pods.
func (f *icecreamTest) checkStatus(ice *v1alpha1.Icecream, replicas int32) {
	f.T.Helper()
	nodes := map[string]bool{}
	for _, pod := range f.podsOf(ice) {
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
		f.T.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestIcecreamAutoscaled(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	f.create("vanilla", "cone", 1)
	f.until("vanilla", isAvailable)
	scalers := f.Client.AutoscalingV2().HorizontalPodAutoscalers(f.Namespace)
	if _, err := scalers.Create(f.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "controller.nicoleh.io/v1alpha1", Kind: "Icecream", Name: "vanilla"},
			MinReplicas:    ptr.To(int32(3)), MaxReplicas: 4,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Without a source of metrics it still enforces the minimum, through the scale.
	f.until("vanilla", func(ice *v1alpha1.Icecream) error {
		scaler, err := scalers.Get(f.Context(), "vanilla", metav1.GetOptions{})
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
	for name, prepare := range map[string]func(f *icecreamTest){
		"a Deployment of somebody": func(f *icecreamTest) { f.foreign("cone") },
		"a Deployment of another Icecream": func(f *icecreamTest) {
			f.create("first", "cone", 0)
			f.until("first", isAvailable)
		},
		"a Deployment of somebody who is no controller": func(f *icecreamTest) {
			configMap, err := f.Client.CoreV1().ConfigMaps(f.Namespace).Create(f.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
			if err != nil {
				f.T.Fatal(err)
			}
			other := other
			other.UID = configMap.UID
			f.foreign("cone", other)
		},
		"an orphan of an Icecream of the same name": func(f *icecreamTest) {
			f.create("vanilla", "cone", 0)
			f.until("vanilla", isAvailable)
			if err := f.icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}); err != nil {
				f.T.Fatal(err)
			}
			f.Eventually(collected, func(ctx context.Context) error {
				if _, err := f.icecreams.Get(ctx, "vanilla", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is still there (%v)", err)
				}
				return nil
			})
			if owners := f.deployment("cone").OwnerReferences; len(owners) != 0 {
				f.T.Fatalf("not orphaned: %v", owners)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newIcecreamTest(t)
			f.Start()
			prepare(f)
			if err := f.refuses(); err != nil {
				t.Error(err)
			}
			// The name is free: nothing but the event says so.
			if _, err := f.icecreams.Get(f.Context(), "first", metav1.GetOptions{}); err == nil {
				if err := f.icecreams.Delete(f.Context(), "first", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			} else if err := f.deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			ice := f.until("vanilla", isAvailable)
			if d := f.deployment("cone"); !metav1.IsControlledBy(d, ice) {
				t.Errorf("owners %v", d.OwnerReferences)
			}
		})
	}
}

// refuses creates an Icecream whose Deployment "cone" somebody else has.
func (f *icecreamTest) refuses() error {
	f.T.Helper()
	before := f.deployment("cone")
	f.create("vanilla", "cone", 3)
	var broken error
	f.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if broken = unchanged(before, f.deployment("cone")); broken != nil {
			return nil
		}
		return isRefused(ice)
	})
	if broken != nil {
		return broken
	}
	ice := f.until("vanilla", condition("Available", metav1.ConditionFalse, "Progressing"))
	if ice.Status.Replicas != nil || ice.Status.AvailableReplicas != nil || ice.Status.Nodes != nil {
		return fmt.Errorf("the status counts the pods of another Deployment: %+v", ice.Status)
	}
	f.Eventually(time.Minute, func(context.Context) error {
		if n, note := f.events(ice, "ErrResourceExists"); n != 1 || !strings.Contains(note, "cone") {
			return fmt.Errorf("%d Events ErrResourceExists, %q", n, note)
		}
		return nil
	})
	if n, _ := f.events(ice, "Synced"); n != 0 {
		return fmt.Errorf("%d Events Synced", n)
	}
	f.patch("vanilla", `{"metadata":{"annotations":{"look":"again"}}}`)
	return f.lookedAt(func() error { return unchanged(before, f.deployment("cone")) })
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
	f := newIcecreamTest(t)
	f.Start()
	ice := f.create("vanilla", "cone", 2)
	f.until("vanilla", isAvailable)
	// Theirs stays through all of it.
	f.patchDeployment("cone", `{"metadata":{"annotations":{"theirs":"x"},"labels":{"theirs":"x"}},"spec":{"minReadySeconds":1,"revisionHistoryLimit":3,
		"template":{"metadata":{"labels":{"theirs":"x"}},"spec":{"terminationGracePeriodSeconds":1}}}}`)
	want := f.deployment("cone")

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
		drifted := f.patchDeployment("cone", drift.patch)
		if err := unchanged(want, drifted); err == nil {
			t.Fatalf("%s: the patch changes nothing", drift.name)
		}
		f.Eventually(time.Minute, func(context.Context) error {
			now := f.deployment("cone")
			now.Generation = want.Generation
			if err := unchanged(want, now); err != nil {
				return fmt.Errorf("%s: %w", drift.name, err)
			}
			return nil
		})
	}
	var applied bool
	for _, m := range f.deployment("cone").ManagedFields {
		applied = applied || m.Manager == "icecream-controller" && m.Operation == metav1.ManagedFieldsOperationApply
	}
	if !applied {
		t.Error("nothing was applied by the field manager icecream-controller")
	}
	// A container of somebody else's stays, too.
	f.patchDeployment("cone", fmt.Sprintf(`{"spec":{"replicas":5,"template":{"spec":{"containers":[
		{"name":%q,"image":"workshop/pause:1"},{"name":"sidecar","image":"workshop/pause:1"}]}}}}`, want.Spec.Template.Spec.Containers[0].Name))
	f.Eventually(time.Minute, func(context.Context) error {
		d := f.deployment("cone")
		if *d.Spec.Replicas != 2 || len(d.Spec.Template.Spec.Containers) != 2 {
			return fmt.Errorf("%d replicas of %d containers, want 2 and 2", *d.Spec.Replicas, len(d.Spec.Template.Spec.Containers))
		}
		return nil
	})
	// Another image is a drift of every Deployment.
	f.Stop()
	f.Start("-image", "workshop/pause:3")
	f.Eventually(time.Minute, func(context.Context) error {
		if image := f.deployment("cone").Spec.Template.Spec.Containers[0].Image; image != "workshop/pause:3" {
			return fmt.Errorf("image %s", image)
		}
		return nil
	})
	// Deleted is drift as well.
	if err := f.deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Eventually(time.Minute, func(ctx context.Context) error {
		now, err := f.deployments.Get(ctx, "cone", metav1.GetOptions{})
		if err == nil && now.UID == want.UID {
			err = errors.New("the deleted one is still there")
		}
		return err
	})
}

func TestIcecreamRenamesToAForeignName(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	f.create("vanilla", "cone", 2)
	f.until("vanilla", isAvailable)
	before := f.deployment("cone")
	f.foreign("cup")
	f.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	ice := f.until("vanilla", isRefused)
	if n := ptr.Deref(ice.Status.AvailableReplicas, -1); n != 2 || len(ice.Status.Nodes) == 0 {
		t.Errorf("status %+v does not tell of the Deployment that the Icecream still has", ice.Status)
	}
	if err := f.lookedAt(func() error { return unchanged(before, f.deployment("cone")) }); err != nil {
		t.Error(err)
	}
	if err := f.deployments.Delete(f.Context(), "cup", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.until("vanilla", isAvailable)
	f.gone("cone")
}

func TestIcecreamNamesAtMostAHundredNodes(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	ice := f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	// No kubelet knows these nodes; for the controller they are nodes like others. The pod
	// garbage collector knows that there are none, and deletes their pods after 40 s. So
	// the pods are made all at once.
	want, errs := make([]string, 101), make([]error, 101)
	workqueue.ParallelizeUntil(f.Context(), 16, len(want), func(i int) {
		i = len(want) - 1 - i // the last in order come first
		want[i] = fmt.Sprintf("node-%s-%03d", f.Namespace, i)
		_, errs[i] = f.Client.CoreV1().Pods(f.Namespace).Create(f.Context(), podOn(ice, want[i]), metav1.CreateOptions{})
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	want = want[:100]
	f.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if diff := cmp.Diff(want, ice.Status.Nodes); diff != "" {
			return fmt.Errorf("nodes (-want +got):\n%s", diff)
		}
		return nil
	})
}

// A pod changes from one Icecream's label to another's, and both say so.
func TestIcecreamFollowsLabels(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	vanilla, mint := f.create("vanilla", "cone", 0), f.create("mint", "cup", 0)
	node := "node-" + f.Namespace
	pods := f.Client.CoreV1().Pods(f.Namespace)
	pod, err := pods.Create(f.Context(), podOn(vanilla, node), metav1.CreateOptions{})
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
	f.until("vanilla", on(node))
	f.until("mint", on())
	patch := fmt.Sprintf(`{"metadata":{"labels":{"controller.nicoleh.io/uid":%q}}}`, mint.UID)
	if _, err := pods.Patch(f.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.until("vanilla", on())
	f.until("mint", on(node))
}

// In a namespace that is being deleted nothing can be created. One try is
// enough, and neither a refused Deployment nor a refused Event is an error.
func TestIcecreamInANamespaceThatGoes(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	delivered := deliveries(t, f.Proxy)
	f.Start("-resync", "1s")
	f.foreign("cone") // an Icecream that had a Deployment is read live before it gets another one
	f.create("vanilla", "cone", 0)
	ice := f.until("vanilla", isRefused)
	f.Eventually(time.Minute, func(context.Context) error { return delivered(ice.ResourceVersion) })
	finalizers := func(list string) {
		_, err := f.icecreams.Patch(context.WithoutCancel(f.Context()), "vanilla", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	finalizers(`["test.k8s-go.openshift.org/hold"]`)
	t.Cleanup(func() { finalizers("null") })
	// The controller does not hear that the Icecream is being deleted, too.
	held := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold})
	if err := f.Client.CoreV1().Namespaces().Delete(f.Context(), f.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Eventually(namespaceGoes, func(context.Context) error {
		if n := len(f.requests("create", "deployments")); n < 1 {
			return fmt.Errorf("%d POSTs", n)
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

func podOn(ice *v1alpha1.Icecream, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fake-", Labels: map[string]string{"controller.nicoleh.io/uid": string(ice.UID)}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{Name: "pause", Image: "workshop/pause:1"}}},
	}
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
	if err := f.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if r := f.Process.Wait(); r.ExitCode != 0 {
		t.Errorf("exit code %d after SIGINT", r.ExitCode)
	}
	for want, args := range map[string][]string{
		"reading the kubeconfig": {"-kubeconfig", "/no/such/file"},
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
	"waiting for the new one": {testenv.Replace("controller/controller.go", "ours && available(ice, deployment)", `ours && (without("waiting for the new one") || available(ice, deployment))`)},
	"ownership":               {testenv.Replace("controller/controller.go", "\treturn false\n}\n\n// correct", "\treturn without(\"ownership\")\n}\n\n// correct")},
	"catching up":             {testenv.Replace("controller/controller.go", "if c.writes.Behind(key) {", `if c.writes.Behind(key) && !without("catching up") {`)},
	"no-op check of the status": {testenv.Replace("controller/controller.go", "if equality.Semantic.DeepEqual(ice.Status, status) {",
		`if equality.Semantic.DeepEqual(ice.Status, status) && !without("no-op check of the status") {`)},
	"no-op check of the Deployment": {testenv.Replace("controller/controller.go", `if drift == "" ||`, `if drift == "" && !without("no-op check of the Deployment") ||`)},
	"no-op check of the Event":      {testenv.Replace("controller/controller.go", "if wrote || retired || reported {", `if wrote || retired || reported || without("no-op check of the Event") {`)},
	"deletion check": {
		testenv.Replace("controller/controller.go", "!exists || o.(*v1alpha1.Icecream).DeletionTimestamp != nil",
			`!exists || !without("deletion check") && o.(*v1alpha1.Icecream).DeletionTimestamp != nil`),
		testenv.Replace("controller/controller.go", "if meta.IsStatusConditionTrue(ice.Status.Conditions, v1alpha1.ConditionOwned) {",
			`if meta.IsStatusConditionTrue(ice.Status.Conditions, v1alpha1.ConditionOwned) && !without("deletion check") {`),
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
		claim  func(f *icecreamTest) error
		guards map[string]string // and what the claim says without each
	}{
		{deletesOnlyItsOwn, map[string]string{"preconditions": "deleted"}},
		{takesNothingBack, map[string]string{"resourceVersion of an apply": "taken back"}},
		{keepsTheOldOne, map[string]string{"waiting for the new one": "too early"}},
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
			if err := tc.claim(newIcecreamTest(t)); err != nil {
				t.Error(err)
			}
		})
		for _, guard := range guards {
			t.Run("without "+guard, func(t *testing.T) {
				t.Parallel()
				e := testenv.New(t)
				f := icecreamTestOf(t, e, icecreamGuards.Build(t, e, guard))
				f.Command.Env = append(f.Command.Env, controllertest.WithoutEnv+"="+guard)
				if err := tc.claim(f); err == nil || !strings.Contains(err.Error(), tc.guards[guard]) {
					t.Errorf("without the guard: %v; want an error with %q", err, tc.guards[guard])
				}
			})
		}
	}
}

// answered waits until a request that was stalled has got an answer.
func (f *icecreamTest) answered(verb, resource string, fault faultproxy.Fault) {
	f.T.Helper()
	f.Eventually(30*time.Second, func(context.Context) error {
		for _, r := range f.requests(verb, resource) {
			if slices.Contains(r.Faults, fault) && r.Took > 0 {
				return nil
			}
		}
		return errors.New("the stalled request is not answered")
	})
}

// A Deployment is replaced by another one of the same name, just before the
// controller deletes the first.
func deletesOnlyItsOwn(f *icecreamTest) error {
	f.Start()
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	stalled := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete", Resource: "deployments"}, Fault: faultproxy.Stall})
	f.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.Struck(stalled, 1)
	if err := f.deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	f.gone("cone")
	f.foreign("cone")
	stalled.Remove()
	f.answered("delete", "deployments", faultproxy.Stall)
	if _, err := f.deployments.Get(f.Context(), "cone", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("somebody's Deployment was deleted: %w", err)
	}
	return nil
}

// A Deployment is taken from the Icecream, just before the controller corrects it.
func takesNothingBack(f *icecreamTest) error {
	f.Start()
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	stalled := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "deployments"}, Fault: faultproxy.Stall})
	f.patchDeployment("cone", `{"spec":{"replicas":1}}`)
	f.Struck(stalled, 1)
	f.patchDeployment("cone", `{"metadata":{"ownerReferences":null}}`)
	stalled.Remove()
	f.answered("patch", "deployments", faultproxy.Stall)
	if d := f.deployment("cone"); len(d.OwnerReferences) > 0 || *d.Spec.Replicas != 1 {
		return fmt.Errorf("the Deployment was taken back: owners %v, %d replicas", d.OwnerReferences, *d.Spec.Replicas)
	}
	f.until("vanilla", isRefused)
	return nil
}

// Somebody takes a Deployment from the Icecream, and changes it.
func refusesAnOrphan(f *icecreamTest) error {
	f.Start()
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	before := f.patchDeployment("cone", `{"metadata":{"ownerReferences":null},"spec":{"replicas":1}}`)
	var broken error
	f.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if broken = unchanged(before, f.deployment("cone")); broken != nil {
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
func keepsTheOldOne(f *icecreamTest) error {
	f.Start()
	f.create("vanilla", "cone", 1)
	f.until("vanilla", isAvailable)
	quotas := f.Client.CoreV1().ResourceQuotas(f.Namespace)
	if _, err := quotas.Create(f.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	f.Eventually(time.Minute, func(ctx context.Context) error {
		quota, err := quotas.Get(ctx, "full", metav1.GetOptions{})
		if err == nil && quota.Status.Used.Pods().Value() != 1 {
			err = errors.New("the quota is not in force")
		}
		return err
	})
	f.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.until("vanilla", condition("Available", metav1.ConditionFalse, "Progressing"))
	f.patch("vanilla", `{"metadata":{"annotations":{"look":"again"}}}`)
	err := f.lookedAt(func() error {
		if _, err := f.deployments.Get(f.Context(), "cone", metav1.GetOptions{}); err != nil {
			return fmt.Errorf("the old Deployment went too early: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := quotas.Delete(f.Context(), "full", metav1.DeleteOptions{}); err != nil {
		return err
	}
	f.until("vanilla", isAvailable)
	f.gone("cone")
	return nil
}

// The cache shows no Deployments for a while.
func looksAtNoOldCache(f *icecreamTest) error {
	f.Start()
	behind := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Times: -1})
	f.create("vanilla", "cone", 0)
	f.Struck(behind, 1)
	for look := range 5 {
		f.patch("vanilla", fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, look))
	}
	if err := f.lookedAt(func() error { return nil }); err != nil {
		return err
	}
	if n := len(f.requests("create", "deployments")) + len(f.requests("patch", "deployments")) - f.further; n != 1 {
		return fmt.Errorf("the Deployment was written again: %d times", n)
	}
	behind.Remove()
	f.until("vanilla", isAvailable)
	return nil
}

// shortest is the shortest resync that client-go grants.
const shortest = time.Second

// Nothing changes, however often the controller looks, and who looks.
func isQuiet(f *icecreamTest) error {
	f.Start("-resync", shortest.String())
	ice := f.create("vanilla", "cone", 2)
	f.until("vanilla", isAvailable)
	synced := func() int { n, _ := f.events(ice, "Synced"); return n }
	// What it does last is to send an Event.
	// Nothing shows that no other one follows but a second without any.
	writes, events, since, begun := 0, 0, time.Now(), time.Now()
	f.Eventually(30*time.Second, func(context.Context) error {
		if w, e := len(f.Writes()), synced(); w != writes || e != events || e == 0 {
			writes, events, since = w, e, time.Now()
		}
		if time.Since(since) < time.Second && time.Since(begun) < 10*time.Second {
			return errors.New("it is still busy")
		}
		return nil
	})
	quiet := func() error {
		if all := f.Writes(); len(all) > writes {
			return fmt.Errorf("a write for nothing: %s", all[len(all)-1])
		}
		if n := synced(); n != events {
			return fmt.Errorf("%d Events Synced for nothing", n-events)
		}
		return nil
	}
	if err := f.Hold(5*shortest/2, quiet); err != nil { // a resync comes by the controller's own clock
		return err
	}
	f.Stop()
	f.Start()
	return f.Hold(5*shortest/2, quiet)
}

// An Icecream that is deleted in the foreground stays until its Deployment is gone.
func letsGo(f *icecreamTest) error {
	f.Start()
	f.create("vanilla", "cone", 1)
	f.until("vanilla", isAvailable)
	// Held by a finalizer, the Icecream is still there when its Deployment has gone.
	finalizers := func(list string) error {
		_, err := f.icecreams.Patch(f.Context(), "vanilla", types.MergePatchType, []byte(`{"metadata": {"finalizers": `+list+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := finalizers(`["test.k8s-go.openshift.org/hold"]`); err != nil {
		return err
	}
	if err := f.icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := f.deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	f.create("witness", "cup", 0) // when this one is served, the deletion was looked at, too
	f.until("witness", isAvailable)
	var broken error
	if n := len(f.requests("create", "deployments")); n != 2 {
		broken = fmt.Errorf("a Deployment was created for an Icecream that is being deleted (%d)", n-1)
	}
	return errors.Join(broken, finalizers("null"))
}

// A write meets a conflict, and no event follows.
func triesAgainAfterAConflict(f *icecreamTest) error {
	f.Start()
	ice := f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	conflicts := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "icecreams/status"},
		Fault: faultproxy.Answer, Code: http.StatusConflict, Times: 3})
	node := "node-" + f.Namespace
	if _, err := f.Client.CoreV1().Pods(f.Namespace).Create(f.Context(), podOn(ice, node), metav1.CreateOptions{}); err != nil {
		return err
	}
	f.Struck(conflicts, 1)
	for deadline := time.Now().Add(20 * time.Second); ; { // it has a second try at once; only one that has given up needs so long
		ice, err := f.icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if slices.Equal(ice.Status.Nodes, []string{node}) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the controller has given up: nodes %v, want %s", ice.Status.Nodes, node)
		}
		_ = f.Hold(100*time.Millisecond, func() error { return nil })
	}
	if strings.Contains(f.Process.Stderr(), "Trying again later") {
		return fmt.Errorf("a conflict was logged as an error:\n%s", f.Process.Stderr())
	}
	return nil
}
