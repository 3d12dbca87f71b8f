package incluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/rights"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"role": checkRole, "election": checkElection, "drain": checkDrain,
		"scale": checkScale, "registry": checkRegistry, "logs": checkLogs, "once": checkOnce})
}

// notDeployed returns an error while the Deployment of the lesson would do what a
// check expects of the learner's files.
func notDeployed(e *testenv.Env, namespace string) error {
	d, err := e.Client.AppsV1().Deployments(namespace).Get(e.Context(), name, metav1.GetOptions{})
	if err == nil && ptr.Deref(d.Spec.Replicas, 1) > 0 {
		return fmt.Errorf("the Deployment %s works in all namespaces, also in those of checks. Stop it: kubectl scale deployment %s --namespace %s --replicas 0", name, name, namespace)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// The error names the command that helps.
func TestChecksNeedTheDeploymentStopped(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	if err := notDeployed(e, e.Namespace); err != nil {
		t.Errorf("without a Deployment: %v", err)
	}
	labels := map[string]string{"app": name}
	_, err := e.Client.AppsV1().Deployments(e.Namespace).Create(e.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: cluster.PauseImage}}}}}}, metav1.CreateOptions{})
	fatal.If(t, err)
	err = notDeployed(e, e.Namespace)
	if err == nil {
		t.Fatal("a Deployment with a replica is no hindrance")
	}
	_, command, _ := strings.Cut(err.Error(), "kubectl ")
	if r := e.Run(testenv.Command{Path: e.Workspace().Bin("kubectl"), Args: strings.Fields(command)}); r.ExitCode != 0 {
		t.Fatalf("kubectl %s: %s", command, r.Stderr)
	}
	if err := notDeployed(e, e.Namespace); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// A candidate runs the replicas while a learner's files are checked.
type candidate struct {
	*check.C
	wrong func() // is called all the time, and ends the check when a mistake is certain
}

// openFor prepares the check of a learner's files.
func openFor(c *check.C, program string) (*controllerTest, *candidate) {
	c.Must(notDeployed(c.Env, name))
	crdtest.Share(c.T, c.Env, icecreams, policies)
	x := &candidate{c, func() {}}
	return controllerTestOf(c.T, c.Env, x, program), x
}

// Eventually ends the check with a verdict: nothing here takes longer than a failover.
// A proof shares the machine with all other tests.
func (x *candidate) Eventually(timeout time.Duration, f func(context.Context) error) {
	if os.Getenv(exercise.WorkEnv) != "" {
		timeout = min(timeout, 30*time.Second)
	}
	err := x.Until(timeout, func(ctx context.Context) error {
		x.wrong()
		return f(ctx)
	})
	if err != nil {
		x.Fail("a controller that works", err.Error())
	}
}

