package operatorsdk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedpolicy "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/rights"
	"github.com/k8s-go/workshop/internal/testenv"
)

const policyCRD = "../05-crd-go/config/crd/policy.k8s-go.openshift.org_healthcheckpolicies.yaml"

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"bundle": checkBundle, "graph": checkGraph, "score": checkScore})
}

// packagerOf runs packager for a check.
func packagerOf(c *check.C, args ...string) testenv.Result {
	return c.Run(testenv.Command{Path: c.Env.Program("./11-operator-sdk/packager"), Args: args})
}

// checkBundle puts the file into a bundle with its CRD, validates that, and grants its rights in the
// namespace of the check.
func checkBundle(c *check.C) {
	dir := c.T.TempDir()
	csv, err := os.ReadFile(c.Path("csv.yaml"))
	c.Must(err)
	crd, err := os.ReadFile(policyCRD)
	c.Must(err)
	const label = "operators.operatorframework.io.bundle."
	annotations, err := yaml.Marshal(map[string]any{"annotations": map[string]string{
		label + "mediatype.v1": "registry+v1", label + "manifests.v1": "manifests/", label + "metadata.v1": "metadata/",
		label + "package.v1": "healthcheckpolicy", label + "channels.v1": "stable", label + "channel.default.v1": "stable"}})
	c.Must(err)
	for name, data := range map[string][]byte{"manifests/csv.yaml": csv, "manifests/crd.yaml": crd, "metadata/annotations.yaml": annotations} {
		file := filepath.Join(dir, name)
		c.Must(os.MkdirAll(filepath.Dir(file), 0o755))
		c.Must(os.WriteFile(file, data, 0o644))
	}
	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			MinKubeVersion string `json:"minKubeVersion"`
			Replaces       string `json:"replaces"`
			InstallModes   []struct {
				Type      string `json:"type"`
				Supported bool   `json:"supported"`
			} `json:"installModes"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(csv, &object); err != nil {
		c.Fail("YAML", err.Error())
	}
	const valid = "packager validate finds no error"
	r := packagerOf(c, "validate", dir)
	for line := range strings.Lines(r.Stdout) {
		mistake := ""
		switch {
		case !strings.Contains(line, " error "):
			continue
		case strings.Contains(line, "a field that is lost"):
			mistake = "field lost"
		case strings.Contains(line, "does not end in .v"):
			mistake = "another version"
		case strings.Contains(line, "the CRD of HealthCheckPolicy is"):
			mistake = "another name"
		case strings.Contains(line, "asks for *"):
			mistake = "everything allowed"
		}
		if mistake != "" {
			c.Mistake(mistake, valid, line)
		}
	}
	if r.ExitCode != 0 {
		c.Fail(valid, errorsOf(r))
	}
	for _, field := range [][2]string{
		{"healthcheckpolicy.v1.2.0", object.Metadata.Name}, {"healthcheckpolicy.v1.1.0", object.Spec.Replaces}, {"1.31.0", object.Spec.MinKubeVersion},
	} {
		if field[0] != field[1] {
			c.Failf("name, replaces and minKubeVersion as the task says, and with them "+field[0], "%q", field[1])
		}
	}
	modes := map[string]bool{}
	for _, m := range object.Spec.InstallModes {
		if m.Supported { // left out is the same as not supported
			modes[m.Type] = true
		}
	}
	if want := map[string]bool{"OwnNamespace": true, "SingleNamespace": true, "AllNamespaces": true}; !maps.Equal(modes, want) {
		c.Mistake("install mode", fmt.Sprint(want), fmt.Sprint(modes))
	}
	checkRights(c, dir)
}

// errorsOf leaves the warnings out.
func errorsOf(r testenv.Result) string {
	lines := slices.DeleteFunc(strings.Split(r.Stdout+r.Stderr, "\n"), func(line string) bool { return strings.HasPrefix(line, "olm  warning") })
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// wanted are the operator's rights: verbs by group/resource.
var wanted = map[string][]string{
	"policy.k8s-go.openshift.org/healthcheckpolicies":        {"get", "list", "watch", "patch"},
	"policy.k8s-go.openshift.org/healthcheckpolicies/status": {"update"},
	"/pods":                       {"get", "list", "watch", "patch"},
	"/pods/eviction":              {"create"},
	"policy/poddisruptionbudgets": {"list", "watch"},
	"events.k8s.io/events":        {"create", "patch"},
}

// checkRights applies what the bundle grants, and asks the API server whether the operator's account may do
// all that it has to. What else is allowed, the rules say.
func checkRights(c *check.C, dir string) {
	r := packagerOf(c, "manifests", "-namespace", c.Namespace, dir)
	if r.ExitCode != 0 {
		c.Fail("manifests of the bundle", r.Stderr)
	}
	account, deployment, grants := "", "", ""
	var more, accounts []string
	for _, document := range strings.Split(r.Stdout, "---\n")[1:] {
		var o struct {
			Kind     string              `json:"kind"`
			Subjects []rbacv1.Subject    `json:"subjects"`
			Rules    []rbacv1.PolicyRule `json:"rules"`
			Spec     struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		c.Must(yaml.Unmarshal([]byte(document), &o))
		switch o.Kind {
		case "Deployment":
			deployment, account = document, cmp.Or(o.Spec.Template.Spec.ServiceAccountName, "default")
			if len(o.Spec.Template.Spec.Containers) == 0 {
				c.Fail("a Deployment with a container", "none")
			}
			run := o.Spec.Template.Spec.Containers[0]
			if !regexp.MustCompile(`--?namespace[= ]\$\(WATCH_NAMESPACE\)`).MatchString(strings.Join(slices.Concat(run.Command, run.Args), " ")) {
				c.Failf("the argument -namespace=$(WATCH_NAMESPACE), as in section 2", "the arguments %q, so the operator never hears of its namespace", run.Args)
			}
			for _, v := range run.Env {
				if v.Name == "WATCH_NAMESPACE" && (v.ValueFrom == nil || v.ValueFrom.FieldRef == nil || v.ValueFrom.FieldRef.FieldPath != "metadata.annotations['olm.targetNamespaces']") {
					c.Fail("WATCH_NAMESPACE from the annotation olm.targetNamespaces, as in section 2", "another source, which does not say where OLM has installed the operator")
				}
			}
		case "ClusterRole", "ClusterRoleBinding":
			c.Mistake("right too many", "Roles in a single namespace", "a "+o.Kind)
		case "Role", "RoleBinding", "ServiceAccount":
			grants += "---\n" + document
		}
		for _, subject := range o.Subjects {
			accounts = append(accounts, subject.Name)
		}
		for _, rule := range o.Rules {
			for r := range rights.Of(rule) {
				if !slices.Contains(wanted[r.Group+"/"+r.Resource], r.Verb) {
					more = append(more, r.Verb+" "+r.Resource)
				}
			}
		}
	}
	if grants == "" {
		c.Fail("rights", "none are asked for")
	}
	apply := func(objects string, args ...string) {
		if output, err := proc.Output(c.Context(), proc.Cmd{Path: c.Workspace().Bin("kubectl"), Args: append([]string{"apply", "--server-side", "-f", "-"}, args...),
			In: strings.NewReader(objects), Env: c.Cluster().Environ()}); err != nil {
			c.Fail("what the bundle installs, accepted by the API server", output+err.Error())
		}
	}
	apply(grants)
	apply(deployment, "--dry-run=server")

	strangers := slices.DeleteFunc(accounts, func(name string) bool { return name == account })
	var granted, missing []string
	rights.Settled(c)
	for _, what := range slices.Sorted(maps.Keys(wanted)) {
		group, resource, _ := strings.Cut(what, "/")
		name, sub, _ := strings.Cut(resource, "/")
		for _, verb := range wanted[what] {
			if rights.May(c, account, authorizationv1.ResourceAttributes{Group: group, Resource: name, Subresource: sub, Verb: verb}) {
				granted = append(granted, verb+" "+resource)
			} else {
				missing = append(missing, verb+" "+resource)
			}
		}
	}
	held := fmt.Sprintf("the account %q of the operator's pod may not %s", account, strings.Join(missing, ", "))
	switch {
	case len(granted) == 0:
		c.Mistake("nobody's rights", "rights of the account of the operator's pod", held)
	case len(missing) > 0:
		c.Mistake("right missing", "all rights that the operator needs", held)
	case len(more) > 0:
		c.Mistake("right too many", "no other rights", "the rules also allow "+strings.Join(more, ", "))
	case len(strangers) > 0:
		c.Mistake("right too many", "rights of the account "+account+" alone", "the accounts "+strings.Join(strangers, ", ")+" get some, too")
	}
}

// checkGraph follows each version to the end of its channel.
func checkGraph(c *check.C) {
	catalog, err := os.ReadFile(c.Path("channels.yaml"))
	c.Must(err)
	file := filepath.Join(c.T.TempDir(), "catalog.yaml")
	var rest strings.Builder
	rest.WriteString("\n---\n{schema: olm.package, name: parlour, defaultChannel: stable}\n")
	for _, version := range []string{"1.0.0", "1.2.0", "2.0.0", "2.1.0"} {
		fmt.Fprintf(&rest, "---\n{schema: olm.bundle, package: parlour, name: parlour.v%[1]s, image: parlour:%[1]s, properties: [{type: olm.package, value: {packageName: parlour, version: %[1]s}}]}\n", version)
	}
	c.Must(os.WriteFile(file, append(catalog, rest.String()...), 0o644))
	r := packagerOf(c, "upgrades", "-also", "parlour.v1.1.0", file)
	if r.ExitCode != 0 {
		c.Fail("a catalog that can be read", strings.ReplaceAll(r.Stderr, file, "channels.yaml"))
	}
	lines, err := linesOf(catalog)
	c.Must(err) // packager has read it
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if name != "stable" && name != "fast" {
			c.At("channels.yaml", lines[name][""])
			c.Failf("the channels stable and fast", "a third one, %q", name)
		}
	}
	edges, ends := map[string][]string{}, map[string][]string{} // by channel: "1.0.0 -> 1.2.0", and versions that lead nowhere
	for line := range strings.Lines(strings.ReplaceAll(r.Stdout, "parlour.v", "")) {
		channel, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if end, ok := strings.CutSuffix(text, " is the end"); ok {
			ends[channel] = append(ends[channel], end)
		} else {
			edges[channel] = append(edges[channel], text)
		}
	}
	for _, channel := range []string{"stable", "fast"} {
		head := map[string]string{"stable": "1.2.0", "fast": "2.1.0"}[channel]
		graph := fmt.Sprintf("the channel %s: %s", channel, strings.Join(edges[channel], ", "))
		has := func(edge string) bool { return slices.Contains(edges[channel], edge) }
		all := append(slices.Clone(ends[channel]), edges[channel]...)
		knows := func(version string) bool {
			return slices.ContainsFunc(all, func(s string) bool { return s == version || strings.HasPrefix(s, version+" ") })
		}
		others := slices.DeleteFunc(slices.Clone(ends[channel]), func(s string) bool { return s == head })
		// at has the verdict name the entry of a version in this channel, or the channel's first line.
		at := func(version string) {
			if line := cmp.Or(lines[channel]["parlour.v"+version], lines[channel][""]); line > 0 {
				c.At("channels.yaml", line)
			}
		}
		_, bad := lines[channel]["parlour.v1.1.0"]
		switch {
		case len(all) == 0:
			at("")
			c.Fail("entries in the channel "+channel, "none")
		case bad || slices.ContainsFunc(edges[channel], func(s string) bool { return strings.HasSuffix(s, "-> 1.1.0") }):
			at("1.1.0")
			c.Mistake("bad version offered", "no entry of 1.1.0 in the channel "+channel+", and no way to it", graph)
		case !slices.Contains(ends[channel], head) && len(ends[channel]) == 1:
			at(ends[channel][0])
			c.Mistake("another head", "the channel "+channel+" ends in "+head, graph+"; it ends in "+strings.Join(ends[channel], ", "))
		case len(others) > 0 && slices.Contains(others, "1.1.0"):
			at("1.2.0")
			c.Mistake("bad version kept", "a way from 1.1.0 to 1.2.0 in the channel "+channel, graph)
		case len(others) > 0:
			at(others[0])
			c.Mistake("dead end", "one end of the channel "+channel+", "+head, graph+"; these lead nowhere: "+strings.Join(others, ", "))
		case !has("1.1.0 -> 1.2.0") && !knows("1.1.0"):
			at("1.2.0")
			c.Mistake("bad version kept", "a way from 1.1.0 to 1.2.0 in the channel "+channel, graph)
		case lines[channel]["parlour.v1.0.0"] == 0:
			at("")
			c.Fail("the channel "+channel+" begins with 1.0.0", "it has no entry parlour.v1.0.0")
		}
		for _, edge := range edges[channel] {
			from, to, _ := strings.Cut(edge, " -> ")
			at(to)
			if to == "2.0.0" && from != "1.2.0" || to == "2.1.0" && from != "2.0.0" {
				c.Mistake("migration left out", "only 1.2.0 -> 2.0.0 and 2.0.0 -> 2.1.0", graph)
			}
			if to < from { // each number has one digit
				c.Fail("no way back", edge+" in the channel "+channel)
			}
			if !slices.Contains([]string{"1.0.0", "1.1.0", "1.2.0", "2.0.0"}, from) {
				c.Fail("ways from the versions that there are", edge+" in the channel "+channel)
			}
		}
		c.At("", 0)
	}
	if r := packagerOf(c, "check", file); r.ExitCode != 0 {
		c.Fail("a valid catalog", r.Stdout+r.Stderr)
	}
}

// linesOf returns the lines in which the entries of channels stand, by channel and name, and for the name "" the line in which the channel begins.
func linesOf(catalog []byte) (map[string]map[string]int, error) {
	lines := map[string]map[string]int{}
	for decoder := yamlv3.NewDecoder(bytes.NewReader(catalog)); ; {
		var document yamlv3.Node
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return lines, nil
		} else if err != nil {
			return nil, err
		}
		var channel struct {
			Name    string
			Entries []yamlv3.Node
		}
		if err := document.Decode(&channel); err != nil {
			return nil, err
		}
		if channel.Name == "" {
			continue // an empty document
		}
		lines[channel.Name] = map[string]int{"": document.Content[0].Line}
		for _, node := range channel.Entries {
			var entry struct{ Name string }
			if err := node.Decode(&entry); err != nil {
				return nil, err
			}
			lines[channel.Name][entry.Name] = node.Line
		}
	}
}

// A verdict names the entry of its own channel, also where another one has the same.
func TestLinesOf(t *testing.T) {
	t.Parallel()
	got, err := linesOf([]byte("# a comment\nname: stable\nentries:\n- name: a\n- {name: b, replaces: a}\n---\nentries:\n- replaces: a\n  name: b\nname: fast\n---\n"))
	if want := map[string]map[string]int{"stable": {"": 2, "a": 4, "b": 5}, "fast": {"": 7, "b": 8}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// A scoring is a check of the task score.
type scoring struct {
	*check.C
	proxy *testenv.Proxy
}

// state runs the learner's test, and returns the state in its result.
func (s *scoring) state(when string) (state, held string) {
	before := len(s.proxy.Requests(faultproxy.Writes))
	r := s.Run(testenv.Command{Path: s.Path("score.sh"), Timeout: check.Patience(45 * time.Second),
		Env: []string{"SCORECARD_NAMESPACE=" + s.Namespace, "KUBECONFIG=" + s.proxy.Kubeconfig, "PATH=" + filepath.Dir(s.Workspace().Bin("kubectl")) + ":" + os.Getenv("PATH")}})
	for _, request := range s.proxy.Requests(faultproxy.Writes)[before:] {
		if asks := request.Group == "authorization.k8s.io" || request.Group == "authentication.k8s.io"; !asks && request.Namespace != s.Namespace {
			s.Mistake("another namespace", "writes in the namespace "+s.Namespace, fmt.Sprintf("%s %s in the namespace %q", request.Verb, request.Resource, request.Namespace))
		}
	}
	var status struct {
		Results []struct {
			State  string   `json:"state"`
			Errors []string `json:"errors"`
		} `json:"results"`
	}
	switch err := json.Unmarshal([]byte(r.Stdout), &status); {
	case r.TimedOut:
		s.Fail(when+", a result", "none within "+r.Took.Round(time.Second).String())
	case strings.TrimSpace(r.Stdout) == "":
		s.Fail(when+", a TestStatus on the standard output", "nothing; and on the standard error: "+r.Stderr)
	case err != nil:
		s.Mistake("more than a result", when+", one TestStatus on the standard output", r.Stdout)
	case len(status.Results) != 1:
		s.Failf(when+", one result", "%d", len(status.Results))
	}
	if err := s.Until(check.Patience(10*time.Second), s.empty); err != nil {
		s.Mistake("left behind", when+", nothing is left in the namespace", err.Error())
	}
	result, said := status.Results[0], ""
	if lines := strings.TrimSpace(proc.LastLines(r.Stderr, 5)); lines != "" {
		said = "\nand on the standard error:\n" + lines
	}
	if !slices.Contains([]string{"pass", "fail", "error"}, result.State) {
		s.Fail(when+", the state pass, fail or error", result.State)
	}
	if result.State == "fail" && strings.TrimSpace(strings.Join(result.Errors, "")) == "" {
		s.Fail(when+", an error that says what the operator did not do", "fail without one")
	}
	return result.State, "the state " + result.State + " and the errors " + fmt.Sprintf("%q", result.Errors) + said
}

// empty says what is in the namespace.
func (s *scoring) empty(ctx context.Context) error {
	pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	policies, err := s.policies().List(ctx, metav1.ListOptions{})
	if err == nil && len(pods.Items)+len(policies.Items) > 0 {
		err = fmt.Errorf("%d pods and %d policies", len(pods.Items), len(policies.Items))
	}
	if err != nil {
		return err
	}
	left, err := s.Client.CoreV1().ConfigMaps(s.Namespace).List(ctx, metav1.ListOptions{})
	if err == nil { // what Kubernetes, OpenShift and Istio put into each namespace is nobody's
		left.Items = slices.DeleteFunc(left.Items, func(cm corev1.ConfigMap) bool {
			return slices.Contains([]string{"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"}, cm.Name)
		})
	}
	if err == nil && len(left.Items) > 0 {
		err = fmt.Errorf("%d ConfigMaps", len(left.Items))
	}
	return err
}

func (s *scoring) policies() typedpolicy.HealthCheckPolicyInterface {
	client, err := versioned.NewForConfig(s.Config)
	s.Must(err)
	return client.PolicyV1alpha1().HealthCheckPolicies(s.Namespace)
}

// checkScore runs the learner's test where nobody works, with operators that mark too much or late, where
// something cannot be created, and with the operator of step 06.
func checkScore(c *check.C) {
	crdtest.Share(c.T, c.Env, policyCRD)
	s := &scoring{c, c.Proxy()}
	switch state, held := s.state("without an operator"); state {
	case "error":
		c.Mistake("operator excused", "fail, because no operator runs", held)
	case "pass":
		c.Mistake("always passes", "fail, because no operator runs", held)
	}
	for _, wrong := range []struct {
		mistake, is, because string
		marks                func(probed, selected bool) bool
	}{
		{"one side only", "that marks all pods which the policy selects", "a pod with probes is marked", func(_, selected bool) bool { return selected }},
		{"selector ignored", "that marks all pods without probes", "a pod is marked that the selector does not select", func(probed, _ bool) bool { return !probed }},
	} {
		end := s.operator(wrong.marks, func() bool { return true })
		switch state, held := s.state("with an operator " + wrong.is); state {
		case "error":
			c.Fail("fail, because "+wrong.because, held)
		case "pass":
			c.Mistake(wrong.mistake, "fail, because "+wrong.because, held)
		}
		end()
	}

	// Somebody who looks seldom or not at all is not told sooner, so that a slow machine does not help.
	var begun time.Time
	looks := faultproxy.Match{Resource: "pods", If: func(r faultproxy.Request) bool { return !r.Write() }}
	before := s.proxy.Count(looks)
	end := s.operator(func(probed, selected bool) bool { return selected && !probed }, func() bool {
		if begun.IsZero() {
			begun = time.Now()
		}
		took := time.Since(begun)
		return took > 7*time.Second || took > 4*time.Second && s.proxy.Count(looks) >= before+8
	})
	if state, held := s.state("with an operator that takes some seconds"); state == "fail" {
		c.Mistake("no patience", "pass, because it has marked the right pods within 7 seconds", held)
	} else if state != "pass" {
		c.Fail("pass, because it has marked the right pods within 7 seconds", held)
	}
	end()

	made := func(r faultproxy.Request) bool { return r.Write() && !strings.HasPrefix(r.Verb, "delete") }
	policies := s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Resource: "healthcheckpolicies", If: made}, Fault: faultproxy.Answer, Code: http.StatusForbidden, Times: -1})
	switch state, held := s.state("where no policy can be created"); state {
	case "fail":
		c.Mistake("operator blamed", "error, because the API server refuses the policy", held)
	case "pass":
		c.Fail("error, because the API server refuses the policy", held)
	}
	policies.Remove()
	quotas := c.Client.CoreV1().ResourceQuotas(c.Namespace)
	_, err := quotas.Create(c.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}, metav1.CreateOptions{})
	c.Must(err)
	c.Must(c.Until(time.Minute, func(ctx context.Context) error { // until the quota counts
		_, err := c.Client.CoreV1().Pods(c.Namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "refused"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "workshop/pause:1"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("a pod was admitted")
		}
		return nil
	}))
	switch state, held := s.state("where no pod can be created"); state {
	case "fail":
		c.Mistake("operator blamed", "error, because a quota refuses the pods", held)
	case "pass":
		c.Fail("error, because a quota refuses the pods", held)
	}
	c.Must(quotas.Delete(c.Context(), "none", metav1.DeleteOptions{}))

	operator := c.Start(testenv.Command{Path: c.Env.Program("./06-controller/healthcheckpolicy"), Args: []string{"-namespace", c.Namespace}, Timeout: 5 * time.Minute})
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if !strings.Contains(operator.Stderr(), "Listening") {
			return fmt.Errorf("the operator of step 06 has not started:\n%s", operator.Stderr())
		}
		return nil
	}))
	if state, held := s.state("with the operator of step 06"); state != "pass" {
		c.Fail("pass with the operator of step 06, which marks a selected pod without probes at once, and no other one", held)
	}
}

// operator is one that marks the pods for which marks says so, as soon as there is a policy and ready says so, and that reports what it
// should have done. A pod that is not to be marked comes first, so whoever sees the right mark can see the wrong one.
func (s *scoring) operator(marks func(probed, selected bool) bool, ready func() bool) (end func()) {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	policies, pods := s.policies(), s.Client.CoreV1().Pods(s.Namespace)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if all, err := policies.List(ctx, metav1.ListOptions{}); err == nil {
				for _, p := range all.Items {
					if !ready() {
						continue
					}
					if meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionCompliant, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProbesMissing}) {
						_, _ = policies.UpdateStatus(ctx, &p, metav1.UpdateOptions{})
					}
					selector, err := metav1.LabelSelectorAsSelector(&p.Spec.Selector)
					if err != nil {
						continue
					}
					there, err := pods.List(ctx, metav1.ListOptions{})
					if err != nil {
						continue
					}
					probed := func(pod corev1.Pod) bool {
						run := pod.Spec.Containers[0]
						return run.LivenessProbe != nil && run.ReadinessProbe != nil
					}
					due := func(pod corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) && !probed(pod) }
					for _, first := range []bool{true, false} {
						for _, pod := range there.Items { // an error is tried again
							if due(pod) != first && marks(probed(pod), selector.Matches(labels.Set(pod.Labels))) {
								_, _ = pods.Patch(ctx, pod.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, p.Spec.PodLabel), metav1.PatchOptions{})
							}
						}
					}
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}
