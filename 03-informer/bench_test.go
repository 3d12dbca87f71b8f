package informer

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// BenchmarkLookup finds the pods of one node, and those with a pair of labels,
// in an index and by asking the real server with a selector; 100 pods each time.
func BenchmarkLookup(b *testing.B) {
	for _, pods := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			e := testenv.New(b)
			createPods(b, e, pods)
			factory := informers.NewSharedInformerFactoryWithOptions(e.Client, 0, informers.WithNamespace(e.Namespace))
			informer := factory.Core().V1().Pods().Informer()
			fatal.If(b, informer.AddIndexers(cache.Indexers{
				"node": func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil },
				"labels": func(obj any) ([]string, error) {
					l := obj.(*corev1.Pod).Labels
					return []string{l["app"] + "/" + l["tier"]}, nil
				},
			}))
			ctx, cancel := context.WithCancel(e.Context())
			defer factory.Shutdown()
			defer cancel()
			factory.StartWithContext(ctx)
			fatal.If(b, factory.WaitForCacheSyncWithContext(ctx).AsError())
			for _, by := range []struct {
				index, key string
				options    metav1.ListOptions
			}{
				{"node", nodeName(e, 3), metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName(e, 3)}},
				{"labels", "app-3/web", metav1.ListOptions{LabelSelector: "app=app-3,tier=web"}},
			} {
				b.Run("by="+by.index, func(b *testing.B) {
					const lists = 20
					started := time.Now()
					for range lists {
						list, err := e.Client.CoreV1().Pods(e.Namespace).List(ctx, by.options)
						if err != nil || len(list.Items) != 100 {
							b.Fatalf("%d pods listed, %v", len(list.Items), err)
						}
					}
					baseline := time.Since(started) / lists
					for b.Loop() {
						found, err := informer.GetIndexer().ByIndex(by.index, by.key)
						if err != nil || len(found) != 100 {
							b.Fatalf("%d pods found, %v", len(found), err)
						}
					}
					b.ReportMetric(float64(baseline.Nanoseconds()), "list-ns")
					b.ReportMetric(float64(baseline.Nanoseconds())/(float64(b.Elapsed().Nanoseconds())/float64(b.N)), "list/index")
				})
			}
		})
	}
}

func nodeName(e *testenv.Env, i int) string { return fmt.Sprintf("%s-%d", e.Namespace, i) }

// createPods makes n pods, 100 on each node, with 100 for each pair of labels.
// The nodes are made, too, or the pods would be collected as orphans; nobody
// runs them.
func createPods(b *testing.B, e *testenv.Env, n int) {
	b.Helper()
	nodes := n / 100
	for i := range nodes {
		_, err := e.Client.CoreV1().Nodes().Create(e.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(e, i)}, Spec: corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		fatal.If(b, err)
	}
	b.Cleanup(func() {
		ctx := context.WithoutCancel(e.Context())
		now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		if err := e.DeleteAll(ctx, corev1.SchemeGroupVersion.WithResource("pods"), now); err != nil {
			b.Error(err)
		}
		for i := range nodes {
			if err := e.Client.CoreV1().Nodes().Delete(ctx, nodeName(e, i), now); err != nil {
				b.Error(err)
			}
		}
	})
	workqueue.ParallelizeUntil(e.Context(), 16, n, func(i int) {
		_, err := e.Client.CoreV1().Pods(e.Namespace).Create(e.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprintf("pod-%d", i),
				Labels: map[string]string{"app": fmt.Sprintf("app-%d", i/200), "tier": []string{"web", "db"}[i%2]},
			},
			Spec: corev1.PodSpec{
				NodeName: nodeName(e, i%nodes), TerminationGracePeriodSeconds: ptr.To[int64](0),
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers:  []corev1.Container{{Name: "main", Image: cluster.PauseImage}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			b.Error(err)
		}
	})
	if b.Failed() {
		b.FailNow()
	}
}

// BenchmarkTransform compares what a cache of pods occupies with and without
// their managedFields.
func BenchmarkTransform(b *testing.B) {
	compareMemory(b, (*corev1.Pod).Marshal, func(data []byte) (metav1.Object, error) {
		var pod corev1.Pod
		err := pod.Unmarshal(data)
		pod.ManagedFields = nil
		return &pod, err
	})
}

// BenchmarkMetadata compares what a cache of pods and one of their metadata occupy.
func BenchmarkMetadata(b *testing.B) {
	encode := func(pod *corev1.Pod) ([]byte, error) {
		return (&metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta}).Marshal()
	}
	compareMemory(b, encode, func(data []byte) (metav1.Object, error) {
		var meta metav1.PartialObjectMetadata
		err := meta.Unmarshal(data)
		return &meta, err
	})
}

// compareMemory fills two caches with copies of a real pod: one of whole pods,
// one with what decode makes of what encode makes of the pod. It reports the
// heap that each object takes. Typed and metadata informers decode protobuf.
func compareMemory(b *testing.B, encode func(*corev1.Pod) ([]byte, error), decode func([]byte) (metav1.Object, error)) {
	e := testenv.New(b)
	pod := realPod(b, e)
	data, err := pod.Marshal()
	fatal.If(b, err)
	part, err := encode(pod)
	fatal.If(b, err)
	whole := func(data []byte) (metav1.Object, error) {
		var pod corev1.Pod
		err := pod.Unmarshal(data)
		return &pod, err
	}
	for _, pods := range []int{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			var plain, small float64
			for b.Loop() {
				plain = heapPerObject(b, pods, data, whole)
				small = heapPerObject(b, pods, part, decode)
			}
			b.ReportMetric(plain, "B/pod-whole")
			b.ReportMetric(small, "B/pod-here")
			b.ReportMetric(plain/small, "whole/here")
		})
	}
}

func heapPerObject(b *testing.B, n int, data []byte, decode func([]byte) (metav1.Object, error)) float64 {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for i := range n {
		obj, err := decode(data)
		fatal.If(b, err)
		obj.SetName(fmt.Sprintf("pod-%d", i))
		fatal.If(b, store.Add(obj))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(store.ListKeys()) != n {
		b.Fatal("the cache does not hold all objects")
	}
	return float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
}

// realPod returns a pod as the server sends it once a Deployment, the scheduler
// and the node have had their say.
func realPod(b *testing.B, e *testenv.Env) *corev1.Pod {
	b.Helper()
	labels := map[string]string{"app": "bench"}
	_, err := e.Client.AppsV1().Deployments(e.Namespace).Create(e.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: cluster.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent}}},
			},
		},
	}, metav1.CreateOptions{})
	fatal.If(b, err)
	var pod *corev1.Pod
	e.Eventually(time.Minute, func(ctx context.Context) error {
		list, err := e.Client.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("no running pod among %d", len(list.Items))
		}
		pod = &list.Items[0]
		return nil
	})
	return pod
}
