package incluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// The program as a process of this machine: everything that needs no container.
// Each test works in a namespace of its own, where its lease lies as well.
func TestProcess(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crdtest.Share(t, e, icecreams, policies)
	for name, test := range map[string]func(t *testing.T, o *controllerTest){
		"a standby is ready and takes over":              standbyTakesOver,
		"a standby notices each renewal":                 renewedTwiceInASecond,
		"a leader without its lease ends in time":        leaderEndsInTime,
		"a leader that works gives its lease to nobody":  lostLeaseStays,
		"a paused leader takes nothing from the next":    pausedLeaderEnds,
		"a paused leader ends when it reads who leads":   pausedLeaderEndsAtOnce,
		"the late writes of a paused leader do no harm":  lateWrites,
		"SIGTERM finishes the work, releases, and exits": drains,
		"not ready before the caches are filled":         readyWhenSynced,
		"metrics are for those who may get them":         metricsAreGuarded,
		"json logs and profiles":                         logsAndProfiles,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newControllerTest(t))
		})
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	program := e.Program(program)
	for _, tc := range []struct {
		args, env []string
		code      int
		says      string
	}{
		{args: []string{"-version"}, says: "policy-controller (devel), client-go v0."},
		{args: []string{"-h"}, says: "how often the leader renews"},
		{args: []string{"start"}, code: 1, says: `unexpected argument "start"; -h lists the flags`},
		{args: []string{"-pprof-listen", ":6060"}, code: 1, says: "only a loopback address"},
		{args: []string{"-pprof-listen", "10.0.0.1:6060"}, code: 1, says: "only a loopback address"},
		{args: []string{"-lease-duration", "12s"}, code: 1, says: "want the first above the sum of the others"},
		{args: []string{"-lease-duration", "1900ms", "-renew-deadline", "1200ms", "-retry-period", "200ms"}, code: 1, says: "-lease-duration 1.9s: want whole seconds"},
		{args: []string{"-lease-duration", "2s", "-renew-deadline", "1200ms", "-retry-period", "500ms"}, code: 1, says: "-renew-deadline 1.2s: want whole seconds"},
		{args: []string{"-retry-period", "500ms"}, code: 1, says: "-retry-period 500ms: want whole seconds"},
		{args: []string{"-retry-period", "9s"}, code: 1, says: "the second above 1.2 times the third"},
		{args: []string{"-log-format", "xml"}, code: 1, says: "want text or json"},
		{args: []string{"-kubeconfig", e.Cluster().Kubeconfig(), "-namespace", "No/Such"}, code: 1, says: "-namespace No/Such: "},
		{args: []string{"-kubeconfig", "/no/such/file"}, code: 1, says: "/no/such/file: no such file"},
		{env: []string{"KUBECONFIG=", "HOME=/nowhere"}, code: 1, says: "not in a pod, and no usable kubeconfig"},
		{env: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443"}, code: 1, says: "automountServiceAccountToken"},
	} {
		r := e.Run(testenv.Command{Path: program, Args: tc.args, Env: tc.env})
		if r.ExitCode != tc.code || !strings.Contains(r.Stdout+r.Stderr, tc.says) {
			t.Errorf("%v %v: exit code %d, want %d and %q\n%s%s", tc.args, tc.env, r.ExitCode, tc.code, tc.says, r.Stdout, r.Stderr)
		}
	}
}

const program = "./07-in-cluster/policy-controller"

// The lease of the tests. See validate in lease.go for how the three fit together.
const (
	leaseDuration = 12 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = time.Second
	// A try comes at most 1 + leaderelection.JitterFactor periods after the last one.
	nextTry = retryPeriod * 22 / 10
	// slack is for a machine that has other things to do as well.
	slack = 5 * time.Second
)

// A controllerTest is a namespace in which policy-controllers work.
type controllerTest struct {
	*testenv.Env
	t              testing.TB
	runner         controllertest.Runner // of the replicas
	program        string
	proxy          *testenv.Proxy
	kubeconfig     string // of the replicas
	namespace      string
	leaseNamespace string
	client         kubernetes.Interface
	objects        versioned.Interface
}

