// Package icecreamcheck has the checks of the controller of Icecreams that a learner writes
// from an empty file, be it with client-go or with controller-runtime. They know nothing of it
// but KUBECONFIG, -namespace, and what it does to the cluster.
package icecreamcheck

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/conflict"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/judge"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A grower is a run of a program that grows.
type grower struct {
	*controllertest.Candidate
	f *icecreamtest.Test
}

var (
	deploymentWatches = faultproxy.Match{Verb: "watch*", Resource: "deployments"}
	creates           = faultproxy.Match{Verb: "create", Resource: "deployments"}
)

func newGrower(c *check.C) *grower {
	f := icecreamtest.Of(c.T, c.Env, c.Program())
	f.Command.Args = []string{"-namespace", c.Namespace}
	f.Command.Env = append(f.Command.Env, "KUBECONFIG="+f.Proxy.Kubeconfig)
	f.Runner = c
	c.FreeAtEnd(v1alpha1.IcecreamResource)
	return &grower{f: f, Candidate: &controllertest.Candidate{Controller: f.Controller, C: c}}
}

func (g *grower) start() { g.Process = g.C.Start(g.Command) }

// mistake ends the check with a mistake that not every task has a name for: one of the task
// create, which make check says for create, too, or one that a framework does not let you make.
func (g *grower) mistake(name, expected, held string) {
	if g.C.Knows(name) {
		g.C.Mistake(name, expected, held)
	}
	g.C.Fail(expected, held)
}

// owns waits for an Icecream's Deployment.
func (g *grower) owns(ice *v1alpha1.Icecream) {
	expected := fmt.Sprintf("a Deployment %s with %d replicas, controlled by the Icecream %s", ice.Spec.DeploymentName, *ice.Spec.Replicas, ice.Name)
	g.Until(expected, func(ctx context.Context) error {
		all, err := g.f.Deployments.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		named := slices.IndexFunc(all.Items, func(d appsv1.Deployment) bool { return d.Name == ice.Spec.DeploymentName })
		if named < 0 {
			for _, d := range all.Items {
				if metav1.IsControlledBy(&d, ice) {
					g.mistake("another name", expected, "a Deployment called "+d.Name)
				}
			}
			for _, r := range slices.Backward(g.f.Proxy.Requests(creates)) {
				if r.Code >= 400 {
					return fmt.Errorf("there is no such Deployment; the API server has answered %d to a create of one, and the program said:\n%s", r.Code, g.Log())
				}
			}
			return fmt.Errorf("there is no such Deployment; the program's requests to create one so far: %d", g.f.Proxy.Count(creates))
		}
		d := all.Items[named]
		// IsControlledBy compares the UID, and the garbage collector looks for the kind.
		if owner := metav1.GetControllerOf(&d); !metav1.IsControlledBy(&d, ice) || owner.Kind != v1alpha1.IcecreamKind.Kind || owner.APIVersion != v1alpha1.IcecreamKind.GroupVersion().String() {
			g.mistake("no reference", expected, "a Deployment with the ownerReferences "+asJSON(d.OwnerReferences))
		}
		if *d.Spec.Replicas != *ice.Spec.Replicas {
			if *ice.Spec.Replicas == 0 && d.Generation == 1 { // nobody has changed it since it was created
				g.mistake("zero taken for absent", expected, fmt.Sprintf("a Deployment that was created with %d", *d.Spec.Replicas))
			}
			return fmt.Errorf("the Deployment %s has %d replicas%s", d.Name, *d.Spec.Replicas, g.writes(d.Name))
		}
		return nil
	})
}

// writes says which writes of a Deployment the program has sent at last, and what was answered.
func (g *grower) writes(name string) string {
	all := g.f.Proxy.Requests(faultproxy.Match{Group: "apps", Resource: "deployments*", Name: name, If: faultproxy.Request.Write})
	var lines []string
	for _, r := range all[max(0, len(all)-3):] {
		lines = append(lines, r.String())
	}
	return "; the program's last writes of it: " + cmp.Or(strings.Join(lines, ", "), "none")
}

// make makes an Icecream and waits for its Deployment.
func (g *grower) make(name, deployment string, replicas int32) *v1alpha1.Icecream {
	ice := g.f.Create(name, deployment, replicas)
	g.owns(ice)
	return ice
}

// looked waits until the program has looked at all that has happened so far. The events of
// one resource come in their order, so first an event of Deployments has to come, unless
// the program takes none of this one; then two further Icecreams get their Deployments,
// because a key that is worked on when its event comes is put behind those that wait.
func (g *grower) looked() {
	g.f.Further++
	name := fmt.Sprintf("passer-by-%d", g.f.Further)
	passes := g.f.Proxy.MustInject(faultproxy.Rule{Match: deploymentWatches, Event: "ADDED", Object: name, Fault: faultproxy.Delay, Delay: time.Millisecond})
	g.f.Foreign(name)
	_ = g.Within(5*time.Second, func(context.Context) error {
		if passes.Struck() == 0 {
			return errors.New("no event")
		}
		return nil
	})
	passes.Remove()
	g.wentOn()
}

// wentOn waits for the Deployments of two further Icecreams.
func (g *grower) wentOn() {
	for range 2 {
		g.f.Further++
		name := fmt.Sprintf("further-%d", g.f.Further)
		g.make(name, name, 0)
	}
}

// wakes waits until a Deployment is right, and ends the check with the mistake if that
// takes an event of its Icecream. Why nothing else came cannot be seen.
func (g *grower) wakes(mistake, ice, expected string, right func(context.Context) error) {
	if g.Within(5*time.Second, right) == nil {
		return
	}
	g.looked()
	err := g.Within(3*time.Second, right)
	if err == nil {
		return
	}
	g.f.Patch(ice, `{"metadata":{"annotations":{"touched":"true"}}}`)
	if g.Within(5*time.Second, right) == nil {
		g.C.Mistake(mistake, expected, err.Error()+", until somebody changed the Icecream "+ice)
	}
	g.C.Fail(expected, err.Error())
}

// replicas says whether a Deployment has so many.
func (g *grower) replicas(name string, want int32) func(context.Context) error {
	return func(ctx context.Context) error {
		d, err := g.f.Deployments.Get(ctx, name, metav1.GetOptions{})
		if err == nil && (*d.Spec.Replicas != want || d.DeletionTimestamp != nil) {
			err = fmt.Errorf("%s has %d replicas", name, *d.Spec.Replicas)
		}
		return err
	}
}