// checkRole lets the controller do all that it can do, with the rights that are
// checked. The proxy sees what it asks for, and what is forbidden.
func checkRole(c *check.C) {
	clusterRole, role := readRoles(c)
	lease := testenv.New(c.T).Namespace // the Role is for another namespace than that of the pods
	ctx, unique := c.Context(), c.Namespace
	clusterRole.ObjectMeta, role.ObjectMeta = metav1.ObjectMeta{Name: unique}, metav1.ObjectMeta{Name: unique}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "controller", Namespace: c.Namespace}}
	rbac := c.Client.RbacV1()
	c.AtEnd(
		func(ctx context.Context) error {
			return rbac.ClusterRoles().Delete(ctx, unique, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return rbac.ClusterRoleBindings().Delete(ctx, unique, metav1.DeleteOptions{})
		})
	for _, create := range []func() error{
		func() error {
			_, err := rbac.ClusterRoles().Create(ctx, clusterRole, metav1.CreateOptions{})
			return err
		},
		func() error { _, err := rbac.Roles(lease).Create(ctx, role, metav1.CreateOptions{}); return err },
	} {
		if err := create(); apierrors.IsInvalid(err) {
			c.Fail("roles that the server takes", err.Error())
		} else {
			c.Must(err)
		}
	}
	_, err := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: clusterRole.ObjectMeta, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: unique}}, metav1.CreateOptions{})
	c.Must(err)
	_, err = rbac.RoleBindings(lease).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: unique}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: unique}}, metav1.CreateOptions{})
	c.Must(err)

	o, x := openFor(c, c.Env.Program(program))
	o.kubeconfig = filepath.Join(c.T.TempDir(), "controller")
	c.Must(o.proxy.WriteKubeconfig(o.kubeconfig, "", o.token("controller")))
	rules := [][]rbacv1.PolicyRule{clusterRole.Rules, role.Rules} // as in the file
	x.wrong = func() {
		for _, r := range o.proxy.Requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Code == http.StatusForbidden }}) {
			forbidden(c, rules, r)
		}
	}
	o.authorized(c, clusterRole.Rules[0], o.namespace)
	o.authorized(c, role.Rules[0], lease)
	o.leaseNamespace = lease
	// Nobody takes over here, so a busy API server must not cost the lease.
	r := o.startWith([]string{"KUBE_FEATURE_WatchListClient=false"}, "-lease-duration", "40s", "-renew-deadline", "30s")
	r.waitLeads()
	r.WaitReady()
	o.marksAndEvents()
	o.evicts()
	o.ownsADeployment()
	o.findsADeploymentInTheWay()
	controllertest.Get("https://"+r.Address("metrics")+"/metrics", o.token("stranger"))
	x.wrong()

	used := map[right]bool{}
	for _, r := range o.proxy.Requests(faultproxy.Match{}) {
		if r.Resource == "" || r.Code == http.StatusForbidden {
			continue
		}
		kind := "ClusterRole"
		if r.Namespace == lease {
			kind = "Role"
		}
		used[right{kind, r.Group, r.Resource, strings.TrimSuffix(r.Verb, "-list")}] = true
	}
	type position struct{ document, rule int }
	granted := map[right]position{}
	for document, kind := range []string{"ClusterRole", "Role"} {
		for i, rule := range rules[document] {
			for r := range rights.Of(rule) {
				granted[right{kind, r.Group, r.Resource, r.Verb}] = position{document, i}
				if r.Resource == "leases" && r.Verb != "create" && len(rule.ResourceNames) == 0 {
					atRule(c, document, i)
					c.Mistake("more than it uses", r.Verb+" of the Lease policy-controller only", r.Verb+" of every Lease in the namespace")
				}
				if others := slices.DeleteFunc(slices.Clone(rule.ResourceNames), func(name string) bool { return name == "policy-controller" }); r.Resource == "leases" && len(others) > 0 {
					atRule(c, document, i)
					c.Mistake("more than it uses", r.Verb+" of the Lease policy-controller only", r.Verb+" of the Lease "+others[0])
				}
			}
			if len(rule.NonResourceURLs) > 0 {
				atRule(c, document, i)
				c.Mistake("more than it uses", "rules about resources", fmt.Sprintf("a rule about the URLs %v", rule.NonResourceURLs))
			}
		}
	}
	if _, ok := granted[ofOwners]; !ok { // the cluster of the check may do without the admission plugin
		c.Mistake("finalizers left out", "the right "+ofOwners.String(), "no rule that grants it")
	}
	used[ofOwners] = true
	for _, right := range slices.SortedFunc(maps.Keys(granted), func(a, b right) int { return cmp.Compare(a.String(), b.String()) }) {
		if !used[right] {
			atRule(c, granted[right].document, granted[right].rule)
			c.Mistake("more than it uses", "only rights that the controller uses", "granted, but not used: "+right.String())
		}
	}
}

// atRule has the verdict name the line on which a rule begins.
func atRule(c *check.C, document, rule int) {
	data, err := os.ReadFile(c.Path("roles.yaml"))
	c.Must(err)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var role struct{ Rules []yaml.Node }
	for range document + 1 {
		role.Rules = nil
		c.Must(decoder.Decode(&role))
	}
	c.At("roles.yaml", role.Rules[rule].Line)
}

// readRoles reads the ClusterRole and the Role that are checked.
func readRoles(c *check.C) (*rbacv1.ClusterRole, *rbacv1.Role) {
	clusterRole, role := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	c.ReadYAML("roles.yaml", "a ClusterRole, and then a Role", clusterRole, role)
	for _, rule := range slices.Concat(clusterRole.Rules, role.Rules) {
		for _, list := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
			for _, text := range list {
				if strings.Contains(text, "*") {
					c.Mistake("wildcard", "rules without a *", fmt.Sprintf("verbs %v on resources %v", rule.Verbs, rule.Resources))
				}
			}
		}
	}
	if len(clusterRole.Rules) == 0 || len(role.Rules) == 0 {
		c.Failf("rules in both roles", "%d rules in the ClusterRole, %d in the Role", len(clusterRole.Rules), len(role.Rules))
	}
	return clusterRole, role
}