// Eventually waits as the runner does: a check of an exercise fails with a verdict.
func (o *controllerTest) Eventually(timeout time.Duration, f func(context.Context) error) {
	o.t.Helper()
	o.runner.Eventually(timeout, f)
}

func newControllerTest(t *testing.T) *controllerTest {
	t.Helper()
	e := testenv.New(t)
	return controllerTestOf(t, e, e, e.Program(program))
}

func controllerTestOf(t testing.TB, e *testenv.Env, runner controllertest.Runner, program string) *controllerTest {
	t.Helper()
	objects, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	proxy := e.Proxy()
	o := &controllerTest{Env: e, t: t, runner: runner, program: program, proxy: proxy, kubeconfig: proxy.Kubeconfig,
		namespace: e.Namespace, leaseNamespace: e.Namespace, client: e.Client, objects: objects}
	e.FreeAtEnd(v1alpha1.HealthCheckPolicyResource)
	return o
}

// A replica is one running policy-controller.
type replica struct {
	*controllertest.Controller
	o *controllerTest
}

func (o *controllerTest) start(args ...string) *replica {
	o.t.Helper()
	return o.startWith(nil, args...)
}

// startWith starts a replica, and waits until it listens.
func (o *controllerTest) startWith(environ []string, args ...string) *replica {
	o.t.Helper()
	args = append([]string{"-kubeconfig", o.kubeconfig, "-namespace", o.namespace, "-lease-namespace", o.leaseNamespace,
		"-lease-duration", leaseDuration.String(), "-renew-deadline", renewDeadline.String(), "-retry-period", retryPeriod.String()}, args...)
	r := &replica{&controllertest.Controller{Env: o.Env, T: o.t, Runner: o.runner, Proxy: o.proxy,
		Command: testenv.Command{Path: o.program, Args: args, Env: environ, Timeout: 3 * time.Minute}}, o}
	r.Launch()
	return r
}

// leads returns nil if the replica holds the lease, and knows it.
func (r *replica) leads(ctx context.Context) error {
	lease, err := r.o.client.CoordinationV1().Leases(r.o.leaseNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	if !strings.Contains(r.Process.Stderr(), fmt.Sprintf(`"Leader" identity=%q me=true`, holder)) {
		return fmt.Errorf("%q leads, and not the replica that has said:\n%s", holder, r.Process.Stderr())
	}
	return nil
}

func (r *replica) waitLeads() {
	r.T.Helper()
	r.Eventually(time.Minute, r.leads)
}

func (o *controllerTest) lease() *coordinationv1.Lease {
	o.t.Helper()
	lease, err := o.client.CoordinationV1().Leases(o.leaseNamespace).Get(o.Context(), name, metav1.GetOptions{})
	fatal.If(o.t, err)
	return lease
}

// policy makes a policy that marks every pod.
func (o *controllerTest) policy() {
	o.t.Helper()
	o.policyWith("example", v1alpha1.HealthCheckPolicySpec{PodLabel: "lacks"})
}

// pod makes a pod without probes.
func (o *controllerTest) pod(name string) {
	o.t.Helper()
	_, err := o.client.CoreV1().Pods(o.namespace).Create(o.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "workshop/pause:1"}}}}, metav1.CreateOptions{})
	fatal.If(o.t, err)
}

