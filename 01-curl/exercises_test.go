package curl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		"patch": checkPatch, "follow": checkFollow, "counter": checkCounter,
		"unlabel": checkUnlabel, "select": checkSelect, "page": checkPage, "fold": checkFold, "provoke": checkProvoke,
	})
}

// checkPatch runs the four functions of patch.sh one after the other, on a Deployment into which
// somebody puts a container, first in front of the others and then between them.
func checkPatch(c *check.C) {
	deployments := c.Client.AppsV1().Deployments(c.Namespace)
	labels := map[string]string{"app": "patched"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "patched", Annotations: map[string]string{"team": "web"}}}
	d.Spec.Replicas = new(int32) // nobody looks for these images
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "web", Image: "example/web:1", Args: []string{"--port", "80"}, Env: []corev1.EnvVar{{Name: "MODE", Value: "debug"}, {Name: "TRACE", Value: "on"}}},
		{Name: "log", Image: "example/log:1", Args: []string{"--level", "info"}},
	}
	_, err := deployments.Create(c.Context(), d, metav1.CreateOptions{FieldManager: "check"})
	c.Must(err)
	p := c.Proxy()
	p.KeepBodies()
	// patch returns what the Deployment is like after it.
	patch := func(function, value string) (testenv.Result, string) {
		r := c.Run(testenv.Command{Path: c.Path("patch.sh"), Args: []string{function, value}, Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
		d, err := deployments.Get(c.Context(), "patched", metav1.GetOptions{})
		c.Must(err)
		text := "containers"
		for _, container := range d.Spec.Template.Spec.Containers {
			text += " " + container.Name + "=" + strings.TrimPrefix(container.Image, "example/")
			if len(container.Args) > 0 {
				text += "(" + strings.Join(container.Args, " ") + ")"
			}
			for _, v := range container.Env {
				text += " " + v.Name + "=" + v.Value
			}
		}
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

	r, held := patch("log", "warn")
	want(r, "containers web=web:1(--port 80) MODE=debug TRACE=on log=log:1(--level warn)", held)

	other := func(operation string) {
		_, err := deployments.Patch(c.Context(), "patched", types.JSONPatchType, []byte("["+operation+"]"), metav1.PatchOptions{FieldManager: "check"})
		c.Must(err)
	}
	// refused says that log must not change the second container, which has another argument by then.
	refused := func(level, changed, untouched string) {
		r, held := patch("log", level)
		if strings.Contains(held, changed) {
			c.Mistake("no test operation", "a refusal, because the second container is not log", held)
		}
		if r.ExitCode == 0 || !strings.HasPrefix(held, untouched+"; patch.sh log ended with exit code ") {
			c.Fail("a refusal, because the second container is not log", held)
		}
	}
	other(`{"op": "add", "path": "/spec/template/spec/containers/0", "value": {"name": "proxy", "image": "example/proxy:1"}}`)
	refused("error", "(--port error)", "containers proxy=proxy:1 web=web:1(--port 80) MODE=debug TRACE=on log=log:1(--level warn)")
	other(`{"op": "remove", "path": "/spec/template/spec/containers/0"}`)
	r, held = patch("log", "error")
	want(r, "containers web=web:1(--port 80) MODE=debug TRACE=on log=log:1(--level error)", held)
	other(`{"op": "add", "path": "/spec/template/spec/containers/1", "value": {"name": "proxy", "image": "example/proxy:1", "args": ["--level", "debug"]}}`)
	refused("info", "proxy=proxy:1(--level info)", "containers web=web:1(--port 80) MODE=debug TRACE=on proxy=proxy:1(--level debug) log=log:1(--level error)")

	before := p.Count(faultproxy.Match{Verb: "patch"})
	r, held = patch("web", "example/web:2")
	const merged = "containers web=web:2(--port 80) MODE=test TRACE=on proxy=proxy:1(--level debug) log=log:1(--level error)"
	if !strings.Contains(held, " log=") && strings.HasPrefix(held, "containers web=web:2") {
		c.Mistake("list replaced by merge", merged, held)
	}
	want(r, merged, held)
	is := func(patch types.PatchType) { // the others can do the same here, and are asked for elsewhere
		for _, r := range p.Requests(faultproxy.Match{Verb: "patch"})[before:] {
			if kind, _, _ := strings.Cut(r.Content, ";"); kind != string(patch) {
				c.Fail("a patch of the type "+string(patch), r.Content)
			}
		}
	}
	is(types.StrategicMergePatchType)

	d, err = deployments.Get(c.Context(), "patched", metav1.GetOptions{})
	c.Must(err)
	spec := d.Spec
	before = p.Count(faultproxy.Match{Verb: "patch"})
	r, held = patch("owner", "anna")
	want(r, merged, held)
	is(types.MergePatchType)
	d, err = deployments.Get(c.Context(), "patched", metav1.GetOptions{})
	c.Must(err)
	if d.Annotations["owner"] != "anna" || d.Annotations["team"] != "web" {
		c.Failf("the annotations owner=anna and team=web", "%v", d.Annotations)
	}
	if !equality.Semantic.DeepEqual(d.Spec, spec) {
		c.Failf("a patch of the annotation only", "another spec; the annotations of the template are %v", d.Spec.Template.Annotations)
	}

	r, held = patch("metrics", "example/metrics:1")
	const applied = merged + " metrics=metrics:1"
	if strings.Contains(r.Stdout+r.Stderr, "409") {
		c.Mistake("no force", applied, "HTTP 409: "+held)
	}
	d, err = deployments.Get(c.Context(), "patched", metav1.GetOptions{})
	c.Must(err)
	var managers []string
	for _, f := range d.ManagedFields {
		if f.Manager == "patch-sh" && f.Operation == metav1.ManagedFieldsOperationApply {
			var set any
			c.Must(json.Unmarshal(f.FieldsV1.GetRawBytes(), &set))
			for _, field := range owned("", set) {
				if field != " f:spec f:revisionHistoryLimit" && !strings.HasPrefix(field, ` f:spec f:template f:spec f:containers k:{"name":"metrics"}`) {
					c.Mistake("more than it sets", "an apply of the container metrics and of revisionHistoryLimit", "patch-sh also owns"+field)
				}
			}
		}
		managers = append(managers, f.Manager+" "+string(f.Operation))
	}
	want(r, applied, held)
	if limit := *d.Spec.RevisionHistoryLimit; limit != 3 { // which has a default
		c.Failf("revisionHistoryLimit 3", "revisionHistoryLimit %d", limit)
	}
	if !slices.Contains(managers, "patch-sh Apply") {
		c.Failf("an entry patch-sh Apply in managedFields", "%s", strings.Join(managers, ", "))
	}
}

// owned returns the paths of a set of fields.
func owned(path string, set any) (paths []string) {
	fields, _ := set.(map[string]any)
	if len(fields) == 0 {
		return []string{path}
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		paths = append(paths, owned(path+" "+key, fields[key])...)
	}
	return paths
}

// said is what a script printed and how it ended, for a verdict.
func said(r testenv.Result) string {
	return fmt.Sprintf("exit code %d and\n%s", r.ExitCode, strings.TrimSpace(r.Stdout+r.Stderr))
}

func createFor(c *check.C, names ...string) {
	for _, name := range names {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		c.Must(err)
	}
}

// bundled waits for the ConfigMap that every namespace gets, so that it comes at no other time.
func bundled(c *check.C) {
	c.Must(c.Until(check.Patience(30*time.Second), func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	}))
}

func checkUnlabel(c *check.C) {
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	_, err := configMaps.Create(c.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "page", Labels: map[string]string{"draft": "yes", "team": "web"}, Annotations: map[string]string{"note": "kept"}},
		Data:       map[string]string{"text": "kept"},
	}, metav1.CreateOptions{})
	c.Must(err)
	r := c.Run(testenv.Command{Path: c.Path("unlabel.sh"), Args: []string{"page"}})
	cm, err := configMaps.Get(c.Context(), "page", metav1.GetOptions{})
	c.Must(err)
	const expected = "labels map[owner:me team:web], annotations map[note:kept], data map[text:kept]"
	held := fmt.Sprintf("labels %v, annotations %v, data %v", cm.Labels, cm.Annotations, cm.Data)
	if owner := cm.Labels["owner"]; r.ExitCode == 0 && owner == "me" {
		switch draft, ok := cm.Labels["draft"]; {
		case ok && draft == "":
			c.Mistake("label emptied", expected, held)
		case draft == "yes":
			c.Mistake("label still there", expected, held)
		}
	}
	if r.ExitCode != 0 || held != expected {
		c.Failf(expected, "%s; %s", held, said(r))
	}
}

