package kubebuilder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamcheck"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		// As in step 06: what is asked for is the same.
		"wiring": icecreamcheck.Wiring, "create": icecreamcheck.Create, "repair": icecreamcheck.Repair,
		"leave": icecreamcheck.Leave, "report": icecreamcheck.Report, "survive": icecreamcheck.Survive,
		"predicate": checkPredicate, "suite": checkSuite,
	})
}

// A summarizer is a run of the program summary, with a learner's predicate.
type summarizer struct {
	*check.C
	proxy   *testenv.Proxy
	process *testenv.Process
	markers int
}

func (s *summarizer) create(name string) { s.createOf(name, map[string]string{"team": "sweets"}) }

func (s *summarizer) createOf(name string, labels map[string]string) {
	_, err := s.Client.CoreV1().Services(s.Namespace).Create(s.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	s.Must(err)
}

func (s *summarizer) patch(name, patch string, subresources ...string) {
	_, err := s.Client.CoreV1().Services(s.Namespace).Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	s.Must(err)
}

// has says whether a Service has this summary.
func (s *summarizer) has(name, ports, team string) func(context.Context) error {
	return func(ctx context.Context) error {
		if s.process.Ended() {
			s.Fail("a controller that runs", "it has ended:\n"+s.process.Stderr())
		}
		m, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Get(ctx, name+"-summary", metav1.GetOptions{})
		if err == nil && !maps.Equal(m.Data, map[string]string{"ports": ports, "team": team}) {
			err = fmt.Errorf("the ConfigMap %s says %v", m.Name, m.Data)
		}
		return err
	}
}

// looked waits until the controller has done all that the events so far have led to: its one
// worker takes keys in the order of their events, and a further Service gets its summary last.
func (s *summarizer) looked() {
	s.markers++
	name := fmt.Sprintf("further-%d", s.markers)
	s.create(name)
	if err := s.Until(check.Patience(15*time.Second), s.has(name, "1", "sweets")); err != nil {
		if s.create("later"); s.Until(5*time.Second, s.has("later", "1", "sweets")) == nil {
			s.Mistake("only what comes later", "a summary of the Service "+name+", which the program has found when it began", err.Error())
		}
		s.patch(name, `{"metadata":{"labels":{"team":"salt"}}}`)
		s.patch(name, `{"spec":{"ports":[{"port":80,"name":"a"},{"port":81,"name":"b"}]}}`)
		if s.Until(5*time.Second, s.has(name, "2", "salt")) == nil {
			s.Mistake("creation lost", "a summary of the new Service "+name, "none, until its label and its ports were changed")
		}
		s.Fail("a summary of the new Service "+name, err.Error())
	}
}

// checkPredicate changes what a summary is made of, and what it is not made of.
func checkPredicate(c *check.C) {
	s := &summarizer{C: c, proxy: c.Proxy()}
	s.create("early")
	s.process = c.Start(testenv.Command{Path: c.Program(), Args: []string{"-namespace", c.Namespace}, Env: []string{"KUBECONFIG=" + s.proxy.Kubeconfig}})
	s.looked()
	// What is there at the start comes in any order, and after what comes later.
	if err := s.Until(check.Patience(15*time.Second), s.has("early", "1", "sweets")); err != nil {
		c.Mistake("only what comes later", "a summary of the Service early, which was there before the program", err.Error())
	}
	s.create("web")
	s.looked()

	s.patch("web", `{"metadata":{"labels":{"team":"salt"}}}`)
	s.looked()
	label := s.has("web", "1", "salt")(c.Context())
	s.patch("web", `{"spec":{"ports":[{"port":80,"name":"http"},{"port":443,"name":"https"}]}}`)
	s.looked()
	now := s.has("web", "2", "salt")(c.Context())
	const relabelled, more = "the summary names the team salt, as the label of web does", "the summary has 2 ports, as web has"
	switch {
	case label != nil && now != nil && s.has("web", "1", "sweets")(c.Context()) == nil:
		s.patch("web", `{"metadata":{"labels":{"team":"sour"}},"spec":{"ports":[{"port":80}]}}`)
		s.patch("web", `{"metadata":{"labels":{"team":"salt"}},"spec":{"ports":[{"port":80,"name":"http"},{"port":443,"name":"https"}]}}`)
		if s.looked(); s.has("web", "2", "salt")(c.Context()) == nil {
			c.Mistake("both at once", "a look when the label or the number of ports of web changes", "none after a change of the label, none after one of the ports, and one when both had changed")
		}
		c.Mistake("generation only", relabelled+", and has 2 ports", now.Error())
	case label != nil:
		c.Mistake("label ignored", relabelled, label.Error())
	case now != nil:
		c.Mistake("ports ignored", more, now.Error())
	}

	three := `"ports":[{"port":80,"name":"a"},{"port":81,"name":"b"},{"port":82,"name":"c"}]`
	for _, change := range []struct{ patch, ports, team, when, mistake string }{
		{`{"metadata":{"labels":{"team":null}}}`, "2", "", "when the label goes", "label ignored"},
		{`{"metadata":{"labels":{"team":"salt"}}}`, "2", "salt", "when the label comes", "label ignored"},
		{`{"metadata":{"labels":{"team":"Salt"}}}`, "2", "Salt", "when the label is written in another way", "label ignored"},
		{`{"spec":{"ports":[{"port":80,"name":"http"}]}}`, "1", "Salt", "when a port goes", "ports ignored"},
		{`{"spec":{` + three + `}}`, "3", "Salt", "when there are 3 ports in the place of 1", "ports ignored"},
		{`{"spec":{"ports":[{"port":80,"name":"a"},{"port":81,"name":"b"}]}}`, "2", "Salt", "when there are 2 ports in the place of 3", "ports ignored"},
		{`{"metadata":{"labels":{"team":"sour"}},"spec":{` + three + `}}`, "3", "sour", "when the label and the number of ports change at once", ""},
		{`{"metadata":{"labels":{"team":"salt"},"annotations":{"size":"large"}},"spec":{"selector":{"app":"salt"},"ports":[{"port":80,"name":"http"}]}}`,
			"1", "salt", "when an annotation and the selector change as well", ""},
		{`{"spec":{"type":"ExternalName","externalName":"example.com","ports":null}}`, "0", "salt", "when the last port goes", "ports ignored"},
		{`{"spec":{"ports":[{"port":80,"name":"http"}]}}`, "1", "salt", "when the first port comes", "ports ignored"},
	} {
		s.patch("web", change.patch)
		s.looked()
		if err := s.has("web", change.ports, change.team)(c.Context()); err != nil {
			expected, held := "a look at web "+change.when, err.Error()+", as before the update "+change.patch
			if change.mistake == "" {
				c.Fail(expected, held+", which your predicate has dropped, though it passes each of the changes alone")
			}
			c.Mistake(change.mistake, expected, held)
		}
	}
	// The same change of another Service is one, too.
	s.patch("early", `{"metadata":{"labels":{"team":"salt"}}}`)
	s.looked()
	if err := s.has("early", "1", "salt")(c.Context()); err != nil {
		c.Mistake("remembers", "a look at early when its label becomes salt, which that of web is, too", err.Error())
	}

	asks := func() int { // for each look the Service, or its summary
		return s.proxy.Count(faultproxy.Match{Verb: "get", Resource: "services", Name: "web"}) + s.proxy.Count(faultproxy.Match{Verb: "get", Resource: "configmaps", Name: "web-summary"})
	}
	for _, change := range []struct{ of, patch, subresource string }{
		{"an annotation", `{"metadata":{"annotations":{"color":"blue"}}}`, ""},
		{"another label", `{"metadata":{"labels":{"tier":"front"}}}`, ""},
		{"its finalizers", `{"metadata":{"finalizers":["example.com/wait"]}}`, ""},
		{"its finalizers", `{"metadata":{"finalizers":null}}`, ""},
		{"its type", `{"spec":{"type":"ClusterIP","externalName":null}}`, ""},
		{"the selector", `{"spec":{"selector":{"app":"web"}}}`, ""},
		{"the session affinity", `{"spec":{"sessionAffinity":"ClientIP"}}`, ""},
		{"the number that its port has", `{"spec":{"ports":[{"port":81,"name":"http"}]}}`, ""},
		{"the name of its port", `{"spec":{"ports":[{"port":81,"name":"web"}]}}`, ""},
		{"the protocol of its port", `{"spec":{"ports":[{"port":81,"name":"web","protocol":"UDP"}]}}`, ""},
		{"its status", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Tried","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "status"},
	} {
		before := asks()
		s.patch("web", change.patch, change.subresource)
		s.looked()
		if n := asks() - before; n > 0 {
			c.Mistake("everything passes", "no look at web after a change of "+change.of+", of which its summary says nothing", fmt.Sprintf("%d requests for web and its summary after the update %s", n, change.patch))
		}
	}

	s.createOf("plain", nil)
	s.looked()
	if err := s.has("plain", "1", "")(c.Context()); err != nil {
		c.Mistake("creation by label", "a summary of the new Service plain, which has no label team", err.Error())
	}
	_, err := c.Client.CoreV1().Services(c.Namespace).Create(c.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "portless"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}}, metav1.CreateOptions{})
	c.Must(err)
	s.looked()
	if err := s.has("portless", "0", "")(c.Context()); err != nil {
		c.Fail("a summary of the new Service portless, which has no ports", err.Error()+"; your predicate drops the creation of a Service for something in it, and each Service has a summary")
	}
	s.patch("portless", `{"metadata":{"labels":{"team":"salt"}}}`)
	s.looked()
	if err := s.has("portless", "0", "salt")(c.Context()); err != nil {
		c.Mistake("label ignored", "a look when the label of a Service without ports comes", err.Error())
	}

	// A finalizer keeps what was deleted, and its label can still change.
	s.patch("early", `{"metadata":{"finalizers":["example.com/wait"]}}`)
	remove := func(names ...string) {
		for _, name := range names {
			c.Must(c.Client.CoreV1().Services(c.Namespace).Delete(c.Context(), name, metav1.DeleteOptions{}))
		}
	}
	remove("early")
	s.patch("early", `{"metadata":{"labels":{"team":"last"}}}`)
	s.looked()
	now = s.has("early", "1", "last")(c.Context())
	s.patch("early", `{"metadata":{"finalizers":null}}`)
	if now != nil {
		c.Mistake("label ignored", "a look when the label of a Service changes that is being deleted", now.Error())
	}

	gone := func(mistake string, names ...string) {
		for _, name := range names {
			if m, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(c.Context(), name+"-summary", metav1.GetOptions{}); err == nil {
				c.Mistake(mistake, "no summary of "+name+", which was deleted", fmt.Sprintf("the ConfigMap %s, which says %v", m.Name, m.Data))
			}
		}
	}
	remove("web", "plain", "portless")
	s.looked()
	gone("deletion lost", "web", "plain", "portless", "early")
	s.createOf("web", map[string]string{"team": "salt"})
	s.looked()
	if err := s.has("web", "1", "salt")(c.Context()); err != nil {
		c.Mistake("creation lost", "a summary of the Service web, which was made again as it was", err.Error())
	}

	// The cache hears of a deletion by its next list, because the event is lost, and then the history, too.
	watches := faultproxy.Match{Verb: "watch*", Resource: "services"}
	s.proxy.MustInject(faultproxy.Rule{Match: watches, Event: "DELETED", Object: "web", Fault: faultproxy.Drop})
	remove("web")
	s.looked()
	expired := s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: "services"}, Fault: faultproxy.ErrorEvent, Code: 410})
	s.proxy.Cut(watches)
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if expired.Struck() == 0 {
			return errors.New("the watch of Services has not begun anew")
		}
		return nil
	}))
	s.looked() // its Service may be in that list
	s.looked()
	gone("deletion found late", "web")
}