// Wiring looks at the watches of a program, and ends it as a cluster does.
func Wiring(c *check.C) {
	g := newGrower(c)
	g.start()
	open := func(resource string) error {
		for _, r := range g.f.Requests("watch*", resource) {
			if r.Namespace != c.Namespace {
				c.Mistake("all namespaces", "watches of the namespace of -namespace only", "the request "+r.String()+" "+r.Path)
			}
			if r.Code == http.StatusOK && r.Took == 0 && (r.Events > 0 || r.Verb == "watch") {
				return nil
			}
		}
		return errors.New("no watch of " + resource + " is open")
	}
	// That the caches are filled cannot be seen. It takes a moment after the first events.
	var began time.Time
	const watching = "an open watch of Icecreams, and one of Deployments"
	if err := g.Within(check.Patience(15*time.Second), func(context.Context) error {
		switch err := errors.Join(open("icecreams"), open("deployments")); {
		case err != nil:
			return err
		case began.IsZero():
			began = time.Now()
		}
		if time.Since(began) < 2*time.Second {
			return errors.New("the caches may be empty")
		}
		return nil
	}); err != nil {
		if open("icecreams") == nil || open("deployments") == nil {
			c.Mistake("one kind only", watching, err.Error())
		}
		c.Fail(watching, err.Error())
	}

	const ends = "exit code 0 within 10 seconds after SIGTERM"
	told := time.Now()
	c.Must(g.Process.Signal(syscall.SIGTERM))
	select {
	case <-g.Process.Done():
	case <-time.After(check.Patience(15 * time.Second)): // nothing else shows that it will not end
		c.Mistake("never ends", ends, "it still runs")
	}
	if took := time.Since(told); took > check.Patience(10*time.Second) {
		c.Fail(ends, fmt.Sprintf("it has ended after %s", took.Round(time.Second)))
	}
	switch code := g.Process.ExitCode(); {
	case code == -1 || code == 128+int(syscall.SIGTERM):
		c.Mistake("signal not handled", ends, "the signal has ended it, in the middle of whatever it did")
	case code != 0:
		c.Mistake("ends with an error", ends, fmt.Sprintf("exit code %d:\n%s", code, g.Log()))
	}
}

// Create has a program create Deployments: in peace, after a restart, for an
// Icecream that goes, while its cache is behind, and while it is told to stop.
func Create(c *check.C) {
	g := newGrower(c)
	leaving := g.f.Create("leaving", "leaving", 1)
	g.f.Patch("leaving", `{"metadata":{"finalizers":["example.com/not-yet"]}}`)
	c.Must(g.f.Icecreams.Delete(c.Context(), "leaving", metav1.DeleteOptions{}))
	early := g.f.Create("early", "cone", 1)
	g.Ends = func() string { // wherever that happens
		taken := creates
		taken.If = func(r faultproxy.Request) bool { return r.Code == http.StatusConflict }
		if g.f.Proxy.Count(taken) == 0 {
			return ""
		}
		return "ends at already exists"
	}
	g.start()
	g.owns(early)
	late := g.make("late", "late", 2)
	g.looked()
	for _, r := range g.f.Proxy.Requests(faultproxy.Match{Verb: "patch", Resource: "deployments"}) {
		if r.Code == http.StatusCreated {
			g.mistake("applied", "a create of each Deployment, which is a POST", "the request "+r.String()+", an apply, which has created it")
		}
	}
	if a, b := g.f.All(early), g.f.All(late); len(a) > 0 && len(b) > 0 && equality.Semantic.DeepEqual(a[0].Spec.Selector, b[0].Spec.Selector) {
		c.Mistake("shared labels", "labels of its own for the pods of each Icecream", "the Deployments of two Icecreams both select "+metav1.FormatLabelSelector(a[0].Spec.Selector))
	}
	for _, d := range g.f.All(late) {
		if pod := d.Spec.Template.Spec; !slices.ContainsFunc(pod.Containers, func(run corev1.Container) bool { return run.Image == "workshop/pause:1" }) {
			c.Fail("pods that run the image workshop/pause:1", "the containers "+asJSON(pod.Containers))
		}
	}
	if len(g.f.All(leaving)) > 0 {
		c.Mistake("creates for a leaving one", "no Deployment for an Icecream with a deletionTimestamp", "the Deployment "+g.f.All(leaving)[0].Name)
	}
	g.f.Patch("leaving", `{"metadata":{"finalizers":null}}`)

	// A new process does not know the Deployments yet.
	g.Until("a controller that runs", func(context.Context) error {
		if g.Process.Ended() {
			return errors.New("it does not")
		}
		return nil
	})
	g.f.Kill()
	before := g.f.Proxy.Count(creates)
	held := g.f.Proxy.MustInject(faultproxy.Rule{Match: deploymentWatches, Fault: faultproxy.Hold, Times: -1})
	lists := g.f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "list", Resource: "deployments"}, Fault: faultproxy.Stall, Times: -1})
	g.start()
	var began time.Time
	g.Until("a controller that watches Icecreams, or waits for the Deployments", func(context.Context) error {
		watches := g.f.Requests("watch*", "icecreams")
		if len(watches) == 0 {
			return errors.New("there is no watch of icecreams")
		}
		if last := watches[len(watches)-1]; (last.Took > 0 || last.Code != http.StatusOK) && held.Struck()+lists.Struck() == 0 {
			return errors.New("no watch of icecreams is open, and nothing of Deployments was asked for")
		}
		if began.IsZero() {
			began = time.Now()
		}
		if g.f.Proxy.Count(creates) == before && time.Since(began) < 2*time.Second { // nothing comes of a program that waits
			return errors.New("it may still create something")
		}
		return nil
	})
	if g.f.Proxy.Count(creates) > before {
		c.Mistake("workers before sync", "no create, because each Icecream has a Deployment, which the cache does not know yet", "a create, before the first events of Deployments had come")
	}
	held.Remove()
	lists.Remove()
	g.make("after", "after", 0)

	// Now and then the cache does not know a Deployment that exists.
	held = g.f.Proxy.MustInject(faultproxy.Rule{Match: deploymentWatches, Fault: faultproxy.Hold, Times: -1})
	behind := g.make("behind", "behind", 0)
	for i := range 2 {
		g.f.Patch("behind", fmt.Sprintf(`{"metadata":{"annotations":{"touched":"%d"}}}`, i))
		name := fmt.Sprintf("beside-%d", i)
		g.make(name, name, 0)
	}
	held.Remove()
	if all := g.f.All(behind); len(all) != 1 {
		var names []string
		for _, d := range all {
			names = append(names, d.Name)
		}
		c.Failf("one Deployment of the Icecream behind, also when the cache does not know it yet", "%d: %s", len(all), strings.Join(names, ", "))
	}

	// It is told to stop while a create is under way.
	stopping := g.Process
	g.f.Proxy.KeepBodies()
	ofLast := creates
	ofLast.If = func(r faultproxy.Request) bool { return bytes.Contains(r.Body, []byte("last")) } // and not one for behind, which is tried again
	asked := g.f.Proxy.MustInject(faultproxy.Rule{Match: ofLast, Fault: faultproxy.Call, Call: stopping.TerminateDuring})
	last := g.f.Create("last", "last", 0)
	select {
	case <-stopping.Done():
	case <-time.After(check.Patience(15 * time.Second)):
		if asked.Struck() == 0 { // so it has not been told to stop
			writes := g.f.Proxy.Requests(faultproxy.Match{Resource: "deployments*", If: faultproxy.Request.Write})
			c.Failf("a create of the Deployment last", "none; the last write of Deployments was %v", writes[max(0, len(writes)-1):])
		}
		c.Fail("an end after SIGTERM, when the create that was under way has been answered", "the program still runs 15 s later, and has said:\n"+g.Log())
	}
	const finished = "the create that was under way at SIGTERM is finished, and then exit code 0"
	if len(g.f.All(last)) == 0 {
		c.Mistake("work cut off", finished, fmt.Sprintf("no Deployment of the Icecream \"last\", and exit code %d", stopping.ExitCode()))
	}
	if stopping.ExitCode() != 0 {
		c.Failf(finished, "exit code %d, and the program has said:\n%s", stopping.ExitCode(), g.Log())
	}
}

