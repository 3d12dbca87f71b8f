package incluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/rights"
	"github.com/k8s-go/workshop/internal/testenv"
)

// checkScale asks the API server what the rule allows.
func checkScale(c *check.C) {
	var role rbacv1.Role
	c.ReadYAML("role.yaml", "a Role", &role)
	if err := rights.Grant(c, "autoscaler", role.Rules...); apierrors.IsInvalid(err) {
		c.Fail("a role that the server takes", err.Error())
	} else {
		c.Must(err)
	}
	rights.Settled(c)
	allowed := func(verb, group, resource, subresource string) bool {
		return rights.May(c, "autoscaler", authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: "any"})
	}
	for _, verb := range []string{"update", "patch"} {
		if allowed(verb, "apps", "deployments", "") {
			c.Mistake("the whole deployment", "the right to update deployments/scale only", "it may "+verb+" the Deployment itself")
		}
	}
	for _, verb := range []string{"get", "update"} {
		if allowed(verb, "apps", "deployments", "scale") {
			continue
		}
		for _, group := range []string{"autoscaling", "", "v1", "apps/v1", "autoscaling/v1", "extensions"} {
			if allowed(verb, group, "deployments", "scale") {
				c.Mistake("wrong group", "the right to "+verb+` deployments/scale in the group "apps"`, fmt.Sprintf("that right in the group %q", group))
			}
		}
		c.Fail("the right to "+verb+` deployments/scale in the group "apps"`, "no such right")
	}
	for _, more := range []struct{ verb, group, resource, subresource string }{
		{"get", "apps", "deployments", ""}, {"list", "apps", "deployments", ""}, {"delete", "apps", "deployments", ""}, {"create", "apps", "deployments", ""},
		{"patch", "apps", "deployments", "scale"}, {"update", "apps", "deployments", "status"}, {"update", "apps", "statefulsets", "scale"}, {"get", "", "secrets", ""},
	} {
		if allowed(more.verb, more.group, more.resource, more.subresource) {
			c.Fail("the right to get and update deployments/scale, and no other", "it may also "+more.verb+" "+strings.TrimSuffix(more.resource+"/"+more.subresource, "/"))
		}
	}
	for _, rule := range role.Rules {
		for right := range rights.Of(rule) {
			if right.Group != "apps" || right.Resource != "deployments/scale" || right.Verb != "get" && right.Verb != "update" {
				c.Mistake("more than was asked for", "the right to get and update deployments/scale, and no other", fmt.Sprintf("it may also %s %s in the group %q", right.Verb, right.Resource, right.Group))
			}
		}
	}
}

// checkRegistry has kubectl render the manifest with the learner's kustomization.
func checkRegistry(c *check.C) {
	const ours, theirs = "workshop/simple:1", "registry.example.com/me/icecream:7"
	folder := filepath.Dir(c.Path("kustomization.yaml"))
	rendered := c.Run(testenv.Command{Path: c.Workspace().Bin("kubectl"), Args: []string{"kustomize", folder}})
	if rendered.ExitCode != 0 {
		c.Fail("manifests from kubectl kustomize", rendered.Stderr)
	}
	// The same objects as in the manifest, apart from their order.
	parse := func(text string) (objects []string, image string) {
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			var object map[string]any
			c.Must(yaml.Unmarshal([]byte(document), &object))
			if object["kind"] == "Deployment" {
				var d appsv1.Deployment
				c.Must(yaml.Unmarshal([]byte(document), &d))
				if len(d.Spec.Template.Spec.Containers) == 1 {
					image = d.Spec.Template.Spec.Containers[0].Image
				}
			}
			data, err := yaml.Marshal(object) // with sorted keys
			c.Must(err)
			objects = append(objects, strings.Replace(string(data), "image: "+image+"\n", "", 1))
		}
		slices.Sort(objects)
		return objects, image
	}
	manifest, err := os.ReadFile(filepath.Join(c.Workspace().Root, "07-in-cluster", "own", "icecream.yaml"))
	c.Must(err)
	given, err := os.ReadFile(c.Path("icecream.yaml"))
	c.Must(err)
	before, _ := parse(string(manifest))
	after, image := parse(rendered.Stdout)
	switch {
	case image == ours:
		c.Mistake("nothing selected", "the image "+theirs, "the image "+image)
	case image == strings.Replace(theirs, ":7", ":1", 1):
		c.Mistake("old tag", "the image "+theirs, "the image "+image)
	case image != theirs:
		c.Fail("the image "+theirs, "the image "+image)
	case string(given) != string(manifest):
		c.Fail("icecream.yaml as it was", "another icecream.yaml")
	case !slices.Equal(before, after):
		c.Fail("the objects of icecream.yaml, with another image only", "other differences:\n"+rendered.Stdout)
	}
}

