package controller

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/internal/fatal"
)

// benchPod is a pod as a Deployment makes it and a kubelet reports it. Further
// writers, of 60 conditions each, make its managedFields large.
func benchPod(i int, labels map[string]string, writers int) *corev1.Pod {
	now := metav1.NewTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "bench", Name: fmt.Sprintf("web-6d4cf56db6-%05d", i), GenerateName: "web-6d4cf56db6-",
			UID: types.UID(fmt.Sprintf("0b5e3f0a-7a0c-4a52-9a8c-%012d", i)), ResourceVersion: fmt.Sprint(1000 + i), CreationTimestamp: now,
			Labels: map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4cf56db6",
				UID: "a0e9a6c0-9c4c-4e3d-8a5e-1d0f6d6e8b11", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"a0e9a6c0-9c4c-4e3d-8a5e-1d0f6d6e8b11\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}`)},
				{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", Subresource: "status",
					FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.0.0.1\"}":{".":{},"f:ip":{}}},"f:startTime":{}}}`)},
			},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "web", Image: "workshop/pause:1", ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				VolumeMounts:  []corev1.VolumeMount{{Name: "kube-api-access-x7v5q", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}}},
			Volumes:       []corev1.Volume{{Name: "kube-api-access-x7v5q", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}},
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: "default", NodeName: "node-0",
			SchedulerName: "default-scheduler", TerminationGracePeriodSeconds: ptr.To[int64](30), SecurityContext: &corev1.PodSecurityContext{},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.0.0.1", StartTime: &now,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, Image: "workshop/pause:1"}}},
	}
	for key, value := range labels {
		p.Labels[key] = value
	}
	for writer := range writers {
		conditions := make([]string, 60)
		for n := range conditions {
			conditions[n] = fmt.Sprintf(`"k:{\"type\":\"writer-%d.example.com/condition-%02d\"}":{".":{},"f:status":{},"f:type":{}}`, writer, n)
		}
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: fmt.Sprintf("writer-%d", writer), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{` + strings.Join(conditions, ",") + `}}}`), Subresource: "status",
		})
	}
	return p
}

// BenchmarkHeap measures what a pod takes in the cache of the controller, with
// all of its indexes, and in one of whole pods with the same indexes. Each pod is
// decoded from protobuf, as an informer does it. Bars: a pod with small
// managedFields takes at most 2048 B/pod; one with large managedFields takes at
// most 0.1 x-whole.
func BenchmarkHeap(b *testing.B) {
	for _, size := range []struct {
		name    string
		writers int
	}{{"small", 0}, {"large", 4}} {
		b.Run("managedFields="+size.name, func(b *testing.B) {
			const pods = 10_000
			data := make([][]byte, pods)
			var bytes int
			for i := range data {
				pod := benchPod(i, map[string]string{"team": fmt.Sprint(i / 100)}, size.writers)
				for _, e := range pod.ManagedFields {
					bytes += e.FieldsV1.Size()
				}
				var err error
				if data[i], err = pod.Marshal(); err != nil {
					b.Fatal(err)
				}
			}
			var whole, here float64
			for b.Loop() {
				whole = heapPerPod(b, data, func(p *corev1.Pod) (any, error) { return p, nil })
				here = heapPerPod(b, data, func(p *corev1.Pod) (any, error) { return transform(p) })
			}
			b.ReportMetric(float64(bytes)/pods, "B/managedFields")
			b.ReportMetric(whole, "B/pod-whole")
			b.ReportMetric(here, "B/pod")
			b.ReportMetric(here/whole, "x-whole")
		})
	}
}

