// Command scoretests holds the scorecard tests of the icecream bundle that are written in Go. Its
// argument is the name of a test; it prints a TestStatus as JSON, which is all that a scorecard
// looks at.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/operator-framework/api/pkg/apis/scorecard/v1alpha3"
	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// An env is what a scorecard gives to a test.
type env struct {
	csv       *operatorsv1alpha1.ClusterServiceVersion
	namespace string
	client    kubernetes.Interface
	dynamic   dynamic.Interface
}

// Each test returns what is wrong.
var tests = map[string]func(context.Context, env) error{"examples": examples, "rights": rights, "judge": judge}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := strings.Join(os.Args[1:], " ")
	result := v1alpha3.TestResult{Name: name, State: v1alpha3.PassState}
	switch err := run(ctx, name); {
	case errors.As(err, new(setupError)):
		result.State, result.Errors = v1alpha3.ErrorState, []string{err.Error()}
	case err != nil:
		result.State, result.Errors = v1alpha3.FailState, []string{err.Error()}
	}
	data, err := json.MarshalIndent(v1alpha3.TestStatus{Results: []v1alpha3.TestResult{result}}, "", "  ")
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(string(data))
}

// A setupError says that a test could not be run, which is no verdict on the operator.
type setupError struct{ error }

func run(ctx context.Context, name string) error {
	test := tests[name]
	if test == nil {
		return setupError{fmt.Errorf("there is no test %q", name)}
	}
	b, err := manifests.GetBundleFromDir(os.Getenv("SCORECARD_BUNDLE"))
	if err != nil {
		return setupError{fmt.Errorf("SCORECARD_BUNDLE=%s: %w", os.Getenv("SCORECARD_BUNDLE"), err)}
	}
	e := env{csv: b.CSV, namespace: os.Getenv("SCORECARD_NAMESPACE")}
	if name != "judge" { // which makes a cluster of its own
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
		if err != nil {
			return setupError{err}
		}
		if e.client, err = kubernetes.NewForConfig(config); err != nil {
			return setupError{err}
		}
		if e.dynamic, err = dynamic.NewForConfig(config); err != nil {
			return setupError{err}
		}
	}
	return test(ctx, e)
}

// examples creates what the bundle shows its readers as examples, waits until the operator says
// that each is available, and deletes it.
func examples(ctx context.Context, e env) error {
	var all []unstructured.Unstructured
	if err := json.Unmarshal([]byte(e.csv.Annotations["alm-examples"]), &all); err != nil {
		return fmt.Errorf("alm-examples: %w", err)
	}
	for _, owned := range e.csv.Spec.CustomResourceDefinitions.Owned {
		found := false
		for _, example := range all {
			if example.GetKind() == owned.Kind {
				found = true
				plural, group, _ := strings.Cut(owned.Name, ".")
				if err := tried(ctx, e.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: owned.Version, Resource: plural}).Namespace(e.namespace), &example); err != nil {
					return fmt.Errorf("the example %s: %w", example.GetName(), err)
				}
			}
		}
		if !found {
			return fmt.Errorf("there is no example of the kind %s", owned.Kind)
		}
	}
	return nil
}

// tried creates an object, waits for its condition Available, and deletes it.
func tried(ctx context.Context, objects dynamic.ResourceInterface, o *unstructured.Unstructured) (err error) {
	created, err := objects.Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return setupError{err}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		// The garbage collector follows, which may not know a new kind for half a minute.
		err = errors.Join(err, objects.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(created.GetUID()))}))
	}()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	said := "it has no condition Available"
	if wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, err := objects.Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil {
			if errors.As(err, new(apierrors.APIStatus)) { // and not that the time is over
				said = err.Error()
			}
			return false, nil
		}
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Available" {
				said = fmt.Sprintf("its condition Available is %v: %v", c["status"], c["message"])
				return c["status"] == "True", nil
			}
		}
		return false, nil
	}) != nil {
		return errors.New(said + " after 10 s")
	}
	return nil
}

// rights asks the API server what the operator's accounts may do: what the bundle asks for, and
// not what would make them more powerful than that.
func rights(ctx context.Context, e env) error {
	spec := e.csv.Spec.InstallStrategy.StrategySpec
	may := func(account string, a authorizationv1.ResourceAttributes) (bool, error) {
		a.Namespace = e.namespace
		review, err := e.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + e.namespace + ":" + account, ResourceAttributes: &a}}, metav1.CreateOptions{})
		if err != nil {
			return false, setupError{err}
		}
		return review.Status.Allowed, nil
	}
	for _, p := range append(spec.Permissions, spec.ClusterPermissions...) {
		for _, r := range p.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						name, sub, _ := strings.Cut(resource, "/")
						ok, err := may(p.ServiceAccountName, authorizationv1.ResourceAttributes{Group: group, Resource: name, Subresource: sub, Verb: verb})
						if err == nil && !ok {
							err = fmt.Errorf("%s may not %s %s, which the bundle asks for", p.ServiceAccountName, verb, resource)
						}
						if err != nil {
							return err
						}
					}
				}
			}
		}
		for _, a := range []authorizationv1.ResourceAttributes{
			{Resource: "secrets", Verb: "get"}, {Resource: "pods", Subresource: "exec", Verb: "create"}, {Resource: "serviceaccounts", Subresource: "token", Verb: "create"},
			{Group: "rbac.authorization.k8s.io", Resource: "roles", Verb: "escalate"}, {Group: "rbac.authorization.k8s.io", Resource: "rolebindings", Verb: "create"},
		} {
			ok, err := may(p.ServiceAccountName, a)
			if err == nil && ok {
				err = fmt.Errorf("%s may %s %s %s, which an operator of Icecreams does not need", p.ServiceAccountName, a.Verb, a.Resource, a.Subresource)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// judge has the judge of step 06 test the operator's program at level 1, in a cluster of its own.
// It runs at the root of the clone, because the judge's contract and the program are there.
func judge(ctx context.Context, e env) error {
	flags := strings.Join(e.csv.Spec.InstallStrategy.StrategySpec.DeploymentSpecs[0].Spec.Template.Spec.Containers[0].Args, " ")
	flags = strings.NewReplacer("$(WATCH_NAMESPACE)", "{{.Namespace}}", "--leader-elect ", "", ":8081", "0").Replace(flags)
	dir, err := os.MkdirTemp("", "judge-")
	if err != nil {
		return setupError{err}
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "judge") // go run has an exit code of its own
	if said, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/judge").CombinedOutput(); err != nil {
		return setupError{fmt.Errorf("%w:\n%s", err, said)}
	}
	command := exec.CommandContext(ctx, program, "-contract", "icecream", "-level", "1", "-seed", "1",
		"-controller", "go run -C 10-kubebuilder/icecream ./cmd "+flags)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 20 * time.Second
	said, err := command.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return fmt.Errorf("the judge says:\n%s", said)
	case err != nil:
		return setupError{fmt.Errorf("%w:\n%s", err, said)}
	}
	return nil
}