// Repair changes Icecreams and their Deployments, and refuses the repair for a while.
func Repair(c *check.C) {
	g := newGrower(c)
	g.start()
	plain, ice := g.make("plain", "plain", 1), g.make("vanilla", "cone", 1)
	g.f.Patch("vanilla", `{"spec":{"replicas":2}}`)
	const follows = "cone has 2 replicas, because its Icecream says so"
	if g.Within(5*time.Second, g.replicas("cone", 2)) != nil {
		g.looked()
		if err := g.Within(3*time.Second, g.replicas("cone", 2)); err != nil {
			refused := faultproxy.Match{Group: "apps", Resource: "deployments*", Name: "cone", If: func(r faultproxy.Request) bool { return r.Write() && r.Code >= 400 }}
			applied := refused
			applied.If = func(r faultproxy.Request) bool {
				return r.Code == http.StatusConflict && strings.Contains(r.Content, "apply")
			}
			switch {
			case g.f.Proxy.Count(applied) > 0:
				c.Fail(follows, err.Error()+g.writes("cone")+"; an apply without Force takes no field that somebody else owns")
			case g.f.Proxy.Count(refused) > 0:
				c.Fail(follows, err.Error()+g.writes("cone"))
			}
			c.Mistake("change ignored", follows, err.Error()+g.writes("cone"))
		}
	}

	// Somebody scales Deployments, and sets fields that no Icecream speaks of.
	other := `{"metadata":{"annotations":{"team":"sweets"},"labels":{"tier":"cold"}},"spec":{"replicas":5,"progressDeadlineSeconds":1234,"template":{"metadata":{"annotations":{"restarted":"at noon"}},"spec":{"terminationGracePeriodSeconds":7}}}}`
	for _, name := range []string{"plain", "cone"} {
		_, err := g.f.Deployments.Patch(c.Context(), name, types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/template/spec/containers/0/env","value":[{"name":"TEAM","value":"sweets"}]}]`), metav1.PatchOptions{FieldManager: "somebody"})
		c.Must(err)
	}
	g.f.PatchDeployment("plain", other)
	g.wakes("no handler", "plain", "plain has 1 replica again, after somebody has scaled it to 5", g.replicas("plain", 1))
	g.looked() // or the event of a status that the program has written could wake it, too
	g.f.PatchDeployment("cone", other)
	g.wakes("found by name only", "vanilla", "cone has 2 replicas again, after somebody has scaled it to 5; the Deployment plain came back, whose Icecream has the same name", g.replicas("cone", 2))
	g.looked()
	for _, name := range []string{"plain", "cone"} {
		d := g.f.Deployment(name)
		if d.Annotations["team"] != "sweets" || d.Labels["tier"] != "cold" || d.Spec.Template.Annotations["restarted"] != "at noon" || *d.Spec.ProgressDeadlineSeconds != 1234 {
			c.Mistake("whole object overwritten", "the annotation team, the label tier, the template's annotation and progressDeadlineSeconds as somebody has set them",
				fmt.Sprintf("annotations %v, labels %v, template %v, progressDeadlineSeconds %d", d.Annotations, d.Labels, d.Spec.Template.Annotations, *d.Spec.ProgressDeadlineSeconds))
		}
		if pod := d.Spec.Template.Spec; *pod.TerminationGracePeriodSeconds != 7 || len(pod.Containers) == 0 || !slices.Contains(pod.Containers[0].Env, corev1.EnvVar{Name: "TEAM", Value: "sweets"}) {
			c.Mistake("pod template overwritten", "the environment variable TEAM of the first container and terminationGracePeriodSeconds as somebody has set them",
				fmt.Sprintf("terminationGracePeriodSeconds %d, and the containers %s", *pod.TerminationGracePeriodSeconds, asJSON(pod.Containers)))
		}
	}
	g.overwritten(ice)
	gone := g.f.Deployment("cone").UID
	c.Must(g.f.Deployments.Delete(c.Context(), "cone", metav1.DeleteOptions{}))
	g.wakes("deletion unnoticed", "vanilla", "cone exists again, after somebody has deleted it", func(ctx context.Context) error {
		d, err := g.f.Deployments.Get(ctx, "cone", metav1.GetOptions{})
		if err == nil && d.UID == gone {
			err = errors.New("it is still there")
		}
		return err
	})
	g.owns(g.f.Until("vanilla", func(*v1alpha1.Icecream) error { return nil }))

	g.persists()
	g.hot(plain)
	g.outdated(ice)
}

// overwritten has somebody change a Deployment while the program's cache is behind, and then
// the Icecream, so that the program writes what it does not know.
func (g *grower) overwritten(ice *v1alpha1.Icecream) {
	name := ice.Spec.DeploymentName
	held := g.f.Proxy.MustInject(faultproxy.Rule{Match: deploymentWatches, Fault: faultproxy.Hold, Times: -1})
	defer held.Remove()
	g.f.PatchDeployment(name, `{"metadata":{"annotations":{"team":"salt"}}}`)
	before := len(g.f.Proxy.Requests(faultproxy.Match{}))
	g.f.Patch(ice.Name, `{"spec":{"replicas":6}}`)
	g.Until("a write of "+name+" for 6 replicas, and its answer", func(context.Context) error {
		for _, r := range g.f.Proxy.Requests(faultproxy.Match{})[before:] {
			if strings.HasPrefix(r.Resource, "deployments") && r.Name == name && r.Write() && r.Took > 0 {
				return nil
			}
		}
		return errors.New("none")
	})
	kept := func() {
		if team := g.f.Deployment(name).Annotations["team"]; team != "salt" {
			g.C.Mistake("update without a version", "6 replicas, and the annotation team=salt, which somebody had set a moment before", "the annotation team="+team+", as it had been before that")
		}
	}
	kept() // when the events come, another write from an old copy may put it back
	held.Remove()
	g.Until(name+" has 6 replicas", g.replicas(name, 6))
	kept()
}

// hot refuses the repair of a Deployment for a while, and looks for a pause between the
// program's tries. Meanwhile no event of Deployments comes: each would make the program try
// once more, and with client-go's own limiter so many failures take its pauses to minutes.
func (g *grower) hot(ice *v1alpha1.Icecream) {
	const tries, pause = 8, 40 * time.Millisecond // client-go's rate limiter waits 40 ms before the fifth, 640 ms before the ninth
	const expected = "pauses that grow between the tries to repair the Deployment plain, while the API server answers 500"
	repairs := faultproxy.Match{Group: "apps", Resource: "deployments*", Name: ice.Spec.DeploymentName, If: faultproxy.Request.Write}
	holds := make(chan *faultproxy.Injection, 1)
	g.f.Proxy.MustInject(faultproxy.Rule{Match: repairs, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
		holds <- g.f.Proxy.MustInject(faultproxy.Rule{Match: deploymentWatches, Fault: faultproxy.Hold, Times: -1})
		return nil
	}})
	failing := g.f.Proxy.MustInject(faultproxy.Rule{Match: repairs, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	defer failing.Remove()
	g.f.PatchDeployment(ice.Spec.DeploymentName, `{"spec":{"replicas":5}}`)
	g.Until("a try to repair the Deployment plain", func(context.Context) error {
		if failing.Struck() == 0 {
			return errors.New("none")
		}
		return nil
	})
	held := <-holds
	defer held.Remove()
	began := time.Now()
	g.Until(expected, func(context.Context) error { // a program that pauses for longer does no harm
		if time.Since(began) < 3*time.Second {
			return errors.New("they may come")
		}
		return nil
	})
	var tried []faultproxy.Request
	for _, r := range g.f.Proxy.Requests(repairs) {
		if slices.Contains(r.Faults, faultproxy.Answer) && r.Took > 0 {
			tried = append(tried, r)
		}
	}
	var waits []time.Duration
	asked := g.f.Proxy.Requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Name == ice.Name || r.Name == ice.Spec.DeploymentName }})
	for i := 1; i < len(tried); i++ { // from the answer to the next try, without what the program asks meanwhile, or a slow machine would count
		end := tried[i-1].Started.Add(tried[i-1].Took)
		wait := tried[i].Started.Sub(end)
		for _, r := range asked {
			if r.Started.After(end) && r.Started.Before(tried[i].Started) {
				wait -= r.Took
			}
		}
		waits = append(waits, max(0, wait))
	}
	median := func(waits []time.Duration) time.Duration { return slices.Sorted(slices.Values(waits))[len(waits)/2] }
	grow := len(waits) >= 3 && median(waits[len(waits)*2/3:]) > median(waits[:len(waits)/3])*3/2 // more slowly than by doubling
	slices.Sort(waits)
	if most := len(waits) * 3 / 4; len(tried) >= tries && waits[most] < pause {
		g.C.Mistake("hot loop", expected, fmt.Sprintf("%d tries in 3 s, and three of four came %s after the answer or earlier", len(tried), waits[most].Round(time.Millisecond)))
	}
	// Where pauses double, so many tries have some that are many times as long as others, also on a slow machine.
	if n := len(waits); n >= 12 && waits[n-1] < 3*waits[n/2] && !grow {
		g.mistake("always the same pause", expected, fmt.Sprintf("%d tries in 3 s, and the longest pause of %s is hardly longer than others", len(tried), waits[n-1].Round(time.Millisecond)))
	}
	// Few tries come of pauses that are long, which may grow all the same. An event that had come already may
	// have led to a try between them.
	if n := len(waits); n >= 2 && n < 12 && (waits[n-1] < waits[0]*6/5 || n <= 5 && waits[n-1] < waits[n-2]*6/5) {
		g.mistake("always the same pause", expected, fmt.Sprintf("%d tries in 3 s, and the longest two pauses %s and %s", len(tried), waits[n-2].Round(time.Millisecond), waits[n-1].Round(time.Millisecond)))
	}
	failing.Remove()
	held.Remove()
	g.Until("plain has 1 replica, when the API server works again", g.replicas(ice.Spec.DeploymentName, 1))
}

