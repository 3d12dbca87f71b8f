package curl

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"patch": checkPatch, "follow": checkFollow, "counter": checkCounter})
}

// checkPatch runs the four functions of patch.sh one after the other, on a
// Deployment into which somebody puts a container in between.
func checkPatch(c *check.C) {
	deployments := c.Client.AppsV1().Deployments(c.Namespace)
	labels := map[string]string{"app": "patched"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "patched", Annotations: map[string]string{"team": "web"}}}
	d.Spec.Replicas = new(int32) // nobody looks for these images
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "example/web:1"}, {Name: "log", Image: "example/log:1"}}
	_, err := deployments.Create(c.Context(), d, metav1.CreateOptions{FieldManager: "check"})
	c.Must(err)
	// patch returns what the Deployment is like after it.
	patch := func(function, value string) (testenv.Result, string) {
		r := c.Run(testenv.Command{Path: c.Path("patch.sh"), Args: []string{function, value}})
		d, err := deployments.Get(c.Context(), "patched", metav1.GetOptions{})
		c.Must(err)
		var held []string
		for _, container := range d.Spec.Template.Spec.Containers {
			held = append(held, container.Name+"="+strings.TrimPrefix(container.Image, "example/"))
		}
		text := "containers " + strings.Join(held, " ")
		if r.ExitCode != 0 {
			text += "; patch.sh " + function + " ended with exit code " + strconv.Itoa(r.ExitCode)
		}
		return r, text
	}
	want := func(r testenv.Result, expected, held string) {
		if strings.Contains(r.Stderr+r.Stdout, "415") {
			c.Mistake("wrong content type", expected, "HTTP 415: "+held)
		}
		if held != expected {
			c.Fail(expected, held+"\n"+strings.TrimSpace(r.Stdout+r.Stderr))
		}
	}

	r, held := patch("log", "example/log:2")
	want(r, "containers web=web:1 log=log:2", held)

	_, err = deployments.Patch(c.Context(), "patched", types.JSONPatchType,
		[]byte(`[{"op": "add", "path": "/spec/template/spec/containers/0", "value": {"name": "proxy", "image": "example/proxy:1"}}]`), metav1.PatchOptions{FieldManager: "check"})
	c.Must(err)
	const refused = "containers proxy=proxy:1 web=web:1 log=log:2; patch.sh log ended with exit code "
	r, held = patch("log", "example/log:3")
	if strings.Contains(held, "web=log:3") {
		c.Mistake("no test operation", "a refusal, because the second container is not log", held)
	}
	if r.ExitCode == 0 || !strings.HasPrefix(held, refused) {
		c.Fail("a refusal, because the second container is not log", held)
	}

	r, held = patch("web", "example/web:2")
	const merged = "containers proxy=proxy:1 web=web:2 log=log:2"
	if held == "containers web=web:2" {
		c.Mistake("list replaced by merge", merged, held)
	}
	want(r, merged, held)

	r, held = patch("owner", "anna")
	want(r, merged, held)
	d, err = deployments.Get(c.Context(), "patched", metav1.GetOptions{})
	c.Must(err)
	if d.Annotations["owner"] != "anna" || d.Annotations["team"] != "web" {
		c.Failf("the annotations owner=anna and team=web", "%v", d.Annotations)
	}

	r, held = patch("metrics", "example/metrics:1")
	const applied = "containers proxy=proxy:1 web=web:4 log=log:2 metrics=metrics:1"
	if strings.Contains(r.Stdout+r.Stderr, "409") {
		c.Mistake("no force", applied, "HTTP 409: "+held)
	}
	want(r, applied, held)
	d, err = deployments.Get(c.Context(), "patched", metav1.GetOptions{})
	c.Must(err)
	var managers []string
	for _, f := range d.ManagedFields {
		managers = append(managers, f.Manager+" "+string(f.Operation))
	}
	if !slices.Contains(managers, "patch-sh Apply") {
		c.Failf("an entry patch-sh Apply in managedFields", "%s", strings.Join(managers, ", "))
	}
}

