package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controllerv1alpha1 "github.com/k8s-go/workshop/10-kubebuilder/icecream/api/v1alpha1"
)

// Ice cream melts, and only its operator knows: the flavour, which is the image that works, is
// saved before a Deployment is upgraded, and given back if the upgrade fails. Step 11 is about it.

// What the ConfigMap of an Icecream's flavour holds.
const (
	savedFlavour  = "flavour" // the image that worked before the last upgrade
	workedFlavour = "worked"  // the image that was rolled out after that
	failedFlavour = "failed"  // the image whose rollout failed after that
)

// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;update

// flavour returns the image that an Icecream's Deployment should have, after it has saved what
// must not be lost. If there is no Deployment, d is nil.
func (r *IcecreamReconciler) flavour(ctx context.Context, ice *controllerv1alpha1.Icecream, d *appsv1.Deployment) (string, error) {
	now := flavourOf(d)
	upgrade := !upgradedTo(ice, r.Image) // a later rollout of the same image is none
	failed := now == r.Image && timedOut(d) && upgrade
	if !r.SaveFlavours || now == r.Image && !failed && !(upgrade && rolledOut(d)) {
		return r.Image, nil
	}
	if now != "" && d.Status.ObservedGeneration < d.Generation {
		return now, nil // nobody knows whether it works before its controller has looked; that is an event
	}
	name := client.ObjectKey{Namespace: ice.Namespace, Name: ice.Name + "-flavour"}
	saved := &corev1.ConfigMap{}
	err := r.Live.Get(ctx, name, saved) // the cache has no ConfigMaps
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		saved = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ice, controllerv1alpha1.GroupVersion.WithKind("Icecream"))}}}
	case err != nil:
		return "", err
	case !metav1.IsControlledBy(saved, ice) && (d == nil || now == r.Image):
		return r.Image, nil // there is nothing to save
	case !metav1.IsControlledBy(saved, ice): // to overwrite it would lose somebody's data, and not to save would lose ours
		return "", apierrors.NewForbidden(corev1.Resource("configmaps"), name.Name, errForeign)
	}
	// An image that has worked works, also while a pod is missing, and when the status is lost.
	works := d != nil && (rolledOut(d) || upgradedTo(ice, now) || saved.Data[workedFlavour] == now)
	image, data := nextFlavour(r.Image, now, works, failed, saved.Data)
	if maps.Equal(data, saved.Data) {
		return image, nil
	}
	saved.Data = data
	if missing {
		err = r.Create(ctx, saved, FieldManager)
	} else {
		err = r.Update(ctx, saved, FieldManager)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("saving the flavour of Icecream %s: %w", ice.Name, err)
	case image == now: // it has worked
	case failed:
		r.event(ice, corev1.EventTypeWarning, "FlavourGivenBack", givenBack(r.Image, image))
	default:
		r.event(ice, corev1.EventTypeNormal, "FlavourSaved", fmt.Sprintf("%s is saved before the upgrade to %s", now, r.Image))
	}
	return image, nil
}

// nextFlavour decides which image a Deployment gets, and what is saved before: now is the one that
// it has, works says that this one is rolled out, or was once, and failed that the rollout of want has failed.
func nextFlavour(want, now string, works, failed bool, saved map[string]string) (image string, data map[string]string) {
	last := saved[savedFlavour]
	switch {
	case works && now == want && last != "" && last != want: // a later failure has another cause
		data = maps.Clone(saved)
		data[workedFlavour] = want
		return want, data
	case failed && last != "" && last != want:
		return last, map[string]string{savedFlavour: last, failedFlavour: want}
	case last != "" && saved[failedFlavour] == want: // until the controller has another image
		return last, saved
	case works && now != "" && now != want:
		return want, map[string]string{savedFlavour: now}
	}
	return want, saved // what does not work is not worth saving
}

// flavourOf returns the image of a Deployment.
func flavourOf(d *appsv1.Deployment) string {
	if d == nil {
		return ""
	}
	i := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if i < 0 {
		return ""
	}
	return d.Spec.Template.Spec.Containers[i].Image
}

// timedOut says whether a rollout has made no progress for progressDeadlineSeconds.
func timedOut(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded"
	})
}

func givenBack(failed, last string) string {
	return fmt.Sprintf("%s was not available in time; %s is given back", failed, last)
}

const upgradedType = "Upgraded" // a condition: has the Deployment the controller's image?

func upgradedMessage(image string) string { return "The flavour is " + image }

// upgradedTo says whether an image has been rolled out once.
func upgradedTo(ice *controllerv1alpha1.Icecream, image string) bool {
	c := meta.FindStatusCondition(ice.Status.Conditions, upgradedType)
	return c != nil && c.Status == metav1.ConditionTrue && c.Message == upgradedMessage(image)
}

// setUpgraded adds the condition Upgraded to a status.
func setUpgraded(status *controllerv1alpha1.IcecreamStatus, ice *controllerv1alpha1.Icecream, d *appsv1.Deployment, image string) {
	c := metav1.Condition{Type: upgradedType, Status: metav1.ConditionTrue, Reason: "Upgraded", Message: upgradedMessage(image), ObservedGeneration: ice.Generation}
	switch now := flavourOf(d); {
	case now != image && d.Status.ObservedGeneration < d.Generation:
		return // the upgrade has not begun
	case now != image:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "GivenBack", givenBack(image, now)
	case !rolledOut(d) && !upgradedTo(ice, image):
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "Progressing", "The upgrade to "+image+" is under way"
	}
	meta.SetStatusCondition(&status.Conditions, c)
}
