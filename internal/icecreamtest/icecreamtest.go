// Package icecreamtest holds a controller to what step 06 promises of Icecreams, whatever it is
// written with. It sees the process, its requests and the cluster, and nothing of the code.
package icecreamtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
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
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedicecream "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/conflict"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A Test is a namespace with a controller of Icecreams in it.
type Test struct {
	*controllertest.Controller
	Icecreams   typedicecream.IcecreamInterface
	Deployments typedappsv1.DeploymentInterface
	Further     int // Icecreams that LookedAt has made
}

// New prepares a controller that does not run yet.
type New func(t *testing.T) *Test

// Of prepares a program. The CRD is that of step 05.
func Of(t testing.TB, e *testenv.Env, program string, args ...string) *Test {
	t.Helper()
	crdtest.Share(t, e, "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	client, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	f := &Test{Controller: controllertest.New(t, e, program, args...),
		Icecreams: client.IcecreamV1alpha1().Icecreams(e.Namespace), Deployments: e.Client.AppsV1().Deployments(e.Namespace)}
	f.Command.Env = []string{"KUBE_CACHE_MUTATION_DETECTOR=true"}
	return f
}

// Tests are all that a controller has to pass, by their names.
var Tests = map[string]func(t *testing.T, prepare New){
	"makes":                           Makes,
	"autoscaled":                      Autoscaled,
	"refuses":                         Refuses,
	"corrects drift":                  CorrectsDrift,
	"renames to a foreign name":       RenamesToAForeignName,
	"names at most a hundred nodes":   NamesAtMostAHundredNodes,
	"follows labels":                  FollowsLabels,
	"retires nothing on a stale spec": RetiresNothingOnAStaleSpec,
	"retires what has lost its mark":  RetiresWhatHasLostItsMark,
}

// Claims are what holds because of one guard each.
var Claims = map[string]func(f *Test) error{
	"deletes only its own":          DeletesOnlyItsOwn,
	"takes nothing back":            TakesNothingBack,
	"keeps the old one":             KeepsTheOldOne,
	"keeps the old one alone":       KeepsTheOldOneAlone,
	"makes nothing for one leaving": MakesNothingForALeavingOne,
	"refuses an orphan":             RefusesAnOrphan,
	"looks at no old cache":         LooksAtNoOldCache,
	"is quiet":                      IsQuiet,
	"lets go":                       LetsGo,
	"tries again after a conflict":  TriesAgainAfterAConflict,
	"waits with its report":         WaitsWithItsReport,
	"corrects a restored refusal":   CorrectsARestoredRefusal,
	"deletes what it may":           DeletesWhatItMay,
	"reports a refusal of any code": ReportsARefusalOfAnyCode,
	"refused in other words":        func(f *Test) error { return refusedInOtherWords(f, func() { f.Start() }) },
	"notices a free name by itself": func(f *Test) error { return noticesAFreeNameByItself(f, func() { f.Start() }) },
}

// ForTasks are the claims that the controllers of the tasks have to pass, too. start starts the controller.
var ForTasks = map[string]func(f *Test, start func()) error{
	"refused in other words":        refusedInOtherWords,
	"notices a free name by itself": noticesAFreeNameByItself,
}

// Create creates an Icecream.
func (f *Test) Create(name, deployment string, replicas int32) *v1alpha1.Icecream {
	f.T.Helper()
	ice, err := f.Icecreams.Create(f.Context(), &v1alpha1.Icecream{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IcecreamSpec{DeploymentName: deployment, Replicas: &replicas},
	}, metav1.CreateOptions{})
	fatal.If(f.T, err)
	return ice
}

// Serve starts the controller, creates the Icecream vanilla for the Deployment cone, and waits until that serves it.
func (f *Test) Serve(replicas int32) *v1alpha1.Icecream {
	f.T.Helper()
	f.Start()
	f.Create("vanilla", "cone", replicas)
	return f.Until("vanilla", IsAvailable)
}

// Patch changes an Icecream as kubectl patch --type merge does.
func (f *Test) Patch(name, patch string) {
	f.T.Helper()
	if _, err := f.Icecreams.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		f.T.Fatal(err)
	}
}

// PatchDeployment changes a Deployment as somebody does.
func (f *Test) PatchDeployment(name, patch string) *appsv1.Deployment {
	f.T.Helper()
	d, err := f.Deployments.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"})
	fatal.If(f.T, err)
	return d
}

// Foreign creates a Deployment that somebody else wants.
func (f *Test) Foreign(name string, owners ...metav1.OwnerReference) *appsv1.Deployment {
	f.T.Helper()
	d, err := f.Deployments.Create(f.Context(), DeploymentOf(name, owners...), metav1.CreateOptions{FieldManager: "somebody"})
	fatal.If(f.T, err)
	return d
}