func checkSelect(c *check.C) {
	for name, labels := range map[string]map[string]string{
		"db": {"tier": "db"}, "web": {"tier": "web"}, "cache": {"tier": "cache"}, "queue": {"tier": "queue"}, "own": {"tier": c.Namespace}, "plain": nil,
		"old-db": {"tier": "db", "retired": ""}, "old-web": {"tier": "web", "retired": "yes"}, "old-queue": {"tier": "queue", "retired": "yes"},
		"older-web": {"tier": "web", "retired": c.Namespace},
	} {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		c.Must(err)
	}
	r := c.Run(testenv.Command{Path: c.Path("select.sh")})
	const expected = "db and web"
	names := strings.Fields(r.Stdout)
	got := strings.Join(names, " ")
	others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "db" || name == "web" })
	const all = "old-db old-web older-web"
	retired := len(names) == len(others)+2 && !slices.ContainsFunc(others, func(name string) bool { return !strings.Contains(all, name) })
	switch {
	case r.ExitCode != 0:
		c.Fail(expected, said(r))
	case retired && strings.Join(others, " ") == all:
		c.Mistake("retired ones too", expected, got)
	case retired && len(others) > 0:
		c.Mistake("value instead of key", expected, got)
	case got == "" && c.Matches("comma taken for or"):
		c.Mistake("comma taken for or", expected, "no name")
	case got == "":
		c.Fail(expected, "no name")
	case got != "db web":
		c.Fail(expected, got)
	}
}

