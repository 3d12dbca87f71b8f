package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/poll"
)

// The scenario of healthcheckpolicy.
//
// Pods of app=mark are marked by the policies "mark" and "note", and by "gone",
// which is deleted on the way. One of them moves to another app, one is deleted
// and made again under its name, one moves to another app and back. Meanwhile
// "mark" changes its action from label to annotate.
//
// Pods of app=kill are evicted by "kill", except for one that passes, one that is
// spared by a label, one that a budget protects, and the bait. The bait fails, and
// comes first: it is the oldest and has the first name. In the end it is spared, too; a fault may
// let it begin unspared, so that it is about to be evicted when that changes.
// Nobody replaces an evicted pod: its controller is a ConfigMap.
const (
	markKey = "chaos.test/mark"
	noteKey = "chaos.test/note"
	goneKey = "chaos.test/gone"
	keep    = "keep" // the label that spares a pod
	rival   = "chaos.test/rival"

	bait = "a-bait"
)

var healthCheckPolicy = &subject{name: "healthcheckpolicy", watches: 3, setup: setUpPolicies, people: changePolicies, state: policyState,
	clear: func(ctx context.Context, s *scene) (int, error) {
		client := s.objects.PolicyV1alpha1().HealthCheckPolicies(s.ns)
		if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return 0, err
		}
		list, err := client.List(ctx, metav1.ListOptions{})
		return len(list.Items), err
	}}

// victims are the pods that are evicted.
func victims(s *scene) []string {
	if s.small {
		return []string{"kill-0"}
	}
	return []string{"kill-0", "kill-1", "kill-2"}
}

// marked are the pods of app=mark at the start, without the one that passes.
func marked(s *scene) []string {
	if s.small {
		return []string{"mark-0", "mark-1"}
	}
	return []string{"mark-0", "mark-1", "mark-2", "mark-3"}
}

// roles says which pod of app=mark moves away, is replaced, and moves away and
// back. It is the same for all cases of a seed.
func (s *scene) roles() (moves, replaced, returns string) {
	pods := marked(s)
	rand.New(rand.NewPCG(s.seed, 2)).Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return pods[0], pods[1], pods[len(pods)-1]
}

func setUpPolicies(ctx context.Context, s *scene) error {
	owner, err := s.client.CoreV1().ConfigMaps(s.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	controller := metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	kill := func(name string, probes bool, more ...string) *corev1.Pod {
		p := pod(name, "kill", probes)
		p.OwnerReferences = []metav1.OwnerReference{*controller}
		for _, key := range more {
			p.Labels[key] = "yes"
		}
		return p
	}
	pods := []*corev1.Pod{kill(bait, false, keep), kill("spared", false, keep)}
	if s.fault.baited {
		delete(pods[0].Labels, keep)
	}
	for _, name := range victims(s) {
		pods = append(pods, kill(name, false))
	}
	for _, name := range marked(s) {
		pods = append(pods, pod(name, "mark", false))
	}
	if !s.small {
		pods = append(pods, pod("mark-passes", "mark", true), kill("kill-passes", true))
		protected := kill("protected", false, "protected")
		protected.Spec.SchedulingGates = nil // a budget protects only pods that are ready
		pods = append(pods, protected)
		if _, err := s.client.PolicyV1().PodDisruptionBudgets(s.ns).Create(ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "budget"},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"protected": "yes"}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, p := range pods {
		if _, err := s.client.CoreV1().Pods(s.ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if s.small {
		return nil
	}
	return s.until(ctx, func(ctx context.Context) error {
		budget, err := s.client.PolicyV1().PodDisruptionBudgets(s.ns).Get(ctx, "budget", metav1.GetOptions{})
		if err == nil && budget.Status.CurrentHealthy != 1 {
			err = errors.New("the budget does not know its pod yet")
		}
		return err
	})
}

// pod makes a pod that no node gets. A simulated node deletes pods by their name,
// and so would sometimes delete the next pod of that name.
func pod(name, app string, probes bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			Containers:                   []corev1.Container{{Name: "main", Image: "workshop/pause:1"}},
			AutomountServiceAccountToken: ptr.To(false),
			SchedulingGates:              []corev1.PodSchedulingGate{{Name: "chaos.test/gate"}},
		},
	}
	if probes {
		probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}}
		p.Spec.Containers[0].LivenessProbe, p.Spec.Containers[0].ReadinessProbe = probe, probe
	}
	return p
}