// checkLogs asks about five accounts of the check's namespace.
func checkLogs(c *check.C) {
	get := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"}}
	}
	c.Must(rights.Grant(c, "support", get("pods/log")))
	c.Must(rights.Grant(c, "viewer", get("pods")))
	some := get("pods/log")
	some.ResourceNames = []string{"web", "any", "pod", "my-pod", "test", "example", "nginx", "icecream"}
	c.Must(rights.Grant(c, "some", some))
	everywhere := metav1.ObjectMeta{Name: c.Namespace + "-logs"}
	rbac := c.Client.RbacV1()
	c.AtEnd(
		func(ctx context.Context) error {
			return rbac.ClusterRoleBindings().Delete(ctx, everywhere.Name, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return rbac.ClusterRoles().Delete(ctx, everywhere.Name, metav1.DeleteOptions{})
		})
	_, err := rbac.ClusterRoles().Create(c.Context(), &rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{get("pods/log")}}, metav1.CreateOptions{})
	c.Must(err)
	_, err = rbac.ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: everywhere,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everywhere.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "everywhere", Namespace: c.Namespace}}}, metav1.CreateOptions{})
	c.Must(err)
	rights.Settled(c)
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if !rights.May(c, "everywhere", authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Subresource: "log"}) {
			return errors.New("the authorizer does not know the ClusterRoleBinding")
		}
		return nil
	}))

	says := func(account string) string {
		r := c.Run(testenv.Command{Path: c.Path("may-read-logs.sh"), Args: []string{account, c.Namespace}})
		answer := strings.TrimSpace(r.Stdout)
		if answer != "yes" && answer != "no" {
			c.Fail("yes or no, and nothing else", strings.TrimSpace(r.Stdout+r.Stderr))
		}
		return answer + " for the account " + account
	}
	if got := says("stranger"); !strings.HasPrefix(got, "no ") {
		c.Mistake("asked for yourself", "no for an account without any role", got)
	}
	if got := says("viewer"); !strings.HasPrefix(got, "no ") {
		c.Mistake("the pod instead of its log", "no for an account that may get pods only", got)
	}
	if got := says("some"); !strings.HasPrefix(got, "no ") {
		c.Mistake("one pod for all", "no for an account that may get the logs of some pods, by their names", got)
	}
	if got := says("everywhere"); !strings.HasPrefix(got, "yes ") {
		c.Fail("yes for an account that may get pods/log in all namespaces", got)
	}
	if got := says("support"); !strings.HasPrefix(got, "yes ") {
		c.Mistake("another namespace", "yes for an account that may get pods/log in the namespace", got)
	}
}

