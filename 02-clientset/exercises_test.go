package clientset

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"retry": checkRetry, "pages": checkPages, "follow": checkFollow, "safe-patch": checkSafePatch})
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
			if writers == "1" && check.Conflicts("update", p.Requests(faultproxy.Match{Resource: "configmaps", Name: "conflict"})) >= 3 {
				c.Mistake("get outside of the closure", "a Get after each Update that was refused with 409", "three Updates in a row were refused, without a Get between them")
			}
			if program.Ended() {
				return nil
			}
			return fmt.Errorf("it still runs after %d Updates", p.Count(updates))
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
	case !strings.Contains(one.Stdout(), "count 3 after 1 conflicts"):
		c.Fail("1 writers, 3 rounds: count 3 after 1 conflicts", "it printed:\n"+one.Stdout())
	}

	four, cm := count("4", "5")
	if got := cm.Data["count"]; got != "20" {
		c.Failf("count 20 after five rounds of four writers", "count %s\n%s", got, four.Stderr())
	}
}

// checkPages deletes an object of the last page before the second list.
func checkPages(c *check.C) {
	program := c.Program()
	p := c.Proxy()
	lists := faultproxy.Match{Verb: "list", Resource: "configmaps"}
	p.MustInject(faultproxy.Rule{Match: lists, After: 1, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		return c.Client.CoreV1().ConfigMaps(c.Namespace).Delete(ctx, "page-024", metav1.DeleteOptions{})
	}})
	paging := c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-objects", "25", "-limit", "10"}})
	query := func(r faultproxy.Request) url.Values {
		values, err := url.ParseQuery(r.Query)
		c.Must(err)
		return values
	}
	err := c.Until(20*time.Second, func(context.Context) error {
		first := 0
		for i, r := range p.Requests(lists) {
			q := query(r)
			switch {
			case i == 0 && q.Get("limit") == "":
				c.Mistake("no limit", "a list request with limit=10", "?"+r.Query)
			case q.Get("continue") != "" && q.Get("resourceVersion") != "":
				c.Mistake("version sent with continue", "a list request with continue, and without resourceVersion", fmt.Sprintf("resourceVersion=%s besides continue; the answer was %d", q.Get("resourceVersion"), r.Code))
			case q.Get("continue") == "":
				first++
			}
		}
		if first > 3 { // the pager asks for it, too
			c.Mistake("page one for ever", "one list request without continue, and two with it", fmt.Sprintf("%d without it", first))
		}
		if paging.Ended() {
			return nil
		}
		return fmt.Errorf("it still runs after %d list requests", p.Count(lists))
	})
	if err != nil {
		c.Fail("the program ends", err.Error())
	}
	const want = "by hand: 25"
	output := paging.Stdout()
	_, after, found := strings.Cut(output, "by hand: ")
	total, _, _ := strings.Cut(after, "\n")
	switch {
	case paging.ExitCode() != 0 || !found:
		c.Failf(want, "exit code %d:\n%s%s", paging.ExitCode(), output, paging.Stderr())
	case total == "10" && p.Count(lists) == 4: // three are the pager's
		c.Mistake("only the first page", "three list requests, "+want, "one list request, by hand: "+total)
	case total != "25":
		c.Fail("the state of the first page, which had one object more than there are now: "+want, "by hand: "+total)
	case p.Count(lists) != 6:
		c.Failf("three list requests", "%d", p.Count(lists)-3)
	}
}

// checkFollow first ends a watch with an ERROR event, and then lets the program run
// as it is.
func checkFollow(c *check.C) {
	program := c.Program()
	p := c.Proxy()
	watches := faultproxy.Match{Verb: "watch", Resource: "configmaps"}
	start := func() *testenv.Process {
		return c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace}})
	}
	gone := p.MustInject(faultproxy.Rule{Match: watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: -1})
	failing := start()
	err := c.Until(15*time.Second, func(context.Context) error {
		if gone.Struck() > 1 {
			c.Mistake("error ignored", "an error, and exit code 1, after the ERROR event", "another watch")
		}
		if failing.Ended() {
			return nil
		}
		return errors.New("it still runs")
	})
	switch {
	case err != nil:
		c.Failf("the program ends with an error after an ERROR event", "%v\n%s", err, failing.Stdout())
	case failing.ExitCode() == 0:
		c.Mistake("error ignored", "exit code 1 after the ERROR event", "exit code 0")
	case gone.Struck() == 0:
		c.Failf("a watch", "none; exit code %d\n%s", failing.ExitCode(), failing.Stderr())
	}
	gone.Remove()

	before := p.Count(watches)
	watching := start()
	err = c.Until(30*time.Second, func(context.Context) error {
		if watching.Ended() {
			return nil
		}
		requests := p.Requests(watches)[before:]
		if n := len(requests); n > 0 && n < 3 {
			// What comes between two watches takes some tenths of a second.
			if last := requests[n-1]; last.Took > 0 && time.Since(last.Started.Add(last.Took)) > 4*time.Second {
				c.Mistake("closed channel not noticed", "follow returns when the connection ends", "four seconds after its end, follow has not returned")
			}
		}
		return errors.New("it still runs")
	})
	if err != nil {
		c.Failf("the program ends", "%v\n%s", err, watching.Stdout())
	}
	output := watching.Stdout()
	first, rest, _ := strings.Cut(output, "watch again from now:")
	_, last, _ := strings.Cut(rest, "watch again from the last version:")
	const want = `listed early
watch:
  ADDED live
  the connection ended
watch again from now:
  ADDED live
  the connection ended
watch again from the last version:
  ADDED brief
  DELETED brief
  DELETED early
  the connection ended
`
	switch {
	case strings.Contains(first, "ADDED early"):
		c.Mistake("watched from now", "the first watch begins at the version of the list", first)
	case strings.Contains(last, "ADDED live"):
		c.Mistake("version not kept", "the last watch begins at the version of the last event", last)
	case output != want || watching.ExitCode() != 0:
		c.Failf(want, "%s%sexit code %d", output, watching.Stderr(), watching.ExitCode())
	}
}

