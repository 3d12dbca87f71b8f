package webhooks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"patch": checkPatch, "condition": checkCondition,
		"guard": checkGuard, "rotation": checkRotation, "lossless": checkLossless, "quota": checkQuota})
}

var dry = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// only is the label of what a check creates; its webhooks are asked about nothing else, so that a
// configuration with a mistake does not lock the cluster that the check runs on.
const only = "webhooks.check"

// configuration registers a learner's configuration, under a name of the check's own, for objects of the
// check only. ours is the name that its own namespace has in the file. It returns when requests in these
// namespaces are decided by it.
func configuration(c *check.C, file, ours string, namespaces ...string) *admissionregistrationv1.ValidatingWebhookConfiguration {
	v := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	c.ReadYAML(file, "a ValidatingWebhookConfiguration", v)
	if len(v.Webhooks) != 1 {
		c.Failf("one webhook", "%d", len(v.Webhooks))
	}
	data, err := json.Marshal(v)
	c.Must(err)
	for _, quote := range []string{`"`, `\"`, `'`} { // YAML's, and CEL's
		data = bytes.ReplaceAll(data, []byte(quote+ours+quote), []byte(quote+c.Namespace+quote))
	}
	*v = admissionregistrationv1.ValidatingWebhookConfiguration{}
	c.Must(json.Unmarshal(data, v))
	v.ObjectMeta = metav1.ObjectMeta{Name: c.Namespace}
	if v.Webhooks[0].ObjectSelector == nil {
		v.Webhooks[0].ObjectSelector = &metav1.LabelSelector{}
	}
	selector := v.Webhooks[0].ObjectSelector
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: only, Operator: metav1.LabelSelectorOpIn, Values: []string{c.Namespace}})
	register(c, nil, v)

	// The API server hears of configurations in the order in which they were made, and of a namespace's labels
	// in the order in which they were given. So when another one of ours, made last, is in force, all is.
	for _, namespace := range namespaces {
		labelNamespace(c, namespace, only, c.Namespace)
	}
	_, last := webhooks(c, "", "", "", nil)
	last.Name += "-last"
	w := &last.Webhooks[0]
	w.ClientConfig = v.Webhooks[0].ClientConfig
	w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{only: last.Name}}
	w.Rules[0].Rule = admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}
	register(c, nil, last)
	for _, namespace := range namespaces {
		c.Must(c.Until(time.Minute, func(ctx context.Context) error {
			_, err := c.Client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last", Labels: w.ObjectSelector.MatchLabels}}, dry)
			if !locked(c, err) {
				return fmt.Errorf("the configuration %s is not in force in %s", last.Name, namespace)
			}
			return nil
		}))
	}
	return v
}

// register creates configurations, and removes them at the end of the check.
func register(c *check.C, mutating *admissionregistrationv1.MutatingWebhookConfiguration, validating *admissionregistrationv1.ValidatingWebhookConfiguration) {
	client, name := c.Client.AdmissionregistrationV1(), validating.Name
	c.AtEnd(
		func(ctx context.Context) error {
			return client.MutatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return client.ValidatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{})
		})
	var err error
	if mutating != nil {
		_, err = client.MutatingWebhookConfigurations().Create(c.Context(), mutating, metav1.CreateOptions{})
		c.Must(err)
	}
	made, err := client.ValidatingWebhookConfigurations().Create(c.Context(), validating, metav1.CreateOptions{})
	if apierrors.IsInvalid(err) {
		c.Fail("a configuration that the API server takes", err.Error())
	}
	c.Must(err)
	*validating = *made
}

// release has an object lose its finalizers at the end of the check, or its namespace would stay. Called before a
// webhook is registered, it comes after that has gone, of which the API server hears a moment later.
func release(c *check.C, patch func(ctx context.Context, patch []byte) error) {
	c.T.Cleanup(func() {
		c.Must(poll.Until(context.WithoutCancel(c.Context()), 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
			if err := patch(ctx, []byte(`{"metadata": {"finalizers": null}}`)); !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		}))
	})
}

// locked reports whether a request has been refused because a webhook did not answer. Any other error is none of
// the learner's.
func locked(c *check.C, err error) bool {
	if apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook") {
		return true
	}
	if conditionFailed(err) {
		return true
	}
	c.Must(err)
	return false
}

// conditionFailed reports whether a match condition could not be evaluated, after which failurePolicy decides.
func conditionFailed(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "resulted in error")
}

// guarded is locked for a request about which the webhook is to be asked. A condition that fails refuses it even if
// the webhook would agree.
func guarded(c *check.C, err error) bool {
	if conditionFailed(err) {
		c.Fail("conditions that are true or false for each request", err.Error())
	}
	return locked(c, err)
}

