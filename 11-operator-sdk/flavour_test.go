package operatorsdk

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

// No node of kind has the image of bitter: its pods cannot start there.
const mint, lime, bitter = "workshop/pause:1", "workshop/pause:2", "workshop/pause:3"

// newFlavours starts the operator, with an Icecream whose Deployment is available with mint.
func newFlavours(t *testing.T, args ...string) *icecreamtest.Test {
	t.Helper()
	e := testenv.New(t)
	f := icecreamtest.Of(t, e, e.Program("./10-kubebuilder/icecream/cmd"), append([]string{"-health-probe-bind-address", "127.0.0.1:0"}, args...)...)
	f.Start("-image", mint)
	f.Create("vanilla", "cone", 2)
	f.Until("vanilla", icecreamtest.IsAvailable)
	return f
}

// upgrade starts the operator anew, with another image.
func upgrade(f *icecreamtest.Test, image string) {
	f.T.Helper()
	f.Stop()
	f.Start("-image", image)
}

// saved checks what the ConfigMap holds.
func saved(f *icecreamtest.Test, want map[string]string) func(context.Context) error {
	return func(ctx context.Context) error {
		cm, err := f.Client.CoreV1().ConfigMaps(f.Namespace).Get(ctx, "vanilla-flavour", metav1.GetOptions{})
		if err == nil && !maps.Equal(cm.Data, want) {
			err = fmt.Errorf("the ConfigMap holds %v, want %v", cm.Data, want)
		}
		return err
	}
}

// serves checks that the Deployment is rolled out with an image.
func serves(f *icecreamtest.Test, image string) func(context.Context) error {
	return func(ctx context.Context) error {
		d, err := f.Deployments.Get(ctx, "cone", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := d.Spec.Template.Spec.Containers[0].Image; got != image || d.Status.ObservedGeneration < d.Generation ||
			d.Status.UpdatedReplicas != 2 || d.Status.Replicas != 2 || d.Status.AvailableReplicas != 2 {
			return fmt.Errorf("image %s, status %+v; want 2 available replicas of %s", got, d.Status, image)
		}
		return nil
	}
}

// noFurtherPods makes each rollout fail: what runs stays, and nothing new comes.
func noFurtherPods(f *icecreamtest.Test) (allow func()) {
	f.T.Helper()
	quotas := f.Client.CoreV1().ResourceQuotas(f.Namespace)
	if _, err := quotas.Create(f.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}}}, metav1.CreateOptions{}); err != nil {
		f.T.Fatal(err)
	}
	f.Eventually(time.Minute, func(ctx context.Context) error {
		q, err := quotas.Get(ctx, "none", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) == 0 {
			err = fmt.Errorf("the quota does not count yet")
		}
		return err
	})
	return func() {
		fatal.If(f.T, quotas.Delete(f.Context(), "none", metav1.DeleteOptions{}))
	}
}

var givenBack = icecreamtest.Condition("Upgraded", metav1.ConditionFalse, "GivenBack")

// upgraded checks that the status says so of lime: before the upgrade, it says so of mint.
func upgraded(ice *v1alpha1.Icecream) error {
	c := meta.FindStatusCondition(ice.Status.Conditions, "Upgraded")
	if c == nil || c.Status != metav1.ConditionTrue || c.Message != "The flavour is "+lime {
		return fmt.Errorf("the conditions are %+v, want Upgraded of %s", ice.Status.Conditions, lime)
	}
	return nil
}

func TestFlavourIsSaved(t *testing.T) {
	t.Parallel()
	f := newFlavours(t, "-save-flavours")
	upgrade(f, lime)
	f.Eventually(icecreamtest.Collected, serves(f, lime))
	f.Until("vanilla", upgraded)
	if err := saved(f, map[string]string{"flavour": mint, "worked": lime})(f.Context()); err != nil {
		t.Error(err)
	}
	saves, upgrades := f.Requests("create", "configmaps"), f.Requests("patch", "deployments")
	if len(saves) != 1 || len(upgrades) != 1 || saves[0].Started.Add(saves[0].Took).After(upgrades[0].Started) {
		t.Errorf("saves %v, upgrades %v; want one of each, in this order", saves, upgrades)
	}
	if n, note := f.Events(f.Until("vanilla", icecreamtest.IsAvailable), "FlavourSaved"); n != 1 {
		t.Errorf("%d Events FlavourSaved, want one (%s)", n, note)
	}
}

func TestFlavourIsGivenBack(t *testing.T) {
	t.Parallel()
	f := newFlavours(t, "-save-flavours")
	f.PatchDeployment("cone", `{"spec":{"progressDeadlineSeconds":5}}`)
	allow := noFurtherPods(f)
	upgrade(f, bitter)
	f.Until("vanilla", givenBack)
	f.Eventually(icecreamtest.Collected, serves(f, mint))
	tried := map[string]string{"flavour": mint, "failed": bitter}
	if err := saved(f, tried)(f.Context()); err != nil {
		t.Error(err)
	}
	allow()

	// What has failed is not tried again, after a restart either.
	upgrade(f, bitter)
	f.Until("vanilla", givenBack)
	if err := f.LookedAt(func() error { return serves(f, mint)(f.Context()) }); err != nil {
		t.Error(err)
	}
	// Nor for a Deployment that is made again, which has ten minutes.
	fatal.If(t, f.Deployments.Delete(f.Context(), "cone", metav1.DeleteOptions{}))
	f.Eventually(icecreamtest.Collected, serves(f, mint))
	if err := saved(f, tried)(f.Context()); err != nil {
		t.Error(err)
	}
	// Another image is.
	upgrade(f, lime)
	f.Eventually(icecreamtest.Collected, saved(f, map[string]string{"flavour": mint, "worked": lime}))
	f.Eventually(icecreamtest.Collected, serves(f, lime))
}

