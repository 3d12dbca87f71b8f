package clientset

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"retry": checkRetry})
}

// checkRetry lets somebody else write the object between the first Get of addOne
// and its first Update, and then lets four writers meet.
func checkRetry(c *check.C) {
	program := c.Program()
	p := c.Proxy()
	updates := faultproxy.Match{Verb: "update", Resource: "configmaps", Name: "conflict"}
	// The program itself sends two before it counts: oneConflict.
	p.MustInject(faultproxy.Rule{Match: updates, After: 2, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Patch(ctx, "conflict", types.MergePatchType, []byte(`{"data":{"others":"kept"}}`), metav1.PatchOptions{})
		return err
	}})
	count := func(writers, rounds string) (*testenv.Process, *corev1.ConfigMap) {
		program := c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-writers", writers, "-rounds", rounds}})
		err := c.Until(20*time.Second, func(context.Context) error {
			stale := 0
			for _, r := range p.Requests(faultproxy.Match{Resource: "configmaps", Name: "conflict"}) {
				switch {
				case r.Verb == "update" && r.Code == http.StatusConflict:
					stale++
				case r.Verb == "get":
					stale = 0
				}
				if stale == 3 && writers == "1" {
					c.Mistake("get outside of the closure", "a Get after each Update that was refused with 409", "three Updates in a row were refused, without a Get between them")
				}
			}
			select {
			case <-program.Done():
				return nil
			default:
				return fmt.Errorf("it still runs after %d Updates", p.Count(updates))
			}
		})
		if err != nil {
			c.Fail("the program ends", err.Error())
		}
		cm, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(c.Context(), "conflict", metav1.GetOptions{})
		c.Must(err)
		return program, cm
	}

	one, cm := count("1", "3")
	held := fmt.Sprintf("data %v", cm.Data)
	const want = "data map[count:3 others:kept ours:kept theirs:kept]"
	switch {
	case one.ExitCode() != 0 && p.Count(updates) == 3:
		c.Mistake("conflict not retried", "another Get and Update after the 409", "no request after it, and exit code 1:\n"+one.Stderr())
	case one.ExitCode() != 0:
		c.Failf("exit code 0", "exit code %d:\n%s", one.ExitCode(), one.Stderr())
	case cm.Data["others"] == "":
		c.Mistake("lost update", want, held)
	case held != want:
		c.Fail(want, held)
	}

	four, cm := count("4", "5")
	if got := cm.Data["count"]; got != "20" {
		c.Failf("count 20 after five rounds of four writers", "count %s\n%s", got, four.Stderr())
	}
}