// marked waits until a pod is marked.
func (o *controllerTest) marked(name string) {
	o.t.Helper()
	o.Eventually(time.Minute, func(ctx context.Context) error {
		pod, err := o.client.CoreV1().Pods(o.namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Labels["lacks"] != "true" {
			err = fmt.Errorf("pod %s is not marked", name)
		}
		return err
	})
}

// until returns when the replica leads, and how long after the time that was.
func (o *controllerTest) until(r *replica, since time.Time) time.Duration {
	o.t.Helper()
	r.waitLeads()
	return o.lease().Spec.AcquireTime.Sub(since)
}

func standbyTakesOver(t *testing.T, o *controllerTest) {
	first := o.start()
	first.waitLeads()
	second := o.start()
	second.WaitReady()
	o.policy()
	o.pod("a")
	o.marked("a")
	if second.leads(o.Context()) == nil || strings.Contains(second.Process.Stderr(), `"Working"`) {
		t.Errorf("two leaders:\n%s", second.Process.Stderr())
	}

	// A clean end releases the lease: the next try of the standby gets it.
	stopped := time.Now()
	fatal.If(t, first.Process.Signal(syscall.SIGTERM))
	if gap := o.until(second, stopped); gap > nextTry+slack {
		t.Errorf("released, and %s without a leader; want at most %s", gap, nextTry)
	} else {
		t.Logf("released: %s without a leader, at most %s", gap.Round(time.Millisecond), nextTry)
	}
	if result := first.Process.Wait(); result.ExitCode != 0 {
		t.Errorf("exit code %d", result.ExitCode)
	}
	o.pod("b")
	o.marked("b")

	// A killed leader releases nothing: the standby waits until the lease has run out.
	third := o.start()
	third.WaitReady()
	renewed := o.lease().Spec.RenewTime.Time
	killed := time.Now()
	second.Kill()
	gap := o.until(third, killed)
	// It counts from when it has seen the last renewal, which may be a try late, too.
	if limit := leaseDuration + 2*nextTry; gap > limit+slack {
		t.Errorf("killed, and %s without a leader; want at most %s", gap, limit)
	} else {
		t.Logf("killed: %s without a leader, at most %s", gap.Round(time.Millisecond), limit)
	}
	if since := o.lease().Spec.AcquireTime.Sub(renewed); since < leaseDuration {
		t.Errorf("the standby took the lease %s after a renewal, before it had run out", since)
	}
	if n := *o.lease().Spec.LeaseTransitions; n != 2 {
		t.Errorf("%d changes of the leader", n)
	}
	o.pod("c")
	o.marked("c")
}

// A leader renews twice within a second: the lease lasts from the second time on.
func renewedTwiceInASecond(t *testing.T, o *controllerTest) {
	const duration = 10 * time.Second
	second := time.Now().Truncate(time.Second)
	at := func(d time.Duration) *metav1.MicroTime { return new(metav1.NewMicroTime(second.Add(d))) }
	leases := o.client.CoordinationV1().Leases(o.namespace)
	lease, err := leases.Create(o.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "policy-controller"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("another"), AcquireTime: at(0), RenewTime: at(0), LeaseDurationSeconds: new(int32(duration.Seconds()))},
	}, metav1.CreateOptions{})
	fatal.If(t, err)
	standby := o.start("-lease-duration", duration.String(), "-renew-deadline", "2s", "-retry-period", retryPeriod.String())
	o.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(standby.Process.Stderr(), `"Leader" identity="another"`) {
			return fmt.Errorf("it has not seen the lease:\n%s", standby.Process.Stderr())
		}
		return nil
	})
	time.Sleep(nextTry) // by now it has read the lease again
	lease.Spec.RenewTime = at(900 * time.Millisecond)
	renewed := time.Now()
	if _, err := leases.Update(o.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	standby.waitLeads()
	if since := o.lease().Spec.AcquireTime.Sub(renewed); since < duration {
		t.Errorf("the standby took the lease %s after a renewal, before it had run out", since)
	}
}

// The leader's requests for the lease hang. It must be gone before another one
// can lead, so before the lease has run out.
func leaderEndsInTime(t *testing.T, o *controllerTest) {
	r := o.start()
	r.waitLeads()
	o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Resource: "leases"}, Fault: faultproxy.Stall, Times: -1})
	result := r.Process.Wait()
	ended := time.Now()
	if result.ExitCode != 1 || !strings.Contains(result.Stderr, "the lease is lost") {
		t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
	lease := o.lease()
	if *lease.Spec.HolderIdentity == "" {
		t.Error("the lease was released, so the requests did not hang")
	}
	if left := lease.Spec.RenewTime.Add(leaseDuration).Sub(ended); left <= 0 {
		t.Errorf("the leader ended %s after its lease", -left)
	} else {
		t.Logf("the leader ended %s before its lease", left.Round(time.Millisecond))
	}
}