func policies(small bool) []*v1alpha1.HealthCheckPolicy {
	marks := metav1.LabelSelector{MatchLabels: map[string]string{"app": "mark"}}
	all := []*v1alpha1.HealthCheckPolicy{
		{ObjectMeta: metav1.ObjectMeta{Name: "mark"}, Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionLabel, PodLabel: markKey, Selector: marks}},
		{ObjectMeta: metav1.ObjectMeta{Name: "gone"}, Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionLabel, PodLabel: goneKey, Selector: marks}},
		{ObjectMeta: metav1.ObjectMeta{Name: "kill"}, Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionKill,
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "kill"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: keep, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"yes"}}}},
			Eviction: v1alpha1.EvictionSpec{MinIntervalSeconds: 2}}},
	}
	if !small {
		all = append(all, &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: "note"},
			Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionAnnotate, PodLabel: noteKey, Selector: marks, RequiredProbes: []v1alpha1.Probe{v1alpha1.ProbeStartup}}})
	}
	return all
}

func changePolicies(ctx context.Context, s *scene) error {
	client := s.objects.PolicyV1alpha1().HealthCheckPolicies(s.ns)
	all := policies(s.small)
	s.script.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all {
		if err := s.do(ctx, func(ctx context.Context) error { return create(client.Create(ctx, p, metav1.CreateOptions{})) }); err != nil {
			return err
		}
		s.pause(ctx, 200*time.Millisecond)
	}
	moves, replaced, returns := s.roles()
	steps := []func() error{
		func() error { return s.label(ctx, moves, "app", "other") },
		func() error { return s.replace(ctx, pod(replaced, "mark", false)) },
		func() error {
			return s.do(ctx, func(ctx context.Context) error {
				return second(client.Patch(ctx, "mark", types.MergePatchType, []byte(`{"spec":{"action":"annotate"}}`), metav1.PatchOptions{}))
			})
		},
		func() error {
			return s.do(ctx, func(ctx context.Context) error { return remove(client.Delete(ctx, "gone", metav1.DeleteOptions{})) })
		},
	}
	if s.small { // with few writes, and the same ones each time: the policies have done their work before anything changes
		steps = steps[3:]
		if err := s.until(ctx, func(ctx context.Context) error {
			list, err := client.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, p := range list.Items {
				if !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionEnforced) {
					return fmt.Errorf("policy %s is not enforced: %+v", p.Name, p.Status)
				}
			}
			return nil
		}); err != nil {
			return err
		}
	} else {
		steps = append(steps, func() error {
			if err := s.label(ctx, returns, "app", "other"); err != nil {
				return err
			}
			return s.label(ctx, returns, "app", "mark")
		})
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

func second(_ any, err error) error { return err }

// label sets a label of a pod; an empty value removes it.
func (s *scene) label(ctx context.Context, name, key, value string) error {
	return s.patchPod(ctx, name, map[string]any{"labels": map[string]any{key: orNull(value)}})
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (s *scene) patchPod(ctx context.Context, name string, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return s.do(ctx, func(ctx context.Context) error {
		return second(s.client.CoreV1().Pods(s.ns).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "people"}))
	})
}

// replace deletes a pod at once and makes another one of that name.
func (s *scene) replace(ctx context.Context, p *corev1.Pod) error {
	client := s.client.CoreV1().Pods(s.ns)
	old, err := client.Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return s.do(ctx, func(ctx context.Context) error { // the server cannot be reached now
			if old, err = client.Get(ctx, p.Name, metav1.GetOptions{}); err == nil {
				err = s.replace(ctx, p)
			}
			return err
		})
	}
	return s.do(ctx, func(ctx context.Context) error {
		if err := remove(client.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0)), Preconditions: &metav1.Preconditions{UID: &old.UID}})); err != nil {
			if now, getErr := client.Get(ctx, p.Name, metav1.GetOptions{}); getErr != nil || now.UID == old.UID {
				return err
			}
			return nil // the first try has come through
		}
		return create(client.Create(ctx, p, metav1.CreateOptions{}))
	})
}

func (s *scene) until(ctx context.Context, f func(ctx context.Context) error) error {
	return poll.Until(ctx, 100*time.Millisecond, patience, f)
}

