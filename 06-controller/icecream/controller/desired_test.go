package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// Layer 1: pure functions. These tests need no cluster and take no time, and
// they cannot see whether anybody calls the functions, or what becomes of the result.

func vanilla() *v1alpha1.Icecream {
	return &v1alpha1.Icecream{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "vanilla", UID: "u-1", Generation: 2},
		Spec:       v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: ptr.To(int32(3))},
	}
}

func cone(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d, err := newDeployment(vanilla(), "pause:1")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDriftIsOnlyWhatIsOurs(t *testing.T) {
	for _, tc := range []struct {
		want   string
		change func(d *appsv1.Deployment)
	}{
		{"", func(*appsv1.Deployment) {}},
		{"", func(d *appsv1.Deployment) {
			d.Spec.MinReadySeconds, d.Annotations = 7, map[string]string{"theirs": "x"}
		}},
		{"", func(d *appsv1.Deployment) { d.Spec.Template.Labels["theirs"] = "x" }},
		{"", func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers = append([]corev1.Container{{Name: "sidecar", Image: "other"}}, d.Spec.Template.Spec.Containers...)
		}},
		{"", func(d *appsv1.Deployment) {
			d.OwnerReferences = append(d.OwnerReferences, metav1.OwnerReference{UID: "u-2"})
		}},
		{"replicas", func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(int32(0)) }},
		{"image", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "pause:2" }},
		{"pod label", func(d *appsv1.Deployment) { d.Spec.Template.Labels = nil }},
		{"selector", func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["theirs"] = "x" }},
		{"owner reference", func(d *appsv1.Deployment) { d.OwnerReferences = nil }},
		{"owner reference", func(d *appsv1.Deployment) { d.OwnerReferences[0].Controller = nil }},
		{"owner reference", func(d *appsv1.Deployment) { d.OwnerReferences[0].UID = "u-2" }},
	} {
		d := cone(t)
		tc.change(d)
		if got := driftOf(vanilla(), "pause:1", d); got != tc.want {
			t.Errorf("drift %q, want %q of %+v", got, tc.want, d)
		}
	}
}

func TestAvailable(t *testing.T) {
	done := appsv1.DeploymentStatus{ObservedGeneration: 5, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}
	for name, tc := range map[string]struct {
		change func(d *appsv1.Deployment)
		want   bool
	}{
		"done":                      {func(*appsv1.Deployment) {}, true},
		"of an older generation":    {func(d *appsv1.Deployment) { d.Generation = 6 }, false},
		"being scaled by somebody":  {func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(int32(2)) }, false},
		"with an old pod":           {func(d *appsv1.Deployment) { d.Status.Replicas = 4 }, false},
		"with a pod not updated":    {func(d *appsv1.Deployment) { d.Status.UpdatedReplicas, d.Status.Replicas = 2, 2 }, false},
		"with a pod not available":  {func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 }, false},
		"being deleted":             {func(d *appsv1.Deployment) { d.DeletionTimestamp = ptr.To(metav1.Now()) }, false},
		"that nobody has looked at": {func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} }, false},
		"with more than it needs up": {func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 4, 4, 4
		}, true},
	} {
		d := cone(t)
		d.Generation, d.Status = 5, done
		tc.change(d)
		if got := available(vanilla(), d); got != tc.want {
			t.Errorf("a Deployment %s: available %t", name, got)
		}
	}
}

func TestStatusSaysWhatIsNotKnown(t *testing.T) {
	ice := vanilla()
	status := statusOf(ice, cone(t), nil, problem{})
	if status.Replicas != nil || status.AvailableReplicas != nil || status.ObservedGeneration != 2 || status.Selector != "controller.nicoleh.io/uid=u-1" {
		t.Errorf("status before anybody has counted: %+v", status)
	}
	counted := cone(t)
	counted.Status.ObservedGeneration = 1
	if status := statusOf(ice, counted, nil, problem{}); ptr.Deref(status.Replicas, -1) != 0 || ptr.Deref(status.AvailableReplicas, -1) != 0 {
		t.Errorf("zero is a count: %+v", status)
	}
	refused := statusOf(ice, nil, nil, problem{v1alpha1.ReasonErrResourceExists, "somebody else has it"})
	if refused.Replicas != nil || !meta.IsStatusConditionFalse(refused.Conditions, "Owned") || !meta.IsStatusConditionFalse(refused.Conditions, "Available") {
		t.Errorf("status of a refused one: %+v", refused)
	}
}