// checkFollow keeps a mirror from what follow.sh prints, deletes and creates while
// no watch is open, and says to the next watch that this history is gone.
func checkFollow(c *check.C) {
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	create := func(name string) {
		_, err := configMaps.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		c.Must(err)
	}
	create("anna")
	create("bert")
	c.Must(c.Until(30*time.Second, func(ctx context.Context) error { // which every namespace gets
		_, err := configMaps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	}))

	p := c.Proxy()
	watches, lists := faultproxy.Match{Verb: "watch", Resource: "configmaps"}, faultproxy.Match{Verb: "list", Resource: "configmaps"}
	script := c.Start(testenv.Command{Path: c.Path("follow.sh"), Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	known := map[string]bool{"anna": true, "bert": true, "kube-root-ca.crt": true, "carl": true, "dora": true, "emma": true}
	var struck func() int
	wait := func(expected string, mistake func(missing, ghosts []string)) {
		var missing, ghosts []string
		err := c.Until(5*time.Second, func(ctx context.Context) error {
			mirror := map[string]bool{}
			for line := range strings.Lines(script.Stdout()) {
				sign, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
				switch {
				case !strings.HasSuffix(line, "\n"): // not yet whole
				case !ok || sign != "+" && sign != "-":
					c.Failf(`lines "+ NAME" and "- NAME"`, "the line %q", line)
				case !known[name]:
					c.Mistake("error taken for an object", "names of ConfigMaps", fmt.Sprintf("the line %q", line))
				case sign == "+" && mirror[name]:
					c.Mistake("listed again without comparing", "each name once, until it has gone", fmt.Sprintf("the line %q a second time", line))
				default:
					mirror[name] = sign == "+"
				}
			}
			if struck != nil && struck() > 2 {
				c.Mistake("error ignored", "a list after the ERROR event with code 410", fmt.Sprintf("%d more watches from the same version, and no list", struck()-1))
			}
			list, err := configMaps.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			missing, ghosts = nil, nil
			for _, cm := range list.Items {
				if !mirror[cm.Name] {
					missing = append(missing, cm.Name)
				}
				delete(mirror, cm.Name)
			}
			for name, there := range mirror {
				if there {
					ghosts = append(ghosts, name)
				}
			}
			if len(missing)+len(ghosts) > 0 {
				return fmt.Errorf("not printed: %v, printed and gone: %v", missing, ghosts)
			}
			return nil
		})
		if err != nil {
			mistake(missing, ghosts)
			c.Failf(expected, "%v\n%s%s", err, script.Stdout(), script.Stderr())
		}
	}
	open := func() {
		if err := c.Until(5*time.Second, func(context.Context) error {
			if p.Open(watches) == 0 {
				return errors.New("no watch is open")
			}
			return nil
		}); err != nil {
			c.Failf("a watch after the list", "%v\n%s", err, script.Stderr())
		}
	}
	nothing := func(_, _ []string) {}
	wait("a line for each ConfigMap of the list", nothing)
	open()
	create("carl")
	wait("a line for a ConfigMap that is created", nothing)
	c.Must(configMaps.Delete(c.Context(), "carl", metav1.DeleteOptions{}))
	wait("a line for a ConfigMap that is deleted", nothing)

	// From now on, no watch begins before the changes are done; then each is
	// answered with 410, until there was a list.
	stalled := p.MustInject(faultproxy.Rule{Match: watches, Fault: faultproxy.Stall, Times: -1})
	var listed atomic.Bool
	forgotten := watches
	forgotten.If = func(faultproxy.Request) bool { return !listed.Load() }
	gone := p.MustInject(faultproxy.Rule{Match: forgotten, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: -1})
	struck = gone.Struck
	p.MustInject(faultproxy.Rule{Match: lists, Fault: faultproxy.Call, Times: -1, Call: func(context.Context, faultproxy.Request) error {
		listed.Store(true)
		return nil
	}})
	p.Cut(watches)
	c.Must(configMaps.Delete(c.Context(), "anna", metav1.DeleteOptions{}))
	create("dora")
	stalled.Remove()
	const expected = "+ dora and - anna, which came and went while no watch was open"
	wait(expected, func(missing, ghosts []string) {
		switch {
		case slices.Contains(missing, "dora"):
			c.Mistake("missed create", expected, "no line + dora")
		case slices.Contains(ghosts, "anna"):
			c.Mistake("ghost", expected, "no line - anna")
		}
	})
	open()
	create("emma")
	wait("a line for a ConfigMap that is created after the 410", nothing)
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
			if check.Conflicts("update", p.Requests(faultproxy.Match{Resource: "configmaps", Name: "counter"})) >= 3 {
				c.Mistake("stale copy put again", "a GET after each PUT that was refused with 409", "three PUTs in a row were refused, without a GET between them")
			}
			if script.Ended() {
				return nil
			}
			return fmt.Errorf("it still runs after %d PUTs", p.Count(puts))
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
		c.Mistake("gave up at a conflict", want, held+"\nit printed  "+strings.TrimSpace(one.Stdout()+one.Stderr()))
	case cm.Annotations["count"] != "3" || accepted != 3 || one.ExitCode() != 0:
		c.Fail(want, held+"\n"+one.Stderr())
	}

	ended(start("3", "3"))
	if got := counter(c).Annotations["count"]; got != "9" {
		c.Fail("count 9 after three rounds of three writers", "count "+got)
	}

	p.MustInject(faultproxy.Rule{Match: puts, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	before := p.Count(puts)
	script := start("1", "1")
	_ = c.Until(20*time.Second, func(context.Context) error {
		if script.Ended() || p.Count(puts)-before > 1 {
			return nil
		}
		return errors.New("it still runs")
	})
	if n := p.Count(puts) - before; n != 1 {
		c.Fail("no other PUT after the answer 500, which is no conflict", fmt.Sprintf("%d PUTs", n))
	}
}

func counter(c *check.C) *corev1.ConfigMap {
	cm, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(c.Context(), "counter", metav1.GetOptions{})
	c.Must(err)
	return cm
}