// checkOnce rolls a Deployment out, while a finalizer keeps its old pod from going away.
func checkOnce(c *check.C) {
	var d appsv1.Deployment
	c.ReadYAML("deployment.yaml", "a Deployment", &d)
	const hold = "workshop.k8s-go.dev/hold"
	deployments, pods := c.Client.AppsV1().Deployments(c.Namespace), c.Client.CoreV1().Pods(c.Namespace)
	d.Namespace = ""
	// On a node that does not exist nobody ends the pod, and the check takes no longer than the API does. (One
	// without a node that is told to end, the garbage collector of pods, which comes every 20 s, calls Failed,
	// and for such a one no Deployment waits. A node it misses only after 40 s.)
	d.Spec.Template.Spec.NodeName = "nobody"
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0) // or the namespace would wait for a kubelet
	if _, err := deployments.Create(c.Context(), &d, metav1.CreateOptions{}); apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		c.Fail("a Deployment that the server takes", err.Error())
	} else {
		c.Must(err)
	}
	all := func(ctx context.Context) []corev1.Pod {
		list, err := pods.List(ctx, metav1.ListOptions{})
		c.Must(err)
		return list.Items
	}
	var old corev1.Pod
	if err := c.Until(time.Minute, func(ctx context.Context) error {
		list := all(ctx)
		if len(list) != 1 {
			return fmt.Errorf("%d pods", len(list))
		}
		old = list[0]
		return nil
	}); err != nil {
		c.Fail("one pod", err.Error())
	}
	patch := func(body string) int64 {
		changed, err := deployments.Patch(c.Context(), d.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		c.Must(err)
		return changed.Generation
	}
	_, err := pods.Patch(c.Context(), old.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"finalizers":[%q]}}`, hold), metav1.PatchOptions{})
	c.Must(err)
	release := func(ctx context.Context) error {
		_, err := pods.Patch(ctx, old.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	c.T.Cleanup(func() {
		if err := release(context.WithoutCancel(c.Context())); err != nil {
			c.T.Error(err)
		}
	})

	const want = "no new pod before the old one is gone"
	patch(`{"spec":{"template":{"metadata":{"annotations":{"rollout":"2"}}}}}`)
	told := false // the old pod has been told to end
	started := func(ctx context.Context) bool {
		sets, err := c.Client.AppsV1().ReplicaSets(c.Namespace).List(ctx, metav1.ListOptions{})
		c.Must(err)
		return len(all(ctx)) > 1 || slices.ContainsFunc(sets.Items, func(s appsv1.ReplicaSet) bool {
			return s.Spec.Template.Annotations["rollout"] == "2" && ptr.Deref(s.Spec.Replicas, 1) > 0
		})
	}
	if err := c.Until(time.Minute, func(ctx context.Context) error {
		began := started(ctx)
		pod, err := pods.Get(ctx, old.Name, metav1.GetOptions{}) // after that, so that it was not told before
		c.Must(err)
		if told = pod.DeletionTimestamp != nil; told || began {
			return nil
		}
		return errors.New("the rollout has not begun")
	}); err != nil {
		c.Fail("a rollout", err.Error())
	}
	if !told {
		c.Mistake("two at once", want, "a new pod beside an old one that nobody has told to end")
	}
	// A Deployment controller that would begin now has begun when it has seen a later change.
	seen := patch(`{"spec":{"revisionHistoryLimit":9}}`)
	c.Must(c.Until(time.Minute, func(ctx context.Context) error {
		now, err := deployments.Get(ctx, d.Name, metav1.GetOptions{})
		if err == nil && now.Status.ObservedGeneration < seen {
			err = fmt.Errorf("generation %d is observed, want %d", now.Status.ObservedGeneration, seen)
		}
		return err
	}))
	if started(c.Context()) {
		c.Mistake("the old one is still ending", want, "a new pod while the old one is ending")
	}
	c.Must(release(c.Context()))
	if err := c.Until(time.Minute, func(ctx context.Context) error {
		if list := all(ctx); len(list) != 1 || list[0].UID == old.UID {
			return fmt.Errorf("%d pods", len(list))
		}
		return nil
	}); err != nil {
		c.Fail("one new pod after the old one has gone", err.Error())
	}
}
