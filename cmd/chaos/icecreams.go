package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
)

// The scenario of icecream: one Icecream is scaled while somebody changes its
// Deployment, one gets another deploymentName, one wants a Deployment that is
// somebody else's until that one goes, one is deleted, and one is deleted and made
// again under its name.
var icecream = &subject{name: "icecream", watches: 3, setup: setUpIcecreams, people: changeIcecreams, state: icecreamState,
	clear: func(ctx context.Context, s *scene) (int, error) {
		client := s.objects.IcecreamV1alpha1().Icecreams(s.ns)
		if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return 0, err
		}
		list, err := client.List(ctx, metav1.ListOptions{})
		return len(list.Items), err
	}}

var subjects = []*subject{healthCheckPolicy, icecream}

// icecreamsAtLast are the Icecreams of the end, with their Deployments and replicas.
func icecreamsAtLast(s *scene) map[string]v1alpha1.IcecreamSpec {
	all := map[string]v1alpha1.IcecreamSpec{
		"scaled":  {DeploymentName: "scaled", Replicas: ptr.To(int32(3))},
		"renamed": {DeploymentName: "new-name", Replicas: ptr.To(int32(1))},
	}
	if !s.small {
		all["waiting"] = v1alpha1.IcecreamSpec{DeploymentName: "foreign", Replicas: ptr.To(int32(1))}
		all["again"] = v1alpha1.IcecreamSpec{DeploymentName: "again", Replicas: ptr.To(int32(1))}
	}
	return all
}

func setUpIcecreams(ctx context.Context, s *scene) error {
	if s.small {
		return nil
	}
	labels := map[string]string{"app": "foreign"}
	_, err := s.client.AppsV1().Deployments(s.ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "workshop/pause:1"}}}}},
	}, metav1.CreateOptions{})
	return err
}