// DeploymentOf is a Deployment that asks for no pods.
func DeploymentOf(name string, owners ...metav1.OwnerReference) *appsv1.Deployment {
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

// Deployment reads a Deployment.
func (f *Test) Deployment(name string) *appsv1.Deployment {
	f.T.Helper()
	d, err := f.Deployments.Get(f.Context(), name, metav1.GetOptions{})
	fatal.If(f.T, err)
	return d
}

// Until waits until an Icecream is as it should be, and returns it.
func (f *Test) Until(name string, check func(*v1alpha1.Icecream) error) *v1alpha1.Icecream {
	f.T.Helper()
	var ice *v1alpha1.Icecream
	f.Eventually(Collected, func(ctx context.Context) (err error) {
		if ice, err = f.Icecreams.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(ice)
	})
	return ice
}

// Condition checks the status and reason of a condition of the present generation.
func Condition(kind string, status metav1.ConditionStatus, reason string) func(*v1alpha1.Icecream) error {
	return func(ice *v1alpha1.Icecream) error {
		c := meta.FindStatusCondition(ice.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != ice.Generation || ice.Status.ObservedGeneration != ice.Generation {
			return fmt.Errorf("generation %d, status %+v; want %s %s/%s", ice.Generation, ice.Status, kind, status, reason)
		}
		return nil
	}
}

var (
	IsAvailable = Condition("Available", metav1.ConditionTrue, "Available")
	IsRefused   = Condition("Owned", metav1.ConditionFalse, "ErrResourceExists")
)

// Requests are those of the controller so far.
func (f *Test) Requests(verb, resource string) []faultproxy.Request {
	return f.Proxy.Requests(faultproxy.Match{Verb: verb, Resource: resource})
}

// Events counts the Events about an Icecream, each as often as it was repeated.
func (f *Test) Events(ice *v1alpha1.Icecream, reason string) (count int, note string) {
	f.T.Helper()
	list, err := f.Client.EventsV1().Events(f.Namespace).List(f.Context(), metav1.ListOptions{})
	fatal.If(f.T, err)
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

// Makes: an Icecream gets its Deployment and a status, is scaled, and goes with it.
func Makes(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	f.Start()
	before := metav1.Now()
	f.Create("vanilla", "cone", 4)
	ice := f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
		err := IsAvailable(ice)
		if nodes := f.nodes(ice); err == nil && !slices.Equal(ice.Status.Nodes, nodes) { // pods have a watch of their own
			err = fmt.Errorf("nodes %v, want %v", ice.Status.Nodes, nodes)
		}
		return err
	})

	d := f.Deployment("cone")
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
		if n, note := f.Events(ice, "Synced"); n == 0 || note != "Icecream synced successfully" {
			return fmt.Errorf("%d Events Synced, %q", n, note)
		}
		return nil
	})

	// As kubectl scale and an autoscaler do it.
	scale, err := f.Icecreams.GetScale(f.Context(), "vanilla", metav1.GetOptions{})
	fatal.If(t, err)
	if diff := cmp.Diff(autoscalingv1.ScaleStatus{Replicas: 4, Selector: "controller.nicoleh.io/uid=" + string(ice.UID)}, scale.Status); diff != "" {
		t.Errorf("scale (-want +got):\n%s", diff)
	}
	for _, replicas := range []int32{0, 1} {
		f.Patch("vanilla", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		ice = f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
			if n := ptr.Deref(ice.Status.Replicas, -1); n != replicas { // pods that are being deleted count no longer
				return fmt.Errorf("%d replicas", n)
			}
			return IsAvailable(ice)
		})
		f.Eventually(time.Minute, func(context.Context) error {
			if n := len(f.PodsOf(ice)); n != int(replicas) {
				return fmt.Errorf("%d pods, want %d", n, replicas)
			}
			return nil
		})
		ice = f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
			if len(ice.Status.Nodes) != int(replicas) {
				return fmt.Errorf("nodes %v of %d pods", ice.Status.Nodes, replicas)
			}
			return nil
		})
		f.checkStatus(ice, replicas)
	}

	fatal.If(t, f.Icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{}))
	f.Gone("cone")
	f.Stop()
}

// Collected is how long garbage collection can take: it looks for new kinds of
// objects, such as Icecreams, every 30 seconds.
const Collected = 90 * time.Second

