package controller

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

func TestNextFlavour(t *testing.T) {
	t.Parallel()
	mint, lime := map[string]string{savedFlavour: "mint"}, map[string]string{savedFlavour: "lime"}
	limeWorked := map[string]string{savedFlavour: "mint", workedFlavour: "lime"}
	limeFailed := map[string]string{savedFlavour: "mint", failedFlavour: "lime"}
	for name, tc := range map[string]struct {
		want, now     string
		works, failed bool
		saved         map[string]string
		image         string
		data          map[string]string
	}{
		"nothing is there":             {want: "lime", image: "lime"},
		"an upgrade":                   {want: "lime", now: "mint", works: true, image: "lime", data: mint},
		"an upgrade that was repeated": {want: "lime", now: "mint", works: true, saved: mint, image: "lime", data: mint},
		"of what does not work":        {want: "lime", now: "mint", image: "lime"},
		"before the last one is done":  {want: "plum", now: "lime", saved: mint, image: "plum", data: mint},
		"the next upgrade":             {want: "plum", now: "lime", works: true, saved: mint, image: "plum", data: lime},
		"a failure":                    {want: "lime", now: "lime", failed: true, saved: mint, image: "mint", data: limeFailed},
		"an upgrade that has worked":   {want: "lime", now: "lime", works: true, saved: mint, image: "lime", data: limeWorked},
		"a failure after that":         {want: "lime", now: "lime", works: true, failed: true, saved: limeWorked, image: "lime", data: limeWorked},
		"the upgrade after that":       {want: "plum", now: "lime", works: true, saved: limeWorked, image: "plum", data: lime},
		"a failure that was written":   {want: "lime", now: "lime", failed: true, saved: limeFailed, image: "mint", data: limeFailed},
		"nothing to give back":         {want: "lime", now: "lime", failed: true, image: "lime"},
		"given back":                   {want: "lime", now: "mint", works: true, saved: limeFailed, image: "mint", data: limeFailed},
		"given back, and deleted":      {want: "lime", saved: limeFailed, image: "mint", data: limeFailed},
		"an upgrade after a failure":   {want: "plum", now: "mint", works: true, saved: limeFailed, image: "plum", data: mint},
		"failed, and nothing saved":    {want: "lime", now: "mint", saved: map[string]string{failedFlavour: "lime"}, image: "lime", data: map[string]string{failedFlavour: "lime"}},
		"the container has no name":    {want: "lime", works: true, saved: mint, image: "lime", data: mint},
		"back to what works":           {want: "mint", now: "mint", saved: limeFailed, image: "mint", data: limeFailed},
	} {
		image, data := nextFlavour(tc.want, tc.now, tc.works, tc.failed, tc.saved)
		if image != tc.image || !maps.Equal(data, tc.data) {
			t.Errorf("%s: %s, %v; want %s, %v", name, image, data, tc.image, tc.data)
		}
	}
}

// As long as the Deployment's controller has not looked, nobody has tried to upgrade, and so
// nothing is given back.
func TestUpgradedBeforeTheUpgrade(t *testing.T) {
	t.Parallel()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: appsv1.DeploymentStatus{ObservedGeneration: 1},
		Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: container, Image: "mint"}}}}}}
	ice := &controllerv1alpha1.Icecream{}
	ice.Status.Conditions = []metav1.Condition{{Type: upgradedType, Status: metav1.ConditionTrue, Reason: "Upgraded", Message: upgradedMessage("mint")}}
	status := ice.Status.DeepCopy()
	setUpgraded(status, ice, d, "lime")
	if !equality.Semantic.DeepEqual(*status, ice.Status) {
		t.Errorf("the conditions are now %+v", status.Conditions)
	}
}