func changeIcecreams(ctx context.Context, s *scene) error {
	client := s.objects.IcecreamV1alpha1().Icecreams(s.ns)
	make := func(name, deployment string, replicas int32) error {
		return s.do(ctx, func(ctx context.Context) error {
			return create(client.Create(ctx, &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: v1alpha1.IcecreamSpec{DeploymentName: deployment, Replicas: &replicas}}, metav1.CreateOptions{}))
		})
	}
	patch := func(name, patch string) func() error {
		return func() error {
			return s.do(ctx, func(ctx context.Context) error {
				return second(client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
			})
		}
	}
	begin := []func() error{
		func() error { return make("scaled", "scaled", 2) },
		func() error { return make("renamed", "old-name", 1) },
	}
	if !s.small {
		begin = append(begin,
			func() error { return make("waiting", "foreign", 1) },
			func() error { return make("deleted", "deleted", 1) },
			func() error { return make("again", "again", 1) })
	}
	s.script.Shuffle(len(begin), func(i, j int) { begin[i], begin[j] = begin[j], begin[i] })
	for _, step := range begin {
		if err := step(); err != nil {
			return err
		}
		s.pause(ctx, 200*time.Millisecond)
	}

	steps := []func() error{
		patch("scaled", `{"spec":{"replicas":3}}`),
		patch("renamed", `{"spec":{"deploymentName":"new-name"}}`),
	}
	if s.small {
		// Both have come to rest, so that each time there are about as many writes.
		if err := s.until(ctx, func(ctx context.Context) error {
			list, err := client.List(ctx, metav1.ListOptions{})
			for _, ice := range list.Items {
				if !meta.IsStatusConditionTrue(ice.Status.Conditions, v1alpha1.ConditionAvailable) {
					return fmt.Errorf("the Icecream %s is not available", ice.Name)
				}
			}
			return err
		}); err != nil {
			return err
		}
	} else {
		steps = append(steps,
			func() error { return s.drift(ctx, "scaled", 1) },
			func() error {
				return s.do(ctx, func(ctx context.Context) error {
					return remove(s.client.AppsV1().Deployments(s.ns).Delete(ctx, "foreign", metav1.DeleteOptions{}))
				})
			},
			func() error {
				return s.do(ctx, func(ctx context.Context) error { return remove(client.Delete(ctx, "deleted", metav1.DeleteOptions{})) })
			},
			func() error { return s.replaceIcecream(ctx, "again") })
	}
	s.script.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		s.pause(ctx, 400*time.Millisecond)
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// drift changes the replicas of a Deployment as soon as it is there.
func (s *scene) drift(ctx context.Context, deployment string, replicas int) error {
	return s.until(ctx, func(ctx context.Context) error {
		return second(s.client.AppsV1().Deployments(s.ns).Patch(ctx, deployment, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{FieldManager: "people"}))
	})
}

// replaceIcecream deletes an Icecream and makes another one of that name. Two calls
// wait for each other: between the two requests of one there is no Icecream.
func (s *scene) replaceIcecream(ctx context.Context, name string) error {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	client := s.objects.IcecreamV1alpha1().Icecreams(s.ns)
	var old *v1alpha1.Icecream
	if err := s.do(ctx, func(ctx context.Context) (err error) {
		old, err = client.Get(ctx, name, metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	return s.do(ctx, func(ctx context.Context) error {
		if now, err := client.Get(ctx, name, metav1.GetOptions{}); err == nil && now.UID == old.UID {
			if err := remove(client.Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
				return err
			}
		}
		return create(client.Create(ctx, &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: old.Spec}, metav1.CreateOptions{}))
	})
}

// icecreamState describes the Icecreams, their Deployments and pods.
func icecreamState(ctx context.Context, s *scene) (string, error) {
	icecreams, err := s.objects.IcecreamV1alpha1().Icecreams(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	deployments, err := s.client.AppsV1().Deployments(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	sets, err := s.client.AppsV1().ReplicaSets(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	pods, err := s.client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	var errs expectations
	expect := errs.that
	names := map[string]string{}
	for _, ice := range icecreams.Items {
		names[string(ice.UID)] = ice.Name
	}
	named := func(uid string) string {
		if names[uid] == "" {
			return "an Icecream that is gone"
		}
		return "UID of " + names[uid]
	}

	wanted := icecreamsAtLast(s)
	expect(len(icecreams.Items) == len(wanted) && len(deployments.Items) == len(wanted),
		"%d Icecreams and %d Deployments, want %d of each", len(icecreams.Items), len(deployments.Items), len(wanted))
	for _, ice := range icecreams.Items {
		st := ice.Status
		_, uid, _ := strings.Cut(st.Selector, "=")
		fmt.Fprintf(&b, "icecream %s: %s %d, deleted %v, current %v, %d replicas, %d available, selector %s\n", ice.Name, ice.Spec.DeploymentName, *ice.Spec.Replicas,
			ice.DeletionTimestamp != nil, st.ObservedGeneration == ice.Generation, ptr.Deref(st.Replicas, -1), ptr.Deref(st.AvailableReplicas, -1), named(uid))
		for _, c := range st.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s %q current %v\n", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration == ice.Generation)
		}
		want := wanted[ice.Name]
		expect(want.DeploymentName == ice.Spec.DeploymentName && ptr.Equal(want.Replicas, ice.Spec.Replicas) && st.ObservedGeneration == ice.Generation &&
			ptr.Equal(st.AvailableReplicas, want.Replicas) && ptr.Equal(st.Replicas, want.Replicas) &&
			meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionAvailable) && meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionOwned),
			"Icecream %s is %+v, want %+v to be available", ice.Name, ice.Status, want)
		// Which nodes they are is the scheduler's choice. Two pods that are to come may
		// stand against two of deleted owners that are to go, so each Icecream's are counted.
		var nodes []string
		count := 0
		for _, p := range pods.Items {
			if p.Labels[v1alpha1.UIDLabel] != string(ice.UID) {
				continue
			}
			count++
			if p.Spec.NodeName != "" {
				nodes = append(nodes, p.Spec.NodeName)
			}
		}
		expect(count == int(*ice.Spec.Replicas), "Icecream %s has %d pods, want %d", ice.Name, count, *ice.Spec.Replicas)
		slices.Sort(nodes)
		expect(slices.Equal(slices.Compact(nodes), st.Nodes), "Icecream %s names the nodes %v, its pods run on %v", ice.Name, st.Nodes, nodes)
	}
	for _, d := range deployments.Items {
		controller := metav1.GetControllerOf(&d)
		owner := "nobody"
		if controller != nil {
			owner = fmt.Sprintf("%s %s, %s, %d references", controller.Kind, controller.Name, named(string(controller.UID)), len(d.OwnerReferences))
		}
		delete(d.Annotations, rival)
		containers := make([]string, 0, 1)
		for _, c := range d.Spec.Template.Spec.Containers {
			containers = append(containers, c.Name+" "+c.Image)
		}
		fmt.Fprintf(&b, "deployment %s: deleted %v, owner %s, %d replicas, %d available, selector %s, pods %s, %v\n", d.Name, d.DeletionTimestamp != nil, owner,
			*d.Spec.Replicas, d.Status.AvailableReplicas, named(d.Spec.Selector.MatchLabels[v1alpha1.UIDLabel]), named(d.Spec.Template.Labels[v1alpha1.UIDLabel]), containers)
		expect(d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == *d.Spec.Replicas,
			"Deployment %s has %d available replicas at generation %d, want %d at %d", d.Name, d.Status.AvailableReplicas, d.Status.ObservedGeneration, *d.Spec.Replicas, d.Generation)
		expect(controller != nil && names[string(controller.UID)] == controller.Name && wanted[controller.Name].DeploymentName == d.Name,
			"Deployment %s belongs to %s", d.Name, owner)
	}
	// One that has seen replicas of 1 for a moment may not have deleted its pods yet.
	for _, set := range sets.Items {
		expect(set.Status.ObservedGeneration == set.Generation && set.Status.Replicas == *set.Spec.Replicas,
			"ReplicaSet %s has %d replicas at generation %d, want %d at %d", set.Name, set.Status.Replicas, set.Status.ObservedGeneration, *set.Spec.Replicas, set.Generation)
	}
	alive, due := 0, 0
	for _, want := range wanted {
		due += int(*want.Replicas)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			alive++
		}
	}
	expect(alive == due && len(pods.Items) == due, "%d pods, of which %d are not going; want %d", len(pods.Items), alive, due)
	fmt.Fprintf(&b, "%d pods\n", alive)
	return b.String(), errors.Join(errs...)
}