// policyState describes the pods and policies.
func policyState(ctx context.Context, s *scene) (string, error) {
	list, err := s.objects.PolicyV1alpha1().HealthCheckPolicies(s.ns).List(ctx, metav1.ListOptions{})
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

	moved, _, _ := s.roles()
	names := map[types.UID]string{}
	wanted := map[string]string{"mark": "Done", "note": "Done", "kill": v1alpha1.ReasonDisruptionBudget}
	failed := map[string]int{"mark": len(marked(s)) - 1, "note": len(marked(s)), "kill": 1}
	if s.small {
		wanted = map[string]string{"mark": "Done", "kill": "Done"}
		failed = map[string]int{"mark": len(marked(s))}
	}
	expect(len(list.Items) == len(wanted), "%d policies, want %d", len(list.Items), len(wanted))
	for i := range list.Items {
		p := &list.Items[i]
		names[p.UID] = p.Name
		fmt.Fprintf(&b, "policy %s: %s, finalizers %v, deleted %v, current %v, statistics %+v, evicted %v\n", p.Name, p.Spec.Action, p.Finalizers,
			p.DeletionTimestamp != nil, p.Generation == p.Status.ObservedGeneration, ptr.Deref(p.Status.Statistics, v1alpha1.Statistics{}), p.Status.LastEvictionTime != nil)
		expect(p.Generation == p.Status.ObservedGeneration, "policy %s is of generation %d, its status of %d", p.Name, p.Generation, p.Status.ObservedGeneration)
		expect(slices.Contains(p.Finalizers, v1alpha1.TakeBackFinalizer) == (p.Spec.Action != v1alpha1.ActionKill), "policy %s has the finalizers %v", p.Name, p.Finalizers)
		expect(p.Status.Statistics != nil && int(p.Status.Statistics.Pods.Failed) == failed[p.Name], "policy %s counts %+v, want %d failed", p.Name, p.Status.Statistics, failed[p.Name])
		for _, c := range p.Status.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s %q current %v\n", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration == p.Generation)
			expect(c.ObservedGeneration == p.Generation, "policy %s, %s is of generation %d", p.Name, c.Type, c.ObservedGeneration)
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionEnforced)
		expect(c != nil && c.Reason == wanted[p.Name], "policy %s, Enforced is %+v, want %s", p.Name, c, wanted[p.Name])
	}

	there := map[string]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		there[p.Name] = true
		delete(p.Annotations, rival)
		fmt.Fprintf(&b, "pod %s: deleted %v, labels %v, annotations %v, marks %v\n", p.Name, p.DeletionTimestamp != nil, p.Labels, p.Annotations, recordedMarks(p, names))
		expect(p.DeletionTimestamp == nil, "pod %s has not gone", p.Name)
		note, mark := "", ""
		if strings.HasPrefix(p.Name, "mark-") && (p.Name != moved || s.small) {
			if note = "main: startup"; s.small {
				note = ""
			}
			if p.Name != "mark-passes" {
				mark = "main: liveness, readiness"
			}
		}
		_, gone := p.Labels[goneKey]
		label := p.Labels[markKey]
		if s.small && mark != "" { // there, the action does not change
			mark = ""
			expect(label == "true", "pod %s has %q as label %s", p.Name, label, markKey)
			label = ""
		}
		expect(!gone && label == "" && p.Annotations[markKey] == mark && p.Annotations[noteKey] == note,
			"pod %s has the labels %v and annotations %v, want %s=%q and %s=%q", p.Name, p.Labels, p.Annotations, markKey, mark, noteKey, note)
	}
	for _, name := range victims(s) {
		expect(!there[name], "pod %s was not evicted", name)
	}
	for _, name := range []string{"spared", bait, "kill-passes", "protected"} {
		expect(there[name] || s.small && (name == "kill-passes" || name == "protected"), "pod %s is gone", name)
	}
	return b.String(), errors.Join(errs...)
}

// recordedMarks returns what policies have put on a pod, as the API server has recorded it.
func recordedMarks(p *corev1.Pod, policies map[types.UID]string) []string {
	var marks []string
	for _, e := range p.ManagedFields {
		if uid, ok := strings.CutPrefix(e.Manager, "healthcheckpolicy-"); ok {
			name := policies[types.UID(uid)]
			if name == "" {
				name = "a policy that is gone"
			}
			marks = append(marks, fmt.Sprintf("%s %s %s", name, e.Operation, e.FieldsV1))
		}
	}
	slices.Sort(marks)
	return marks
}