// persists refuses a Deployment three times. As there is none, no event of it wakes a
// program that does not try again. Then it refuses it twice more, more often: the pauses
// are as long as before unless the program still counts the failures of before.
func (g *grower) persists() {
	failing := faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: 3}
	tries := g.f.Proxy.MustInject(failing)
	before := g.f.Proxy.Count(creates)
	ice := g.f.Create("refused", "refused", 0)
	name := ice.Spec.DeploymentName
	const again = "a Deployment refused, after the API server has answered three creates with 500"
	err := g.Within(15*time.Second, g.replicas(name, 0)) // the tries are due after 5, 10 and 20 ms
	if err != nil && tries.Struck() > 1 {                // it does try again, and pauses for long
		err = g.Within(time.Minute, g.replicas(name, 0))
	}
	// late ends the check, because the Deployment has not come. Who waits far longer than ever before tries no more.
	late := func(expected string, err error, tried []faultproxy.Request) {
		var longest time.Duration
		for i := 1; i < len(tried); i++ {
			longest = max(longest, tried[i].Started.Sub(tried[i-1].Started))
		}
		if n := len(tried); n > 1 && time.Since(tried[n-1].Started) < 10*longest {
			g.C.Failf(expected+": the pauses begin with milliseconds, and grow from there", "%v; the program has tried so often: %d, the last two tries %s apart", err, n, tried[n-1].Started.Sub(tried[n-2].Started).Round(time.Millisecond))
		}
		g.C.Mistake("error not retried", expected, fmt.Sprintf("%v; the program has tried so often: %d", err, len(tried)))
	}
	if err != nil {
		late(again, err, g.f.Proxy.Requests(creates)[before:])
	}
	// Shorter pauses differ by what the machine does; hot looks at these.
	if tried := g.f.Proxy.Requests(creates)[before:]; len(tried) >= 4 {
		var waits []time.Duration
		for i := 1; i < 4; i++ {
			waits = append(waits, tried[i].Started.Sub(tried[i-1].Started.Add(tried[i-1].Took)).Round(time.Millisecond))
		}
		if slices.Min(waits) > time.Second && slices.Max(waits) < slices.Min(waits)*6/5 {
			g.mistake("always the same pause", "pauses that grow between the tries to create the Deployment refused, while the API server answers 500", fmt.Sprintf("the pauses %v", waits))
		}
	}
	failing.Times = 6 // with client-go's rate limiter 315 ms, and 160 s if those of before still count
	comesBack := func(within time.Duration) (time.Duration, error) {
		old := g.f.Deployment(name).UID
		tries := g.f.Proxy.MustInject(failing)
		g.C.Must(g.f.Deployments.Delete(g.C.Context(), name, metav1.DeleteOptions{}))
		began := time.Now()
		err := g.Within(within, func(ctx context.Context) error {
			d, err := g.f.Deployments.Get(ctx, name, metav1.GetOptions{})
			if err == nil && d.UID == old {
				err = errors.New("it is still there")
			}
			return err
		})
		if err != nil && tries.Struck() == 0 { // what woke the program when cone was deleted was something else
			g.C.Mistake("deletion unnoticed", name+" exists again, after somebody has deleted it", "no request for it")
		}
		return time.Since(began), err
	}
	before = g.f.Proxy.Count(creates)
	first, err := comesBack(90 * time.Second)
	if err != nil {
		late("the Deployment refused again, after six creates were answered with 500", err, g.f.Proxy.Requests(creates)[before:])
	}
	if later, err := comesBack(4*first + 10*time.Second); err != nil {
		g.mistake("never forgets", fmt.Sprintf("pauses that begin short again: six creates failed and one succeeded, which took %s, and the next six failures were to take as long", first.Round(time.Millisecond)),
			fmt.Sprintf("for %s no Deployment called refused, the second time", later.Round(time.Second)))
	}
}