// checkPage deletes an object of the second page when the first has been read.
func checkPage(c *check.C) {
	createFor(c, "anna", "bert", "carl", "dora", "emma")
	bundled(c)
	p := c.Proxy()
	p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "list", Resource: "configmaps"}, Fault: faultproxy.CallAnswered, Call: func(ctx context.Context, _ faultproxy.Request) error {
		return c.Client.CoreV1().ConfigMaps(c.Namespace).Delete(ctx, "carl", metav1.DeleteOptions{})
	}})
	r := c.Run(testenv.Command{Path: c.Path("page.sh"), Args: []string{"2"}, Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	const expected = "carl dora, although carl was deleted between the pages"
	got := strings.Join(strings.Fields(r.Stdout), " ")
	switch {
	case r.ExitCode != 0:
		c.Fail(expected, said(r))
	case got == "anna bert":
		c.Mistake("first page again", expected, got)
	case got == "carl dora emma kube-root-ca.crt":
		c.Mistake("no limit", expected, got)
	case got != "carl dora":
		c.Fail(expected, got)
	}
	if r := c.Run(testenv.Command{Path: c.Path("page.sh"), Args: []string{"1"}}); strings.TrimSpace(r.Stdout) != "bert" {
		c.Fail("bert, with pages of one", said(r))
	}
}

// checkFold lets something happen before the script begins, so that its watch gets the
// events at once; then it answers the watch with an ERROR.
func checkFold(c *check.C) {
	bundled(c)
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	list, err := configMaps.List(c.Context(), metav1.ListOptions{})
	c.Must(err)
	createFor(c, "a.b", "anna", "axb", "bert", "bert-2", "old-bert")
	_, err = configMaps.Patch(c.Context(), "anna", types.MergePatchType, []byte(`{"data":{"a":"1"}}`), metav1.PatchOptions{})
	c.Must(err)
	for _, name := range []string{"bert", "a.b"} {
		c.Must(configMaps.Delete(c.Context(), name, metav1.DeleteOptions{}))
	}

	p := c.Proxy()
	fold := func(happened int) (r testenv.Result) {
		check.UntilSeen(p, faultproxy.Watches, happened, func() {
			r = c.Run(testenv.Command{Path: c.Path("fold.sh"), Args: []string{list.ResourceVersion}, Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
		})
		return r
	}
	r := fold(9)
	const expected = "anna, axb, bert-2 and old-bert"
	got := strings.Fields(r.Stdout)
	switch held := strings.Join(got, " "); {
	case r.ExitCode != 0:
		c.Fail(expected, said(r))
	case slices.Contains(got, "bert") && slices.Contains(got, "a.b"):
		c.Mistake("deletion ignored", expected, held)
	case held == "anna anna axb bert-2 old-bert":
		c.Mistake("change taken for a new object", expected, held)
	case held == "":
		c.Fail(expected, "no name at all; a command that writes to the file that it reads, for example, finds it empty")
	case len(got) < 4 && slices.Contains(got, "anna") && !slices.Contains(got, "bert") && !slices.Contains(got, "a.b"):
		c.Mistake("others removed", expected, held)
	case held != "anna axb bert-2 old-bert":
		c.Fail(expected, held)
	}

	list, err = configMaps.List(c.Context(), metav1.ListOptions{})
	c.Must(err)
	createFor(c, "zoe")
	c.Must(configMaps.Delete(c.Context(), "zoe", metav1.DeleteOptions{}))
	if r = fold(2); r.ExitCode != 0 || strings.TrimSpace(r.Stdout) != "" {
		c.Mistake("the last one stays", "no name, because zoe has come and gone", said(r))
	}

	p.MustInject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone})
	if r = fold(0); r.ExitCode == 0 {
		c.Mistake("error ignored", "another exit code than 0 after an ERROR event", said(r))
	}
	if r.Stdout != "" {
		c.Fail("no names after an ERROR event", said(r))
	}
}

func checkProvoke(c *check.C) {
	createFor(c, "shared")
	p := c.Proxy()
	r := c.Run(testenv.Command{Path: c.Path("provoke.sh"), Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	const expected = "a PUT that is refused with 409 Conflict"
	var accepted, exists bool
	for _, request := range p.Requests(faultproxy.Match{Resource: "configmaps"}) {
		switch {
		case request.Verb == "update" && request.Code == http.StatusConflict:
			if r.ExitCode != 0 || strings.TrimSpace(r.Stdout) != "409 Conflict" {
				c.Mistake("answer not printed", "409 Conflict, which the script takes out of the answer, and exit code 0", said(r))
			}
			return
		case request.Verb == "update" && request.Code == http.StatusOK:
			accepted = true
		case request.Verb == "create" && request.Code == http.StatusConflict:
			exists = true
		}
	}
	switch {
	case accepted:
		c.Mistake("accepted", expected, "a PUT that was answered with 200")
	case exists:
		c.Mistake("another reason", expected, "a POST that was refused with 409 AlreadyExists")
	}
	c.Fail(expected, said(r))
}

// patience is for a script that says nothing more, because of a mistake that no check
// knows: nothing else shows that.
var patience = check.Patience(20 * time.Second)

// checkFollow keeps a mirror from what follow.sh prints, changes, creates and deletes while a
// watch is open and while none is, and says to a watch that this history is gone.
func checkFollow(c *check.C) {
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	createFor(c, "aaron", "anna", "bert")
	bundled(c)

	p := c.Proxy()
	watches, lists := faultproxy.Match{Verb: "watch", Resource: "configmaps"}, faultproxy.Match{Verb: "list", Resource: "configmaps"}
	script := c.Start(testenv.Command{Path: c.Path("follow.sh"), Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	known := map[string]bool{"aaron": true, "a.b": true, "axb": true, "cora": true, "old-bert": true, "anna": true, "bert": true, "kube-root-ca.crt": true, "carl": true, "dora": true, "emma": true, "fred": true, "gina": true, "hugo": true}
	resumed := false
	var struck func() int
	cut := false // whether a watch has ended by now
	// needless is about lists that are certain by then, because something that came later was seen.
	needless := func(lists int, after string) {
		if lists > 0 {
			c.Mistake("listed without need", "no list after "+after, fmt.Sprintf("list requests: %d", lists))
		}
	}
	ignored := func() {
		for _, r := range p.Requests(watches) {
			if q, err := url.ParseQuery(r.Query); err == nil && (q.Get("resourceVersion") == "" || q.Get("resourceVersion") == "0") {
				c.Mistake("watched from now", "a watch from the version of the list", "?"+r.Query)
			}
		}
		if struck != nil && struck() > 2 {
			c.Mistake("error ignored", "a list after the ERROR event with code 410", fmt.Sprintf("%d more watches from the same version, and no list", struck()-1))
		}
	}
	// wait waits until the mirror is right. When it has emma, which comes last, what is
	// wrong in it will not be mended: the script prints what happens in its order.
	wait := func(expected string, mistake func(missing, ghosts []string)) {
		err := c.Until(patience, func(ctx context.Context) error {
			ignored()
			mirror, had, doubled := map[string]bool{}, map[string]bool{}, ""
			for line := range strings.Lines(script.Stdout()) {
				sign, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
				switch {
				case !strings.HasSuffix(line, "\n"): // not yet whole
				case !ok || sign != "+" && sign != "-":
					c.Failf(`lines "+ NAME" and "- NAME"`, "the line %q", line)
				case !known[name]:
					c.Mistake("error taken for an object", "names of ConfigMaps", fmt.Sprintf("the line %q", line))
				case sign == "-" && !had[name]:
					c.Failf("+ "+name+" before - "+name, "the line %q", line)
				case sign == "+" && mirror[name] && resumed:
					c.Mistake("version not kept", "each name once, although the watch was cut", fmt.Sprintf("the line %q a second time", line))
				case sign == "-" && !mirror[name] && resumed:
					c.Mistake("version not kept", "each name once, although the watch was cut", fmt.Sprintf("the line %q a second time", line))
				case sign == "-" && !mirror[name]:
					c.Mistake("left in the mirror", "no - NAME while the reader does not have the name", fmt.Sprintf("the line %q a second time", line))
				case sign == "-" && (name == "aaron" || name == "cora"):
					c.Mistake("listed again without comparing", "nothing about "+name+", which is there all the time", fmt.Sprintf("the line %q", line))
				case sign == "+" && mirror[name] && !cut && p.Count(lists) == 1:
					c.Mistake("change taken for a new object", "each name once, until it has gone", fmt.Sprintf("the line %q a second time, after a change", line))
				case sign == "+" && mirror[name] && (name == "axb" || name == "old-bert"):
					doubled = line // as others are, if the whole mirror is wrong
				case sign == "+" && mirror[name]:
					if strings.Contains(script.Stderr(), "sorted order") {
						c.Fail("two sorted files for comm", script.Stderr())
					}
					c.Mistake("listed again without comparing", "each name once, until it has gone", fmt.Sprintf("the line %q a second time", line))
				default:
					mirror[name], had[name] = sign == "+", true
				}
			}
			last := mirror["emma"]
			if last && doubled != "" {
				if strings.Contains(script.Stderr(), "sorted order") {
					c.Fail("two sorted files for comm", script.Stderr())
				}
				c.Mistake("others removed", "each name once, until it has gone", fmt.Sprintf("the line %q a second time, after a.b and bert were deleted", doubled))
			}
			list, err := configMaps.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var missing, ghosts []string
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
				if last {
					mistake(missing, ghosts)
				}
				return fmt.Errorf("not printed: %v, printed and gone: %v", missing, ghosts)
			}
			return nil
		})
		if err != nil {
			c.Failf(expected, "%v\n%s%s", err, script.Stdout(), script.Stderr())
		}
	}
	open := func() {
		if err := c.Until(patience, func(context.Context) error {
			ignored()
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
	createFor(c, "carl", "cora", "a.b", "axb", "old-bert")
	wait("a line for a ConfigMap that is created", nothing)
	_, err := configMaps.Patch(c.Context(), "anna", types.MergePatchType, []byte(`{"data":{"a":"1"}}`), metav1.PatchOptions{})
	c.Must(err)
	for _, name := range []string{"a.b", "bert", "carl"} {
		c.Must(configMaps.Delete(c.Context(), name, metav1.DeleteOptions{}))
	}
	wait("a line for a ConfigMap that is deleted", nothing)
	needless(p.Count(lists)-1, "a change")

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
	cut = true
	p.Cut(watches)
	c.Must(configMaps.Delete(c.Context(), "anna", metav1.DeleteOptions{}))
	createFor(c, "dora")
	stalled.Remove()
	open()
	createFor(c, "emma")
	const expected = "+ dora and - anna, which came and went while no watch was open, and + emma"
	wait(expected, func(missing, ghosts []string) {
		switch {
		case slices.Contains(missing, "dora"):
			c.Mistake("missed create", expected, "no line + dora")
		case slices.Contains(ghosts, "anna"):
			c.Mistake("ghost", expected, "no line - anna")
		}
	})

	// From here on there is a history: first a watch resumes after the last event, and then another 410 comes.
	resumed, struck = true, nil
	for _, step := range []struct{ before, after string }{{"fred", "gina"}, {"", "hugo"}} {
		if step.before == "" {
			resumed = false
			p.MustInject(faultproxy.Rule{Match: watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone})
		} else {
			createFor(c, step.before)
			wait("a line for a ConfigMap that is created", nothing)
			c.Must(configMaps.Delete(c.Context(), step.before, metav1.DeleteOptions{})) // a deletion has a version, too
			wait("a line for a ConfigMap that is deleted", nothing)
		}
		before, again := p.Count(watches), p.Count(lists)
		p.Cut(watches)
		if err := c.Until(patience, func(context.Context) error {
			if p.Count(watches) == before {
				return errors.New("no watch")
			}
			return nil
		}); err != nil {
			c.Failf("a watch after the cut", "%v\n%s", err, script.Stderr())
		}
		createFor(c, step.after)
		wait("+ "+step.after+", and no name that was printed before", nothing)
		if resumed {
			needless(p.Count(lists)-again, "a watch that has only ended")
		}
	}
}

// checkCounter lets one writer count while somebody else writes the object
// between its first GET and its first PUT, and then lets three writers meet.
func checkCounter(c *check.C) {
	p := c.Proxy()
	puts := faultproxy.Match{Verb: "update", Resource: "configmaps", Name: "counter"}
	p.MustInject(faultproxy.Rule{Match: puts, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Patch(ctx, "counter", types.MergePatchType, []byte(`{"metadata":{"annotations":{"theirs":"kept"},"labels":{"theirs":"kept"},"finalizers":["example.org/wait"]},"data":{"theirs":"kept"}}`), metav1.PatchOptions{})
		return err
	}})
	letGo := func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Patch(ctx, "counter", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	c.AtEnd(letGo) // of a check that has ended before
	start := func(args ...string) *testenv.Process {
		return c.Start(testenv.Command{Path: c.Path("counter.sh"), Args: args, Env: []string{"KUBECONFIG=" + p.Kubeconfig}})
	}
	// ended waits for the script, but not while it can get no further.
	ended := func(script *testenv.Process) {
		err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
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
	accepted, refused, others := 0, 0, ""
	for _, r := range p.Requests(puts) {
		switch r.Code {
		case http.StatusOK:
			accepted++
		case http.StatusConflict:
			refused++
		default:
			others += fmt.Sprintf(", one answered with %d", r.Code)
		}
	}
	held := fmt.Sprintf("labels %v, annotations %v, finalizers %v, data %v; of the PUTs %d were accepted and %d refused with 409%s",
		cm.Labels, cm.Annotations, cm.Finalizers, cm.Data, accepted, refused, others)
	const want = "labels map[theirs:kept], annotations map[count:3 theirs:kept], finalizers [example.org/wait], data map[note:keep me theirs:kept], after 3 accepted PUTs and one that was refused"
	switch {
	case cm.Data["note"] == "", theirs && (cm.Annotations["theirs"] == "" || cm.Labels["theirs"] == "" || len(cm.Finalizers) == 0):
		c.Mistake("data dropped", want, held)
	case accepted > 0 && refused == 0 && !theirs:
		c.Mistake("lost update", want, held)
	case refused > 0 && accepted < 3:
		c.Mistake("gave up at a conflict", want, held+"\nit printed  "+strings.TrimSpace(one.Stdout()+one.Stderr()))
	case cm.Annotations["count"] != "3" || accepted != 3 || one.ExitCode() != 0:
		c.Fail(want, held+"\n"+one.Stderr())
	}
	if printed := strings.TrimSpace(one.Stdout()); printed != fmt.Sprintf("count: 3 after %d conflicts", refused) {
		c.Mistake("conflict not printed", fmt.Sprintf("count: 3 after %d conflicts", refused), printed)
	}
	c.Must(letGo(c.Context())) // or the next run could not begin with an object of its own

	refusals := p.MustInject(faultproxy.Rule{Match: puts, Fault: faultproxy.Answer, Code: http.StatusConflict, Times: 6})
	patient := start("1", "1")
	ended(patient)
	if got := counter(c).Annotations["count"]; got != "1" || patient.ExitCode() != 0 {
		c.Mistake("gave up at a conflict", "count 1, after six refusals in a row", fmt.Sprintf("count %s, after %d refusals, and exit code %d", got, refusals.Struck(), patient.ExitCode()))
	}

	ended(start("3", "3"))
	if got := counter(c).Annotations["count"]; got != "9" {
		c.Fail("count 9 after three rounds of three writers", "count "+got)
	}

	p.MustInject(faultproxy.Rule{Match: puts, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	before := p.Count(puts)
	script := start("1", "1")
	_ = c.Until(check.Patience(20*time.Second), func(context.Context) error {
		if script.Ended() || p.Count(puts)-before > 1 {
			return nil
		}
		return errors.New("it still runs")
	})
	if n := p.Count(puts) - before; n != 1 {
		c.Fail("no other PUT after the answer 500, which is no conflict", fmt.Sprintf("%d PUTs", n))
	}
	if script.Ended() && script.ExitCode() == 0 {
		c.Mistake("failure hidden", "exit code 1 after the answer 500", "exit code 0")
	}
}

func counter(c *check.C) *corev1.ConfigMap {
	cm, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(c.Context(), "counter", metav1.GetOptions{})
	c.Must(err)
	return cm
}
