package anylanguage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"budget": checkBudget})
}

// checkBudget first asks the decision itself, and then has hook act on it.
func checkBudget(c *check.C) {
	const answers = "one JSON object on the standard output"
	question, err := json.Marshal(map[string]any{"children": []any{}, "refused": "", "taken": "",
		"parent": &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "asked", UID: "1234", Generation: 1}, Spec: v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: ptr.To(int32(2))}}})
	c.Must(err)
	input := filepath.Join(c.T.TempDir(), "question.json")
	c.Must(os.WriteFile(input, question, 0o600))
	path := []string{"PATH=" + filepath.Dir(c.Workspace().Bin("kubectl")) + ":" + os.Getenv("PATH")}
	r := c.Run(testenv.Command{Path: runtime(c.T, "bash"), Args: []string{"-c", `exec bash "$0" <"$1"`, c.Path("budget.sh"), input}, Env: path, Timeout: check.Patience(20 * time.Second)})
	if r.ExitCode != 0 || r.TimedOut {
		c.Failf(answers, "exit code %d, and on the standard error:\n%s", r.ExitCode, r.Stderr)
	}
	var answer struct {
		Children []policyv1.PodDisruptionBudget `json:"children"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &answer); err != nil {
		if json.Valid([]byte(r.Stdout)) {
			c.Failf("an answer with the children wanted", "%v: %s", err, r.Stdout)
		}
		c.Mistake("more than an answer", answers, r.Stdout)
	}

	crdtest.Share(c.T, c.Env, "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml")
	client, err := versioned.NewForConfig(c.Config)
	c.Must(err)
	icecreams, budgets := client.IcecreamV1alpha1().Icecreams(c.Namespace), c.Client.PolicyV1().PodDisruptionBudgets(c.Namespace)
	ice, err := icecreams.Create(c.Context(), &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "vanilla"},
		Spec: v1alpha1.IcecreamSpec{DeploymentName: "cone", Replicas: ptr.To(int32(3))}}, metav1.CreateOptions{})
	c.Must(err)
	ice.Status = v1alpha1.IcecreamStatus{ObservedGeneration: 7, AvailableReplicas: ptr.To(int32(3))}
	ice, err = icecreams.UpdateStatus(c.Context(), ice, metav1.UpdateOptions{})
	c.Must(err)
	status := ice.Status

	c.Start(testenv.Command{Path: c.Env.Program("./12-any-language/hook"), Env: path, Args: []string{"-namespace", c.Namespace,
		"-parent", "icecreams.v1alpha1.controller.nicoleh.io", "-child", "poddisruptionbudgets.v1.policy", "--", "bash", c.Path("budget.sh")}})
	patience := check.Patience(10 * time.Second)
	there := func(when string) {
		expected := fmt.Sprintf("%s, a PodDisruptionBudget vanilla with maxUnavailable 1 and the selector controller.nicoleh.io/uid=%s", when, ice.UID)
		var budget *policyv1.PodDisruptionBudget
		if err := c.Until(patience, func(ctx context.Context) error {
			all, err := budgets.List(ctx, metav1.ListOptions{})
			if err == nil && len(all.Items) == 0 {
				err = errors.New("there is none")
			}
			if err == nil {
				budget = &all.Items[0]
			}
			return err
		}); err != nil {
			c.Fail(expected, err.Error())
		}
		spec, err := json.Marshal(budget.Spec)
		c.Must(err)
		held := fmt.Sprintf("%s with the spec %s", budget.Name, spec)
		switch {
		case budget.Name != ice.Name:
			c.Mistake("another name", expected, held)
		case budget.Spec.Selector == nil || !cmp.Equal(budget.Spec.Selector.MatchLabels, map[string]string{v1alpha1.UIDLabel: string(ice.UID)}) || len(budget.Spec.Selector.MatchExpressions) > 0:
			c.Mistake("another selector", expected, held)
		case budget.Spec.MaxUnavailable == nil || budget.Spec.MaxUnavailable.String() != "1":
			c.Mistake("fixed minimum", expected, held)
		}
	}
	there("with three replicas")
	scale := func(replicas int) {
		_, err := icecreams.Patch(c.Context(), ice.Name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
		c.Must(err)
	}
	scale(1)
	if err := c.Until(patience, func(ctx context.Context) error {
		_, err := budgets.Get(ctx, ice.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	}); err != nil {
		// Whoever keeps every budget also makes one where none has been.
		_, err := icecreams.Create(c.Context(), &v1alpha1.Icecream{ObjectMeta: metav1.ObjectMeta{Name: "single"},
			Spec: v1alpha1.IcecreamSpec{DeploymentName: "cup", Replicas: ptr.To(int32(1))}}, metav1.CreateOptions{})
		c.Must(err)
		mistake := "never removed"
		if c.Until(patience, func(ctx context.Context) error {
			_, err := budgets.Get(ctx, "single", metav1.GetOptions{})
			return err
		}) == nil {
			mistake = "always there"
		}
		c.Mistake(mistake, "with one replica, no PodDisruptionBudget", "vanilla")
	}
	scale(2)
	there("with two replicas again")
	now, err := icecreams.Get(c.Context(), ice.Name, metav1.GetOptions{})
	c.Must(err)
	if diff := cmp.Diff(status, now.Status); diff != "" {
		c.Mistake("status taken", "the status as it was", diff)
	}
}