// heapPerPod fills a cache with what keep makes of the pods.
func heapPerPod(b *testing.B, data [][]byte, keep func(*corev1.Pod) (any, error)) float64 {
	b.Helper()
	indexers := cache.Indexers{}
	for name, of := range podIndexers {
		indexers[name] = func(obj any) ([]string, error) {
			if p, whole := obj.(*corev1.Pod); whole {
				obj = reduce(p)
			}
			return of(obj)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	store := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, indexers)
	for _, d := range data {
		p := &corev1.Pod{}
		fatal.If(b, p.Unmarshal(d))
		kept, err := keep(p)
		fatal.If(b, err)
		fatal.If(b, store.Add(kept))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := len(store.ListKeys()); n != len(data) {
		b.Fatalf("the cache holds %d pods, not %d", n, len(data))
	}
	return float64(after.HeapAlloc-before.HeapAlloc) / float64(len(data))
}

// BenchmarkEvent compares the CPU time of one event in a large namespace and in
// a small one: 10,000 pods with 100 policies, and 1,000 with 10. Each pod is
// selected by one policy, and each policy selects 100 pods.
//
// There is no API server. An event is a pod with a new label: the cache and its
// indexes take it in, the handler finds the policy and queues it, and reconcile
// judges its 100 pods and finds nothing to write. The CPU time is that of the
// whole process, with garbage collection. The two sizes take turns.
// Bar: at most 1.3 x-small.
func BenchmarkEvent(b *testing.B) {
	const rounds, events = 5, 10_000
	var small, large []float64
	for b.Loop() {
		for range rounds {
			small = append(small, cpuPerEvent(b, 1_000, 10, events))
			large = append(large, cpuPerEvent(b, 10_000, 100, events))
		}
	}
	slices.Sort(small)
	slices.Sort(large)
	b.ReportMetric(small[len(small)/2]*1e6, "µs-small")
	b.ReportMetric(large[len(large)/2]*1e6, "µs-large")
	b.ReportMetric(large[len(large)/2]/small[len(small)/2], "x-small")
}

// cpuPerEvent returns the seconds of CPU time that one event takes.
func cpuPerEvent(b *testing.B, pods, policies, events int) float64 {
	b.Helper()
	c := settledController(b, pods, policies)
	ctx := b.Context()
	runtime.GC()
	before := cpuTime(b)
	for n := range events {
		i := n * 7919 % pods // a prime: the pods, and so the policies, come in no order
		key := fmt.Sprintf("bench/web-6d4cf56db6-%05d", i)
		obj, exists, err := c.pods.GetByKey(key)
		if err != nil || !exists {
			b.Fatalf("pod %s is not in the cache: %v", key, err)
		}
		old, err := podIn(obj)
		fatal.If(b, err)
		now := *old
		now.Labels = maps.Clone(old.Labels)
		now.Labels["event"] = fmt.Sprint(n)
		now.ResourceVersion = fmt.Sprint(1_000_000 + n)
		fatal.If(b, c.pods.Update(&now))
		c.podChanged("pod updated", old, &now)
		policy := cache.NewObjectName("bench", policyOf(i))
		if again, err := c.reconcile(ctx, policy); err != nil || again != 0 {
			b.Fatalf("reconciling %s: %v, again in %s; there should be nothing to do", policy, err, again)
		}
	}
	return (cpuTime(b) - before).Seconds() / float64(events)
}

func policyOf(pod int) string { return fmt.Sprintf("policy-%03d", pod/100) }

// settledController has pods and policies in its caches, with nothing left to
// do. It cannot reach an API server, so a request would be an error.
func settledController(b *testing.B, pods, policies int) *Controller {
	b.Helper()
	clients, err := Connect(&rest.Config{Host: "http://127.0.0.1:1"})
	fatal.If(b, err)
	clients.Recorder = &events.FakeRecorder{}
	c, err := New(clients, "bench", 0, clock.RealClock{}, loop.Options{})
	fatal.If(b, err)
	for i := range pods {
		fatal.If(b, c.pods.Add(reduce(benchPod(i, map[string]string{"team": policyOf(i)}, 0))))
	}
	for i := range policies {
		policy := &v1alpha1.HealthCheckPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: policyOf(100 * i), UID: types.UID(policyOf(100 * i)), Generation: 1, ResourceVersion: "1"},
			Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionLabel, PodLabel: "lacks", RequiredProbes: []v1alpha1.Probe{v1alpha1.ProbeLiveness},
				Selector: metav1.LabelSelector{MatchLabels: map[string]string{"team": policyOf(100 * i)}}},
		}
		p := &pass{key: cache.MetaObjectToName(policy), policy: policy, memory: newMemory(policy.UID), now: c.clock.Now()}
		if changes, err := c.judge(p); err != nil || len(changes) > 0 || p.passed != 100 {
			b.Fatalf("%s: %d changes, %d pods pass: %v", p.key, len(changes), p.passed, err)
		}
		policy.Status = *p.statusOf()
		fatal.If(b, c.policies.Add(policy))
	}
	return c
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	fatal.If(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