// checkSafePatch lets somebody change the Deployment between the read and the
// patch, and then shows the program statuses that are not what they look like.
func checkSafePatch(c *check.C) {
	program := c.Program()
	r := &rolloutTest{Env: c.Env, t: c.T}
	d := rolloutDeployment("web-1", "web")
	never(d) // so nothing but the statuses below makes it look complete
	side := d.Spec.Template.Spec.Containers[0]
	side.Name = "side"
	d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, side)
	r.create(d)
	main := func() (*appsv1.Deployment, string) {
		d := r.get("web-1")
		for _, container := range d.Spec.Template.Spec.Containers {
			if container.Name == "main" {
				return d, container.Image
			}
		}
		c.Fail("the containers main and side", "no container main")
		return nil, ""
	}

	p := c.Proxy()
	const rival = "workshop/rival:1"
	patches := faultproxy.Match{Verb: "patch", Resource: "deployments", Name: "web-1", If: faultproxy.Request.Write}
	p.MustInject(faultproxy.Rule{Match: patches, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := c.Client.AppsV1().Deployments(c.Namespace).Patch(ctx, "web-1", types.StrategicMergePatchType,
			[]byte(`{"metadata":{"labels":{"rival":"kept"}},"spec":{"template":{"spec":{"containers":[{"name":"main","image":"`+rival+`"}]}}}}`), metav1.PatchOptions{FieldManager: "rival"})
		return err
	}})
	args := []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-selector", "app=web", "-container", "main"}
	rollout := c.Start(testenv.Command{Path: program, Args: append(slices.Clone(args), "-image", rolloutNew, "-stages", "100%", "-timeout", "5m"), Timeout: time.Minute})
	const both = "the image of main and the record of the previous one, written at once"
	err := c.Until(20*time.Second, func(context.Context) error {
		d, image := main() // before the requests: what it shows, they have done
		record := d.Annotations[rolloutRecord]
		for _, r := range p.Requests(patches) {
			if r.Code == 0 {
				return errors.New("a patch is on its way")
			}
			if r.Code == http.StatusOK && p.Count(patches) == 1 {
				c.Mistake("rival overwritten", "409 for a patch of the Deployment as it was before somebody changed it", "the server has accepted it; the image "+rival+" is lost")
			}
		}
		if image == rolloutNew && record == "" {
			c.Mistake("image without record", both, "the image "+image+" and no record")
		}
		if rollout.Ended() {
			if strings.Contains(rollout.Stderr(), "merge key") {
				c.Mistake("container without its name", "a patch that the server takes", rollout.Stderr())
			}
			c.Failf(both, "the program has ended with exit code %d:\n%s%s", rollout.ExitCode(), rollout.Stdout(), rollout.Stderr())
		}
		if image != rolloutNew {
			return fmt.Errorf("the image is %s, the record %q", image, record)
		}
		return nil
	})
	if err != nil {
		c.Fail(both, err.Error())
	}
	d, _ = main()
	if record := d.Annotations[rolloutRecord]; !strings.Contains(record, rival) {
		c.Fail("a record that goes back to "+rival, record)
	}
	if d.Labels["rival"] != "kept" || len(d.Spec.Template.Spec.Containers) != 2 {
		c.Failf("the label of somebody else and the container side as they were", "labels %v, %d containers", d.Labels, len(d.Spec.Template.Spec.Containers))
	}

	// Each of these is in the cluster for a moment, until the controller corrects it.
	for _, s := range []struct {
		mistake, what string
		status        func(generation int64) appsv1.DeploymentStatus
	}{
		{"status of an old generation", "observedGeneration below the generation, and all replicas updated and available", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation - 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
		}},
		{"old pods counted", "one available replica, and none that is updated", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 1, UpdatedReplicas: 0, ReadyReplicas: 1, AvailableReplicas: 1}
		}},
		{"old pods counted", "one replica that is updated and available, and an old one besides", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
		}},
	} {
		for range 3 { // each is an event that the program sees
			c.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
				d := r.get("web-1")
				conditions := d.Status.Conditions
				d.Status = s.status(d.Generation)
				d.Status.Conditions = conditions
				_, err := c.Client.AppsV1().Deployments(c.Namespace).UpdateStatus(c.Context(), d, metav1.UpdateOptions{})
				return err
			}))
		}
		err := c.Until(time.Second, func(context.Context) error {
			if strings.Contains(rollout.Stdout(), "is available") {
				return nil
			}
			return errors.New("it still waits")
		})
		if err == nil {
			c.Mistake(s.mistake, "the rollout waits while the status says: "+s.what, strings.TrimSpace(rollout.Stdout()))
		}
	}

	// A program that is killed now leaves what the way back needs.
	rollout.Kill()
	rollout.Wait()
	back := c.Run(testenv.Command{Path: program, Args: append(slices.Clone(args), "-rollback")})
	d, image := main()
	if record, ok := d.Annotations[rolloutRecord]; back.ExitCode != 0 || image != rival || ok {
		c.Failf("-rollback sets the image "+rival+" and removes the record", "image %s, record %q, exit code %d\n%s", image, record, back.ExitCode, back.Stderr)
	}
}