// checkSuite runs a learner's suite with webhooks that it has to tell from the right one.
func checkSuite(c *check.C) {
	const right = "a suite that is green with the right webhook"
	written, err := os.ReadFile(c.Path("webhook_test.go"))
	c.Must(err)
	if !regexp.MustCompile(`\b[PXF]?(It|Specify|Entry)\(`).Match(written) {
		c.Fail("specs in webhook_test.go", "no It, Specify or Entry")
	}
	missing, err := pinned.ControlPlane.Missing(c.Workspace(), "etcd", "kube-apiserver")
	c.Must(err)
	if len(missing) > 0 {
		c.T.Fatalf("%q are not built; make up CLUSTER=kwok builds them", missing)
	}
	dir := c.T.TempDir()
	variants, err := filepath.Abs("exercises/variants.go.txt")
	c.Must(err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{c.Path("webhook.go"): variants}})
	c.Must(err)
	c.Must(os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	if err := proc.Go(c.Context(), proc.Cmd{Dir: c.Path("."), Env: workspace.Environ(),
		Args: []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "suite"), "."}}); err != nil {
		c.Fail("a suite that compiles", err.Error())
	}
	suite := func(environ ...string) testenv.Command {
		return testenv.Command{Path: filepath.Join(dir, "suite"), Args: []string{"-ginkgo.no-color"}, Timeout: 3 * time.Minute, Grace: 20 * time.Second,
			Env: append([]string{"TMPDIR=" + dir, "KUBEBUILDER_ASSETS=" + c.Workspace().Bin(""), "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=2m"}, environ...)}
	}
	first := suite()
	report := filepath.Join(dir, "report.json")
	first.Args = append(first.Args, "-ginkgo.json-report="+report)
	r := c.Run(first)
	// After a BeforeSuite that has failed, all are skipped, too.
	if states := strings.Join(statesOf(c, report), " or "); states == "pending" || r.ExitCode == 0 && (states == "skipped" || states == "pending or skipped") {
		c.Mistake("specs skipped", "a spec that runs to its end, with the right webhook", "all of them are "+states)
	}
	if r.ExitCode != 0 {
		c.Fail(right, r.Stdout+r.Stderr)
	}
	none := suite()
	none.Args = append(none.Args, "-ginkgo.focus=^no spec has this name$")
	if c.Run(none).ExitCode == 0 {
		c.Mistake("green without running", "a suite that fails when no spec runs", "it passes")
	}
	// Where envtest has other binaries, a suite may well run.
	if _, err := os.Stat("/usr/local/kubebuilder/bin"); errors.Is(err, os.ErrNotExist) && c.Run(suite("KUBEBUILDER_ASSETS=", "PATH=/usr/bin:/bin")).ExitCode == 0 {
		c.Mistake("skipped", "a suite that fails where KUBEBUILDER_ASSETS is not set and no API server can be started", "it passes")
	}
	if c.Run(suite("KUBEBUILDER_ASSETS="+filepath.Join(dir, "nothing"))).ExitCode == 0 {
		c.Mistake("skipped", "a suite that fails where KUBEBUILDER_ASSETS names a folder without an API server", "it passes")
	}

	// To start an API server for each of them would take most of the time, so they share one. A suite that passes there
	// has to pass with one of its own, too; and if it is not green there with the right webhook at the end, being red has
	// meant nothing, and all run once more, each with its own.
	kubeconfig := filepath.Join(dir, "kubeconfig")
	serve := suite("SERVE=" + kubeconfig)
	serve.Timeout = 10 * time.Minute
	c.Start(serve)
	c.Must(c.Until(2*time.Minute, func(context.Context) error {
		_, err := os.Stat(kubeconfig)
		return err
	}))
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	c.Must(err)
	client, err := kubernetes.NewForConfig(config)
	c.Must(err)
	passes := func(variant string) bool {
		c.Must(forget(c.Context(), client))
		return c.Run(suite("USE_EXISTING_CLUSTER=true", "KUBECONFIG="+kubeconfig, "VARIANT="+variant)).ExitCode == 0
	}
	for _, shared := range []bool{true, false} {
		for _, wrong := range []struct{ variant, mistake, is string }{
			{"yes", "accepts too much", "that refuses nothing"},
			{"unregistered", "calls the method", "that the API server does not find"},
			{"one more", "accepts too much", "that accepts one replica more than twice as many"},
			{"any deletion", "accepts too much", "that lets a Deployment with keep=true be deleted"},
			{"no update", "refuses too much", "that refuses each number of replicas"},
			{"not twice", "refuses too much", "that refuses twice as many replicas"},
			{"nothing from none", "refuses too much", "that refuses 2 replicas after 0"},
			{"all from none", "accepts too much", "that accepts 3 replicas after 0"},
			{"two more", "two alone", "that lets a Deployment have 2 replicas more, so 3 after 1, and 5 after 3"},
			{"no decrease", "refuses too much", "that refuses fewer replicas"},
			{"no deletion", "refuses too much", "that lets no Deployment be deleted"},
			{"any value", "refuses too much", "that lets no Deployment with a label keep be deleted, also not with keep=false"},
			{"update breaks", "any error", "that breaks down where it should refuse an update"},
			{"deletion breaks", "any error", "that breaks down where it should refuse a deletion"},
		} {
			if (!shared || passes(wrong.variant)) && c.Run(suite("VARIANT="+wrong.variant)).ExitCode == 0 {
				if wrong.variant == "unregistered" && !regexp.MustCompile(`Careful|Validate`).Match(written) {
					wrong.mistake = "any error"
				}
				c.Mistake(wrong.mistake, "a suite that fails with a webhook "+wrong.is, "it passes")
			}
		}
		if shared && passes("") {
			break
		}
	}
}

// statesOf are the states in which the specs of a suite have ended, or none if the suite writes no report.
func statesOf(c *check.C, report string) []string {
	data, err := os.ReadFile(report)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	c.Must(err)
	var suites []struct {
		SpecReports []struct{ LeafNodeType, State string }
	}
	c.Must(json.Unmarshal(data, &suites))
	states := map[string]bool{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType == "It" {
				states[spec.State] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(states))
}

// forget deletes what a suite may have left in an API server: webhooks, and Deployments, which no
// controller looks after there.
func forget(ctx context.Context, client kubernetes.Interface) error {
	all, background := metav1.ListOptions{}, metav1.DeletePropagationBackground
	now := metav1.DeleteOptions{PropagationPolicy: &background}
	err := errors.Join(client.AdmissionregistrationV1().ValidatingWebhookConfigurations().DeleteCollection(ctx, now, all),
		client.AdmissionregistrationV1().MutatingWebhookConfigurations().DeleteCollection(ctx, now, all))
	deployments, listing := client.AppsV1().Deployments("").List(ctx, all)
	if err = errors.Join(err, listing); err != nil {
		return err
	}
	for _, d := range deployments.Items {
		if err := client.AppsV1().Deployments(d.Namespace).Delete(ctx, d.Name, now); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