// outdated changes an Icecream while a write for its former state is under way.
func (g *grower) outdated(ice *v1alpha1.Icecream) {
	name := ice.Spec.DeploymentName
	w, err := g.f.Deployments.Watch(g.C.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: g.f.Deployment(name).ResourceVersion})
	g.C.Must(err)
	defer w.Stop()
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	writes := faultproxy.Match{Group: "apps", Resource: "deployments*", Name: name, If: faultproxy.Request.Write}
	first := g.f.Proxy.MustInject(faultproxy.Rule{Match: writes, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	g.f.Patch(ice.Name, `{"spec":{"replicas":3}}`)
	struck := func(i *faultproxy.Injection, n int) func(context.Context) error {
		return func(context.Context) error {
			if i.Struck() < n {
				return fmt.Errorf("%d of %d", i.Struck(), n)
			}
			return nil
		}
	}
	g.Until("a write for 3 replicas", struck(first, 1))
	events := g.f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Event: "MODIFIED", Object: ice.Name, Fault: faultproxy.Delay, Delay: time.Millisecond, Times: -1})
	for i, replicas := range []string{"4", "5"} {
		g.f.Patch(ice.Name, `{"spec":{"replicas":`+replicas+`}}`)
		g.Until("events of the Icecream "+ice.Name, struck(events, i+1))
	}
	events.Remove()
	// Once this one is served, the handlers have seen both changes. A program with one worker
	// serves nobody before its write has ended.
	g.f.Create("meanwhile", "meanwhile", 0)
	_ = g.Within(5*time.Second, g.replicas("meanwhile", 0))
	let()
	g.Until(name+" has 5 replicas", g.replicas(name, 5))
	var seen []int32
	for last := int32(0); last != 5; {
		event, ok := <-w.ResultChan()
		if !ok {
			g.C.T.Fatal("the watch has ended")
		}
		if d, ok := event.Object.(*appsv1.Deployment); ok && *d.Spec.Replicas != last {
			last = *d.Spec.Replicas
			seen = append(seen, last)
		}
	}
	if slices.Contains(seen, 4) {
		g.mistake("a queue of objects", "3 replicas, and then 5, which the Icecream says since the write for 3 began", fmt.Sprintf("replicas %v: for a moment those of an Icecream as it had been", seen))
	}
}

// Leave gives the name of a Deployment away before its Icecream comes.
func Leave(c *check.C) {
	g := newGrower(c)
	g.f.Foreign("cup")
	// Its owner has a name that an Icecream has, too. The garbage collector leaves it alone,
	// because it knows nothing of such a version.
	g.f.Foreign("bowl", metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.Group + "/v0", Kind: "Icecream", Name: "namesake", UID: "0-1-2-3", Controller: ptr.To(true)})
	// Somebody has made the Icecream an owner that is not the controller.
	wants := g.f.Create("wants-mug", "mug", 3)
	g.f.Foreign("mug", metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.IcecreamKind.Kind, Name: wants.Name, UID: wants.UID})
	g.f.Proxy.KeepBodies()
	g.start()
	first := g.make("first", "shared", 1)
	second, cup := g.f.Create("second", "shared", 2), g.f.Create("wants-cup", "cup", 3)
	touched := func() {
		for _, r := range g.f.Proxy.Requests(faultproxy.Match{Resource: "deployments*", Name: "cup", If: faultproxy.Request.Write}) {
			c.Mistake("taken over", "no write of the Deployment cup, which belongs to nobody", "the request "+r.String())
		}
		d, err := g.f.Deployments.Get(c.Context(), "shared", metav1.GetOptions{})
		c.Must(err)
		if !metav1.IsControlledBy(d, first) || *d.Spec.Replicas != 1 {
			c.Mistake("taken from another", "the Deployment shared as its owner, the Icecream first, wants it", fmt.Sprintf("%d replicas, and the ownerReferences %s", *d.Spec.Replicas, asJSON(d.OwnerReferences)))
		}
	}
	// What is tried without end comes back at least so often while others are served. Who creates first is answered
	// by 409 at each look, also at those of its own.
	const often = 12
	for range 2 {
		g.looked()
		touched()
	}
	for _, ice := range []*v1alpha1.Icecream{second, cup, wants} {
		conflicts := g.f.Proxy.Count(faultproxy.Match{Verb: "create", Resource: "deployments", If: func(r faultproxy.Request) bool {
			return r.Code == http.StatusConflict && bytes.Contains(r.Body, []byte(ice.UID))
		}})
		if conflicts >= often {
			c.Mistake("retried without end", "a few creates for the Icecream "+ice.Name+", because its name is taken", fmt.Sprintf("%d creates that failed with 409 AlreadyExists", conflicts))
		}
	}
	says := func(ctx context.Context) error {
		touched()
		for ice, deployment := range map[string]string{"wants-cup": "cup", "second": "shared"} {
			found, err := g.f.Icecreams.Get(ctx, ice, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(found.Status.Conditions, func(condition metav1.Condition) bool {
				return condition.Type == v1alpha1.ConditionAvailable && condition.Status == metav1.ConditionFalse && strings.Contains(condition.Message, deployment)
			}) {
				return fmt.Errorf("the conditions of %s are %s", ice, asJSON(found.Status.Conditions))
			}
		}
		return nil
	}
	const reports = "the condition Available with the status False and a message that names the Deployment, for the Icecreams wants-cup and second"
	if err := g.Within(5*time.Second, says); err != nil {
		g.bySubresource()
		for _, ice := range []*v1alpha1.Icecream{second, cup} {
			if all := g.f.All(ice); len(all) > 0 {
				c.Failf("no Deployment of the Icecream "+ice.Name+", because the name that it asks for is taken", "the Deployment %s", all[0].Name)
			}
			now, getErr := g.f.Icecreams.Get(c.Context(), ice.Name, metav1.GetOptions{})
			c.Must(getErr)
			if meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionAvailable) {
				c.Fail(reports, err.Error())
			}
		}
		c.Mistake("status silent", reports, err.Error())
	}
	g.f.Create("namesake", "bowl", 3)
	g.looked()
	for _, r := range g.f.Proxy.Requests(faultproxy.Match{Resource: "deployments*", Name: "bowl", If: faultproxy.Request.Write}) {
		c.Mistake("owner by name", "no write of the Deployment bowl, whose owner is called namesake as your Icecream is, and has another UID", "the request "+r.String())
	}
	for _, r := range g.f.Proxy.Requests(faultproxy.Match{Resource: "deployments*", Name: "mug", If: faultproxy.Request.Write}) {
		c.Mistake("not its controller", "no write of the Deployment mug, of which the Icecream wants-mug is an owner, but not the controller", "the request "+r.String())
	}
	g.orphaned()
	g.unseen()
	g.freed()
	g.wakes("free name unnoticed", "wants-cup", "cup with 3 replicas for the Icecream wants-cup, after somebody has deleted the foreign one", g.replicas("cup", 3))
	// Once the program knows that first is gone, so is its Deployment. The garbage collector does not know
	// a new kind of owner at once.
	shared := g.f.Deployment("shared")
	c.Must(g.f.Icecreams.Delete(c.Context(), "first", metav1.DeleteOptions{}))
	g.looked()
	if err := g.f.Deployments.Delete(c.Context(), shared.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &shared.UID}}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.Must(err)
	}
	g.wakes("free name unnoticed", "second", "shared with 2 replicas for the Icecream second, after the one that had it was deleted", g.replicas("shared", 2))
	free, err := g.f.Icecreams.Get(c.Context(), "wants-cup", metav1.GetOptions{})
	c.Must(err)
	g.owns(free)
}

