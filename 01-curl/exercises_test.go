package curl

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
	check.Exercises(t, check.Checks{"counter": checkCounter})
}

// checkCounter lets one writer count while somebody else writes the object
// between its first GET and its first PUT, and then lets three writers meet.
func checkCounter(c *check.C) {
	p := c.Proxy()
	puts := faultproxy.Match{Verb: "update", Resource: "configmaps", Name: "counter"}
	p.MustInject(faultproxy.Rule{Match: puts, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Patch(ctx, "counter", types.MergePatchType, []byte(`{"data":{"theirs":"kept"}}`), metav1.PatchOptions{})
		return err
	}})
	start := func(args ...string) *testenv.Process {
		return c.Start(testenv.Command{Path: c.Path("counter.sh"), Args: args, Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	}
	// ended waits for the script, but not while it can get no further.
	ended := func(script *testenv.Process) {
		err := c.Until(20*time.Second, func(context.Context) error {
			stale := 0
			for _, r := range p.Requests(faultproxy.Match{Resource: "configmaps", Name: "counter"}) {
				switch {
				case r.Verb == "update" && r.Code == http.StatusConflict:
					stale++
				case r.Verb == "get":
					stale = 0
				}
				if stale == 3 {
					c.Mistake("stale copy put again", "a GET after each PUT that was refused with 409", "three PUTs in a row were refused, without a GET between them")
				}
			}
			select {
			case <-script.Done():
				return nil
			default:
				return fmt.Errorf("it still runs after %d PUTs", p.Count(puts))
			}
		})
		if err != nil {
			c.Fail("counter.sh ends", err.Error())
		}
	}

	one := start("1", "3")
	ended(one)
	cm := counter(c)
	_, theirs := cm.Data["theirs"]
	accepted, refused := 0, 0
	for _, r := range p.Requests(puts) {
		switch r.Code {
		case http.StatusOK:
			accepted++
		case http.StatusConflict:
			refused++
		}
	}
	held := fmt.Sprintf("count %s, data %v; of %d PUTs %d were accepted and %d refused with 409", cm.Annotations["count"], cm.Data, accepted+refused, accepted, refused)
	const want = "count 3, data map[note:keep me theirs:kept], after 3 accepted PUTs and one that was refused"
	switch {
	case cm.Data["note"] == "":
		c.Mistake("data dropped", want, held)
	case accepted > 0 && refused == 0 && !theirs:
		c.Mistake("lost update", want, held)
	case refused > 0 && accepted < 3:
		c.Mistake("gave up at a conflict", want, held)
	case cm.Annotations["count"] != "3" || accepted != 3 || one.ExitCode() != 0:
		c.Fail(want, held+"\n"+one.Stderr())
	}

	ended(start("3", "3"))
	if got := counter(c).Annotations["count"]; got != "9" {
		c.Fail("count 9 after three rounds of three writers", "count "+got)
	}
}

func counter(c *check.C) *corev1.ConfigMap {
	cm, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(c.Context(), "counter", metav1.GetOptions{})
	c.Must(err)
	return cm
}