func TestStatusDoesNotMoveByItself(t *testing.T) {
	ice, d := vanilla(), cone(t)
	ice.Status = statusOf(ice, d, nil, problem{})
	for i := range ice.Status.Conditions {
		ice.Status.Conditions[i].LastTransitionTime = metav1.Unix(1, 0)
	}
	before := ice.Status.DeepCopy()
	if diff := cmp.Diff(*before, statusOf(ice, d, nil, problem{})); diff != "" {
		t.Errorf("looked again (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(*before, ice.Status); diff != "" {
		t.Errorf("statusOf has changed its argument (-before +after):\n%s", diff)
	}
}

func TestNodes(t *testing.T) {
	var pods []any
	for i := range 250 {
		pods = append(pods, &corev1.Pod{Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%03d", 249-i/2)}})
	}
	pods = append(pods, &corev1.Pod{}, &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}})
	nodes := nodesOf(pods)
	if len(nodes) != 100 || nodes[0] != "node-125" || nodes[99] != "node-224" {
		t.Errorf("%d nodes, from %s to %s", len(nodes), nodes[0], nodes[len(nodes)-1])
	}
	if nodesOf(nil) != nil {
		t.Error("no nodes must be absent, as the server leaves out an empty list")
	}
}

// Another controller's Deployment is foreign, whatever else it names as its owner.
func TestWhoOwnsADeployment(t *testing.T) {
	plain := func(uid types.UID) metav1.OwnerReference { return metav1.OwnerReference{UID: uid} }
	controls := func(uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{UID: uid, Controller: ptr.To(true)}
	}
	for _, tc := range []struct {
		references []metav1.OwnerReference
		want       bool
	}{
		{nil, false},
		{[]metav1.OwnerReference{controls("u-1")}, true},
		{[]metav1.OwnerReference{plain("u-2"), controls("u-1")}, true},
		{[]metav1.OwnerReference{plain("u-2"), plain("u-1")}, true},
		{[]metav1.OwnerReference{plain("u-2")}, false},
		{[]metav1.OwnerReference{plain("u-1"), controls("u-2")}, false},
	} {
		if got := owned(vanilla(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tc.references}}); got != tc.want {
			t.Errorf("%+v: %t", tc.references, got)
		}
	}
}

// A webhook keeps what the controller corrects: the API server accepts the apply, and writes nothing.
func TestAnApplyThatChangesNothingIsNoWrite(t *testing.T) {
	d := cone(t)
	d.UID, d.ResourceVersion, d.Spec.Replicas = "d-1", "7", ptr.To(int32(5))
	answer := d.DeepCopy()
	client := fake.NewClientset(d)
	client.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) { return true, answer, nil })
	c := &Controller{clients: Clients{Deployments: client.AppsV1()}, image: "pause:1", loop: loop.New("test", nil, loop.Options{})}
	defer endQueue(c)
	for version, wrote := range map[string]bool{"7": false, "8": true} {
		answer.ResourceVersion = version
		if got, err := c.correct(t.Context(), vanilla(), d); err != nil || (got != nil) != wrote {
			t.Errorf("resourceVersion 7, and %s after the apply: %v, %v", version, got, err)
		}
	}
}

// endQueue ends the goroutines of a queue that nobody has run.
func endQueue(c *Controller) {
	ended, end := context.WithCancel(context.Background())
	end()
	_ = c.loop.Run(ended)
}

// A racing cache catches up with the last write while it is read.
type racing struct {
	cache.Indexer
	version string
}

func (r *racing) LastStoreSyncResourceVersion() string { return r.version }

func (r *racing) GetByKey(key string) (o any, exists bool, err error) {
	o, exists, err = r.Indexer.GetByKey(key)
	r.version = "8"
	return o, exists, err
}

func TestActsOnNothingReadBeforeTheCacheHasCaughtUp(t *testing.T) {
	key := cache.MetaObjectToName(vanilla())
	read := &racing{cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), "7"}
	if err := read.Add(vanilla()); err != nil {
		t.Fatal(err)
	}
	none := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byOwner: func(any) ([]string, error) { return nil, errors.New("it acts") }})
	c := &Controller{icecreams: read, deployments: none, loop: loop.New("test", nil, loop.Options{})}
	defer endQueue(c)
	c.writes.Record(key, read, "8")
	if _, err := c.reconcile(t.Context(), key); !errors.Is(err, loop.ErrBehind) {
		t.Errorf("error %v", err)
	}
}