// orphaned takes a Deployment from its Icecream: all but the reference stays by which it may be known.
func (g *grower) orphaned() {
	g.make("orphan", "orphan", 0)
	g.looked()
	writes := faultproxy.Match{Resource: "deployments*", Name: "orphan", If: faultproxy.Request.Write}
	before := g.f.Proxy.Count(writes)
	g.f.PatchDeployment("orphan", `{"metadata":{"ownerReferences":null},"spec":{"replicas":5}}`)
	g.looked()
	if all := g.f.Proxy.Requests(writes); len(all) > before {
		g.C.Mistake("owner by label", "no write of the Deployment orphan, which has lost its ownerReferences", "the request "+all[before].String())
	}
}

// unseen has somebody else make a Deployment of which the program's cache does not know yet.
func (g *grower) unseen() {
	held := g.f.Proxy.MustInject(faultproxy.Rule{Match: deploymentWatches, Fault: faultproxy.Hold, Times: -1})
	defer held.Remove()
	g.f.Foreign("plate")
	made := time.Now()
	g.f.Create("wants-plate", "plate", 3)
	ofPlate, taken := faultproxy.Match{Resource: "deployments*", Name: "plate"}, creates
	taken.If = func(r faultproxy.Request) bool {
		return r.Code == http.StatusConflict && bytes.Contains(r.Body, []byte("plate"))
	}
	// The informer, whose watch is held, lists nothing.
	all := faultproxy.Match{Verb: "list", Resource: "deployments", If: func(r faultproxy.Request) bool {
		return r.Code == http.StatusOK && r.Started.After(made)
	}}
	g.Until("a look at the Deployment plate, which somebody has made a moment before, or a create, which is answered by 409", func(context.Context) error {
		if g.f.Proxy.Count(ofPlate)+g.f.Proxy.Count(taken)+g.f.Proxy.Count(all) == 0 {
			return errors.New("neither")
		}
		return nil
	})
	g.wentOn() // so whoever has looked has come to its write
	for _, r := range g.f.Proxy.Requests(ofPlate) {
		if r.Write() {
			g.C.Mistake("taken over unseen", "no write of the Deployment plate, which belongs to nobody, and which the cache does not show yet", "the request "+r.String())
		}
	}
}

// bySubresource ends the check if the program has written a status, and only by the main endpoint, to which finalizers,
// labels and annotations may go.
func (g *grower) bySubresource() {
	if g.f.Proxy.Count(faultproxy.Match{Resource: "icecreams/status", If: faultproxy.Request.Write}) > 0 {
		return
	}
	for _, r := range g.f.Proxy.Requests(faultproxy.Match{Resource: "icecreams", If: faultproxy.Request.Write}) {
		if r.Code == http.StatusOK && bytes.Contains(r.Body, []byte(v1alpha1.ConditionAvailable)) {
			g.mistake("main endpoint", "a write of icecreams/status", "the request "+r.String())
		}
	}
}