// Gone waits until a Deployment is gone.
func (f *Test) Gone(deployment string) {
	f.T.Helper()
	f.Eventually(Collected, func(ctx context.Context) error {
		_, err := f.Deployments.Get(ctx, deployment, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("Deployment %s is still there (%v)", deployment, err)
	})
}

// PodsOf returns the pods with the label of an Icecream.
func (f *Test) PodsOf(ice *v1alpha1.Icecream) []corev1.Pod {
	f.T.Helper()
	list, err := f.Client.CoreV1().Pods(f.Namespace).List(f.Context(), metav1.ListOptions{LabelSelector: "controller.nicoleh.io/uid=" + string(ice.UID)})
	fatal.If(f.T, err)
	return list.Items
}

// checkStatus compares a status at rest with what the server says about the pods.
func (f *Test) checkStatus(ice *v1alpha1.Icecream, replicas int32) {
	f.T.Helper()
	want := v1alpha1.IcecreamStatus{
		ObservedGeneration: ice.Generation, Replicas: &replicas, AvailableReplicas: &replicas,
		Selector: "controller.nicoleh.io/uid=" + string(ice.UID), Nodes: f.nodes(ice),
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

// nodes are those of an Icecream's pods, sorted.
func (f *Test) nodes(ice *v1alpha1.Icecream) []string {
	nodes := map[string]bool{}
	for _, pod := range f.PodsOf(ice) {
		nodes[pod.Spec.NodeName] = true
	}
	return slices.Sorted(maps.Keys(nodes))
}

// Autoscaled: an autoscaler accepts the scale.
func Autoscaled(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	f.Serve(1)
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
	f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
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

// Refuses: what is not the Icecream's stays as it is, until it goes.
func Refuses(t *testing.T, prepare New) {
	t.Parallel()
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "00000000-0000-0000-0000-000000000000"}
	for name, taken := range map[string]func(f *Test){
		"a Deployment of somebody": func(f *Test) { f.Foreign("cone") },
		"a Deployment of another Icecream": func(f *Test) {
			f.Create("first", "cone", 0)
			f.Until("first", IsAvailable)
		},
		"a Deployment of somebody who is no controller": func(f *Test) {
			configMap, err := f.Client.CoreV1().ConfigMaps(f.Namespace).Create(f.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
			fatal.If(f.T, err)
			other := other
			other.UID = configMap.UID
			f.Foreign("cone", other)
		},
		"an orphan of an Icecream of the same name": func(f *Test) {
			f.Create("vanilla", "cone", 0)
			f.Until("vanilla", IsAvailable)
			fatal.If(f.T, f.Icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}))
			f.Eventually(Collected, func(ctx context.Context) error {
				if _, err := f.Icecreams.Get(ctx, "vanilla", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is still there (%v)", err)
				}
				return nil
			})
			if owners := f.Deployment("cone").OwnerReferences; len(owners) != 0 {
				f.T.Fatalf("not orphaned: %v", owners)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t)
			f.Start()
			taken(f)
			if err := f.refuses(); err != nil {
				t.Error(err)
			}
			// The name is free: nothing but the event says so.
			if _, err := f.Icecreams.Get(f.Context(), "first", metav1.GetOptions{}); err == nil {
				fatal.If(t, f.Icecreams.Delete(f.Context(), "first", metav1.DeleteOptions{}))
			} else if err := f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			ice := f.Until("vanilla", IsAvailable)
			if d := f.Deployment("cone"); !metav1.IsControlledBy(d, ice) {
				t.Errorf("owners %v", d.OwnerReferences)
			}
		})
	}
}

// refuses creates an Icecream whose Deployment "cone" somebody else has.
func (f *Test) refuses() error {
	f.T.Helper()
	before := f.Deployment("cone")
	f.Create("vanilla", "cone", 3)
	var broken error
	f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
		if broken = Unchanged(before, f.Deployment("cone")); broken != nil {
			return nil
		}
		return IsRefused(ice)
	})
	if broken != nil {
		return broken
	}
	ice := f.Until("vanilla", Condition("Available", metav1.ConditionFalse, "Progressing"))
	if ice.Status.Replicas != nil || ice.Status.AvailableReplicas != nil || ice.Status.Nodes != nil {
		return fmt.Errorf("the status counts the pods of another Deployment: %+v", ice.Status)
	}
	f.Eventually(time.Minute, func(context.Context) error {
		if n, note := f.Events(ice, "ErrResourceExists"); n != 1 || !strings.Contains(note, "cone") {
			return fmt.Errorf("%d Events ErrResourceExists, %q", n, note)
		}
		return nil
	})
	if n, _ := f.Events(ice, "Synced"); n != 0 {
		return fmt.Errorf("%d Events Synced", n)
	}
	f.Patch("vanilla", `{"metadata":{"annotations":{"look":"again"}}}`)
	return f.LookedAt(func() error { return Unchanged(before, f.Deployment("cone")) })
}

// Unchanged compares what people and controllers want of a Deployment.
func Unchanged(before, now *appsv1.Deployment) error {
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

// CorrectsDrift: what the controller has set comes back, what others have set stays.
func CorrectsDrift(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	ice := f.Serve(2)
	// Theirs stays through all of it.
	f.PatchDeployment("cone", `{"metadata":{"annotations":{"theirs":"x"},"labels":{"theirs":"x"}},"spec":{"minReadySeconds":1,"revisionHistoryLimit":3,
		"template":{"metadata":{"labels":{"theirs":"x"}},"spec":{"terminationGracePeriodSeconds":1}}}}`)
	want := f.Deployment("cone")

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
		drifted := f.PatchDeployment("cone", drift.patch)
		if err := Unchanged(want, drifted); err == nil {
			t.Fatalf("%s: the patch changes nothing", drift.name)
		}
		f.Eventually(time.Minute, func(context.Context) error {
			now := f.Deployment("cone")
			now.Generation = want.Generation
			if err := Unchanged(want, now); err != nil {
				return fmt.Errorf("%s: %w", drift.name, err)
			}
			return nil
		})
	}
	var applied bool
	for _, m := range f.Deployment("cone").ManagedFields {
		applied = applied || m.Manager == "icecream-controller" && m.Operation == metav1.ManagedFieldsOperationApply
	}
	if !applied {
		t.Error("nothing was applied by the field manager icecream-controller")
	}
	// A container of somebody else's stays, too.
	f.PatchDeployment("cone", fmt.Sprintf(`{"spec":{"replicas":5,"template":{"spec":{"containers":[
		{"name":%q,"image":"workshop/pause:1"},{"name":"sidecar","image":"workshop/pause:1"}]}}}}`, want.Spec.Template.Spec.Containers[0].Name))
	f.Eventually(time.Minute, func(context.Context) error {
		d := f.Deployment("cone")
		if *d.Spec.Replicas != 2 || len(d.Spec.Template.Spec.Containers) != 2 {
			return fmt.Errorf("%d replicas of %d containers, want 2 and 2", *d.Spec.Replicas, len(d.Spec.Template.Spec.Containers))
		}
		return nil
	})
	// Another image is a drift of every Deployment.
	f.Stop()
	f.Start("-image", "workshop/pause:3")
	f.Eventually(time.Minute, func(context.Context) error {
		if image := f.Deployment("cone").Spec.Template.Spec.Containers[0].Image; image != "workshop/pause:3" {
			return fmt.Errorf("image %s", image)
		}
		return nil
	})
	// Deleted is drift as well.
	fatal.If(t, f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}))
	f.Eventually(time.Minute, func(ctx context.Context) error {
		now, err := f.Deployments.Get(ctx, "cone", metav1.GetOptions{})
		if err == nil && now.UID == want.UID {
			err = errors.New("the deleted one is still there")
		}
		return err
	})
}