// An upgrade that begins while something is missing saves what has worked before.
func TestFlavourIsSavedInABadMoment(t *testing.T) {
	t.Parallel()
	f := newFlavours(t, "-save-flavours")
	noFurtherPods(f)
	f.Patch("vanilla", `{"spec":{"replicas":3}}`)
	f.Until("vanilla", icecreamtest.Condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, "Progressing"))
	upgrade(f, lime)
	f.Eventually(icecreamtest.Collected, func(context.Context) error {
		if image := f.Deployment("cone").Spec.Template.Spec.Containers[0].Image; image != lime {
			return fmt.Errorf("the image is %s", image)
		}
		return nil
	})
	if err := saved(f, map[string]string{"flavour": mint})(f.Context()); err != nil {
		t.Error(err)
	}
}

// An image that was rolled out once has not failed because a later rollout of it does, also when the status is lost.
func TestFlavourThatHasWorked(t *testing.T) {
	t.Parallel()
	f := newFlavours(t, "-save-flavours")
	upgrade(f, lime)
	f.Until("vanilla", upgraded)
	f.PatchDeployment("cone", `{"spec":{"progressDeadlineSeconds":5}}`)
	noFurtherPods(f)
	f.PatchDeployment("cone", `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`)
	f.Eventually(icecreamtest.Collected, func(context.Context) error {
		for _, c := range f.Deployment("cone").Status.Conditions {
			if c.Reason == "ProgressDeadlineExceeded" {
				return nil
			}
		}
		return fmt.Errorf("the rollout has not failed yet")
	})
	stays := func() error {
		if image := f.Deployment("cone").Spec.Template.Spec.Containers[0].Image; image != lime {
			return fmt.Errorf("the image is %s, want %s", image, lime)
		}
		return nil
	}
	if err := f.LookedAt(stays); err != nil {
		t.Error(err)
	}
	f.Until("vanilla", upgraded)
	if _, err := f.Icecreams.Patch(f.Context(), "vanilla", types.MergePatchType, []byte(`{"status":null}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if err := f.LookedAt(stays); err != nil {
		t.Errorf("the status was lost: %v", err)
	}
}

// The operator dies between the save and the upgrade, and the ConfigMap's answer is lost before.
func TestFlavourSurvives(t *testing.T) {
	t.Parallel()
	f := newFlavours(t, "-save-flavours")
	f.Stop()
	lost := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "configmaps"}, Fault: faultproxy.Lose})
	refused := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "deployments"}, Fault: faultproxy.Answer, Code: 500, Times: -1})
	f.Start("-image", lime)
	f.Struck(lost, 1)
	f.Struck(refused, 1)
	if err := saved(f, map[string]string{"flavour": mint})(f.Context()); err != nil {
		t.Error(err)
	}
	f.Kill()
	refused.Remove()
	f.Start()
	f.Eventually(icecreamtest.Collected, serves(f, lime))
	f.Eventually(icecreamtest.Collected, saved(f, map[string]string{"flavour": mint, "worked": lime}))
}

// A ConfigMap of that name that is somebody else's is not overwritten. Then nothing is upgraded.
func TestFlavourOfSomebodyElse(t *testing.T) {
	t.Parallel()
	f := newFlavours(t, "-save-flavours")
	theirs := map[string]string{"flavour": "theirs"}
	if _, err := f.Client.CoreV1().ConfigMaps(f.Namespace).Create(f.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "vanilla-flavour"}, Data: theirs}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	upgrade(f, lime)
	f.Until("vanilla", icecreamtest.Condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, "Refused"))
	if err := saved(f, theirs)(f.Context()); err != nil {
		t.Error(err)
	}
	if err := serves(f, mint)(f.Context()); err != nil {
		t.Error(err)
	}
	f.Patch("vanilla", `{"spec":{"replicas":3}}`) // without an upgrade, the rest goes on
	f.Eventually(icecreamtest.Collected, func(context.Context) error {
		d := f.Deployment("cone")
		if image := d.Spec.Template.Spec.Containers[0].Image; *d.Spec.Replicas != 3 || image != mint {
			return fmt.Errorf("%d replicas of %s, want 3 of %s", *d.Spec.Replicas, image, mint)
		}
		return nil
	})
}

// Without the option, the operator is that of step 10.
func TestFlavourIsAnOption(t *testing.T) {
	t.Parallel()
	f := newFlavours(t)
	upgrade(f, lime)
	f.Eventually(icecreamtest.Collected, serves(f, lime))
	if n := f.Proxy.Count(faultproxy.Match{Resource: "configmaps"}); n != 0 {
		t.Errorf("%d requests for ConfigMaps, want none", n)
	}
}