// forbidden ends the check with the reason why a request was refused.
func forbidden(c *check.C, documents [][]rbacv1.PolicyRule, r faultproxy.Request) {
	verb := strings.TrimSuffix(r.Verb, "-list")
	wanted := fmt.Sprintf("the right to %s %s in the group %q", verb, r.Resource, r.Group)
	held := fmt.Sprintf("403 Forbidden: %s %s %q", verb, r.Resource, r.Name)
	// has says whether there is such a rule, which the verdict then names.
	has := func(verb string, group func(string) bool, resource string, more func(rbacv1.PolicyRule) bool) bool {
		for document, rules := range documents {
			i := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool {
				return slices.Contains(rule.Verbs, verb) && slices.Contains(rule.Resources, resource) && slices.ContainsFunc(rule.APIGroups, group) && (more == nil || more(rule))
			})
			if i >= 0 {
				atRule(c, document, i)
				return true
			}
		}
		return false
	}
	same := func(group string) bool { return group == r.Group }
	switch {
	case has(verb, func(group string) bool { return group != r.Group }, r.Resource, nil):
		c.Mistake("wrong group", wanted, held)
	case r.Resource == "leases" && verb == "create" && has(verb, same, r.Resource, func(rule rbacv1.PolicyRule) bool { return len(rule.ResourceNames) > 0 }):
		c.Mistake("create limited to a name", wanted, held)
	case strings.HasSuffix(r.Resource, "/status"):
		for document, rules := range documents {
			for i, rule := range rules {
				if slices.Contains(rule.Resources, r.Resource) && slices.Contains(rule.APIGroups, r.Group) {
					atRule(c, document, i)
					c.Failf(wanted, "%s; the rule about it grants %s", held, strings.Join(rule.Verbs, ", "))
				}
			}
		}
		c.Mistake("status left out", wanted, held)
	case r.Resource == "pods/eviction" && has("delete", same, "pods", nil):
		c.Mistake("delete instead of evict", wanted, held)
	case verb == "list" && has("watch", same, r.Resource, nil):
		c.Mistake("watch without list", wanted, held)
	}
	c.Fail(wanted, held)
}

// foreignLease makes a Lease that somebody else holds.
func (o *controllerTest) foreignLease() {
	o.t.Helper()
	now := metav1.NowMicro()
	_, err := o.client.CoordinationV1().Leases(o.namespace).Create(o.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "policy-controller"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("somebody"), LeaseDurationSeconds: ptr.To(int32(600)), AcquireTime: &now, RenewTime: &now}}, metav1.CreateOptions{})
	fatal.If(o.t, err)
}

// tries waits until a replica has tried so many times more to get the lease. What it
// does without the lease, it does before: it was ready, which it is when its caches are
// filled, and has then had the answers to all tries but the last.
func (o *controllerTest) tries(proxy *testenv.Proxy, more int, meanwhile func()) {
	o.t.Helper()
	reads := faultproxy.Match{Verb: "get", Resource: "leases", Name: "policy-controller"}
	want := proxy.Count(reads) + more
	o.Eventually(time.Minute, func(context.Context) error {
		meanwhile()
		if n := proxy.Count(reads); n < want {
			return fmt.Errorf("%d tries to get the lease, want %d", n, want)
		}
		return nil
	})
}

func (r *replica) works() bool { return strings.Contains(r.Process.Stderr(), `"Working"`) }