// RenamesToAForeignName: the old Deployment stays as long as the new name is not free.
func RenamesToAForeignName(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	f.Serve(2)
	before := f.Deployment("cone")
	f.Foreign("cup")
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	ice := f.Until("vanilla", IsRefused)
	if n := ptr.Deref(ice.Status.AvailableReplicas, -1); n != 2 || len(ice.Status.Nodes) == 0 {
		t.Errorf("status %+v does not tell of the Deployment that the Icecream still has", ice.Status)
	}
	if err := f.LookedAt(func() error { return Unchanged(before, f.Deployment("cone")) }); err != nil {
		t.Error(err)
	}
	fatal.If(t, f.Deployments.Delete(f.Context(), "cup", metav1.DeleteOptions{}))
	f.Until("vanilla", IsAvailable)
	f.Gone("cone")
}

// NamesAtMostAHundredNodes: so the status cannot grow without an end.
func NamesAtMostAHundredNodes(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	ice := f.Serve(0)
	// No kubelet knows these nodes; for the controller they are nodes like others. The pod
	// garbage collector knows that there are none, and deletes their pods after 40 s. So
	// the pods are made all at once.
	want, errs := make([]string, 101), make([]error, 101)
	workqueue.ParallelizeUntil(f.Context(), 16, len(want), func(i int) {
		i = len(want) - 1 - i // the last in order come first
		want[i] = fmt.Sprintf("node-%s-%03d", f.Namespace, i)
		_, errs[i] = f.Client.CoreV1().Pods(f.Namespace).Create(f.Context(), PodOn(ice, want[i]), metav1.CreateOptions{})
	})
	fatal.If(t, errors.Join(errs...))
	want = want[:100]
	f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
		if diff := cmp.Diff(want, ice.Status.Nodes); diff != "" {
			return fmt.Errorf("nodes (-want +got):\n%s", diff)
		}
		return nil
	})
}

// FollowsLabels: a pod changes from one Icecream's label to another's, and both say so.
func FollowsLabels(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	f.Start()
	vanilla, mint := f.Create("vanilla", "cone", 0), f.Create("mint", "cup", 0)
	node := "node-" + f.Namespace
	pods := f.Client.CoreV1().Pods(f.Namespace)
	pod, err := pods.Create(f.Context(), PodOn(vanilla, node), metav1.CreateOptions{})
	fatal.If(t, err)
	on := func(want ...string) func(*v1alpha1.Icecream) error {
		return func(ice *v1alpha1.Icecream) error {
			if !slices.Equal(ice.Status.Nodes, want) {
				return fmt.Errorf("nodes %v, want %v", ice.Status.Nodes, want)
			}
			return IsAvailable(ice)
		}
	}
	f.Until("vanilla", on(node))
	f.Until("mint", on())
	patch := fmt.Sprintf(`{"metadata":{"labels":{"controller.nicoleh.io/uid":%q}}}`, mint.UID)
	if _, err := pods.Patch(f.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Until("vanilla", on())
	f.Until("mint", on(node))
}

// PodOn is a pod with the label of an Icecream.
func PodOn(ice *v1alpha1.Icecream, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fake-", Labels: map[string]string{"controller.nicoleh.io/uid": string(ice.UID)}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{Name: "pause", Image: "workshop/pause:1"}}},
	}
}

