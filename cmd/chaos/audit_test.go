package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
)

// A log is an audit log in the making: one record a second, unless said otherwise.
type auditLog struct {
	t       *testing.T
	now     time.Time
	records []record
}

func (l *auditLog) add(resource, subresource, name string, object any) {
	l.t.Helper()
	data, err := json.Marshal(object)
	fatal.If(l.t, err)
	l.now = l.now.Add(time.Second)
	r := record{ResponseObject: data, RequestReceivedTimestamp: metav1.NewMicroTime(l.now.Add(-time.Millisecond)), StageTimestamp: metav1.NewMicroTime(l.now)}
	r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Name = resource, subresource, name
	l.records = append(l.records, r)
}

func (l *auditLog) pod(name, uid, version string, change ...func(*corev1.Pod)) {
	p := pod(name, "kill", false)
	p.UID, p.ResourceVersion = types.UID(uid), version
	p.OwnerReferences = []metav1.OwnerReference{{Name: "owner", Controller: ptr.To(true)}}
	for _, c := range change {
		c(p)
	}
	l.add("pods", "", name, p)
}

func (l *auditLog) grant(version string, change ...func(*v1alpha1.HealthCheckPolicy)) {
	p := &v1alpha1.HealthCheckPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "kill", UID: "policy", ResourceVersion: version},
		Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionKill, RequiredProbes: []v1alpha1.Probe{v1alpha1.ProbeLiveness},
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "kill"}}, Eviction: v1alpha1.EvictionSpec{MinIntervalSeconds: 2}},
		Status: v1alpha1.HealthCheckPolicyStatus{LastEvictionTime: ptr.To(metav1.NewTime(l.now.Truncate(time.Second)))},
	}
	for _, c := range change {
		c(p)
	}
	l.add("healthcheckpolicies", "status", "kill", p)
}

func (l *auditLog) evict(name string) { l.add("pods", "eviction", name, struct{}{}) }

func TestJudge(t *testing.T) {
	other := func(p *corev1.Pod) { p.Labels["app"] = "other" }
	for name, test := range map[string]struct {
		play func(l *auditLog)
		want string // empty if nothing is wrong
	}{
		"right": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.grant("11")
			l.evict("a")
			l.pod("b", "2", "12")
			l.grant("13")
			l.evict("b")
		}, ""},
		"right when the status was written": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.grant("11")
			l.pod("a", "1", "12", other)
			l.evict("a")
		}, ""},
		"no status before it": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.evict("a")
		}, "no lastEvictionTime"},
		"two for one status": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.pod("b", "2", "11")
			l.grant("12")
			l.evict("a")
			l.now = l.now.Add(time.Minute)
			l.evict("b")
		}, "already allowed another one"},
		"too soon": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.pod("b", "2", "11")
			l.grant("12")
			l.evict("a")
			l.now = l.now.Add(-500 * time.Millisecond)
			l.grant("13")
			l.evict("b")
		}, "only 1.5s after"},
		"not selected": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.pod("a", "1", "11", other)
			l.grant("12")
			l.evict("a")
		}, "did not select it"},
		"made again since": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.grant("11")
			l.pod("a", "2", "12")
			l.evict("a")
		}, "was not there yet"},
		"passes": {func(l *auditLog) {
			l.pod("a", "1", "10", func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = &corev1.Probe{} })
			l.grant("11")
			l.evict("a")
		}, "declares every probe"},
		"finished": {func(l *auditLog) {
			l.pod("a", "1", "10", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
			l.grant("11")
			l.evict("a")
		}, "on its way out"},
		"without a controller": {func(l *auditLog) {
			l.pod("a", "1", "10", func(p *corev1.Pod) { p.OwnerReferences = nil })
			l.grant("11")
			l.evict("a")
		}, "no controller"},
		"another action": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.grant("11", func(p *v1alpha1.HealthCheckPolicy) { p.Spec.Action = v1alpha1.ActionLabel })
			l.evict("a")
		}, "did not kill"},
		"a policy on its way out": {func(l *auditLog) {
			l.pod("a", "1", "10")
			l.grant("11", func(p *v1alpha1.HealthCheckPolicy) { p.DeletionTimestamp = ptr.To(metav1.Now()) })
			l.evict("a")
		}, "did not kill"},
	} {
		t.Run(name, func(t *testing.T) {
			l := &auditLog{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			test.play(l)
			evictions, errs := judge(l.records, 0)
			if evictions == 0 {
				t.Error("no eviction was seen")
			}
			err := errors.Join(errs...)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