// Renewals are refused until the leader gives up, and the server would take its release again. But
// its workers are not told yet, so the next leader has to wait until the lease has run out.
func lostLeaseStays(t *testing.T, o *controllerTest) {
	r := o.start()
	r.waitLeads()
	o.proxy.KeepBodies()
	identity := *o.lease().Spec.HolderIdentity
	o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "leases", If: func(r faultproxy.Request) bool {
		return bytes.Contains(r.Body, []byte(identity)) // not in a release
	}}, Fault: faultproxy.Answer, Code: http.StatusServiceUnavailable, Times: -1})
	if result := r.Process.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "the lease is lost") {
		t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
	if lease := o.lease(); *lease.Spec.HolderIdentity == "" {
		t.Error("the lease is free, and its leader was still working")
	}
}

// A leader stands still for longer than its lease, as on a machine that swaps or is
// suspended, and in the middle of a renewal. When it goes on, it must end, and leave
// the lease to the next one.
func pausedLeaderEnds(t *testing.T, o *controllerTest) {
	paused := o.start()
	paused.waitLeads()
	next := o.start("-kubeconfig", o.Proxy().Kubeconfig)
	next.WaitReady()
	renewal := o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Resource: "leases"}, Fault: faultproxy.Stall, Times: -1})
	paused.Struck(renewal, 1)
	fatal.If(t, paused.Process.Signal(syscall.SIGSTOP))
	next.waitLeads()
	renewal.Remove()
	holder := *o.lease().Spec.HolderIdentity
	fatal.If(t, paused.Process.Signal(syscall.SIGCONT))
	if result := paused.Process.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "the lease is lost") {
		t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
	ended := time.Now()
	o.Eventually(time.Minute, func(context.Context) error {
		spec := o.lease().Spec
		if !spec.RenewTime.After(ended) {
			return errors.New("the next leader has not renewed its lease yet")
		}
		if *spec.HolderIdentity != holder || *spec.LeaseTransitions != 1 {
			t.Errorf("%q holds the lease after %d changes, not %q after one", *spec.HolderIdentity, *spec.LeaseTransitions, holder)
		}
		return nil
	})
}

// A leader that was paused between two renewals ends when it reads who leads, and does not try until its deadline.
func pausedLeaderEndsAtOnce(t *testing.T, o *controllerTest) {
	paused := o.start()
	paused.waitLeads()
	next := o.start("-kubeconfig", o.Proxy().Kubeconfig)
	next.WaitReady()
	renewed := o.lease().Spec.RenewTime
	o.Eventually(time.Minute, func(context.Context) error {
		if o.lease().Spec.RenewTime.Equal(renewed) {
			return errors.New("no renewal yet")
		}
		return nil
	})
	fatal.If(t, paused.Process.Signal(syscall.SIGSTOP))
	next.waitLeads()
	resumed := time.Now()
	fatal.If(t, paused.Process.Signal(syscall.SIGCONT))
	if result := paused.Process.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "the lease is lost") {
		t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
	// client-go reads once more, to release it.
	reads := o.proxy.Requests(faultproxy.Match{Verb: "get", Resource: "leases", If: func(r faultproxy.Request) bool {
		return r.Started.After(resumed) && r.Code == http.StatusOK
	}})
	if len(reads) > 2 {
		t.Errorf("it has read %d times that another one leads, and gone on: %v", len(reads), reads)
	}
}