// inSettings prints what settings returns for a lease, and whether the process goes on when it leads no more.
const inSettings = `package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func init() {
	if os.Getenv("CHECK_SETTINGS") == "" {
		return
	}
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		panic(err)
	}
	l := lease{namespace: "a-namespace", name: "a-name", duration: 31 * time.Second, deadline: 17 * time.Second, retry: 3 * time.Second}
	settings, err := l.settings(client.CoordinationV1(), make(chan struct{}))
	if err != nil {
		panic(err)
	}
	said := map[string]any{"PID": os.Getpid(), "Durations": []time.Duration{settings.LeaseDuration, settings.RenewDeadline, settings.RetryPeriod}}
	if lock, ok := settings.Lock.(*lock); ok {
		said["Lease"], said["Identity"] = lock.LeaseMeta.Namespace+"/"+lock.LeaseMeta.Name, lock.Identity()
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
	if settings.Callbacks.OnStoppedLeading != nil {
		settings.Callbacks.OnStoppedLeading()
	}
	fmt.Println("goes on")
	os.Exit(0)
}
`

// checkSettings looks at the settings for a lease with a name and durations of its own.
func checkSettings(c *check.C, program string) {
	type settings struct {
		PID             int
		Durations       []time.Duration
		Lease, Identity string
	}
	read := func(r testenv.Result) (said settings, goesOn string) {
		text, goesOn, _ := strings.Cut(r.Stdout, "\n")
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			c.Failf("settings", "%v\n%s%s", err, r.Stdout, r.Stderr)
		}
		return said, goesOn
	}
	command := testenv.Command{Path: program, Env: []string{"CHECK_SETTINGS=1"}}
	other := c.Start(command) // at the same time, so a time in seconds is the same
	r := c.Run(command)
	said, goesOn := read(r)
	others, _ := read(other.Wait())
	host, err := os.Hostname()
	c.Must(err)
	withoutPID := func(s settings) string {
		return strings.ReplaceAll(strings.TrimPrefix(s.Identity, host), strconv.Itoa(s.PID), "PID")
	}
	switch want := []time.Duration{31 * time.Second, 17 * time.Second, 3 * time.Second}; {
	case said.Lease == "":
		c.Mistake("another lock", "a Lock of the type *lock", "another type")
	case said.Lease != "a-namespace/a-name":
		c.Fail("the Lease a-namespace/a-name, as l says", "the Lease "+said.Lease)
	case !slices.Equal(said.Durations, want):
		c.Mistake("durations not used", fmt.Sprintf("the durations %v, which are those of l", want), fmt.Sprintf("%v", said.Durations))
	case said.Identity == others.Identity:
		c.Fail("an identity that differs from that of every other process", "two processes with the identity "+said.Identity)
	case withoutPID(said) == withoutPID(others):
		c.Mistake("number of the process", "an identity that differs from that of an earlier process in the same container", fmt.Sprintf("the identity %s, in which only %d, the process's number, is its own", said.Identity, said.PID))
	case !strings.Contains(goesOn, "goes on"):
		c.Mistake("ends at once", "a process that goes on after OnStoppedLeading, and ends in its order", fmt.Sprintf("exit code %d", r.ExitCode))
	}
}

// checkElection lets somebody else hold the lease first, then one process, and then
// a second one.
func checkElection(c *check.C) {
	program := c.Program(testenv.AddFile("zz_check.go", inSettings))
	o, _ := openFor(c, program)
	o.foreignLease()
	// Longer than in our tests, so that a slow machine can renew it. The deadline is below the default
	// of -lease-duration, or the mistake that always uses this could not start.
	const lasts = 20 * time.Second
	durations := []string{"-lease-duration", lasts.String(), "-renew-deadline", "12s"}
	first := o.start(durations...)
	first.WaitReady()
	o.tries(o.proxy, 2, func() {
		if first.works() {
			c.Mistake("works without leading", "a standby that waits while somebody else holds the lease", "the standby's workers have begun")
		}
	})
	c.Must(o.client.CoordinationV1().Leases(o.namespace).Delete(c.Context(), "policy-controller", metav1.DeleteOptions{}))
	o.beforeItRenews(first.leads, func() {
		c.Mistake("leader not logged", `the line "Leader" identity="..." me=true in the log of the leader`, "a leader that has renewed its lease three times, and whose log has no such line:\n"+first.Process.Stderr())
	})
	lease := o.lease()
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	if host, err := os.Hostname(); err == nil && !strings.HasPrefix(holder, host) {
		c.Fail("an identity that begins with "+host, "the holder is "+holder)
	}
	if got := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); got != int32(lasts.Seconds()) {
		c.Mistake("durations not used", fmt.Sprintf("a lease of %s, as -lease-duration says", lasts), fmt.Sprintf("a lease of %d seconds", got))
	}
	o.beforeItRenews(func(context.Context) error {
		if first.works() {
			return nil
		}
		return errors.New("its workers have not begun")
	}, func() {
		c.Mistake("leads without work", "workers that begin when the process leads", "a leader that has renewed its lease three times, and whose workers have not begun")
	})

	standby := o.Proxy()
	second := o.start(append(durations, "-kubeconfig", standby.Kubeconfig)...)
	second.WaitReady()
	o.tries(standby, 2, func() {
		if second.leads(c.Context()) == nil {
			c.Mistake("same identity", "a second process that waits for the lease", fmt.Sprintf("two leaders; the holder of the lease is %q", holder))
		}
	})
	c.Must(first.Process.Signal(syscall.SIGTERM))
	if result := first.Process.Wait(); result.ExitCode != 0 {
		c.Failf("exit code 0 after SIGTERM", "exit code %d", result.ExitCode)
	}
	if now := ptr.Deref(o.lease().Spec.HolderIdentity, ""); now == holder {
		c.Mistake("lease kept on exit", "a lease without a holder, or with the standby as the holder", "the holder is still "+now+", which has ended")
	}
	second.waitLeads()
	checkSettings(c, program)
}

