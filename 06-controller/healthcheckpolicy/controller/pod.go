package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

// A pod is what the cache keeps of a corev1.Pod: a tenth of it or less.
//
// It has a price. Generated listers no longer work, because they assert that the
// cache holds *corev1.Pod; index.go reads the indexer instead. And the type must
// implement metav1.Object, which the embedded ObjectMeta does: without that the
// store has no key for it, and its LastStoreSyncResourceVersion stands still.
type pod struct {
	// What a pass asks about every pod comes first, because among many pods the
	// time goes into fetching them from memory.
	finished   bool // Succeeded or Failed
	deleting   bool
	pending    bool   // not running yet
	ready      bool   // as its condition says
	mirror     bool   // the API server's picture of a static pod
	controlled bool   // somebody will replace it
	everywhere probes // what every container declares
	marks      []mark // what policies have put, as the API server recorded it

	containers  []container       // the regular ones, in the order of the spec
	annotations map[string]uint64 // of each value only a hash: enough to see that a key is taken, or has changed

	metav1.ObjectMeta // only the fields that reduce sets
}

// A container is a container's name and the probes that it declares.
type container struct {
	name     string
	declares probes
}

// A mark is what one policy has put on a pod.
type mark struct {
	policy      types.UID
	labels      []string
	annotations []string
}

// managerPrefix and the UID of a policy make the name of its field manager. By
// that name the API server records in managedFields which policy put what.
const managerPrefix = "healthcheckpolicy-"

func manager(policy types.UID) string { return managerPrefix + string(policy) }

// transform is called with every object on its way into the cache. A second
// call must change nothing, because client-go may pass an object twice.
func transform(obj any) (any, error) {
	if p, ok := obj.(*corev1.Pod); ok {
		return reduce(p), nil
	}
	return obj, nil
}

// reduce makes the cache's form of a pod.
func reduce(p *corev1.Pod) *pod {
	r := &pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
			Labels: p.Labels, CreationTimestamp: p.CreationTimestamp,
		},
		deleting:   p.DeletionTimestamp != nil,
		finished:   p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		pending:    p.Status.Phase == corev1.PodPending,
		controlled: metav1.GetControllerOf(p) != nil,
		containers: make([]container, 0, len(p.Spec.Containers)),
		everywhere: ^probes(0),
		marks:      marksIn(p.ManagedFields),
	}
	_, r.mirror = p.Annotations[corev1.MirrorPodAnnotationKey]
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		r.ready = r.ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		r.containers = append(r.containers, container{c.Name, declared(c)})
		r.everywhere &= declared(c)
	}
	if len(p.Annotations) > 0 {
		r.annotations = make(map[string]uint64, len(p.Annotations))
		for key, value := range p.Annotations {
			r.annotations[key] = hash(value)
		}
	}
	return r
}

var seed = maphash.MakeSeed() // nobody outside can craft two values with the same hash

func hash(s string) uint64 { return maphash.String(seed, s) }

// marksIn finds what policies have applied. Labels and annotations say what a
// pod has, managedFields says who put it there.
func marksIn(entries []metav1.ManagedFieldsEntry) []mark {
	var marks []mark
	for i := range entries {
		e := &entries[i]
		uid, ours := strings.CutPrefix(e.Manager, managerPrefix)
		if !ours || e.Operation != metav1.ManagedFieldsOperationApply || e.Subresource != "" || e.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels      map[string]json.RawMessage `json:"f:labels"`
				Annotations map[string]json.RawMessage `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // the API server wrote it, so this does not happen
		}
		marks = append(marks, mark{types.UID(uid), fieldNames(fields.Metadata.Labels), fieldNames(fields.Metadata.Annotations)})
	}
	return marks
}

// fieldNames returns the keys of "f:key" fields, in order.
func fieldNames(fields map[string]json.RawMessage) []string {
	var names []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if name, ok := strings.CutPrefix(field, "f:"); ok {
			names = append(names, name)
		}
	}
	return names
}

// markOf returns what a policy has put on the pod, or nil.
func (p *pod) markOf(policy types.UID) *mark {
	for i := range p.marks {
		if p.marks[i].policy == policy {
			return &p.marks[i]
		}
	}
	return nil
}

// counts reports whether policies are about the pod: it lives, and will go on living.
func (p *pod) counts() bool { return !p.finished && !p.deleting }

// byAge orders pods from the oldest, so that the pod that replaces an evicted
// one is not evicted before the others have had their turn.
func byAge(a, b *pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (p *pod) is(q *pod) bool { return p == q }

func (p *pod) key() cache.ObjectName { return cache.MetaObjectToName(p) }

// same reports whether two states of a pod are the same to every policy that marks.
// Most changes of pods are changes of their status, and stop here.
func (p *pod) same(q *pod) bool {
	return p.UID == q.UID && p.finished == q.finished && p.deleting == q.deleting && p.controlled == q.controlled &&
		maps.Equal(p.Labels, q.Labels) && maps.Equal(p.annotations, q.annotations) &&
		slices.EqualFunc(p.marks, q.marks, func(a, b mark) bool {
			return a.policy == b.policy && slices.Equal(a.labels, b.labels) && slices.Equal(a.annotations, b.annotations)
		})
}

// sameToBudgets reports whether they are also the same to every PodDisruptionBudget.
func (p *pod) sameToBudgets(q *pod) bool { return p.pending == q.pending && p.ready == q.ready }

// probes is a set of probes. The bits are in the order in which a mark names them.
type probes uint8

const (
	liveness probes = 1 << iota
	readiness
	startup
)

var probeNames = []struct {
	probe probes
	name  v1alpha1.Probe
}{{liveness, v1alpha1.ProbeLiveness}, {readiness, v1alpha1.ProbeReadiness}, {startup, v1alpha1.ProbeStartup}}

func declared(c *corev1.Container) (set probes) {
	if c.LivenessProbe != nil {
		set |= liveness
	}
	if c.ReadinessProbe != nil {
		set |= readiness
	}
	if c.StartupProbe != nil {
		set |= startup
	}
	return set
}

// required returns the set of probes that a policy names.
func required(names []v1alpha1.Probe) (set probes) {
	for _, p := range probeNames {
		if slices.Contains(names, p.name) {
			set |= p.probe
		}
	}
	return set
}

func (set probes) String() string {
	var names []string
	for _, p := range probeNames {
		if set&p.probe != 0 {
			names = append(names, string(p.name))
		}
	}
	return strings.Join(names, ", ")
}

// podIn returns what a store or a handler of the pod informer holds.
func podIn(obj any) (*pod, error) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj // the last known state; tombstones themselves do not pass the transform
	}
	p, ok := obj.(*pod)
	if !ok {
		return nil, fmt.Errorf("the pod cache holds a %T: was it started without the transform?", obj)
	}
	return p, nil
}
