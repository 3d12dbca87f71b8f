package controller

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	policylisters "github.com/k8s-go/workshop/05-crd-go/pkg/generated/listers/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

func TestCountsOfABurstShareAStatus(t *testing.T) {
	counts := func(failed int32) v1alpha1.Statistics {
		return v1alpha1.Statistics{Pods: v1alpha1.PodStatistics{Failed: failed}}
	}
	type look struct {
		after  time.Duration // since the look before
		failed int32
		left   time.Duration // zero or less: written
	}
	const step = calm / 2
	endless := []look{{0, 1, 0}}
	for at := step; at < busy; at += step {
		endless = append(endless, look{step, int32(len(endless) + 1), min(calm, busy-at)})
	}
	endless = append(endless, look{step, 1001, 0}, look{step, 1002, calm})
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"the first change is written at once", []look{{0, 1, 0}}},
		{"changes far apart are written at once", []look{{0, 1, 0}, {calm, 2, 0}, {calm, 3, 0}}},
		{"changes close together wait for the last one", []look{{0, 1, 0}, {calm / 5, 2, calm}, {calm / 5, 3, calm}, {calm / 2, 3, calm / 2}, {calm / 2, 3, 0}}},
		{"changes without an end are written now and then", endless},
	} {
		m, now := &pace{}, noon
		for i, l := range c.looks {
			now = now.Add(l.after)
			if left := m.settles(counts(l.failed), now); max(left, 0) != l.left {
				t.Errorf("%s: at look %d %s are left, want %s", c.name, i, left, l.left)
			}
		}
	}
}

// What its author changes may be what the API server wants to see before it takes the finalizer.
func TestARefusedFinalizerWaitsUntilThePolicyIsChanged(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.HealthCheckPolicy)
		waits  bool
	}{
		{"nothing", func(*v1alpha1.HealthCheckPolicy) {}, true},
		{"our own status", func(p *v1alpha1.HealthCheckPolicy) { p.ResourceVersion, p.Status.ObservedGeneration = "7", 3 }, true},
		{"the spec", func(p *v1alpha1.HealthCheckPolicy) { p.Generation++ }, false},
		{"a label", func(p *v1alpha1.HealthCheckPolicy) { p.Labels = map[string]string{"team": "ice"} }, false},
		{"an annotation", func(p *v1alpha1.HealthCheckPolicy) { p.Annotations = map[string]string{"team": "ice"} }, false},
		{"another policy of the name", func(p *v1alpha1.HealthCheckPolicy) { p.UID = "another" }, false},
	} {
		ctrl, policy := &Controller{}, policyWith(metav1.LabelSelector{})
		key := cache.MetaObjectToName(policy)
		ctrl.memoryOf(key, policy).finalizer = obstacle{message: "no", state: judged(policy)}
		c.change(policy)
		if got := ctrl.memoryOf(key, policy).finalizer.message != ""; got != c.waits {
			t.Errorf("%s has changed: waits %t, want %t", c.name, got, c.waits)
		}
	}
}

// The message of an obstacle stays as it is while only its time, or its number, differs.
func TestAnObstacleKeepsItsWords(t *testing.T) {
	o := obstacle{}.again("Refused", "no, at 12:00:01 (request 0a1b2c3d)", time.Now(), 0)
	first := o.message
	if o = o.again("Refused", "no, at 12:00:02 (request 4e5f6a7b)", time.Now(), 0); o.message != first || o.wait != 2*firstWait {
		t.Errorf("after another number: %+v", o)
	}
	if o = o.again("Refused", "never", time.Now(), 0); o.message != "never" {
		t.Errorf("after other words: %+v", o)
	}
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
	policy := policyWith(metav1.LabelSelector{MatchLabels: map[string]string{"a": "no value!"}}) // whose report would be a request
	read := &racing{cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), "7"}
	if err := read.Add(policy); err != nil {
		t.Fatal(err)
	}
	c := &Controller{policies: read, lister: policylisters.NewHealthCheckPolicyLister(read), clock: clock.RealClock{}, loop: loop.New("test", nil, loop.Options{})}
	key := cache.MetaObjectToName(policy)
	c.writes.Record(key, read, "8")
	if _, err := c.reconcile(t.Context(), key); !errors.Is(err, loop.ErrBehind) {
		t.Errorf("error %v", err)
	}
}