// beforeItRenews waits until f returns nil. A leader that has renewed its lease three times has had
// the time for that; then missing ends the check.
func (o *controllerTest) beforeItRenews(f func(context.Context) error, missing func()) {
	o.t.Helper()
	renewals := faultproxy.Match{Verb: "update", Resource: "leases", Name: "policy-controller"}
	before := o.proxy.Count(renewals)
	o.Eventually(time.Minute, func(ctx context.Context) error {
		n := o.proxy.Count(renewals) - before // before f looks: what it did first counts
		err := f(ctx)
		if err != nil && n > 3 {
			missing()
		}
		return err
	})
}

// oneReturns runs two fake controllers, of which the first fails while the process leads; or one
// that takes its time to stop, and more time than anybody would think of if its mode is slow.
const oneReturns = `package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

type fake func(context.Context) error

func (f fake) Run(ctx context.Context) error { return f(ctx) }
func (f fake) Ready() bool                   { return true }

func init() {
	mode := os.Getenv("CHECK_ONE_RETURNS")
	if mode == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	o, err := parse(os.Args[1:])
	if err != nil {
		panic(err)
	}
	config, _, err := connect(o.kubeconfig)
	if err != nil {
		panic(err)
	}
	e, err := o.lease.election(config)
	if err != nil {
		panic(err)
	}
	if mode == "slow" || mode == "late" {
		slow := fake(func(ctx context.Context) error {
			<-e.won
			cancel()
			<-ctx.Done()
			fmt.Println("stopping")
			if mode == "late" {
				time.Sleep(10 * time.Second)
				return errors.New("it has stopped late")
			}
			time.Sleep(20 * time.Second)
			return nil
		})
		fmt.Println(controllers{all: []controller{slow}}.run(ctx, e))
		os.Exit(0)
	}
	fails := fake(func(context.Context) error {
		<-e.won
		if mode == "well" {
			return nil
		}
		return errors.New("the first has failed")
	})
	stops := fake(func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return errors.New("the second was stopped")
		case <-time.After(10 * time.Second): // nothing else shows that nobody will stop it
			return errors.New("the second was not stopped")
		}
	})
	fmt.Println(controllers{all: []controller{fails, stops}}.run(ctx, e))
	os.Exit(0)
}
`

