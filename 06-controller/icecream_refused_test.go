package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

// refusedWith checks that the status reports a refusal, and what the server has said.
func refusedWith(said string) func(*v1alpha1.Icecream) error {
	return func(ice *v1alpha1.Icecream) error {
		if err := condition("Available", metav1.ConditionFalse, "Refused")(ice); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(ice.Status.Conditions, "Available"); !strings.Contains(c.Message, said) {
			return fmt.Errorf("message %q, want %q in it", c.Message, said)
		}
		return nil
	}
}

// tried waits until the controller has sent that many requests of a kind.
func (f *icecreamTest) tried(verb string, times int) {
	f.T.Helper()
	f.Eventually(time.Minute, func(context.Context) error {
		if n := len(f.requests(verb, "deployments")); n < times {
			return fmt.Errorf("%d requests to %s a Deployment, want %d", n, verb, times)
		}
		return nil
	})
}

// One alarm is enough for one refusal, however often it is tried again.
func (f *icecreamTest) oneAlarm() {
	f.T.Helper()
	if n := strings.Count(f.Process.Stderr(), "Trying again later"); n != 1 {
		f.T.Errorf("%d alarms:\n%s", n, f.Process.Stderr())
	}
}

func TestIcecreamReportsAQuota(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	quotas := f.Client.CoreV1().ResourceQuotas(f.Namespace)
	none := corev1.ResourceList{"count/deployments.apps": resource.MustParse("0")}
	if _, err := quotas.Create(f.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Eventually(time.Minute, func(ctx context.Context) error {
		quota, err := quotas.Get(ctx, "none", metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = errors.New("the quota is not in force")
		}
		return err
	})
	f.Start()
	f.create("vanilla", "cone", 0)
	ice := f.until("vanilla", refusedWith("exceeded quota: none"))
	if err := condition("Owned", metav1.ConditionFalse, "Refused")(ice); err != nil {
		t.Error(err)
	}
	f.tried("create", 8)
	if n := len(f.requests("update", "icecreams/status")); n != 1 {
		t.Errorf("%d writes of the status", n)
	}
	f.oneAlarm()

	// Another namespace's quota would be as full as this one: only a change of the
	// Icecream says that it may be worth another try, and that one is made at once.
	fatal.If(t, quotas.Delete(f.Context(), "none", metav1.DeleteOptions{}))
	f.patch("vanilla", `{"spec":{"replicas":1}}`)
	f.until("vanilla", isAvailable)
}

// What the controller of the tasks has to pass, too.
func TestIcecreamAndSimple(t *testing.T) {
	t.Parallel()
	for claim, test := range icecreamtest.ForTasks {
		for program, args := range map[string][]string{icecreamProgram: nil, "./06-controller/simple": {"-namespace"}} {
			t.Run(claim+"/"+program, func(t *testing.T) {
				t.Parallel()
				e := testenv.New(t)
				f := icecreamTestOf(t, e, e.Program(program))
				start := func() { f.Start() }
				if args != nil {
					f.Command.Args, f.Command.Env = append(args, e.Namespace), append(f.Command.Env, "KUBECONFIG="+f.Proxy.Kubeconfig)
					start = func() { f.Process = e.Start(f.Command) }
				}
				if err := test(f.Test, start); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestInterruptBeforeTheCaches(t *testing.T) {
	t.Parallel()
	for _, program := range []string{icecreamProgram, "./06-controller/simple", "./06-controller/find-the-bugs/solution"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			e.StopsBeforeItsCaches("deployments", testenv.Command{Path: e.Program(program), Args: []string{"-namespace", e.Namespace}})
		})
	}
}

func TestIcecreamReportsARefusedCorrection(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start()
	f.create("vanilla", "cone", 0)
	f.until("vanilla", isAvailable)
	refusing := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "deployments"},
		Fault: faultproxy.Answer, Code: http.StatusUnprocessableEntity, Times: -1})
	f.patch("vanilla", `{"spec":{"replicas":1}}`)
	ice := f.until("vanilla", refusedWith("injected by faultproxy"))
	if err := condition("Owned", metav1.ConditionTrue, "Created")(ice); err != nil {
		t.Error(err)
	}
	f.tried("patch", 8)
	f.oneAlarm()
	refusing.Remove()
	f.patchDeployment("cone", `{"metadata":{"annotations":{"look":"again"}}}`)
	f.until("vanilla", isAvailable)
}

// The only worker is free while the server's Retry-After lasts.
func TestIcecreamRetryAfterFreesTheWorker(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	f.Start("-workers", "1")
	if err := icecreamtest.FreesTheWorkers(f.Test, 1, "patch"); err != nil {
		t.Error(err)
	}
}

// The Icecream is deleted with --cascade=foreground, so it outlives its
// Deployment, and the controller hears of the Deployment only.
func TestIcecreamDoesNotRaceTheGarbageCollector(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t)
	delivered := deliveries(t, f.Proxy)
	f.Start()
	f.create("vanilla", "cone", 0)
	ice := f.until("vanilla", isAvailable)
	f.Eventually(time.Minute, func(context.Context) error { return delivered(ice.ResourceVersion) })
	held := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold, Times: -1})
	fatal.If(t, f.icecreams.Delete(f.Context(), "vanilla", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}))
	f.Eventually(collected, func(ctx context.Context) error {
		if _, err := f.icecreams.Get(ctx, "vanilla", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Icecream is still there (%v)", err)
		}
		if len(f.requests("get", "icecreams"))+len(f.requests("create", "deployments")) < 3 {
			return errors.New("the controller has not heard that the Deployment is gone")
		}
		return nil
	})
	if n := len(f.requests("create", "deployments")); n != 1 {
		t.Errorf("%d Deployments were made for an Icecream that is being deleted", n-1)
	}
	held.Remove()
}