// freed deletes the Deployment cup, and compares how often the program tries to create it
// anew with how often it tries that for an Icecream that has not failed before.
func (g *grower) freed() {
	// What comes back because of an error does so as often as shared, or more often.
	shared := faultproxy.Match{Group: "apps", Resource: "deployments*", Name: "shared", If: faultproxy.Request.Write}
	failing := g.f.Proxy.MustInject(faultproxy.Rule{Match: shared, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	g.f.Patch("first", `{"spec":{"replicas":4}}`)
	_ = g.Within(15*time.Second, func(context.Context) error { // with client-go's rate limiter after 1.3 s
		if failing.Struck() < 9 {
			return errors.New("fewer tries")
		}
		return nil
	})
	failing.Remove()

	refusing := g.f.Proxy.MustInject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	defer refusing.Remove()
	tries := func(deployment string) int {
		return g.f.Proxy.Count(faultproxy.Match{Verb: "create", Resource: "deployments", If: func(r faultproxy.Request) bool {
			return slices.Contains(r.Faults, faultproxy.Answer) && bytes.Contains(r.Body, []byte(deployment))
		}})
	}
	tried := func(deployment string, often int) bool {
		return g.Within(5*time.Second, func(context.Context) error {
			if tries(deployment) < often {
				return errors.New("fewer tries")
			}
			return nil
		}) == nil
	}
	g.C.Must(g.f.Deployments.Delete(g.C.Context(), "cup", metav1.DeleteOptions{}))
	if !tried("cup", 1) {
		return // nothing has woken it
	}
	g.f.Create("fresh", "fresh", 0)
	if !tried("fresh", 6) { // with client-go's rate limiter after 155 ms
		return // it pauses for longer, which does no harm
	}
	if n := tries("cup"); n < 4 {
		g.C.Mistake("returned as an error", "as many tries to create the Deployment cup, whose name is free, as to create the Deployment fresh, while the API server answers 500",
			fmt.Sprintf("so many tries for the Deployment cup: %d; and then 6 for the Deployment fresh, which came later: the queue counted the time without a name as failures", n))
	}
}

// Report reads the status while the Icecream changes, while nothing does, and while
// the API server refuses the Deployment.
func Report(c *check.C) {
	g := newGrower(c)
	ice := g.f.Create("vanilla", "cone", 1)
	ice.Status.Conditions = []metav1.Condition{{Type: "Audited", Status: metav1.ConditionTrue, Reason: "ByHand", LastTransitionTime: metav1.Now()}}
	_, err := g.f.Icecreams.UpdateStatus(c.Context(), ice, metav1.UpdateOptions{})
	c.Must(err)
	g.f.Proxy.KeepBodies()
	g.start()
	is := func(replicas int32) func(context.Context) error {
		return func(ctx context.Context) error {
			now, err := g.f.Icecreams.Get(ctx, "vanilla", metav1.GetOptions{})
			if err != nil {
				return err
			}
			condition := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionAvailable)
			switch {
			case meta.FindStatusCondition(now.Status.Conditions, "Audited") == nil:
				c.Mistake("others' condition dropped", "the condition Audited, which another program has written", "the conditions "+asJSON(now.Status.Conditions))
			case now.Status.Replicas == nil || *now.Status.Replicas != replicas || now.Status.AvailableReplicas == nil || *now.Status.AvailableReplicas != replicas || condition == nil || condition.Status != metav1.ConditionTrue:
				return errors.New("the status is " + asJSON(now.Status))
			case now.Status.ObservedGeneration != now.Generation || condition.ObservedGeneration != now.Generation:
				return errOldGeneration{fmt.Errorf("generation %d, and the status %s", now.Generation, asJSON(now.Status))}
			}
			return nil
		}
	}
	status := func(name string) v1alpha1.IcecreamStatus {
		found, err := g.f.Icecreams.Get(c.Context(), name, metav1.GetOptions{})
		c.Must(err)
		return found.Status
	}
	reports := func(replicas int32) {
		expected := fmt.Sprintf("replicas and availableReplicas %d, the condition Available=True, and for both observedGenerations the Icecream's generation", replicas)
		err := g.Within(check.Patience(15*time.Second), is(replicas))
		if err == nil {
			return
		}
		g.bySubresource()
		if errors.As(err, new(errOldGeneration)) {
			c.Mistake("old generation", expected, err.Error())
		}
		if now := status("vanilla"); now.ObservedGeneration == 0 && now.Replicas == nil && meta.FindStatusCondition(now.Conditions, v1alpha1.ConditionAvailable) == nil {
			g.mistake("status empty", expected, err.Error())
		}
		c.Fail(expected, err.Error())
	}
	reports(1)
	if now := status("vanilla"); now.Selector != "" || len(now.Nodes) > 0 || meta.FindStatusCondition(now.Conditions, v1alpha1.ConditionOwned) != nil {
		g.mistake("more than was asked for", "neither selector nor nodes nor the condition Owned, which are not the program's", asJSON(now))
	}

	// Another program writes a condition of which the program's cache does not hear yet, and then a
	// pod has to be ready for longer, so it is not available.
	held := g.f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "icecreams"}, Fault: faultproxy.Hold, Times: -1})
	defer held.Remove()
	c.Must(conflict.Retry(retry.DefaultBackoff, func() error {
		now, err := g.f.Icecreams.Get(c.Context(), "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{Type: "Tasted", Status: metav1.ConditionTrue, Reason: "ByHand"})
		_, err = g.f.Icecreams.UpdateStatus(c.Context(), now, metav1.UpdateOptions{})
		return err
	}))
	statusWrites := faultproxy.Match{Resource: "icecreams/status", Name: "vanilla", If: faultproxy.Request.Write}
	before := len(g.f.Proxy.Requests(statusWrites))
	g.f.PatchDeployment("cone", `{"spec":{"minReadySeconds":500}}`)
	_ = g.Within(5*time.Second, func(context.Context) error { // a program that takes its numbers from elsewhere writes nothing
		if !slices.ContainsFunc(g.f.Proxy.Requests(statusWrites)[before:], func(r faultproxy.Request) bool { return r.Took > 0 }) {
			return errors.New("no write of the status")
		}
		return nil
	})
	now := status("vanilla") // while the cache is old: the next write may bring the condition back
	held.Remove()
	if meta.FindStatusCondition(now.Conditions, "Tasted") == nil {
		g.mistake("status without a version", "the condition Tasted, which another program had written a moment before", "the conditions "+asJSON(now.Conditions))
	}
	g.Until("a Deployment without available pods", func(context.Context) error {
		if d := g.f.Deployment("cone"); d.Status.ObservedGeneration < d.Generation || d.Status.AvailableReplicas > 0 {
			return errors.New("it has some")
		}
		return nil
	})
	g.looked()
	const none = "availableReplicas 0 and Available=False, because the Deployment says that none of its pods is available"
	if err := g.Within(3*time.Second, func(ctx context.Context) error {
		now, err := g.f.Icecreams.Get(ctx, "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ptr.Deref(now.Status.AvailableReplicas, 0) > 0 || !meta.IsStatusConditionFalse(now.Status.Conditions, v1alpha1.ConditionAvailable) {
			return errors.New("the status is " + asJSON(now.Status))
		}
		return nil
	}); err != nil {
		if ptr.Deref(status("vanilla").AvailableReplicas, 0) == 0 { // so it is only the condition
			c.Fail(none, err.Error())
		}
		c.Mistake("made up numbers", none, err.Error())
	}
	g.f.PatchDeployment("cone", `{"spec":{"minReadySeconds":0}}`)
	g.f.Patch("vanilla", `{"spec":{"replicas":3}}`)
	reports(3)

	// The Deployment has all the pods that it can have, and fewer than are wanted. Its own
	// condition Available is True then, because a quarter of four may be missing.
	quotas := g.f.Client.CoreV1().ResourceQuotas(g.f.Namespace)
	_, err = quotas.Create(c.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "full"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("3")}}}, metav1.CreateOptions{})
	c.Must(err)
	g.Until("a quota that counts", func(ctx context.Context) error {
		quota, err := quotas.Get(ctx, "full", metav1.GetOptions{})
		if err == nil && quota.Status.Used.Pods().Value() != 3 {
			err = errors.New("it counts " + asJSON(quota.Status.Used))
		}
		return err
	})
	g.f.Patch("vanilla", `{"spec":{"replicas":4}}`)
	g.Until("a Deployment that has 3 of 4 pods, which is Available", func(context.Context) error {
		if d := g.f.Deployment("cone"); *d.Spec.Replicas != 4 || d.Status.ObservedGeneration < d.Generation || d.Status.AvailableReplicas != 3 || !slices.ContainsFunc(d.Status.Conditions, func(condition appsv1.DeploymentCondition) bool {
			return condition.Type == appsv1.DeploymentAvailable && condition.Status == corev1.ConditionTrue
		}) {
			return errors.New("it has the status " + asJSON(d.Status))
		}
		return nil
	})
	g.looked()
	if err := g.Within(3*time.Second, func(ctx context.Context) error {
		now, err := g.f.Icecreams.Get(ctx, "vanilla", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionFalse(now.Status.Conditions, v1alpha1.ConditionAvailable) {
			return errors.New("the conditions are " + asJSON(now.Status.Conditions))
		}
		return nil
	}); err != nil {
		c.Mistake("compared with itself", "Available=False while 3 pods of the 4 that the Icecream wants are available", err.Error())
	}
	if now := status("vanilla"); ptr.Deref(now.Replicas, -1) != 3 || ptr.Deref(now.AvailableReplicas, -1) != 3 {
		c.Mistake("made up numbers", "replicas and availableReplicas 3, as in the status of the Deployment, which has 3 pods of the 4 that are wanted", "the status "+asJSON(now))
	}
	before = g.f.Proxy.Count(statusWrites)
	g.looked()
	if n := g.f.Proxy.Count(statusWrites) - before; n > 2 { // an event may have come late
		c.Mistake("every time", "no write of the status of vanilla while it has 3 pods of 4, and nothing changes", fmt.Sprintf("%d writes", n))
	}
	g.f.Patch("vanilla", `{"spec":{"replicas":3}}`)
	reports(3)

	// Nothing changes that the status speaks of: while the quota is there, the fourth pod, which is
	// not wanted any more, cannot come and go.
	g.looked()
	before = g.f.Proxy.Count(statusWrites)
	g.f.Patch("vanilla", `{"metadata":{"annotations":{"x":"y"}}}`)
	g.f.PatchDeployment("cone", `{"metadata":{"labels":{"x":"y"}}}`) // an annotation would give it another generation
	g.looked()
	if n := g.f.Proxy.Count(statusWrites) - before; n > 0 {
		c.Mistake("every time", "no write of the status while nothing changes that it speaks of", fmt.Sprintf("%d writes after an annotation of the Icecream and a label of its Deployment", n))
	}
	c.Must(quotas.Delete(c.Context(), "full", metav1.DeleteOptions{}))

	// There are no numbers of a Deployment that is somebody else's.
	g.f.Foreign("taken")
	g.make("without", "own", 0)
	const zero = "replicas 0 and availableReplicas 0 in the status of an Icecream whose Deployment has none: 0 is a number, too"
	numbers := func(name string) func(context.Context) error {
		return func(context.Context) error {
			if now := status(name); now.Replicas == nil || now.AvailableReplicas == nil {
				return errors.New("the status of " + name + " is " + asJSON(now))
			}
			return nil
		}
	}
	g.Until(zero, numbers("without"))
	g.f.Patch("without", `{"spec":{"deploymentName":"taken"}}`)
	g.Until("the condition Available=False for the Icecream \"without\", whose Deployment is somebody else's", func(context.Context) error {
		if found := status("without"); !meta.IsStatusConditionFalse(found.Conditions, v1alpha1.ConditionAvailable) {
			return errors.New("the conditions are " + asJSON(found.Conditions))
		}
		return nil
	})
	g.looked()
	if found := status("without"); found.Replicas != nil || found.AvailableReplicas != nil {
		c.Mistake("zero instead of absent", "neither replicas nor availableReplicas in the status of the Icecream \"without\", whose Deployment is somebody else's", "the status "+asJSON(found))
	}

	g.make("moves", "moves", 0)
	g.Until(zero, numbers("moves"))
	// A refused update leaves the Deployment, and so its numbers.
	const (
		hidden  = "the condition Available with the status False and the API server's message, while it answers 403 Forbidden to an update of cone"
		numeric = "replicas and availableReplicas in the status of vanilla, whose Deployment cone is there"
	)
	injected := func(name string) func(context.Context) error {
		return func(context.Context) error {
			now := status(name)
			if found := meta.FindStatusCondition(now.Conditions, v1alpha1.ConditionAvailable); found != nil && found.Status == metav1.ConditionFalse && strings.Contains(found.Message, "injected by faultproxy") {
				return nil
			}
			return errors.New("the conditions are " + asJSON(now.Conditions))
		}
	}
	refusing := g.f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Group: "apps", Resource: "deployments*", Name: "cone", If: faultproxy.Request.Write}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	defer refusing.Remove()
	g.f.Patch("vanilla", `{"spec":{"replicas":2}}`)
	if err := g.Within(10*time.Second, injected("vanilla")); err != nil {
		if refusing.Struck() == 0 {
			c.Fail("an update of cone, because its Icecream wants other replicas", "none; "+err.Error())
		}
		c.Mistake("error hidden", hidden, err.Error())
	}
	if now := status("vanilla"); now.Replicas == nil || now.AvailableReplicas == nil {
		g.mistake("numbers lost", numeric, "the status "+asJSON(now))
	}
	refusing.Remove()

	// What passes is not reported, and what may stay is. Each has an Icecream of its own, because
	// the pauses between the tries grow.
	for i, code := range []int{http.StatusInternalServerError, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusBadRequest} {
		refused := g.f.Proxy.MustInject(faultproxy.Rule{Match: creates, Fault: faultproxy.Answer, Code: code, Times: -1})
		name := fmt.Sprintf("refused-%d", code)
		g.f.Create(name, name, 1)
		answer := fmt.Sprintf("%d %s", code, http.StatusText(code))
		g.Until("a try to create the Deployment "+name, func(context.Context) error {
			if refused.Struck() == 0 {
				return errors.New("none")
			}
			return nil
		})
		// A change of another Icecream that reaches its status shows that the program has had its time.
		replicas := int32(1 + i%2)
		g.f.Patch("vanilla", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		reports(replicas)
		told := injected(name)
		if code == http.StatusInternalServerError {
			if told(c.Context()) == nil {
				g.mistake("passing error reported", "nothing of the API server's message in the status, while it answers "+answer+", which passes", "its message in the condition Available")
			}
		} else if err := g.Within(10*time.Second, told); err != nil {
			c.Mistake("error hidden", "the condition Available with the status False and the API server's message, while it answers "+answer, err.Error())
		}
		// An Icecream that has had a Deployment, and asks for another one.
		if code == http.StatusForbidden {
			g.f.Patch("moves", `{"spec":{"deploymentName":"moved"}}`)
			expected := "neither replicas nor availableReplicas in the status of the Icecream moves, whose Deployment moved the API server refuses"
			if err := g.Within(10*time.Second, func(context.Context) error {
				if now := status("moves"); now.Replicas != nil || now.AvailableReplicas != nil || !meta.IsStatusConditionFalse(now.Conditions, v1alpha1.ConditionAvailable) {
					return errors.New("the status " + asJSON(now))
				}
				return nil
			}); err != nil {
				g.mistake("numbers of before", expected, err.Error())
			}
		}
		refused.Remove()
		if err := g.Within(40*time.Second, g.replicas(name, 1)); err != nil { // pauses have grown as long as the API server has refused it
			expected := "the Deployment " + name + ", when the API server accepts it again"
			if code != http.StatusInternalServerError {
				g.mistake("refusal swallowed", expected, err.Error())
			}
			c.Fail(expected, err.Error())
		}
	}
}