// labelNamespace gives a namespace a label.
func labelNamespace(c *check.C, namespace, key, value string) {
	_, err := c.Client.CoreV1().Namespaces().Patch(c.Context(), namespace, types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"labels": {%q: %q}}}`, key, value), metav1.PatchOptions{})
	c.Must(err)
}

func checkPatch(c *check.C) {
	var file struct {
		Patch []struct {
			Op    string `json:"op"`
			Path  string `json:"path"`
			Value any    `json:"value"`
		} `json:"patch"`
	}
	c.ReadYAML("label.yaml", "patch:, and under it a list of operations", &file)
	want := `the labels app: shop, of: ` + c.Namespace + ` and k8s-go.openshift.org/checked: "yes"`
	if len(file.Patch) != 1 {
		c.Failf("one operation", "%d", len(file.Patch))
	}
	if file.Patch[0].Value == true { // YAML's yes
		c.Fail(want, "the value true, which is no string: put it in quotes")
	}
	data, err := json.Marshal(file.Patch)
	c.Must(err)
	maps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	_, err = maps.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "shop", "of": c.Namespace}}}, metav1.CreateOptions{})
	c.Must(err)
	o, err := maps.Patch(c.Context(), "a", types.JSONPatchType, data, metav1.PatchOptions{})
	if err != nil {
		if strings.HasPrefix(file.Patch[0].Path, "/metadata/labels/k8s-go.openshift.org/") {
			c.Mistake("slash in a name", want, err.Error())
		}
		c.Fail(want, err.Error())
	}
	held := fmt.Sprintf("labels %v", o.Labels)
	switch {
	case o.Labels["k8s-go.openshift.org/checked"] != "yes":
		c.Fail(want, held)
	case len(o.Labels) != 3 || o.Labels["app"] != "shop" || o.Labels["of"] != c.Namespace:
		c.Mistake("all labels replaced", want, held)
	}
}

func checkCondition(c *check.C) {
	configuration(c, "people.yaml", "people", c.Namespace)
	asked := func(user string) bool {
		_, err := impersonated(c, user).CoreV1().ConfigMaps(c.Namespace).Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{only: c.Namespace}}}, dry)
		return guarded(c, err)
	}
	const anna, scheduler, manager, account = "anna", "system:kube-scheduler", "system:kube-controller-manager", "system:serviceaccount:shop:default"
	const proxy, aggregator, node = "system:kube-proxy", "system:kube-aggregator", "system:node:node-1"
	const kubelet, liar, cluster = "system:kubelet-1", "anna-system:kube-scheduler", "system:serviceaccount:kube-system:default"
	const want = "the webhook is asked about all but the control plane"
	switch {
	case !asked(anna) && asked(scheduler):
		c.Mistake("the other way round", want, "it was asked about "+scheduler+", and not about "+anna)
	case !asked(anna):
		c.Fail(want, "it was not asked about "+anna)
	case asked(scheduler) && asked(manager):
		c.Fail(want, "it was asked about "+scheduler)
	case asked(scheduler) || asked(manager) || asked(proxy) || asked(aggregator):
		c.Mistake("only one of them", want, "it was asked about one of "+strings.Join([]string{scheduler, manager, proxy, aggregator}, ", "))
	case !asked(liar):
		c.Fail(want, "it was not asked about "+liar)
	case !asked(account):
		c.Mistake("everything of the system", want, "it was not asked about "+account)
	case !asked(cluster):
		c.Mistake("everything of the system", want, "it was not asked about "+cluster)
	case !asked(node), !asked(kubelet):
		c.Fail(want, "it was not asked about "+node+" or "+kubelet)
	}
}

// impersonated is a client of somebody who may do everything.
func impersonated(c *check.C, user string, groups ...string) kubernetes.Interface {
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:masters")}
	client, err := kubernetes.NewForConfig(config)
	c.Must(err)
	return client
}

// checkGuard has no server, as the task says. Each request is a dry run, and webhooks without side effects
// are asked in one, too.
func checkGuard(c *check.C) {
	ctx := c.Context()
	ours, other := c.Namespace, testenv.New(c.T).Namespace
	team, empty := testenv.New(c.T).Namespace, testenv.New(c.T).Namespace
	label := func(o metav1.ObjectMeta) metav1.ObjectMeta {
		o.Labels = map[string]string{only: ours, "app": "a"}
		return o
	}
	meta := label(metav1.ObjectMeta{Name: "a"})
	for _, namespace := range []string{ours, team} {
		labelNamespace(c, namespace, "team", "sweets")
	}
	labelNamespace(c, empty, "team", "")
	// What is there before the webhook is.
	ending := label(metav1.ObjectMeta{Name: "ending", Finalizers: []string{"k8s-go.openshift.org/first", "k8s-go.openshift.org/last"}})
	_, err := c.Client.CoreV1().ConfigMaps(team).Create(ctx, &corev1.ConfigMap{ObjectMeta: ending}, metav1.CreateOptions{})
	c.Must(err)
	c.Must(c.Client.CoreV1().ConfigMaps(team).Delete(ctx, "ending", metav1.DeleteOptions{}))
	release(c, func(ctx context.Context, patch []byte) error {
		_, err := c.Client.CoreV1().ConfigMaps(team).Patch(ctx, "ending", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	_, err = c.Client.CoreV1().ConfigMaps(team).Create(ctx, &corev1.ConfigMap{ObjectMeta: label(metav1.ObjectMeta{Name: "there"})}, metav1.CreateOptions{})
	c.Must(err)
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "workshop/pause:1"}}}}}}
	deployment.Spec.Replicas = new(int32) // no pods
	for _, namespace := range []string{ours, team} {
		_, err := c.Client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{})
		c.Must(err)
	}
	v := configuration(c, "guard.yaml", "owner-guard", ours, team, empty)
	if s := v.Webhooks[0].ClientConfig.Service; s == nil || s.Namespace != ours || s.Name != ours || s.Path == nil || *s.Path != "/validate" { // both names have been replaced
		c.Fail("a clientConfig with the Service owner-guard in the namespace owner-guard, and the path /validate", fmt.Sprintf("%+v", v.Webhooks[0].ClientConfig))
	}

	patch, status := []byte(`{"metadata": {"annotations": {"a": "b"}}}`), []byte(`{"status": {"observedGeneration": 9}}`)
	dryPatch := metav1.PatchOptions{DryRun: dry.DryRun}
	configMap := func(namespace string) error {
		_, err := c.Client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, dry)
		return err
	}
	change := func(namespace, name string, patch []byte, subresources ...string) error {
		_, err := c.Client.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, patch, dryPatch, subresources...)
		return err
	}
	leftOut := slices.ContainsFunc(v.Webhooks[0].MatchConditions, func(m admissionregistrationv1.MatchCondition) bool {
		return strings.Contains(m.Expression, "subResource") && (!strings.Contains(m.Expression, "status") || strings.Contains(m.Expression, "scale"))
	})
	for _, rule := range v.Webhooks[0].Rules { // the check's own selector sees no labels of a Scale
		if leftOut {
			break // by a condition, which a request below tries
		}
		for _, resource := range rule.Resources {
			if _, sub, _ := strings.Cut(resource, "/"); slices.Contains([]string{"*", "status", "scale"}, sub) {
				c.Mistake("subresources", "rules without the status and the scale of anything", "the resources "+resource)
			}
		}
	}
	job := batchv1.JobSpec{Template: *deployment.Spec.Template.DeepCopy()}
	job.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	const want = "whatever a team has is guarded, and nothing else, while the server is down"
	if !guarded(c, configMap(team)) && !guarded(c, change(team, "a", patch)) {
		const held = "a ConfigMap was created and a Deployment changed in a namespace with the label team"
		if *v.Webhooks[0].FailurePolicy == admissionregistrationv1.Ignore {
			c.Mistake("does not guard", want, held)
		}
		c.Fail(want, held+", whose value is sweets")
	}
	for what, f := range map[string]func() error{
		"a ConfigMap was created": func() error { return configMap(team) },
		"a ConfigMap was changed": func() error {
			_, err := c.Client.CoreV1().ConfigMaps(team).Patch(ctx, "there", types.MergePatchType, patch, dryPatch)
			return err
		},
		"a Secret was created": func() error {
			_, err := c.Client.CoreV1().Secrets(team).Create(ctx, &corev1.Secret{ObjectMeta: meta}, dry)
			return err
		},
		"a Deployment was changed": func() error { return change(team, "a", patch) },
		"a ReplicaSet was created": func() error {
			set := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: deployment.Spec.Selector, Template: deployment.Spec.Template}}
			_, err := c.Client.AppsV1().ReplicaSets(team).Create(ctx, set, dry)
			return err
		},
		"a StatefulSet was created": func() error {
			set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: deployment.Spec.Selector, Template: deployment.Spec.Template}}
			_, err := c.Client.AppsV1().StatefulSets(team).Create(ctx, set, dry)
			return err
		},
		"a Service was created": func() error {
			_, err := c.Client.CoreV1().Services(team).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}, dry)
			return err
		},
		"a DaemonSet was created": func() error {
			set := &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: deployment.Spec.Selector, Template: deployment.Spec.Template}}
			_, err := c.Client.AppsV1().DaemonSets(team).Create(ctx, set, dry)
			return err
		},
		"a ControllerRevision was created": func() error {
			_, err := c.Client.AppsV1().ControllerRevisions(team).Create(ctx, &appsv1.ControllerRevision{ObjectMeta: meta, Data: runtime.RawExtension{Raw: []byte(`{}`)}}, dry)
			return err
		},
		"a Job was created": func() error {
			_, err := c.Client.BatchV1().Jobs(team).Create(ctx, &batchv1.Job{ObjectMeta: meta, Spec: job}, dry)
			return err
		},
		"a CronJob was created": func() error {
			_, err := c.Client.BatchV1().CronJobs(team).Create(ctx, &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{Schedule: "@daily", JobTemplate: batchv1.JobTemplateSpec{Spec: job}}}, dry)
			return err
		},
	} {
		if !guarded(c, f()) {
			c.Mistake("half a guard", want, what)
		}
	}
	_, err = c.Client.CoreV1().ConfigMaps(team).Patch(ctx, "there", types.MergePatchType, []byte(`{"metadata": {"finalizers": ["k8s-go.openshift.org/mine"]}, "data": {"a": "b"}}`), dryPatch)
	if !guarded(c, err) {
		c.Fail(want, "a ConfigMap was changed, and its finalizers, too")
	}
	if !guarded(c, configMap(empty)) {
		c.Mistake("some values", want, "a ConfigMap was created in a namespace whose label team has an empty value")
	}
	// as changes a Deployment of the team as somebody else.
	as := func(user string, groups ...string) error {
		_, err := impersonated(c, user, groups...).AppsV1().Deployments(team).Patch(ctx, "a", types.MergePatchType, patch, dryPatch)
		return err
	}
	if !guarded(c, as("system:serviceaccount:"+team+":ci", "system:serviceaccounts", "system:serviceaccounts:"+team)) {
		c.Mistake("every account", want, "a ServiceAccount of the team changed a Deployment")
	}
	if !guarded(c, as("system:serviceaccount:kube-system-tools:ci", "system:serviceaccounts", "system:serviceaccounts:kube-system-tools")) {
		c.Mistake("every account", want, "a ServiceAccount of the namespace kube-system-tools changed a Deployment")
	}
	if !guarded(c, as("system:kubelet-1")) {
		c.Fail(want, "somebody called system:kubelet-1 changed a Deployment")
	}
	for _, tc := range []struct {
		mistake, what string
		f             func() error
	}{
		{"every namespace", "a ConfigMap in a namespace without the label team", func() error { return configMap(other) }},
		{"locks itself", "the Deployment in the namespace owner-guard", func() error { return change(ours, "a", patch) }},
		{"other kinds", "a Lease in a team's namespace", func() error {
			_, err := c.Client.CoordinationV1().Leases(team).Create(ctx, &coordinationv1.Lease{ObjectMeta: meta}, dry)
			return err
		}},
		{"other kinds", "a pod in a team's namespace", func() error {
			_, err := c.Client.CoreV1().Pods(team).Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: deployment.Spec.Template.Spec}, dry)
			return err
		}},
		{"other kinds", "the label of the Namespace itself", func() error {
			_, err := c.Client.CoreV1().Namespaces().Patch(ctx, team, types.MergePatchType, []byte(`{"metadata": {"labels": {"team": null}}}`), dryPatch)
			return err
		}},
		{"subresources", "the status of a Deployment", func() error { return change(team, "a", status, "status") }},
		{"cannot be deleted", "the deletion of a ConfigMap", func() error {
			return c.Client.CoreV1().ConfigMaps(team).Delete(ctx, "there", metav1.DeleteOptions{DryRun: dry.DryRun})
		}},
		{"cannot be deleted", "the deletion of a Deployment", func() error {
			return c.Client.AppsV1().Deployments(team).Delete(ctx, "a", metav1.DeleteOptions{DryRun: dry.DryRun})
		}},
		{"stops the control plane", "a controller of the control plane", func() error {
			return as("system:serviceaccount:kube-system:deployment-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system")
		}},
		{"stops the control plane", "the controller manager", func() error { return as("system:kube-controller-manager") }},
		{"stops the control plane", "the scheduler", func() error { return as("system:kube-scheduler") }},
		{"the last finalizer", "the first finalizer of a ConfigMap that is being deleted", func() error {
			_, err := c.Client.CoreV1().ConfigMaps(team).Patch(ctx, "ending", types.MergePatchType, []byte(`{"metadata": {"finalizers": ["k8s-go.openshift.org/last"]}}`), dryPatch)
			return err
		}},
		{"the last finalizer", "the last finalizer of a ConfigMap that is being deleted", func() error {
			_, err := c.Client.CoreV1().ConfigMaps(team).Patch(ctx, "ending", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), dryPatch)
			return err
		}},
	} {
		if locked(c, tc.f()) {
			c.Mistake(tc.mistake, want, tc.what+" was stopped")
		}
	}
	if seconds := *v.Webhooks[0].TimeoutSeconds; seconds > 5 { // what the API server will do; to measure it would take longer
		c.Mistake("waits too long", "at most 5 seconds", fmt.Sprintf("timeoutSeconds is %d in the API server", seconds))
	}
}

// A chain is a CA, and a serving certificate that it has signed, as PEM.
type chain struct{ ca, certificate, key []byte }

func newChain(c *check.C, host string) chain {
	both, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	c.Must(err)
	_, rest := pem.Decode(both) // the leaf, and then the CA
	return chain{rest, both[:len(both)-len(rest)], key}
}

// write makes a folder with the three files.
func (o chain) write(c *check.C) string {
	dir := c.T.TempDir()
	for name, data := range map[string][]byte{"ca.crt": o.ca, "tls.crt": o.certificate, "tls.key": o.key} {
		c.Must(os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return dir
}

// newCheckSetup is the webhook of this step in the namespace of a check.
func newCheckSetup(c *check.C) *setup {
	crdtest.Share(c.T, c.Env, icecreamCRD, policyCRD)
	own, err := versioned.NewForConfig(c.Config)
	c.Must(err)
	s := &setup{Env: c.Env, t: c.T, own: own, dir: filepath.Join(c.T.TempDir(), "certificate")}
	s.address = strings.TrimSpace(c.Env.Run(testenv.Command{Path: c.Env.Program("./08-webhooks/address")}).Stdout)
	return s
}

// webhooks are one of each kind, for the Icecreams of a check.
func webhooks(c *check.C, address, mutate, validate string, bundle []byte) (*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration) {
	meta := metav1.ObjectMeta{Name: c.Namespace}
	url := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: new("https://" + address + path), CABundle: bundle}
	}
	rules := []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{APIGroups: []string{"controller.nicoleh.io"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"icecreams", "icecreams/scale"}}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{only: c.Namespace}}
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "mutate.k8s-go.openshift.org",
			ClientConfig: url(mutate), Rules: rules, NamespaceSelector: selector, SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}}}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "validate.k8s-go.openshift.org",
			ClientConfig: url(validate), Rules: rules, NamespaceSelector: selector, SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}}}}
}

// A hook is what the webhooks of both kinds have in common.
type hook struct {
	uid types.UID // of its configuration; "" if there is none
	admissionregistrationv1.ValidatingWebhook
}

// hooks are those of the two configurations of a check.
func hooks(ctx context.Context, c *check.C) (both [2]hook, err error) {
	for i, kind := range []string{"mutating", "validating"} {
		o, err := c.Dynamic.Resource(admissionregistrationv1.SchemeGroupVersion.WithResource(kind+"webhookconfigurations")).Get(ctx, c.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return both, err
		}
		var list []admissionregistrationv1.ValidatingWebhook
		data, err := json.Marshal(o.Object["webhooks"])
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		if err != nil {
			return both, err
		}
		if len(list) == 1 {
			both[i] = hook{o.GetUID(), list[0]}
		}
	}
	return both, nil
}

// unasked says why a webhook is not asked as it was, or "".
func (h hook) unasked(was hook) string {
	for _, o := range []*hook{&h, &was} {
		o.ClientConfig.CABundle, o.TimeoutSeconds = nil, nil
	}
	switch {
	case h.uid == "":
		return "it has no webhook"
	case h.uid != was.uid:
		return "it was deleted and made again"
	case *h.FailurePolicy != *was.FailurePolicy:
		return "its failurePolicy is " + string(*h.FailurePolicy)
	case !equality.Semantic.DeepEqual(h.ValidatingWebhook, was.ValidatingWebhook):
		return "its webhook is about something else"
	}
	return ""
}

// trusting counts the webhooks whose caBundle has a CA.
func trusting(both [2]hook, ca []byte) (n int) {
	for _, h := range both {
		if bytes.Contains(h.ClientConfig.CABundle, bytes.TrimSpace(ca)) {
			n++
		}
	}
	return n
}

// A rotation is a run of a learner's script, judged after each of its writes: a request that would have been refused
// need not have come at that moment.
type rotation struct {
	*check.C
	server   string
	old, now chain
	asked    [2]hook // at the beginning

	mu             sync.Mutex
	written, shown bool // the new certificate: in the Secret, and by the server
	mistake        string
	want, held     string // when the first thing was wrong
	err            error
}

// answered is called after each write, before the script hears of it.
func (o *rotation) answered(ctx context.Context, _ faultproxy.Request) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held != "" || o.err != nil {
		return nil
	}
	if err := o.judge(ctx); ctx.Err() == nil {
		o.err = err
	}
	return nil
}

// judge looks at who trusts whom, and at the certificate that the server shows.
func (o *rotation) judge(ctx context.Context) error {
	both, err := hooks(ctx, o.C)
	if err != nil {
		return err
	}
	for i, h := range both {
		if why := h.unasked(o.asked[i]); why != "" {
			o.mistake, o.want, o.held = "not asked", "both webhooks are asked all the time, about what they were asked at the beginning", fmt.Sprintf("the %s configuration: %s", []string{"mutating", "validating"}[i], why)
			return nil
		}
		if bytes.Contains(h.ClientConfig.CABundle, []byte("----------BEGIN")) {
			o.want, o.held = "a caBundle in which each certificate begins on a line of its own", "-----END CERTIFICATE----------BEGIN CERTIFICATE-----"
			return nil
		}
	}
	stored, err := o.Client.CoreV1().Secrets(o.Namespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	before := o.written
	if o.written = before || bytes.Equal(bytes.TrimSpace(stored.Data["tls.crt"]), bytes.TrimSpace(o.now.certificate)); before && !o.shown {
		if o.shown, err = o.now.shownBy(ctx, o.server); err != nil {
			return err
		}
	}
	const (
		newTrusted = "both configurations trust the new CA from before the write of the Secret on"
		oldTrusted = "both configurations trust the old CA until the server shows the new certificate"
	)
	switch byOld, byNew := trusting(both, o.old.ca), trusting(both, o.now.ca); {
	case o.written && !before && byNew < 2:
		o.mistake, o.want, o.held = []string{"server first", "one of two"}[byNew], newTrusted, fmt.Sprintf("when the Secret was written, %d of 2 did; whatever came then between server and trust was luck", byNew)
	case before && byNew < 2:
		o.want, o.held = newTrusted, fmt.Sprintf("after a later write, %d of 2 did", byNew)
	case before && !o.shown && byOld < 2:
		o.mistake, o.want, o.held = "dropped too early", oldTrusted, fmt.Sprintf("%d of 2 did, and the server still showed the old certificate", byOld)
	case !before && byOld < 2:
		o.mistake, o.want, o.held = "replaced instead of added", oldTrusted, fmt.Sprintf("%d of 2 did, and the new certificate was not even in the Secret", byOld)
	}
	return nil
}

// shownBy asks a server for its certificate.
func (o chain) shownBy(ctx context.Context, server string) (bool, error) {
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", server)
	if err != nil {
		return false, err
	}
	shown := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw
	block, _ := pem.Decode(o.certificate)
	return bytes.Equal(shown, block.Bytes), conn.Close()
}

// checkRotation runs the script under load, and looks after each of its writes at who is trusted.
func checkRotation(c *check.C) {
	s := newCheckSetup(c)
	ctx := c.Context()
	old, now := newChain(c, s.address), newChain(c, s.address)
	secrets := c.Client.CoreV1().Secrets(c.Namespace)
	_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": old.certificate, "tls.key": old.key}}, metav1.CreateOptions{})
	c.Must(err)
	s.mount(4 * time.Second) // what the script does next is done by then
	s.serve("-keep-alive=false")
	labelNamespace(c, c.Namespace, only, c.Namespace)
	mutating, validating := webhooks(c, s.listens, "/mutate-icecream", "/validate-icecream", old.ca)
	register(c, mutating, validating)
	var objects []string
	for n := range 10 {
		name := fmt.Sprintf("load-%d", n)
		s.Eventually(time.Minute, func(ctx context.Context) error {
			_, err := s.own.IcecreamV1alpha1().Icecreams(c.Namespace).Create(ctx, icecream(name, name), metav1.CreateOptions{})
			return err
		})
		objects = append(objects, "icecreams.v1alpha1.controller.nicoleh.io/"+name)
	}
	load := s.Start(testenv.Command{Path: s.Program("./08-webhooks/load"), Timeout: 5 * time.Minute,
		Args: []string{"-namespace", c.Namespace, "-rate", "100", "-objects", strings.Join(objects, ",")}})
	s.Eventually(time.Minute, func(context.Context) error {
		if !strings.Contains(load.Stdout(), "working") {
			return fmt.Errorf("the load has not begun")
		}
		return nil
	})

	o := &rotation{C: c, server: s.listens, old: old, now: now}
	o.asked, err = hooks(ctx, c)
	c.Must(err)
	p := c.Proxy()
	p.MustInject(faultproxy.Rule{Match: faultproxy.Match{If: func(r faultproxy.Request) bool {
		return r.Write() && (r.Resource == "secrets" || strings.HasSuffix(r.Resource, "webhookconfigurations"))
	}}, Fault: faultproxy.CallAnswered, Times: -1, Call: o.answered})
	r := c.Run(testenv.Command{Path: c.Path("rotate.sh"), Args: []string{now.write(c)}, Timeout: check.Patience(60 * time.Second),
		Env: []string{"ADDRESS=" + s.listens, "KUBECONFIG=" + p.Kubeconfig, "PATH=" + filepath.Dir(c.Workspace().Bin("kubectl")) + ":" + os.Getenv("PATH")}})
	time.Sleep(time.Second) // somebody writes against what the script wrote last
	c.Must(load.Signal(os.Interrupt))
	result := load.Wait()
	_, text, _ := strings.Cut(result.Stdout, "working\n")
	counted := strings.TrimSpace(text)
	atEnd, err := hooks(ctx, c)
	c.Must(err)
	written, err := secrets.Get(ctx, secret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.Must(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	c.Must(o.err)
	const want = "0 changes refused, a new certificate, and only the new CA trusted"
	same := func(key string, data []byte) bool {
		return bytes.Equal(bytes.TrimSpace(written.Data[key]), bytes.TrimSpace(data))
	}
	forgotten := !same("tls.crt", now.certificate)
	switch {
	case o.mistake == "replaced instead of added" && forgotten && r.ExitCode == 0 && !r.TimedOut:
		c.Mistake("server forgotten", want, "the Secret has another certificate than tls.crt, and the old CA is not trusted any more: "+counted)
	case o.mistake != "":
		c.Mistake(o.mistake, o.want, o.held+"\nthe load: "+counted)
	case o.held != "":
		c.Fail(o.want, o.held+"\nthe load: "+counted)
	case r.TimedOut:
		c.Fail("a script that ends", "it has run for "+r.Took.Round(time.Second).String()+"\n"+r.Stderr)
	case r.ExitCode != 0:
		c.Failf("exit code 0", "exit code %d\n%s", r.ExitCode, r.Stderr)
	case forgotten:
		c.Mistake("server forgotten", want, "the Secret has another certificate than tls.crt")
	case !same("tls.key", now.key):
		c.Fail(want, "the Secret has the new tls.crt, and not the new tls.key")
	case !strings.Contains(result.Stdout, ", 0 refused"):
		c.Fail(want, counted+"\nNone of the script's writes explains it. An API server may go on with an old caBundle for a moment (section 6): check once more.")
	case trusting(atEnd, old.ca) > 0:
		c.Mistake("old one still trusted", want, fmt.Sprintf("%d of 2 configurations trust the old CA", trusting(atEnd, old.ca)))
	case trusting(atEnd, now.ca) < 2:
		c.Failf(want, "%d of 2 configurations trust the new CA", trusting(atEnd, now.ca))
	}
}

// A policyObject is a HealthCheckPolicy of any version.
type policyObject = map[string]any

// policyOf makes one, with two annotations of somebody else if it is to have some.
func policyOf(version, name string, annotated bool, spec policyObject) policyObject {
	metadata := policyObject{"name": name, "namespace": "shop", "uid": name, "generation": int64(3), "labels": policyObject{"a": "b"}}
	if annotated {
		metadata["annotations"] = policyObject{"mine": "stays", "policy.k8s-go.openshift.org/author": "anna"}
	}
	spec["selector"] = policyObject{"matchLabels": policyObject{"app": "shop"},
		"matchExpressions": []any{policyObject{"key": "tier", "operator": "NotIn", "values": []any{"test"}}}}
	spec["eviction"] = policyObject{"minIntervalSeconds": int64(7)}
	return policyObject{"apiVersion": "policy.k8s-go.openshift.org/" + version, "kind": "HealthCheckPolicy", "metadata": metadata, "spec": spec,
		"status": policyObject{"observedGeneration": int64(2)}}
}

// policiesOf has one object of a version for each combination of what its fields can be.
func policiesOf(version string) (all []policyObject) {
	var lists [][]any // of probes, in any order
	probes := []any{"liveness", "readiness", "startup"}
	var extend func(list []any)
	extend = func(list []any) {
		if len(list) > 0 {
			lists = append(lists, list)
		}
		for _, p := range probes {
			if !slices.Contains(list, p) {
				extend(append(slices.Clone(list), p))
			}
		}
	}
	extend(nil)
	add := func(annotated bool, spec policyObject) {
		all = append(all, policyOf(version, fmt.Sprintf("p%d", len(all)), annotated, spec))
	}
	for _, annotated := range []bool{false, true} {
		for _, list := range lists {
			switch version {
			case "v1alpha1":
				for _, action := range []string{"label", "annotate", "kill"} {
					add(annotated, policyObject{"action": action, "podLabel": "bad", "requiredProbes": slices.Clone(list)})
				}
				add(annotated, policyObject{"action": "kill", "requiredProbes": slices.Clone(list)})
			case "v1":
				if !slices.IsSortedFunc(list, func(a, b any) int { return cmp.Compare(a.(string), b.(string)) }) {
					continue // booleans have no order
				}
				wanted := policyObject{}
				for _, p := range list {
					wanted[p.(string)] = true
				}
				for _, grace := range []any{nil, int64(0), int64(30)} {
					for _, mark := range []any{nil, policyObject{"as": "label", "key": "bad"}, policyObject{"as": "annotate", "key": "bad"}} {
						spec := policyObject{"probes": maps.Clone(wanted)}
						if mark != nil {
							spec["mark"] = mark
						}
						if grace != nil {
							spec["gracePeriodSeconds"] = grace
						}
						add(annotated, spec)
					}
				}
			}
		}
	}
	return all
}

// A converter is a learner's program.
type converter struct {
	*check.C
	program string
}

// convert runs it on objects.
func (v converter) convert(to string, objects []policyObject) []policyObject {
	var lines bytes.Buffer
	for _, o := range objects {
		v.Must(json.NewEncoder(&lines).Encode(o))
	}
	file := filepath.Join(v.T.TempDir(), "objects.json")
	v.Must(os.WriteFile(file, lines.Bytes(), 0o600))
	r := v.Run(testenv.Command{Path: v.program, Args: []string{"-to", to, file}, Timeout: check.Patience(20 * time.Second)})
	if r.ExitCode != 0 {
		v.Failf("exit code 0", "exit code %d: %s", r.ExitCode, r.Stderr)
	}
	var all []policyObject
	for line := range strings.Lines(r.Stdout) {
		o := &unstructured.Unstructured{} // whose numbers are like ours
		if err := o.UnmarshalJSON([]byte(line)); err != nil {
			v.Fail("JSON", err.Error())
		}
		all = append(all, o.Object)
	}
	if len(all) != len(objects) {
		v.Failf(fmt.Sprintf("%d objects", len(objects)), "%d", len(all))
	}
	return all
}

// at returns a field of an object, or nil.
func at(o policyObject, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	return value
}

// shown is the part of an object that a conversion is about.
func shown(o policyObject) string {
	data, err := json.Marshal(policyObject{"spec": o["spec"], "annotations": at(o, "metadata", "annotations")})
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// probes are those of an object in v1alpha1, sorted.
func probes(o policyObject) (names []string) {
	list, _ := at(o, "spec", "requiredProbes").([]any)
	for _, p := range list {
		names = append(names, fmt.Sprint(p))
	}
	slices.Sort(names)
	return names
}

// checkLossless converts everything that there can be there and back, and then changes something in between.
func checkLossless(c *check.C) {
	v := converter{c, c.Program()}
	others := map[string]string{"v1": "v1alpha1", "v1alpha1": "v1"}
	for _, from := range []string{"v1alpha1", "v1"} {
		before := policiesOf(from)
		there := v.convert(others[from], before)
		for i, was := range before {
			v.means(from, was, there[i])
		}
		back := v.convert(from, there)
		for i, was := range before {
			now := back[i]
			if reflect.DeepEqual(was, now) {
				continue
			}
			want, held := "after "+from+", "+others[from]+", "+from+": "+shown(was), shown(now)
			had, _ := at(was, "metadata", "annotations").(policyObject)
			has, _ := at(now, "metadata", "annotations").(policyObject)
			for key, value := range had {
				if has[key] != value {
					c.Mistake("others' annotations lost", want, held)
				}
			}
			ordered := []string{"spec", "requiredProbes"}
			grace := []string{"spec", "gracePeriodSeconds"}
			switch {
			case !reflect.DeepEqual(at(was, ordered...), at(now, ordered...)) && slices.Equal(probes(was), probes(now)):
				c.Mistake("order lost", want, held)
			case at(was, "spec", "action") == "kill" && at(now, "spec", "action") == "kill" && at(now, "spec", "podLabel") == nil && at(was, "spec", "podLabel") != nil:
				c.Mistake("label of a killer lost", want, held)
			case at(was, grace...) == int64(0) && at(now, grace...) == nil && at(back[slices.IndexFunc(before, func(o policyObject) bool { return at(o, grace...) == int64(30) })], grace...) == int64(30):
				c.Mistake("zero taken for nothing", want, held)
			case at(was, grace...) != nil && at(now, grace...) == nil:
				c.Mistake("new field lost", want, held)
			case reflect.DeepEqual(was["spec"], now["spec"]) && len(has) > len(had):
				c.Mistake("left behind", want, held)
			}
			c.Fail(want, held)
		}
	}

	// Written in v1alpha1, with an order; changed by somebody who knows only v1; and the other way round.
	old := []policyObject{policyOf("v1alpha1", "a", true, policyObject{"action": "label", "podLabel": "bad", "requiredProbes": []any{"startup", "liveness"}}),
		policyOf("v1alpha1", "b", false, policyObject{"action": "kill", "podLabel": "bad", "requiredProbes": []any{"startup", "liveness"}})}
	hub := v.convert("v1", old)
	hub[0]["spec"].(policyObject)["probes"] = policyObject{"readiness": true, "startup": true}
	hub[1]["spec"].(policyObject)["mark"] = policyObject{"as": "annotate", "key": "ill"}
	now := v.convert("v1alpha1", hub)
	if want := []any{"readiness", "startup"}; !reflect.DeepEqual(at(now[0], "spec", "requiredProbes"), want) {
		if reflect.DeepEqual(at(now[0], "spec", "requiredProbes"), []any{"startup", "liveness"}) {
			c.Mistake("old value wins", fmt.Sprintf("requiredProbes %v, after somebody has written that in v1", want), shown(now[0]))
		}
		if list, _ := at(now[0], "spec", "requiredProbes").([]any); len(list) != 2 || !slices.Contains(list, want[0]) || !slices.Contains(list, want[1]) {
			c.Fail(fmt.Sprintf("requiredProbes %v, in any order", want), shown(now[0]))
		}
	}
	if at(now[1], "spec", "action") != "annotate" || at(now[1], "spec", "podLabel") != "ill" {
		c.Fail("action annotate and podLabel ill, after somebody has written that in v1", shown(now[1]))
	}
	if want := []any{"startup", "liveness"}; !reflect.DeepEqual(at(now[1], "spec", "requiredProbes"), want) {
		c.Fail("the order of the probes, when somebody has changed only the mark in v1", shown(now[1]))
	}
	// Of the probes that somebody has written in an order of their own, one goes, or another one comes.
	for _, wanted := range []policyObject{{"startup": true}, {"liveness": true, "readiness": true, "startup": true}} {
		hub = v.convert("v1", old[:1])
		hub[0]["spec"].(policyObject)["probes"] = wanted
		now := v.convert("v1alpha1", hub)[0]
		if want := slices.Sorted(maps.Keys(wanted)); !slices.Equal(probes(now), want) {
			if slices.Equal(probes(now), []string{"liveness", "startup"}) {
				c.Mistake("old value wins", fmt.Sprintf("requiredProbes %v, after somebody has written that in v1", want), shown(now))
			}
			c.Fail(fmt.Sprintf("requiredProbes %v, in any order", want), shown(now))
		}
	}
	hub = []policyObject{policyOf("v1", "c", false, policyObject{"probes": policyObject{"liveness": true}, "gracePeriodSeconds": int64(30)})}
	old = v.convert("v1alpha1", hub)
	old[0]["spec"].(policyObject)["action"], old[0]["spec"].(policyObject)["podLabel"] = "label", "ill"
	hub = v.convert("v1", old)
	if !reflect.DeepEqual(at(hub[0], "spec", "mark"), policyObject{"as": "label", "key": "ill"}) || at(hub[0], "spec", "gracePeriodSeconds") != int64(30) {
		c.Fail("the mark that somebody has written in v1alpha1, and gracePeriodSeconds 30, as before", shown(hub[0]))
	}
	// A mark goes, in either version, and the probes become others.
	marked := policyObject{"as": "label", "key": "bad"}
	hub = v.convert("v1", []policyObject{policyOf("v1alpha1", "d", false, policyObject{"action": "label", "podLabel": "bad", "requiredProbes": []any{"liveness"}})})
	delete(hub[0]["spec"].(policyObject), "mark")
	if now := v.convert("v1alpha1", hub)[0]; at(now, "spec", "action") != "kill" {
		c.Fail("action kill, after somebody has taken the mark away in v1", shown(now))
	}
	old = v.convert("v1alpha1", []policyObject{policyOf("v1", "e", false, policyObject{"probes": policyObject{"liveness": true}, "mark": marked})})
	old[0]["spec"].(policyObject)["action"] = "kill"
	old[0]["spec"].(policyObject)["requiredProbes"] = []any{"startup", "readiness"}
	if now := v.convert("v1", old)[0]; at(now, "spec", "mark") != nil || !reflect.DeepEqual(at(now, "spec", "probes"), policyObject{"readiness": true, "startup": true}) {
		c.Fail("no mark, and the probes readiness and startup, after somebody has written action kill and these probes in v1alpha1", shown(now))
	}
}

// means ends the check unless an object says in the other version what it says in this one.
func (v converter) means(version string, was, there policyObject) {
	v.T.Helper()
	old, hub := was, there
	if version == "v1" {
		old, hub = there, was
	}
	had, _ := at(was, "metadata", "annotations").(policyObject)
	for key, value := range had {
		if at(there, "metadata", "annotations", key) != value {
			v.Mistake("others' annotations lost", "in the other version, the annotations of "+shown(was), shown(there))
		}
	}
	meaning := func(action, key any, probes []string) policyObject {
		if action == "kill" {
			key = nil // nobody reads it
		}
		return policyObject{"action": action, "key": key, "probes": strings.Join(probes, " ")}
	}
	for _, same := range []string{"selector", "eviction"} {
		if !reflect.DeepEqual(at(old, "spec", same), at(hub, "spec", same)) {
			v.Fail("in the other version, the "+same+" of "+shown(was), shown(there))
		}
	}
	var wanted []string
	for _, name := range []string{"liveness", "readiness", "startup"} {
		if at(hub, "spec", "probes", name) == true {
			wanted = append(wanted, name)
		}
	}
	action, key := at(hub, "spec", "mark", "as"), at(hub, "spec", "mark", "key")
	if at(hub, "spec", "mark") == nil {
		action = "kill"
	} else if action == "kill" {
		action = "a mark that kills"
	}
	if !reflect.DeepEqual(meaning(at(old, "spec", "action"), at(old, "spec", "podLabel"), probes(old)), meaning(action, key, wanted)) {
		v.Mistake("another meaning", "in the other version, what this means in "+version+": "+shown(was), shown(there))
	}
	if version == "v1alpha1" && at(there, "spec", "gracePeriodSeconds") != nil {
		v.Fail("no gracePeriodSeconds in v1, of which v1alpha1 said nothing", shown(there))
	}
}

// A team is what checkQuota asks about.
type quotaCheck struct {
	*check.C
	own versioned.Interface
}

// create asks for an Icecream, and returns the API server's answer.
func (q quotaCheck) create(namespace, name string, replicas int32, options metav1.CreateOptions) error {
	o := icecream(name, "cone-"+name)
	o.Spec.Replicas = &replicas
	_, err := q.own.IcecreamV1alpha1().Icecreams(namespace).Create(q.Context(), o, options)
	return err
}

// refused reports whether the webhook has said no.
func (q quotaCheck) refused(err error) bool {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "denied the request") {
		return true
	}
	if err != nil && strings.Contains(err.Error(), "denied the request") {
		q.Fail("a refusal with the code 403", fmt.Sprintf("%s: %v", apierrors.ReasonForError(err), err))
	}
	if err != nil {
		q.Fail("an answer that the API server takes", err.Error())
	}
	return false
}

// checkQuota plays with three namespaces, two of which belong to one team, whose limit is 10.
func checkQuota(c *check.C) {
	program := c.Program()
	crdtest.Share(c.T, c.Env, icecreamCRD)
	own, err := versioned.NewForConfig(c.Config)
	c.Must(err)
	q := quotaCheck{c, own}
	first, second, foreign, empty, free := c.Namespace, testenv.New(c.T).Namespace, testenv.New(c.T).Namespace, testenv.New(c.T).Namespace, testenv.New(c.T).Namespace
	for namespace, team := range map[string]string{first: c.Namespace, second: c.Namespace, foreign: "other-" + c.Namespace, empty: "", free: ""} {
		if namespace != free {
			labelNamespace(c, namespace, "team", team)
		}
		labelNamespace(c, namespace, only, c.Namespace)
	}
	address := strings.TrimSpace(c.Env.Run(testenv.Command{Path: c.Env.Program("./08-webhooks/address")}).Stdout)
	certificate := newChain(c, address)
	listen, err := freeport.Address(address)
	c.Must(err)
	dir, proxy := certificate.write(c), c.Proxy()
	start := func(limit string) *testenv.Process {
		p := c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", proxy.Kubeconfig, "-listen", listen, "-cert-dir", dir, "-limit", limit}, Timeout: 5 * time.Minute})
		if err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
			if p.Ended() {
				c.Fail("a program that listens", "it has ended: "+p.Stderr())
			}
			conn, err := net.Dial("tcp", listen)
			if err == nil {
				err = conn.Close()
			}
			return err
		}); err != nil {
			c.Fail("a program that listens at "+listen, err.Error())
		}
		return p
	}
	process := start("10")
	there := own.IcecreamV1alpha1().Icecreams(second)
	release(c, func(ctx context.Context, patch []byte) error {
		_, err := there.Patch(ctx, "vanilla", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	_, validating := webhooks(c, listen, "", "/validate", certificate.ca)
	validating.Webhooks[0].TimeoutSeconds = new(int32(30)) // a slow machine is no mistake
	register(c, nil, validating)

	// In force as soon as too much is refused.
	var last error
	if err := c.Until(check.Patience(10*time.Second), func(context.Context) error {
		if last = q.create(first, "probe", 11, dry); apierrors.IsForbidden(last) {
			return nil
		}
		return fmt.Errorf("11 replicas were not refused: %v", last)
	}); err != nil {
		q.refused(last)
		c.Fail("an Icecream with 11 replicas is refused, with a limit of 10", err.Error())
	}
	if message := last.Error(); !strings.Contains(message[strings.Index(message, "denied the request")+1:], "10") {
		c.Mistake("no reason", "a message that says 10", message)
	}
	if q.refused(q.create(free, "probe", 11, dry)) {
		c.Mistake("everybody has a limit", "11 replicas in a namespace without the label team", "they were refused")
	}
	if q.refused(q.create(first, "probe", 10, dry)) || q.refused(q.create(first, "vanilla", 4, metav1.CreateOptions{})) {
		const want, held = "10 replicas are allowed with a limit of 10, and so are 4", "they were refused"
		all, err := own.IcecreamV1alpha1().Icecreams(metav1.NamespaceAll).List(c.Context(), metav1.ListOptions{})
		c.Must(err)
		others := int32(0) // of somebody else in this cluster
		for _, o := range all.Items {
			if others++; o.Spec.Replicas != nil {
				others += *o.Spec.Replicas - 1
			}
		}
		if others == 0 || others > 1 && !q.refused(q.create(first, "probe", 9, dry)) { // then it is the limit itself that is refused
			c.Fail(want, held)
		}
		c.Mistake("other teams count", want, held)
	}
	if q.refused(q.create(foreign, "lemon", 10, metav1.CreateOptions{})) {
		c.Mistake("other teams count", "10 replicas for another team", "they were refused")
	}
	if q.refused(q.create(empty, "probe", 10, dry)) {
		c.Mistake("other teams count", "10 replicas in a namespace whose label team has an empty value, and nothing else of that team", "they were refused")
	}
	if !q.refused(q.create(empty, "probe", 11, dry)) {
		c.Mistake("empty value", "11 replicas refused in a namespace whose label team has an empty value", "they were allowed")
	}
	late := proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold, Times: -1}) // a cache may lag
	if q.refused(q.create(second, "vanilla", 2, metav1.CreateOptions{})) || q.refused(q.create(second, "lemon", 1, metav1.CreateOptions{})) || q.refused(q.create(second, "mint", 1, metav1.CreateOptions{})) {
		c.Mistake("other teams count", "4 and 4 replicas in two namespaces of one team", "the second 4 were refused; another team has 10")
	}
	if !q.refused(q.create(second, "probe", 3, dry)) {
		const want, held = "4 replicas, and 1, 1 and 2 in another namespace, and 3 more refused", "they were allowed: 11 in two namespaces"
		if late.Struck() > 0 {
			c.Fail(want, held+". The program counts from a cache, whose events came late; list at the API server")
		}
		c.Mistake("one namespace only", want, held)
	}
	if slices.ContainsFunc(proxy.Requests(faultproxy.Match{Verb: "list", Resource: "icecreams"}), func(r faultproxy.Request) bool { return strings.Contains(r.Query, "resourceVersion=0") }) {
		c.Fail("lists of Icecreams as they are stored", "a list with resourceVersion=0, which the API server answers from its own cache, which may lag, too")
	}
	late.Remove()
	set := func(name string, patch string) error {
		_, err := own.IcecreamV1alpha1().Icecreams(first).Patch(c.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	if q.refused(set("vanilla", `{"spec": {"replicas": 6}}`)) {
		c.Mistake("counts itself twice", "6 replicas in place of 4, which makes 10", "they were refused")
	}
	if _, err := there.Patch(c.Context(), "mint", types.MergePatchType, []byte(`{"spec": {"replicas": 2}}`), metav1.PatchOptions{}); !q.refused(err) {
		c.Fail("2 replicas in place of 1 are refused, since that makes 11", "they were allowed")
	}
	if !q.refused(set("vanilla", `{"spec": {"replicas": 7}}`)) {
		c.Mistake("another of its name", "7 replicas in place of 6 are refused, since that makes 11 with the 4 in another namespace, of which an Icecream called vanilla has 2", "they were allowed")
	}
	scale := func(replicas int32) error {
		s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "vanilla", Namespace: first}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
		_, err := own.IcecreamV1alpha1().Icecreams(first).UpdateScale(c.Context(), "vanilla", s, metav1.UpdateOptions{})
		return err
	}
	if !q.refused(scale(7)) {
		c.Mistake("scale goes past", "kubectl scale to 7 is refused, since that makes 11", "it was allowed")
	}
	if q.refused(scale(5)) || q.refused(scale(6)) {
		c.Mistake("scale goes past", "kubectl scale to 5, and back to 6", "it was refused")
	}

	// What is on its way out is still stored, and a namespace joins the team.
	_, err = there.Patch(c.Context(), "vanilla", types.MergePatchType, []byte(`{"metadata": {"finalizers": ["k8s-go.openshift.org/check"]}}`), metav1.PatchOptions{})
	if q.refused(err) {
		c.Fail("a finalizer for an Icecream that gets no more replicas", "it was refused")
	}
	c.Must(there.Delete(c.Context(), "vanilla", metav1.DeleteOptions{}))
	if !q.refused(q.create(second, "probe", 1, dry)) {
		c.Fail("1 replica more is refused, since an Icecream that is being deleted is still stored", "it was allowed, which makes 11")
	}
	labelNamespace(c, free, "team", c.Namespace)
	if !q.refused(q.create(free, "probe", 1, dry)) {
		c.Fail("1 replica more is refused, in a namespace that belongs to the team since a moment ago", "it was allowed, which makes 11")
	}

	// The API server does not answer the program any more.
	for _, m := range []faultproxy.Match{{Verb: "list", Resource: "namespaces"}, {Verb: "list", Resource: "icecreams"},
		{If: func(r faultproxy.Request) bool { return r.Resource == "icecreams" || r.Resource == "namespaces" }}} {
		doubt := proxy.MustInject(faultproxy.Rule{Match: m, Fault: faultproxy.Answer, Code: 500, Times: -1})
		if err := q.create(second, "probe", 1, dry); err == nil && doubt.Struck() > 0 {
			c.Mistake("yes in doubt", "no answer, or a refusal, while the program cannot list", "1 replica more was allowed, which makes 11")
		}
		doubt.Remove()
	}

	// The limit is made smaller than what is there.
	c.Must(process.Signal(syscall.SIGTERM))
	process.Wait()
	start("5")
	if err := c.Until(check.Patience(10*time.Second), func(context.Context) error { // the API server may have to connect anew
		if err := q.create(foreign, "probe", 6, dry); !apierrors.IsForbidden(err) {
			return err
		}
		return nil
	}); err != nil {
		c.Fail("answers after the program has been started again", err.Error())
	}
	if q.refused(set("vanilla", `{"metadata": {"labels": {"a": "b"}}}`)) || q.refused(set("vanilla", `{"spec": {"replicas": 5}}`)) || q.refused(scale(4)) {
		c.Mistake("locked in", "a label, 5 replicas in place of 6, and 4 by kubectl scale, though 10 are above the limit of 5", "they were refused")
	}
	if !q.refused(set("vanilla", `{"spec": {"replicas": 6}}`)) {
		c.Fail("6 replicas in place of 4 are refused, above the limit", "they were allowed")
	}
}