// The writes of a leader are on their way when it is paused, and arrive in the time of
// the next one. So two leaders write, which no election can prevent. The API server
// refuses what would do harm, and the next leader corrects the rest.
func lateWrites(t *testing.T, o *controllerTest) {
	ctx := o.Context()
	policies, pods := o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace), o.client.CoreV1().Pods(o.namespace)
	paused := o.start()
	paused.waitLeads()
	following := o.Proxy()
	next := o.start("-kubeconfig", following.Kubeconfig)
	next.WaitReady()

	onWay := map[string]*faultproxy.Injection{}
	for what, match := range map[string]faultproxy.Match{
		"the mark of a pod that leaves":        {Verb: "patch", Resource: "pods", Name: "leaves"},
		"the mark of a pod that a user writes": {Verb: "patch", Resource: "pods", Name: "users"},
		"the eviction":                         {Resource: "pods/eviction", Name: "victim", If: faultproxy.Request.Write},
		"the status":                           {Resource: "healthcheckpolicies/status", Name: "status", If: faultproxy.Request.Write},
	} {
		onWay[what] = o.proxy.MustInject(faultproxy.Rule{Match: match, Fault: faultproxy.Stall})
	}
	selects := func(app string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	o.policyWith("mark", v1alpha1.HealthCheckPolicySpec{PodLabel: "lacks", Selector: selects("mark")})
	o.policyWith("users", v1alpha1.HealthCheckPolicySpec{PodLabel: "lacks", Selector: selects("users")}) // a policy sends one mark after the other
	o.policyWith("status", v1alpha1.HealthCheckPolicySpec{PodLabel: "status", Selector: selects("status")})
	o.policyWith("kill", v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionKill, Selector: selects("kill"), Eviction: v1alpha1.EvictionSpec{MinIntervalSeconds: 1}})
	owner, err := o.client.CoreV1().ConfigMaps(o.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	fatal.If(t, err)
	create := func(name, app string, probe *corev1.Probe) {
		t.Helper()
		if _, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}},
			Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: cluster.PauseImage, LivenessProbe: probe, ReadinessProbe: probe}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("leaves", "mark", nil)
	create("users", "users", nil)
	create("victim", "kill", nil)
	o.Eventually(time.Minute, func(context.Context) error {
		for what, i := range onWay {
			if i.Struck() == 0 {
				return fmt.Errorf("%s is not on its way", what)
			}
		}
		return nil
	})
	fatal.If(t, paused.Process.Signal(syscall.SIGSTOP))
	next.waitLeads()

	// The next leader does the same work, and then the world changes.
	is := func(name string, check func(*corev1.Pod) bool) func(context.Context) error {
		return func(ctx context.Context) error {
			pod, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err == nil && !check(pod) {
				err = fmt.Errorf("pod %s has the labels %v", name, pod.Labels)
			}
			return err
		}
	}
	o.Eventually(time.Minute, is("leaves", func(p *corev1.Pod) bool { return p.Labels["lacks"] == "true" }))
	o.label("leaves", "other")
	unmarked := is("leaves", func(p *corev1.Pod) bool { return p.Labels["lacks"] == "" })
	o.Eventually(time.Minute, unmarked)
	o.Eventually(time.Minute, is("users", func(p *corev1.Pod) bool { return p.Labels["lacks"] == "true" }))
	if _, err := pods.Patch(ctx, "users", types.MergePatchType, []byte(`{"metadata":{"labels":{"lacks":"mine"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	o.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := pods.Get(ctx, "victim", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the victim has not been evicted"))
	})
	create("victim", "kill", &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}}) // with its probes it passes
	o.Eventually(time.Minute, func(ctx context.Context) error {
		policy, err := policies.Get(ctx, "status", metav1.GetOptions{})
		if err == nil && policy.Status.Statistics == nil {
			err = errors.New("no status has been written")
		}
		return err
	})

	// Now the late writes arrive, and each meets what it does not expect.
	wrote := following.Requests(faultproxy.Match{If: func(r faultproxy.Request) bool {
		return r.Write() && r.Resource != "leases" && r.Resource != "events" && r.Code < 300 && r.Took > 0
	}})
	if len(wrote) == 0 {
		t.Fatal("the next leader has written nothing")
	}
	for _, i := range onWay {
		i.Remove()
	}
	for _, tc := range []struct {
		resource, name string
		code           int
	}{
		{"pods", "leaves", http.StatusOK}, // it has the pod's UID, and that is right
		{"pods", "users", http.StatusConflict},
		{"pods/eviction", "victim", http.StatusConflict},
		{"healthcheckpolicies/status", "status", http.StatusConflict},
	} {
		o.Eventually(time.Minute, func(context.Context) error {
			late := o.proxy.Requests(faultproxy.Match{Resource: tc.resource, Name: tc.name, If: func(r faultproxy.Request) bool { return slices.Contains(r.Faults, faultproxy.Stall) }})
			if len(late) != 1 || late[0].Took == 0 {
				return fmt.Errorf("not one answered: %v", late)
			}
			if late[0].Code != tc.code {
				t.Errorf("late, %s: want %d", late[0], tc.code)
			}
			if end := late[0].Started.Add(late[0].Took); !end.After(wrote[0].Started.Add(wrote[0].Took)) {
				t.Errorf("%s was answered before the next leader wrote", late[0])
			}
			return nil
		})
	}
	o.Eventually(time.Minute, unmarked)
	for name, check := range map[string]func(*corev1.Pod) bool{
		"users":  func(p *corev1.Pod) bool { return p.Labels["lacks"] == "mine" },
		"victim": func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil },
	} {
		if err := is(name, check)(ctx); err != nil {
			t.Error(err)
		}
	}
	if evicted := following.Count(faultproxy.Match{Resource: "pods/eviction", If: func(r faultproxy.Request) bool { return r.Write() && r.Code < 300 }}); evicted != 1 {
		t.Errorf("%d evictions by the next leader, want 1", evicted)
	}
	fatal.If(t, paused.Process.Signal(syscall.SIGCONT))
	if result := paused.Process.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "the lease is lost") {
		t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
}

func drains(t *testing.T, o *controllerTest) {
	r := o.start()
	r.waitLeads()
	o.policy()
	const takes = 2 * time.Second
	slow := o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Slow, Delay: takes})
	o.pod("a")
	r.Struck(slow, 1)
	fatal.If(t, r.Process.Signal(syscall.SIGTERM))
	o.Eventually(time.Minute, func(context.Context) error {
		if r.Ready() == nil {
			return errors.New("ready, though it is stopping")
		}
		return nil
	})
	if result := r.Process.Wait(); result.ExitCode != 0 {
		t.Errorf("exit code %d", result.ExitCode)
	}
	o.marked("a")
	if holder := *o.lease().Spec.HolderIdentity; holder != "" {
		t.Errorf("%s still holds the lease", holder)
	}
	requests := o.proxy.Requests(faultproxy.Match{})
	wrote := slices.IndexFunc(requests, func(r faultproxy.Request) bool { return r.Verb == "patch" && r.Resource == "pods" })
	released := len(requests) - 1 - slices.IndexFunc(reversed(requests), func(r faultproxy.Request) bool { return r.Verb == "update" && r.Resource == "leases" })
	if end := requests[wrote].Started.Add(requests[wrote].Took); requests[released].Started.Before(end) {
		t.Errorf("released at %s, before the last write ended at %s", requests[released].Started, end)
	}
}

func reversed[T any](s []T) []T {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

func readyWhenSynced(t *testing.T, o *controllerTest) {
	held := o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch-list", Resource: "deployments"}, Fault: faultproxy.Stall})
	r := o.start()
	r.Struck(held, 1)
	r.waitLeads()
	if code, _ := controllertest.Get("http://"+r.Address("health")+"/healthz", ""); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("without the Deployments: %v", err)
	}
	held.Remove()
	r.WaitReady()
}

// token returns one of a service account of the test's namespace.
func (o *controllerTest) token(account string) string {
	o.t.Helper()
	accounts := o.client.CoreV1().ServiceAccounts(o.namespace)
	if _, err := accounts.Create(o.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	request, err := accounts.CreateToken(o.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(600))}}, metav1.CreateOptions{})
	fatal.If(o.t, err)
	return request.Status.Token
}

func metricsAreGuarded(t *testing.T, o *controllerTest) {
	r := o.start()
	r.waitLeads()
	r.WaitReady()
	o.policy()
	o.pod("a")
	o.marked("a")

	stranger, scraper := o.token("stranger"), o.token("scraper")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: o.namespace + "-metrics"},
		Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	if _, err := o.client.RbacV1().ClusterRoles().Create(o.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "scraper", Namespace: o.namespace}}}
	if _, err := o.client.RbacV1().ClusterRoleBindings().Create(o.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(o.Context())
		if err := errors.Join(o.client.RbacV1().ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{}),
			o.client.RbacV1().ClusterRoleBindings().Delete(ctx, role.Name, metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})

	url := "https://" + r.Address("metrics") + "/metrics"
	var body string
	o.Eventually(time.Minute, func(context.Context) (err error) { // the API server learns of the role a moment later
		var code int
		if code, body = controllertest.Get(url, scraper); code != http.StatusOK {
			err = fmt.Errorf("with the right: %d %s", code, body)
		}
		return err
	})
	for _, series := range []string{
		`controller_reconciles_total{controller="healthcheckpolicy",result="success"}`,
		`controller_writes_total{controller="healthcheckpolicy",what="mark"}`,
		`workqueue_depth{name="healthcheckpolicy"} 0`,
		`workqueue_depth{name="icecream"} 0`,
		`leader_election_master_status{name="policy-controller"} 1`,
		`rest_client_requests_total{code="200"`,
		`process_cpu_seconds_total`,
		`go_goroutines`,
	} {
		if !strings.Contains(body, "\n"+series) {
			t.Errorf("no %s in\n%s", series, body)
		}
	}
	for name, tc := range map[string]struct {
		token string
		code  int
	}{"no token": {"", 401}, "a wrong token": {"wrong", 401}, "no right": {stranger, 403}} {
		if code, body := controllertest.Get(url, tc.token); code != tc.code || strings.Contains(body, "workqueue") {
			t.Errorf("%s: %d, want %d\n%s", name, code, tc.code, body)
		}
	}
	if code, _ := controllertest.Get("https://"+r.Address("metrics")+"/healthz", scraper); code != http.StatusNotFound {
		t.Errorf("/healthz beside the metrics: %d", code)
	}
	if code, _ := controllertest.Get("http://"+r.Address("health")+"/metrics", scraper); code != http.StatusNotFound {
		t.Errorf("/metrics beside the health: %d", code)
	}

	// Scrapes in a row cost the API server one review.
	reviews := o.proxy.Count(faultproxy.Match{Resource: "tokenreviews"})
	for range 5 {
		controllertest.Get(url, scraper)
	}
	if more := o.proxy.Count(faultproxy.Match{Resource: "tokenreviews"}) - reviews; more > 1 {
		t.Errorf("5 scrapes cost %d reviews", more)
	}
	if log := r.Process.Stderr(); strings.Contains(log, scraper) || strings.Contains(log, stranger) {
		t.Error("the log holds a token")
	}
}

func logsAndProfiles(t *testing.T, o *controllerTest) {
	r := o.Start(testenv.Command{Path: o.Program(program), Args: []string{"-kubeconfig", o.kubeconfig, "-namespace", o.namespace,
		"-lease-namespace", o.namespace, "-log-format", "json", "-v", "4", "-pprof-listen", "127.0.0.1:0"}})
	addresses := map[string]string{}
	var debugging bool
	o.Eventually(time.Minute, func(context.Context) error {
		lines := bufio.NewScanner(strings.NewReader(r.Stderr()))
		for lines.Scan() {
			var line struct{ Msg, For, Address, Level, From string }
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				return fmt.Errorf("%w: %s", err, lines.Text()) // a half-written line is whole the next time
			}
			if line.Msg == "Listening" {
				addresses[line.For] = line.Address
			}
			debugging = debugging || line.Level == "DEBUG"
		}
		if len(addresses) != 3 || !debugging {
			return fmt.Errorf("it listens on %v; a line of level 4: %v", addresses, debugging)
		}
		return nil
	})
	if !strings.Contains(r.Stderr(), `"from":"kubeconfig `+o.kubeconfig) {
		t.Errorf("the log does not say what it connects with:\n%s", r.Stderr())
	}
	if code, body := controllertest.Get("http://"+addresses["pprof"]+"/debug/pprof/", ""); code != http.StatusOK || !strings.Contains(body, "goroutine") {
		t.Errorf("profiles: %d %s", code, body)
	}
	for _, other := range []string{"http://" + addresses["health"], "https://" + addresses["metrics"]} {
		if code, _ := controllertest.Get(other+"/debug/pprof/", ""); code == http.StatusOK {
			t.Errorf("profiles at %s", other)
		}
	}
}