// RetiresWhatHasLostItsMark: ours is also a Deployment whose reference no longer says that we are its controller.
// It goes, too, when the Icecream has another one, but not what somebody else wants to go with the Icecream.
func RetiresWhatHasLostItsMark(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	f.Start()
	vanilla := f.Create("vanilla", "cone", 0)
	f.Until("vanilla", IsAvailable)
	others := f.Foreign("exporter", metav1.OwnerReference{APIVersion: "controller.nicoleh.io/v1alpha1", Kind: "Icecream", Name: "vanilla", UID: vanilla.UID})
	f.Stop()
	f.PatchDeployment("cone", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"controller.nicoleh.io/v1alpha1","kind":"Icecream","name":"vanilla","uid":%q}]}}`, vanilla.UID))
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.Start()
	f.Gone("cone")
	fatal.If(t, f.Hold(time.Second, func() error {
		if now := f.Deployment("exporter"); now.UID != others.UID || now.DeletionTimestamp != nil {
			return fmt.Errorf("the Deployment of somebody else: %+v", now.ObjectMeta)
		}
		return nil
	}))
}

// RetiresNothingOnAStaleSpec: the user takes a change of the name back, and the controller does not hear of it.
func RetiresNothingOnAStaleSpec(t *testing.T, prepare New) {
	t.Parallel()
	f := prepare(t)
	f.Serve(0)
	cone := f.Deployment("cone")
	held, gets := make(chan *faultproxy.Injection, 1), make(chan int, 1)
	f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.CallAnswered,
		Call: func(context.Context, faultproxy.Request) error {
			gets <- len(f.Requests("get", "icecreams"))
			held <- f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold, Times: -1})
			f.Patch("vanilla", `{"spec":{"deploymentName":"cone"}}`)
			return nil
		}})
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.Eventually(time.Minute, func(ctx context.Context) error {
		d, err := f.Deployments.Get(ctx, "cup", metav1.GetOptions{})
		if err == nil && d.Status.ObservedGeneration != d.Generation {
			err = errors.New("the new Deployment is not available")
		}
		return err
	})
	// It has looked at an available cup: by asking for the Icecream once more, or by deleting.
	before := <-gets
	f.Eventually(time.Minute, func(context.Context) error {
		if len(f.Requests("get", "icecreams"))-before+len(f.Requests("delete", "deployments")) == 0 {
			return errors.New("the controller has not looked at the new Deployment")
		}
		return nil
	})
	if err := f.Hold(time.Second, func() error {
		if d := f.Deployment("cone"); d.UID != cone.UID || d.DeletionTimestamp != nil {
			return errors.New("the Deployment that the live spec names was deleted")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	(<-held).Remove()
	f.Gone("cup")
	f.Until("vanilla", IsAvailable)
	if d := f.Deployment("cone"); d.UID != cone.UID {
		t.Error("the Deployment was made again")
	}
}

// LookedAt waits until the controller has looked at all that has happened to Icecreams
// so far: until it has made Deployments for two further ones, and no answer is due. Keys
// are taken from the queue in the order of their events, and one that is worked on when
// its event comes is put behind those that wait, but before the second one. An error that
// wrong returns before that is the result.
func (f *Test) LookedAt(wrong func() error) (err error) {
	f.T.Helper()
	for range 2 {
		f.Further++
		name := fmt.Sprintf("further-%d", f.Further)
		ice := f.Create(name, name, 0)
		f.Eventually(time.Minute, func(context.Context) error {
			if err = wrong(); err == nil && len(f.All(ice)) == 0 {
				return fmt.Errorf("%s has no Deployment", name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	f.Writes() // waits for the answers
	return wrong()
}

// All returns the Deployments of an Icecream.
func (f *Test) All(ice *v1alpha1.Icecream) []appsv1.Deployment {
	f.T.Helper()
	list, err := f.Deployments.List(f.Context(), metav1.ListOptions{})
	fatal.If(f.T, err)
	var all []appsv1.Deployment
	for _, d := range list.Items {
		if metav1.IsControlledBy(&d, ice) {
			all = append(all, d)
		}
	}
	return all
}

// answered waits until a request that was stalled has got an answer.
func (f *Test) answered(verb, resource string, fault faultproxy.Fault) {
	f.T.Helper()
	f.Eventually(30*time.Second, func(context.Context) error {
		for _, r := range f.Requests(verb, resource) {
			if slices.Contains(r.Faults, fault) && r.Took > 0 {
				return nil
			}
		}
		return errors.New("the stalled request is not answered")
	})
}

// DeletesOnlyItsOwn: a Deployment is replaced by another one of the same name, just before the
// controller deletes the first.
func DeletesOnlyItsOwn(f *Test) error {
	f.Serve(0)
	stalled := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete", Resource: "deployments"}, Fault: faultproxy.Stall})
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.Struck(stalled, 1)
	if err := f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	f.Gone("cone")
	f.Foreign("cone")
	stalled.Remove()
	f.answered("delete", "deployments", faultproxy.Stall)
	if _, err := f.Deployments.Get(f.Context(), "cone", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("somebody's Deployment was deleted: %w", err)
	}
	return nil
}

// TakesNothingBack: a Deployment is taken from the Icecream, just before the controller corrects it.
func TakesNothingBack(f *Test) error {
	f.Serve(0)
	stalled := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "deployments"}, Fault: faultproxy.Stall})
	f.PatchDeployment("cone", `{"spec":{"replicas":1}}`)
	f.Struck(stalled, 1)
	f.PatchDeployment("cone", `{"metadata":{"ownerReferences":null}}`)
	stalled.Remove()
	f.answered("patch", "deployments", faultproxy.Stall)
	if d := f.Deployment("cone"); len(d.OwnerReferences) > 0 || *d.Spec.Replicas != 1 {
		return fmt.Errorf("the Deployment was taken back: owners %v, %d replicas", d.OwnerReferences, *d.Spec.Replicas)
	}
	f.Until("vanilla", IsRefused)
	return nil
}

// RefusesAnOrphan: somebody takes a Deployment from the Icecream, and changes it.
func RefusesAnOrphan(f *Test) error {
	f.Serve(0)
	before := f.PatchDeployment("cone", `{"metadata":{"ownerReferences":null},"spec":{"replicas":1}}`)
	var broken error
	f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
		if broken = Unchanged(before, f.Deployment("cone")); broken != nil {
			return nil
		}
		return IsRefused(ice)
	})
	if broken != nil {
		return fmt.Errorf("the Deployment was taken back: %w", broken)
	}
	return nil
}

// KeepsTheOldOne: the new Deployment cannot have its pods for a while.
func KeepsTheOldOne(f *Test) error {
	f.Serve(1)
	quotas := f.Client.CoreV1().ResourceQuotas(f.Namespace)
	if _, err := quotas.Create(f.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "full"},
		// Not 1, with which the new pod comes as soon as the old one has gone too early.
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
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
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.Until("vanilla", Condition("Available", metav1.ConditionFalse, "Progressing"))
	f.Patch("vanilla", `{"metadata":{"annotations":{"look":"again"}}}`)
	err := f.LookedAt(func() error {
		if _, err := f.Deployments.Get(f.Context(), "cone", metav1.GetOptions{}); err != nil {
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
	f.Until("vanilla", IsAvailable)
	f.Gone("cone")
	return nil
}

// retriesBlind has the controller's first request with the verb for a Deployment answered with
// 429 and asked to wait. While that request is under way, change is made, and of its resource the
// controller hears nothing until it has tried again. The function that is returned waits for that,
// and says how many such requests there were.
func (f *Test) retriesBlind(verb string, wait time.Duration, resource string, change func(context.Context) error) func() int {
	match := faultproxy.Match{Verb: verb, Resource: "deployments"}
	var held *faultproxy.Injection
	var before int
	f.Proxy.MustInject(faultproxy.Rule{Match: match, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		held = f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: resource}, Fault: faultproxy.Hold, Times: -1})
		before = len(f.Requests("get", resource))
		return change(ctx)
	}})
	busy := f.Proxy.MustInject(faultproxy.Rule{Match: match, Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: wait})
	return func() int {
		f.T.Helper()
		f.Struck(busy, 1)
		defer held.Remove()
		f.Struck(held, 1)
		f.Eventually(time.Minute, func(context.Context) error { // it reads the resource before each try
			if len(f.Requests("get", resource))-before+len(f.Requests(verb, "deployments")) < 2 {
				return errors.New("it has not tried again")
			}
			return nil
		})
		return len(f.Requests(verb, "deployments"))
	}
}

// KeepsTheOldOneAlone: while the deletion of the old Deployment has to wait, the new one goes,
// of which the controller hears late.
func KeepsTheOldOneAlone(f *Test) error {
	f.Serve(1)
	tries := f.retriesBlind("delete", 2*time.Second, "deployments", func(ctx context.Context) error {
		return f.Deployments.Delete(ctx, "cup", metav1.DeleteOptions{})
	})
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	if tries() != 1 {
		return errors.New("the old Deployment is deleted, although the new one is gone")
	}
	f.Gone("cone") // when there is a new one again
	return nil
}

// DeletesWhatItMay: one of two old Deployments may not be deleted, which the other one does not have to wait for.
func DeletesWhatItMay(f *Test) error {
	f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete", Resource: "deployments", Name: "cone"}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	f.Serve(0)
	f.Patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.Until("vanilla", Condition("Available", metav1.ConditionFalse, "Refused"))
	f.Patch("vanilla", `{"spec":{"deploymentName":"dish"}}`)
	f.Until("vanilla", Condition("Available", metav1.ConditionFalse, "Refused"))
	return f.within(soon, func() error {
		if _, err := f.Deployments.Get(f.Context(), "cup", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the second old Deployment is kept, because the first one may not be deleted (%v)", err)
		}
		return nil
	})
}

// CorrectsARestoredRefusal: somebody writes back a status of a time when the API server refused the Deployment. The
// first correction hears that there is no such Icecream, which is not true.
func CorrectsARestoredRefusal(f *Test) error {
	f.Serve(0)
	// No event of before may be the one that has it look again.
	if err := errors.Join(f.LookedAt(func() error { return nil }), f.Hold(3*time.Second, func() error { return nil })); err != nil {
		return err
	}
	f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "icecreams/status"}, Fault: faultproxy.Answer, Code: http.StatusNotFound})
	err := conflict.Retry(retry.DefaultRetry, func() error {
		ice, err := f.Icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		meta.SetStatusCondition(&ice.Status.Conditions, metav1.Condition{Type: "Available", Status: metav1.ConditionFalse, Reason: "Refused", Message: "exceeded quota", ObservedGeneration: ice.Generation})
		_, err = f.Icecreams.UpdateStatus(f.Context(), ice, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return f.within(soon, func() error {
		now, err := f.Icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err == nil && IsAvailable(now) != nil {
			err = fmt.Errorf("the restored status stays: %w", IsAvailable(now))
		}
		return err
	})
}

// refusedInOtherWords: the API server refuses a Deployment in other words each time, so each report differs. The
// controller tries again later and later.
func refusedInOtherWords(f *Test, start func()) error {
	start()
	for i := range 300 { // each for one request
		f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Answer, Code: []int{http.StatusBadRequest, http.StatusForbidden}[i%2]})
	}
	f.Create("vanilla", "cone", 1)
	if err := f.within(soon, func() error {
		ice, err := f.Icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(ice.Status.Conditions, "Available"); c == nil || c.Reason != "Refused" || !strings.Contains(c.Message, "Bad Request") {
			return fmt.Errorf("the status %+v does not say what the API server has said", ice.Status)
		}
		return nil
	}); err != nil {
		return err
	}
	before := len(f.Requests("create", "deployments"))
	time.Sleep(5 * time.Second)
	if n := len(f.Requests("create", "deployments")) - before; n > 12 { // the waits double
		return fmt.Errorf("%d tries in five seconds", n)
	}
	return nil
}

// ReportsARefusalOfAnyCode: a webhook refuses a request by a code, and with a reason, that mostly say that the Deployment is gone, is there, or has changed.
func ReportsARefusalOfAnyCode(f *Test) error {
	f.Start()
	for _, rule := range []faultproxy.Rule{
		{Match: faultproxy.Match{Verb: "create"}, Code: http.StatusNotFound},
		{Match: faultproxy.Match{Verb: "create"}, Code: http.StatusConflict},
		{Match: faultproxy.Match{Verb: "create"}, Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists},
		{Match: faultproxy.Match{Verb: "patch"}, Code: http.StatusConflict},
		{Match: faultproxy.Match{Verb: "delete"}, Code: http.StatusNotFound},
	} {
		what := fmt.Sprintf("%s-%d%s", rule.Verb, rule.Code, strings.ToLower(string(rule.Reason)))
		if rule.Verb != "create" {
			f.Create(what, what, 0)
			f.Until(what, IsAvailable)
		}
		rule.Resource, rule.Fault, rule.Times = "deployments", faultproxy.Answer, -1
		refusing := f.Proxy.MustInject(rule)
		switch rule.Verb {
		case "create":
			f.Create(what, what, 0)
		case "patch":
			f.PatchDeployment(what, `{"spec":{"replicas":1}}`)
		case "delete":
			f.Patch(what, `{"spec":{"deploymentName":"cup"}}`)
		}
		if err := f.within(soon, func() error {
			ice, err := f.Icecreams.Get(f.Context(), what, metav1.GetOptions{})
			if err == nil {
				err = Condition("Available", metav1.ConditionFalse, "Refused")(ice)
			}
			return err
		}); err != nil {
			return fmt.Errorf("%s: the refusal is not reported: %w", what, err)
		}
		refusing.Remove()
		f.Until(what, IsAvailable)
	}
	return nil
}

// MakesNothingForALeavingOne: an Icecream is deleted in the foreground before it has got its
// Deployment, and the controller hears of that late.
func MakesNothingForALeavingOne(f *Test) error {
	f.Start()
	tries := f.retriesBlind("create", 3*time.Second, "icecreams", func(ctx context.Context) error {
		return f.Icecreams.Delete(ctx, "vanilla", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
	})
	ice := &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "vanilla", Finalizers: []string{"example.com/wait"}}, Spec: v1alpha1.IcecreamSpec{DeploymentName: "cone"}}
	if _, err := f.Icecreams.Create(f.Context(), ice, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer f.Patch("vanilla", `{"metadata":{"finalizers":null}}`)
	if tries() != 1 {
		return errors.New("a Deployment for an Icecream that is being deleted")
	}
	return nil
}

// LooksAtNoOldCache: the cache shows no Deployments for a while.
func LooksAtNoOldCache(f *Test) error {
	f.Start()
	behind := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Times: -1})
	f.Create("vanilla", "cone", 0)
	f.Struck(behind, 1)
	for look := range 5 {
		f.Patch("vanilla", fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, look))
	}
	if err := f.LookedAt(func() error { return nil }); err != nil {
		return err
	}
	if n := len(f.Requests("create", "deployments")) + len(f.Requests("patch", "deployments")) - f.Further; n != 1 {
		return fmt.Errorf("the Deployment was written again: %d times", n)
	}
	behind.Remove()
	f.Until("vanilla", IsAvailable)
	return nil
}

// shortest is the shortest resync that client-go grants.
const shortest = time.Second

// IsQuiet: nothing changes, however often the controller looks, and who looks.
func IsQuiet(f *Test) error {
	f.Start("-resync", shortest.String())
	ice := f.Create("vanilla", "cone", 2)
	f.Until("vanilla", IsAvailable)
	synced := func() int { n, _ := f.Events(ice, "Synced"); return n }
	// What it does last is to send an Event.
	// Nothing shows that no other one follows but some seconds without any.
	writes, events, since, begun := 0, 0, time.Now(), time.Now()
	f.Eventually(30*time.Second, func(context.Context) error {
		if w, e := len(f.Writes()), synced(); w != writes || e != events || e == 0 {
			writes, events, since = w, e, time.Now()
		}
		if time.Since(since) < 3*time.Second && time.Since(begun) < 20*time.Second {
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

// LetsGo: an Icecream that is deleted in the foreground stays until its Deployment is gone.
func LetsGo(f *Test) error {
	f.Serve(1)
	// Held by a finalizer, the Icecream is still there when its Deployment has gone.
	finalizers := func(list string) error {
		_, err := f.Icecreams.Patch(f.Context(), "vanilla", types.MergePatchType, []byte(`{"metadata": {"finalizers": `+list+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := finalizers(`["test.k8s-go.openshift.org/hold"]`); err != nil {
		return err
	}
	if err := f.Icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	f.Create("witness", "cup", 0) // when this one is served, the deletion was looked at, too
	f.Until("witness", IsAvailable)
	var broken error
	if n := len(f.Requests("create", "deployments")); n != 2 {
		broken = fmt.Errorf("a Deployment was created for an Icecream that is being deleted (%d)", n-1)
	}
	return errors.Join(broken, finalizers("null"))
}

// TriesAgainAfterAConflict: a write meets a conflict, and no event follows.
func TriesAgainAfterAConflict(f *Test) error {
	ice := f.Serve(0)
	conflicts := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "icecreams/status"},
		Fault: faultproxy.Answer, Code: http.StatusConflict, Times: 3})
	node := "node-" + f.Namespace
	if _, err := f.Client.CoreV1().Pods(f.Namespace).Create(f.Context(), PodOn(ice, node), metav1.CreateOptions{}); err != nil {
		return err
	}
	f.Struck(conflicts, 1)
	for deadline := time.Now().Add(20 * time.Second); ; { // it has a second try at once; only one that has given up needs so long
		ice, err := f.Icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
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
	if log := f.Process.Stderr(); strings.Contains(log, "Trying again later") || strings.Contains(log, "Reconciler error") {
		return fmt.Errorf("a conflict was logged as an error:\n%s", f.Process.Stderr())
	}
	return nil
}

// within returns what is still wrong after a time.
func (f *Test) within(limit time.Duration, check func() error) error {
	f.T.Helper()
	end := time.Now().Add(limit)
	var wrong error
	f.Eventually(limit+30*time.Second, func(context.Context) error {
		if wrong = check(); wrong != nil && time.Now().Before(end) {
			return wrong
		}
		return nil
	})
	return wrong
}

// soon is long enough for what an event causes, and too short for anything that comes later.
const soon = 20 * time.Second

// NoticesAFreeName: somebody else's Deployment goes, and nothing but its event says so.
func NoticesAFreeName(f *Test) error {
	f.Start()
	f.Foreign("cone")
	f.Create("vanilla", "cone", 0)
	ice := f.Until("vanilla", IsRefused)
	// The controller's own write of that status is an event, too.
	if err := f.LookedAt(func() error { return nil }); err != nil {
		return err
	}
	if err := f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return f.within(soon, func() error {
		if len(f.All(ice)) == 0 {
			return errors.New("the name is free, and the Icecream has no Deployment")
		}
		return nil
	})
}

// noticesAFreeNameByItself: somebody else's Deployment comes, is in the way, and goes while the controller cannot watch. When it
// can again, history has gone by, so no event tells of that.
func noticesAFreeNameByItself(f *Test, start func()) error {
	start()
	early := f.Create("early", "early", 0)
	if err := f.within(soon, func() error { // so the controller watches
		if len(f.All(early)) == 0 {
			return errors.New("the Icecream early has no Deployment")
		}
		return nil
	}); err != nil {
		return err
	}
	// A list that shows one, or no longer shows one that the cache knows, would be an event that wakes the controller.
	if err := f.Icecreams.Delete(f.Context(), "early", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := f.Deployments.Delete(f.Context(), "early", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	time.Sleep(time.Second)
	gone := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: "deployments"}, Fault: faultproxy.ErrorEvent, Code: http.StatusGone})
	again := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list", Resource: "deployments"}, Fault: faultproxy.Stall, Times: -1})
	f.Proxy.Cut(faultproxy.Match{Verb: "watch*", Resource: "deployments"})
	f.Struck(gone, 1)
	f.Foreign("cone")
	ice := f.Create("vanilla", "cone", 0)
	f.Until("vanilla", func(ice *v1alpha1.Icecream) error {
		if !slices.ContainsFunc(ice.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == v1alpha1.ReasonErrResourceExists }) {
			return fmt.Errorf("status %+v", ice.Status)
		}
		return nil
	})
	if err := f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	again.Remove()
	return f.within(soon, func() error {
		if len(f.All(ice)) == 0 {
			return errors.New("the name is free, and the Icecream has no Deployment")
		}
		return nil
	})
}

// MakesADeletedOneAgain: the Icecream's Deployment is deleted.
func MakesADeletedOneAgain(f *Test) error {
	ice := f.Serve(0)
	old := f.Deployment("cone")
	// No event of before may be the one that has it look again.
	if err := errors.Join(f.LookedAt(func() error { return nil }), f.Hold(3*time.Second, func() error { return nil })); err != nil {
		return err
	}
	if err := f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return f.within(soon, func() error {
		if all := f.All(ice); len(all) == 0 || all[0].UID == old.UID {
			return errors.New("the Deployment was not made again")
		}
		return nil
	})
}

// WaitsAsTold: the server asks to be left alone for a while, and there are events meanwhile.
func WaitsAsTold(f *Test) error {
	f.Serve(0)
	const wait = 3 * time.Second
	busy := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "deployments"},
		Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: wait})
	f.PatchDeployment("cone", `{"spec":{"replicas":1}}`)
	f.Struck(busy, 1)
	f.Patch("vanilla", `{"metadata":{"annotations":{"look":"again"}}}`)
	var tries []faultproxy.Request
	f.Eventually(time.Minute, func(context.Context) error {
		if tries = f.Requests("patch", "deployments"); len(tries) < 2 {
			return fmt.Errorf("%d tries", len(tries))
		}
		return nil
	})
	// Both clocks are the same one; what is measured is a little behind it.
	if gap := tries[1].Started.Sub(tries[0].Started.Add(tries[0].Took)); gap < wait-50*time.Millisecond {
		return fmt.Errorf("it came again after %s, and was asked for %s", gap.Round(time.Millisecond), wait)
	}
	return nil
}

// WaitsWithItsReport: what was refused will stay so, and the server takes the status that says so only later.
func WaitsWithItsReport(f *Test) error {
	f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "deployments"}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	const wait = 3 * time.Second
	written := faultproxy.Match{Resource: "icecreams/status", If: faultproxy.Request.Write}
	busy := f.Proxy.MustInject(faultproxy.Rule{Match: written, Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: wait})
	f.Start()
	f.Create("vanilla", "cone", 1)
	f.Struck(busy, 1)
	f.Until("vanilla", Condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, "Refused"))
	tries := f.Proxy.Requests(written)
	end := tries[0].Started.Add(tries[0].Took + wait - 50*time.Millisecond)
	for _, r := range append(f.Requests("create", "deployments"), tries[1]) {
		if r.Started.After(tries[0].Started) && r.Started.Before(end) {
			return fmt.Errorf("it came again %s before it was asked to: %s %s", end.Sub(r.Started).Round(time.Millisecond), r.Verb, r.Resource)
		}
	}
	return nil
}

// FreesTheWorkers: as many Icecreams as there are workers have to wait, and another one must not.
func FreesTheWorkers(f *Test, workers int, verb string) error {
	names := []string{"early"}
	for i := range workers {
		names = append(names, fmt.Sprintf("late-%d", i))
	}
	for _, name := range names {
		f.Create(name, name, 0)
		f.Until(name, IsAvailable)
	}
	var busy []*faultproxy.Injection
	for _, name := range names[1:] {
		busy = append(busy, f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: verb, Resource: "deployments", Name: name},
			Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: 10 * time.Second}))
		f.PatchDeployment(name, `{"spec":{"replicas":1}}`)
	}
	for _, b := range busy {
		f.Struck(b, 1)
	}
	f.PatchDeployment("early", `{"spec":{"replicas":1}}`)
	var order []string
	f.Eventually(time.Minute, func(context.Context) error {
		order = nil
		for _, r := range f.Requests(verb, "deployments") {
			order = append(order, r.Name)
		}
		for _, name := range names {
			if n := len(slices.DeleteFunc(slices.Clone(order), func(other string) bool { return other != name })); n == 0 || n == 1 && name != "early" {
				return fmt.Errorf("corrected: %q", order)
			}
		}
		return nil
	})
	early := slices.Index(order, "early")
	for _, name := range names[1:] {
		if first := slices.Index(order, name); slices.Index(order[first+1:], name)+first+1 < early {
			return fmt.Errorf("a worker was asleep: corrected in the order %q", order)
		}
	}
	return nil
}