// errOldGeneration is what a status lacks that is right but for its generation.
type errOldGeneration struct{ error }

// judging is held by the check that uses the judge, of which a clone has one.
var judging sync.Mutex

// Survive has the judge find out what becomes of the program when something goes wrong.
func Survive(c *check.C) {
	g := newGrower(c)
	g.start()
	g.Until("a controller that watches Icecreams", func(context.Context) error {
		if len(g.f.Requests("watch*", "icecreams")) == 0 {
			return errors.New("no watch of icecreams is open")
		}
		return nil
	})
	g.f.Kill()
	judging.Lock()
	defer judging.Unlock()
	// A process of its own, because it makes a cluster and client-go keeps what it knows of one.
	judged := c.Env.Run(testenv.Command{Path: c.Env.Program("./cmd/judge"), Timeout: 8 * time.Minute,
		Args: []string{"-json", "-level", "3", "-contract", "simple", "-controller", proc.Quoted(g.f.Command.Path) + " -namespace {{.Namespace}}"}})
	var verdict judge.Verdict
	if err := json.Unmarshal([]byte(judged.Stdout), &verdict); err != nil { // its cluster has not come up: no fault of the program
		c.T.Fatalf("the judge has ended with exit code %d: %s", judged.ExitCode, judged.Stderr)
	}
	for _, r := range verdict.Cases {
		if r.Verdict != "failed" {
			continue
		}
		expected := fmt.Sprintf("level %d of the judge, %s", r.Level, r.Case)
		held := strings.Join(append([]string{r.Diagnosis}, append(r.Details, r.Requests...)...), "\n")
		c.Mistake([]string{"", "does not work", "does not survive itself", "does not survive the wire"}[r.Level], expected, held)
	}
	if judged.ExitCode != 0 { // a case that could not be judged says nothing about the program
		c.T.Fatalf("the judge has ended with exit code %d: %s", judged.ExitCode, judged.Stdout)
	}
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