// checkDrain stops a process while a write is in flight, and takes the lease from
// another one while a write is in flight. Then one of two controllers fails.
func checkDrain(c *check.C) {
	program := c.Program(testenv.AddFile("zz_check.go", oneReturns))
	o, _ := openFor(c, program)
	lone := o.Proxy()
	late := c.Start(testenv.Command{Path: program, Env: []string{"CHECK_ONE_RETURNS=late"}, Timeout: 2 * time.Minute, // what comes below takes as long
		Args: []string{"-kubeconfig", lone.Kubeconfig, "-lease-namespace", o.namespace, "-lease-name", "late"}})
	r := o.start()
	r.waitLeads()
	o.beforeItRenews(func(context.Context) error {
		if o.proxy.Count(faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}) > 0 {
			return nil
		}
		return errors.New("no controller has begun")
	}, func() {
		c.Mistake("nobody works", "controllers that begin beside the election", "a leader that has renewed its lease three times, and no controller has asked for anything")
	})
	o.policy()
	stalled := o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Stall})
	o.pod("a")
	r.Struck(stalled, 1)
	holder := ptr.Deref(o.lease().Spec.HolderIdentity, "")
	leases := faultproxy.Match{Resource: "leases", Name: "policy-controller"}
	c.Must(r.Process.Signal(syscall.SIGTERM))
	// That a process waits for its write can only be told by a time: three seconds from
	// when it says that it stops, and so before the loop's Grace is over.
	var stopping time.Time
	o.Eventually(time.Minute, func(context.Context) error {
		if stopping.IsZero() && strings.Contains(r.Process.Stderr(), `"Stopping`) {
			stopping = time.Now()
		}
		if r.Process.Ended() || !stopping.IsZero() && time.Since(stopping) > 3*time.Second {
			return nil
		}
		return errors.New("after SIGTERM, the process has neither ended nor let its controllers stop")
	})
	released, ended := ptr.Deref(o.lease().Spec.HolderIdentity, "") == "", r.Process.Ended()
	if strings.Contains(r.Process.Stderr(), "Stopping: cancelling the work in flight") {
		c.T.Fatal("this machine stood still until the loop's Grace was over, so the order cannot be seen: run the check again")
	}
	stalled.Remove()
	result := r.Process.Wait()
	const want = "the write ends, then the lease is released, then the process ends with exit code 0"
	switch holderNow := ptr.Deref(o.lease().Spec.HolderIdentity, ""); {
	case released && (!ended || result.ExitCode != 0):
		c.Mistake("released before the work is done", want, "the lease was released before the write reached the API server")
	case ended:
		c.Mistake("work cut off", want, "the process ended before the write reached the API server")
	case holderNow == holder:
		c.Mistake("lease kept on exit", want, "the holder is still "+holder)
	case result.ExitCode != 0:
		c.Failf(want, "exit code %d", result.ExitCode)
	}
	o.marked("a")

	// Another process can no longer renew its lease, while a write is in flight.
	o.proxy.Clear()
	r = o.start()
	r.waitLeads()
	stuck := o.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "patch", Resource: "pods"}, Fault: faultproxy.Stall, Times: -1})
	o.pod("b")
	r.Struck(stuck, 1)
	o.proxy.MustInject(faultproxy.Rule{Match: leases, Fault: faultproxy.Stall, Times: -1})
	const patience = 3 * time.Second // less than the loop's Grace, after which it ends anyway
	out := o.lease().Spec.RenewTime.Add(leaseDuration)
	var over time.Time // when client-go has given the lease up, whose release fails, too
	after := 0         // looks after the end of the lease: a machine that stands still does not look
	o.Eventually(time.Minute, func(context.Context) error {
		if r.Process.Ended() {
			return nil
		}
		if over.IsZero() && strings.Contains(r.Process.Stderr(), `"error retrieving resource lock"`) {
			over = time.Now()
		}
		if time.Now().After(out.Add(patience)) || !over.IsZero() && time.Since(over) > patience {
			after++
		}
		if after >= 20 {
			const expected = "a process that ends as soon as its lease is lost"
			held := fmt.Sprintf("it still runs %s later", patience)
			stuck.Remove()
			if c.Until(5*time.Second, func(context.Context) error {
				if r.Process.Ended() {
					return nil
				}
				return errors.New("it still runs")
			}) == nil {
				c.Mistake("waits without the lease", expected, held+", and has ended when its write was answered")
			}
			c.Mistake("goes on without the lease", expected, held)
		}
		return errors.New("it still runs")
	})
	if result := r.Process.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, errLeaseLost) {
		c.Failf("exit code 1, and the error errLeaseLost", "exit code %d\n%s", result.ExitCode, result.Stderr)
	}

	if r := late.Wait(); !strings.Contains(r.Stdout, "it has stopped late") {
		c.Mistake("work cut off", "the error of a Run that has returned 10 seconds after ctx had ended", strings.TrimPrefix(r.Stdout, "stopping\n")+r.Stderr)
	}

	one := c.Run(testenv.Command{Path: program, Env: []string{"CHECK_ONE_RETURNS=1"}, Timeout: time.Minute,
		Args: []string{"-kubeconfig", lone.Kubeconfig, "-lease-namespace", o.namespace, "-lease-name", "one-returns"}})
	const joined = "the errors of both Runs: the first has failed, and the second was stopped"
	first, second := strings.Contains(one.Stdout, "the first has failed"), strings.Contains(one.Stdout, "the second was stopped")
	switch {
	case strings.Contains(one.Stdout, "the second was not stopped"):
		c.Mistake("the others go on", joined, "the second was not stopped within 10 seconds")
	case one.TimedOut:
		c.Failf(joined, "run has not returned within a minute after one Run has\n%s", one.Stderr)
	case first != second:
		c.Mistake("an error lost", joined, "the error "+strings.TrimSpace(one.Stdout))
	case !first:
		c.Failf(joined, "%s%s", one.Stdout, one.Stderr)
	}
	kept, err := o.client.CoordinationV1().Leases(o.namespace).Get(c.Context(), "one-returns", metav1.GetOptions{})
	c.Must(err)
	if holder := ptr.Deref(kept.Spec.HolderIdentity, ""); holder != "" {
		c.Mistake("lease kept on exit", "a lease without a holder after a Run has failed, too", "the holder is still "+holder)
	}
	well := c.Run(testenv.Command{Path: program, Env: []string{"CHECK_ONE_RETURNS=well"}, Timeout: time.Minute,
		Args: []string{"-kubeconfig", lone.Kubeconfig, "-lease-namespace", o.namespace, "-lease-name", "one-returns-well"}})
	if !strings.Contains(well.Stdout, "the second was stopped") {
		c.Mistake("the others go on", "the end of the second Run after the first has returned, though without an error", "the second was not stopped within 10 seconds")
	}

	// The lease is lost while a controller stops, which takes 20 seconds. With these durations, a request for it may take 2.5 seconds.
	slow := c.Start(testenv.Command{Path: program, Env: []string{"CHECK_ONE_RETURNS=slow"}, Timeout: time.Minute,
		Args: []string{"-kubeconfig", lone.Kubeconfig, "-lease-namespace", o.namespace, "-lease-name", "slow", "-lease-duration", "12s", "-renew-deadline", "6s", "-retry-period", "1s"}})
	o.Eventually(time.Minute, func(context.Context) error {
		if slow.Ended() || strings.Contains(slow.Stdout(), "stopping") {
			return nil
		}
		return errors.New("it does not stop its controller")
	})
	lone.MustInject(faultproxy.Rule{Match: faultproxy.Match{Resource: "leases", Name: "slow"}, Fault: faultproxy.Stall, Times: -1})
	if r := slow.Wait(); !strings.Contains(r.Stdout, errLeaseLost) {
		c.Mistake("lost while stopping", "errLeaseLost, because the lease was lost while a Run was still stopping", "the result "+strings.TrimPrefix(strings.TrimSpace(r.Stdout), "stopping\n")+", when that Run had returned")
	}
}

// errLeaseLost is what a process says that has lost its lease.
const errLeaseLost = "the lease is lost"

// authorized waits until the API server has heard of a role and its binding.
func (o *controllerTest) authorized(c *check.C, rule rbacv1.PolicyRule, namespace string) {
	o.t.Helper()
	if len(rule.APIGroups) == 0 || len(rule.Resources) == 0 || len(rule.Verbs) == 0 {
		c.Failf("rules about resources", "the rule %v", rule)
	}
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	attributes := &authorizationv1.ResourceAttributes{Namespace: namespace, Group: rule.APIGroups[0], Resource: resource, Subresource: subresource, Verb: rule.Verbs[0]}
	if len(rule.ResourceNames) > 0 {
		attributes.Name = rule.ResourceNames[0]
	}
	o.Eventually(time.Minute, func(ctx context.Context) error {
		review, err := o.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + o.Namespace + ":controller", ResourceAttributes: attributes}}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("%v is not allowed: %s", rule, review.Status.Reason)
		}
		return err
	})
}
