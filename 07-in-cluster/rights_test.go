package incluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/rights"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

const (
	name    = "policy-controller" // of the namespace, the service account and the roles
	account = "system:serviceaccount:" + name + ":" + name
)

// Everything that the service account asks for is written down, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + account + `"]
- level: None
`

// The controller runs with the rights of its service account, and does all that it
// can do. Then the audit log says which rights it has used: these, and no others,
// the manifests have to grant.
func TestRightsGrantedAreRightsUsed(t *testing.T) {
	t.Parallel() // its cluster is its own
	o, further := openAudited(t)
	o.viewersViewAndEditorsEditOnPurpose()
	// client-go streams its first list unless it is told not to; older API servers
	// cannot stream. So the right to list is needed as well.
	o.losesLease(o.doEverything("true"))
	o.doEverything("false").Stop()
	used := o.usedRights(further.AuditLog())
	o.admissionAsksForFinalizers()
	used[ofOwners] = true
	granted := o.grantedRights()
	fatal.If(t, compare(used, granted))
	t.Logf("%d rights are granted and used", len(granted))

	// Would the comparison notice a rule too few or too many? And does no other role
	// of the cluster grant the same?
	for right := range granted {
		fewer := maps.Clone(granted)
		delete(fewer, right)
		if err := compare(used, fewer); err == nil || !strings.Contains(err.Error(), "used, but not granted: "+right.String()) {
			t.Errorf("without %s: %v", right, err)
		}
		o.without(right, func() {})
	}
	for _, right := range []right{
		{"ClusterRole", "", "secrets", "get"}, {"ClusterRole", "", "pods", "delete"}, {"ClusterRole", "apps", "deployments", "update"},
		{"ClusterRole", "coordination.k8s.io", "leases", "get"}, {"Role", "coordination.k8s.io", "leases", "delete"},
		{"ClusterRole", "policy.k8s-go.openshift.org", "healthcheckpolicies/status", "patch"}, {"ClusterRole", "", "*", "get"},
	} {
		more := maps.Clone(granted)
		more[right] = true
		if err := compare(used, more); err == nil || !strings.Contains(err.Error(), "granted, but not used: "+right.String()) {
			t.Errorf("with %s: %v", right, err)
		}
	}
}

// A right is one verb on one resource, and the kind of role that grants it: a Role
// does so in its namespace only.
type right struct{ role, group, resource, verb string }

func (r right) String() string {
	return fmt.Sprintf("%s %s in the group %q (%s)", r.verb, r.resource, r.group, r.role)
}

// ofOwners is a right without a trace in the audit log. An admission plugin asks the
// authorizer for it, when somebody sets blockOwnerDeletion in an owner reference.
var ofOwners = right{"ClusterRole", "controller.nicoleh.io", "icecreams/finalizers", "update"}

func compare(used, granted map[right]bool) error {
	var errs []error
	report := func(what string, some, others map[right]bool) {
		for _, r := range slices.SortedFunc(maps.Keys(some), func(a, b right) int { return cmp.Compare(a.String(), b.String()) }) {
			if !others[r] {
				errs = append(errs, fmt.Errorf("%s: %s", what, r))
			}
		}
	}
	report("used, but not granted", used, granted)
	report("granted, but not used", granted, used)
	return errors.Join(errs...)
}

// openAudited prepares a test in a cluster of its own, with the manifests applied.
func openAudited(t *testing.T) (*controllerTest, *cluster.Cluster) {
	t.Helper()
	e := testenv.New(t)
	ctx := e.Context()
	ws, first := e.Workspace(), e.Cluster()
	if first.Components() == nil {
		t.Skipf("needs the control plane's binaries, which a run on %s does not build; run it with CLUSTER=kwok", first.Name())
	}
	further, err := cluster.NewKwok(ws, "rights", cluster.KwokOptions{AuditPolicy: auditPolicy, ExtraArgs: map[string][]string{
		// Off by default, and on in OpenShift.
		"kube-apiserver": {"enable-admission-plugins=OwnerReferencesPermissionEnforcement"}}})
	fatal.If(t, err)
	down := func() error { return further.Down(context.WithoutCancel(ctx), io.Discard) }
	if err := down(); err != nil { // of an interrupted run, whose audit log is not ours
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := down(); err != nil {
			t.Error(err)
		}
	})
	var out strings.Builder
	if err := further.Up(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	config, err := further.Config()
	fatal.If(t, err)
	kubectl(t, ws, further, "apply", "--server-side", "-k", "07-in-cluster/config/crds")
	fatal.If(t, crdwait.Established(ctx, config, definitions...))
	kubectl(t, ws, further, "apply", "-k", "07-in-cluster/config/overlays/dev")
	kubectl(t, ws, further, "apply", "--dry-run=server", "-k", "07-in-cluster/config/overlays/ha")

	o := &controllerTest{Env: e, t: t, runner: e, program: e.Program(program), leaseNamespace: name}
	if o.client, err = further.Client(); err != nil {
		t.Fatal(err)
	}
	if o.objects, err = versioned.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(config)
	fatal.If(t, err)
	t.Cleanup(proxy.Close)
	o.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	o.proxy = &testenv.Proxy{Proxy: proxy, Kubeconfig: o.kubeconfig}
	fatal.If(t, proxy.WriteKubeconfig(o.kubeconfig, "", o.podToken()))
	return o, further
}

func kubectl(t testing.TB, ws workspace.Workspace, c *cluster.Cluster, args ...string) string {
	t.Helper()
	output, err := proc.Output(t.Context(), proc.Cmd{Path: ws.Bin("kubectl"), Args: args, Dir: ws.Root, Env: c.Environ()})
	fatal.If(t, err)
	return output
}

// podToken returns a token as the kubelet would put it into a pod of the Deployment:
// it ends with the pod.
func (o *controllerTest) podToken() string {
	o.t.Helper()
	var token string
	o.Eventually(time.Minute, func(ctx context.Context) error {
		pods, err := o.client.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) == 0 {
			return errors.Join(err, errors.New("the Deployment has no pod"))
		}
		pod := pods.Items[0]
		request, err := o.client.CoreV1().ServiceAccounts(name).CreateToken(ctx, name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: ptr.To(int64(3600)),
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		token = request.Status.Token
		return nil
	})
	return token
}

// doEverything runs a replica through all that makes it ask the API server for
// something, except for its end, in a namespace of its own.
func (o *controllerTest) doEverything(streams string) *replica {
	o.t.Helper()
	ctx := o.Context()
	o.namespace = "streams-" + streams
	if _, err := o.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.namespace}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	o.Eventually(time.Minute, func(ctx context.Context) error { // without it no pod can be made
		_, err := o.client.CoreV1().ServiceAccounts(o.namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	r := o.startWith([]string{"KUBE_FEATURE_WatchListClient=" + streams}, "-namespace", "")
	r.waitLeads()
	r.WaitReady()

	o.marksAndEvents()
	o.evicts()
	o.ownsADeployment()
	o.findsADeploymentInTheWay()

	if code, body := controllertest.Get("https://"+r.Address("metrics")+"/metrics", o.token("stranger")); code != http.StatusForbidden {
		o.t.Errorf("metrics for a stranger: %d %s", code, body)
	}
	return r
}

// losesLease gives the lease of a leader to somebody else, who never renews it. The
// leader tries to renew, sees who holds it, gives up, and tries to release.
func (o *controllerTest) losesLease(r *replica) {
	o.t.Helper()
	leases := o.client.CoordinationV1().Leases(name)
	fatal.If(o.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := leases.Get(o.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		lease.Spec.HolderIdentity = ptr.To("somebody else")
		_, err = leases.Update(o.Context(), lease, metav1.UpdateOptions{})
		return err
	}))
	if result := r.Process.Wait(); result.ExitCode != 1 || !strings.Contains(result.Stderr, "the lease is lost") {
		o.t.Errorf("exit code %d\n%s", result.ExitCode, result.Stderr)
	}
}

// marksAndEvents marks a pod twice: the second Event continues the series of the first.
func (o *controllerTest) marksAndEvents() {
	o.t.Helper()
	ctx := o.Context()
	o.pod("a")
	o.label("a", "web")
	o.policyWith("label", v1alpha1.HealthCheckPolicySpec{PodLabel: "lacks", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}})
	o.marked("a")
	o.label("a", "db")
	o.Eventually(time.Minute, func(ctx context.Context) error {
		pod, err := o.client.CoreV1().Pods(o.namespace).Get(ctx, "a", metav1.GetOptions{})
		if err == nil && pod.Labels["lacks"] != "" {
			err = errors.New("the mark is still there")
		}
		return err
	})
	o.label("a", "web")
	o.marked("a")
	o.Eventually(time.Minute, func(ctx context.Context) error {
		events, err := o.client.EventsV1().Events(o.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Series != nil {
				return nil
			}
		}
		return errors.New("no Event is a series")
	})
	fatal.If(o.t, o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Delete(ctx, "label", metav1.DeleteOptions{}))
	o.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Get(ctx, "label", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the policy is still there"))
	})
}

func (o *controllerTest) label(pod, app string) {
	o.t.Helper()
	if _, err := o.client.CoreV1().Pods(o.namespace).Patch(o.Context(), pod, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app), metav1.PatchOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *controllerTest) policyWith(name string, spec v1alpha1.HealthCheckPolicySpec) {
	o.t.Helper()
	o.Eventually(time.Minute, func(ctx context.Context) error { // a young definition refuses objects for a moment
		_, err := o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Create(ctx, &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err
	})
}

// evicts evicts a pod of a Deployment, as soon as its PodDisruptionBudget allows it.
func (o *controllerTest) evicts() {
	o.t.Helper()
	ctx := o.Context()
	labels := map[string]string{"app": "victim"}
	if _, err := o.client.PolicyV1().PodDisruptionBudgets(o.namespace).Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "victim"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	if _, err := o.client.AppsV1().Deployments(o.namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "victim"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: cluster.PauseImage}}}}}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	o.policyWith("kill", v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionKill, Selector: metav1.LabelSelector{MatchLabels: labels}})
	reason := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			policy, err := o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Get(ctx, "kill", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range policy.Status.Conditions {
				if c.Type == "Enforced" && c.Reason == want {
					return nil
				}
			}
			return fmt.Errorf("not %s: %+v", want, policy.Status)
		}
	}
	o.Eventually(time.Minute, reason(v1alpha1.ReasonDisruptionBudget))
	fatal.If(o.t, o.client.PolicyV1().PodDisruptionBudgets(o.namespace).Delete(ctx, "victim", metav1.DeleteOptions{}))
	o.Eventually(time.Minute, reason(v1alpha1.ReasonThrottled))
	fatal.If(o.t, o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Delete(ctx, "kill", metav1.DeleteOptions{}))
}

// ownsADeployment makes the controller of Icecreams create, correct and delete.
func (o *controllerTest) ownsADeployment() {
	o.t.Helper()
	ctx := o.Context()
	icecreams, deployments := o.objects.IcecreamV1alpha1().Icecreams(o.namespace), o.client.AppsV1().Deployments(o.namespace)
	if _, err := icecreams.Create(ctx, &icecreamv1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: icecreamv1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: ptr.To(int32(1))}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	available := func(deployment string) {
		o.Eventually(time.Minute, func(ctx context.Context) error {
			d, err := deployments.Get(ctx, deployment, metav1.GetOptions{})
			if err == nil && (d.Status.AvailableReplicas != 1 || *d.Spec.Replicas != 1) {
				err = fmt.Errorf("%d of %d replicas", d.Status.AvailableReplicas, *d.Spec.Replicas)
			}
			return err
		})
	}
	available("cone")
	if _, err := deployments.Patch(ctx, "cone", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}); err != nil {
		o.t.Fatal(err)
	}
	available("cone")
	if _, err := icecreams.Patch(ctx, "vanilla", types.MergePatchType, []byte(`{"spec":{"deploymentName":"cup"}}`), metav1.PatchOptions{}); err != nil {
		o.t.Fatal(err)
	}
	available("cup")
	o.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := deployments.Get(ctx, "cone", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the old Deployment is still there"))
	})
}

// findsADeploymentInTheWay keeps the event of a foreign Deployment from the
// controller, which then learns from the API server that the name is taken.
func (o *controllerTest) findsADeploymentInTheWay() {
	o.t.Helper()
	ctx := o.Context()
	held, err := o.proxy.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "deployments"}, Fault: faultproxy.Hold, Object: "taken"})
	fatal.If(o.t, err)
	defer held.Remove()
	labels := map[string]string{"app": "taken"}
	if _, err := o.client.AppsV1().Deployments(o.namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "taken"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: cluster.PauseImage}}}}}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	icecreams := o.objects.IcecreamV1alpha1().Icecreams(o.namespace)
	if _, err := icecreams.Create(ctx, &icecreamv1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: icecreamv1alpha1.IcecreamSpec{DeploymentName: "taken"}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	o.Eventually(time.Minute, func(ctx context.Context) error {
		ice, err := icecreams.Get(ctx, "late", metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionFalse(ice.Status.Conditions, icecreamv1alpha1.ConditionOwned) {
			err = errors.New("the Icecream does not say that the name is taken")
		}
		return err
	})
}

// viewersViewAndEditorsEditOnPurpose looks at the roles of users: view, and with it
// edit, has to include viewing policies, but edit must not include writing them.
func (o *controllerTest) viewersViewAndEditorsEditOnPurpose() {
	o.t.Helper()
	ctx := o.Context()
	for _, role := range []string{"view", "edit", "policy-controller-edit"} {
		if _, err := o.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: role}}}, metav1.CreateOptions{}); err != nil {
			o.t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		user, verb, group, resource string
		allowed                     bool
	}{
		{"view", "list", "policy.k8s-go.openshift.org", "healthcheckpolicies", true},
		{"edit", "watch", "controller.nicoleh.io", "icecreams", true},
		{"policy-controller-edit", "create", "policy.k8s-go.openshift.org", "healthcheckpolicies", true},
		{"policy-controller-edit", "update", "controller.nicoleh.io", "icecreams", true},
		{"view", "create", "policy.k8s-go.openshift.org", "healthcheckpolicies", false},
		{"edit", "create", "policy.k8s-go.openshift.org", "healthcheckpolicies", false},
		{"edit", "patch", "controller.nicoleh.io", "icecreams", false},
	} {
		o.Eventually(time.Minute, func(ctx context.Context) error { // roles are aggregated in the background
			review, err := o.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: tc.user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Group: tc.group, Resource: tc.resource, Verb: tc.verb},
			}}, metav1.CreateOptions{})
			if err == nil && review.Status.Allowed != tc.allowed {
				err = fmt.Errorf("may %s %s %s: %v", tc.user, tc.verb, tc.resource, review.Status.Allowed)
			}
			return err
		})
	}
}

// usedRights reads the audit log up to the end of the last replica, and fails the
// test for every request that was refused.
func (o *controllerTest) usedRights(path string) map[right]bool {
	o.t.Helper()
	type record struct {
		Verb, RequestURI string
		ObjectRef        *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
		ResponseStatus   struct{ Code int }
		Annotations      map[string]string
	}
	var records []record
	// The API server writes its log in the background. The second replica has
	// released its lease at the end, so that is the last record.
	fatal.If(o.t, poll.Until(o.Context(), 100*time.Millisecond, time.Minute, func(context.Context) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		records = nil
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r record
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				return fmt.Errorf("reading the audit log: %w", err)
			}
			records = append(records, r)
		}
		if len(records) == 0 {
			return errors.Join(lines.Err(), errors.New("the audit log is empty"))
		}
		if last := records[len(records)-1]; last.ObjectRef == nil || last.ObjectRef.Resource != "leases" || last.Verb != "update" {
			return errors.Join(lines.Err(), fmt.Errorf("the last record is %+v", last))
		}
		return lines.Err()
	}))
	used := map[right]bool{}
	for _, r := range records {
		// The reason names the role that allows it. What everybody may do would name another one.
		reason := r.Annotations["authorization.k8s.io/reason"]
		var role string
		switch {
		case strings.Contains(reason, fmt.Sprintf("of ClusterRole %q", name)):
			role = "ClusterRole"
		case strings.Contains(reason, fmt.Sprintf("of Role %q", name)) && r.ObjectRef.Namespace == name:
			role = "Role"
		default:
			o.t.Errorf("%s %s: %d, %s", r.Verb, r.RequestURI, r.ResponseStatus.Code, cmp.Or(reason, "no role allows it"))
			continue
		}
		resource := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			resource += "/" + r.ObjectRef.Subresource
		}
		used[right{role, r.ObjectRef.APIGroup, resource, r.Verb}] = true
	}
	return used
}

func (o *controllerTest) grantedRights() map[right]bool {
	o.t.Helper()
	clusterRole, err := o.client.RbacV1().ClusterRoles().Get(o.Context(), name, metav1.GetOptions{})
	fatal.If(o.t, err)
	role, err := o.client.RbacV1().Roles(name).Get(o.Context(), name, metav1.GetOptions{})
	fatal.If(o.t, err)
	granted := map[right]bool{}
	for kind, rules := range map[string][]rbacv1.PolicyRule{"ClusterRole": clusterRole.Rules, "Role": role.Rules} {
		for _, rule := range rules {
			if len(rule.NonResourceURLs) > 0 {
				o.t.Errorf("the rule %s is not compared with anything", rule)
			}
			for r := range rights.Of(rule) {
				granted[right{kind, r.Group, r.Resource, r.Verb}] = true
			}
		}
	}
	return granted
}

// admissionAsksForFinalizers creates a Deployment like the controller's own, with its
// token: without the right, the API server must refuse that.
func (o *controllerTest) admissionAsksForFinalizers() {
	o.t.Helper()
	config, err := cluster.Config(o.kubeconfig)
	fatal.If(o.t, err)
	controller, err := kubernetes.NewForConfig(config)
	fatal.If(o.t, err)
	own, err := o.client.AppsV1().Deployments(o.namespace).Get(o.Context(), "cup", metav1.GetOptions{})
	fatal.If(o.t, err)
	create := func() error {
		_, err := controller.AppsV1().Deployments(o.namespace).Create(o.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "another", OwnerReferences: own.OwnerReferences}, Spec: own.Spec,
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := create(); err != nil {
		o.t.Errorf("with %s: %v", ofOwners, err)
	}
	o.without(ofOwners, func() {
		if err := create(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot set blockOwnerDeletion") {
			o.t.Errorf("without %s: %v", ofOwners, err)
		}
	})
}

// without takes a right away, and calls f when the API server says that the service
// account no longer has it. So no other role grants it. Then it gives the right back.
func (o *controllerTest) without(r right, f func()) {
	o.t.Helper()
	ctx := o.Context()
	fewer := func(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
		rules = slices.Clone(rules)
		for i, rule := range rules {
			if slices.Contains(rule.APIGroups, r.group) && slices.Contains(rule.Resources, r.resource) {
				rules[i].Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == r.verb })
			}
		}
		return slices.DeleteFunc(rules, func(rule rbacv1.PolicyRule) bool { return len(rule.Verbs) == 0 })
	}
	change := func(rules func([]rbacv1.PolicyRule) []rbacv1.PolicyRule) (before []rbacv1.PolicyRule) {
		var err error
		if r.role == "Role" {
			var role *rbacv1.Role
			if role, err = o.client.RbacV1().Roles(name).Get(ctx, name, metav1.GetOptions{}); err == nil {
				before, role.Rules = role.Rules, rules(role.Rules)
				_, err = o.client.RbacV1().Roles(name).Update(ctx, role, metav1.UpdateOptions{})
			}
		} else {
			var role *rbacv1.ClusterRole
			if role, err = o.client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{}); err == nil {
				before, role.Rules = role.Rules, rules(role.Rules)
				_, err = o.client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
			}
		}
		fatal.If(o.t, err)
		return before
	}
	resource, subresource, _ := strings.Cut(r.resource, "/")
	allowed := func(want bool) {
		o.Eventually(time.Minute, func(ctx context.Context) error {
			review, err := o.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + name, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: name, Name: name, Group: r.group, Resource: resource, Subresource: subresource, Verb: r.verb},
			}}, metav1.CreateOptions{})
			if err == nil && review.Status.Allowed != want {
				err = fmt.Errorf("%s: allowed %v, %s", r, review.Status.Allowed, review.Status.Reason)
			}
			return err
		})
	}
	before := change(fewer)
	allowed(false)
	f()
	change(func([]rbacv1.PolicyRule) []rbacv1.PolicyRule { return before })
	allowed(true)
}
