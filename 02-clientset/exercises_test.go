package clientset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		"first-client": checkFirstClient, "retry": checkRetry, "pages": checkPages, "follow": checkFollow, "safe-patch": checkSafePatch,
		"selector": checkSelector, "gone": checkGone, "since": checkSince,
	})
}

// lines returns what a program has printed.
func lines(p *testenv.Process) []string {
	return slices.DeleteFunc(strings.Split(p.Stdout(), "\n"), func(line string) bool { return line == "" })
}

// query is what a request has behind its path.
func query(c *check.C, r faultproxy.Request) url.Values {
	values, err := url.ParseQuery(r.Query)
	c.Must(err)
	return values
}

// checkFirstClient has somebody come and somebody leave before the program signs in, and somebody
// come before its watch. Then it lets Leases come, change and go, the program's own at the end. A
// second program loses its watch; a third one gets no list, and a fourth one's name is taken.
func checkFirstClient(c *check.C) {
	program := c.Program()
	p := c.Proxy()
	leases := c.Client.CoordinationV1().Leases(c.Namespace)
	const label, value = "lesson", "roll-call"
	signIn := func(ctx context.Context, name string, labels map[string]string) error {
		_, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		return err
	}
	here := map[string]string{label: value}
	_, err := leases.Create(c.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "old", Labels: here, Finalizers: []string{"example.org/wait"}}}, metav1.CreateOptions{})
	c.Must(err)
	letGo := func(ctx context.Context) error {
		_, err := leases.Patch(ctx, "old", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	c.AtEnd(letGo) // of a check that has ended before
	another := map[string]string{label: "another"}
	c.Must(signIn(c.Context(), "stranger", another))
	c.Must(signIn(c.Context(), "early", here))
	watches, creates := faultproxy.Match{Verb: "watch*", Resource: "leases"}, faultproxy.Match{Verb: "create", Resource: "leases"}
	p.MustInject(faultproxy.Rule{Match: creates, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		if err := errors.Join(leases.Delete(ctx, "early", metav1.DeleteOptions{}), signIn(ctx, "bert", here)); err != nil {
			return err
		}
		// A watch from version 0 may begin with an older state, but not before the API server's cache has heard of this.
		for ctx.Err() == nil {
			if _, err := leases.Get(ctx, "bert", metav1.GetOptions{ResourceVersion: "0"}); !apierrors.IsNotFound(err) {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		return ctx.Err()
	}})
	// What begins with the present state, as an informer does, has to come before the program signs in.
	coming := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: "leases"}, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		return signIn(ctx, "anna", here)
	}})
	nowhere := filepath.Join(c.T.TempDir(), "nowhere") // which the default rules pass over
	start := func(name string) *testenv.Process {
		return c.Start(testenv.Command{Path: program, Args: []string{"-namespace", c.Namespace, "-name", name},
			Env: []string{"KUBECONFIG=" + nowhere + string(os.PathListSeparator) + p.Kubeconfig}})
	}

	client := start("me")
	times := func(line string) (n int) {
		for _, l := range lines(client) {
			if l == line {
				n++
			}
		}
		return n
	}
	known := func() {
		for _, r := range p.Requests(watches) {
			if version := query(c, r).Get("resourceVersion"); r.Verb == "watch" && (version == "" || version == "0") && times("came old") > 0 {
				c.Mistake("watched from now", "here old", "here old, and then came old")
			}
		}
		switch {
		case times("here stranger")+times("came stranger") > 0:
			c.Mistake("no selector", "nothing about the Lease stranger, whose label is lesson=another", client.Stdout())
		case times("here old") > 0 && times("here bert") > 0:
			c.Mistake("signed in before the list", "came bert, who came after the list and before the program's own Lease", client.Stdout())
		case times("came passer-by") > 0:
			c.Mistake("watch without a selector", "nothing about the Lease passer-by, whose label is lesson=another", client.Stdout())
		case times("left old") > 1:
			c.Mistake("marked taken for gone", "left old, once", "left old, when that Lease got a deletionTimestamp, and again when it was gone")
		case times("came anna") > 1:
			c.Mistake("change taken for a coming", "came anna, once", "came anna again, after a change of that Lease")
		}
		own, err := leases.Get(c.Context(), "me", metav1.GetOptions{})
		if err == nil && own.Labels[label] != value {
			c.Mistake("own lease without the label", "the Lease me with the label lesson=roll-call", fmt.Sprintf("the Lease me with the labels %v", own.Labels))
		}
	}
	until := func(expected ...string) {
		err := c.Until(check.Patience(10*time.Second), func(context.Context) error {
			ended := client.Ended() // before its output, which is complete then
			known()
			missing := slices.DeleteFunc(slices.Clone(expected), func(line string) bool { return times(line) > 0 })
			if len(missing) > 0 && ended {
				if p.Count(faultproxy.Match{}) == 0 && strings.Contains(client.Stderr(), nowhere) {
					c.Mistake("one kubeconfig only", "a client for the second of the files that KUBECONFIG names", "it has ended without a request:\n"+client.Stderr())
				}
				c.Failf(strings.Join(expected, ", "), "it has ended with exit code %d:\n%s%s", client.ExitCode(), client.Stdout(), client.Stderr())
			}
			if len(missing) > 0 {
				return fmt.Errorf("no line %q in its output:\n%s", missing[0], client.Stdout())
			}
			return nil
		})
		if err == nil {
			return
		}
		own, getErr := leases.Get(c.Context(), "me", metav1.GetOptions{})
		for _, r := range p.Requests(watches) {
			if getErr == nil && query(c, r).Get("resourceVersion") == own.ResourceVersion {
				c.Mistake("missed between list and create", strings.Join(expected, ", "), "the watch begins at the version of the Lease me:\n"+client.Stdout())
			}
		}
		c.Fail(strings.Join(expected, ", "), err.Error())
	}
	until("here old", "here early", "came me")
	if p.Count(creates) == 0 {
		c.Fail("the Lease me made by a create, which fails if there is one already", "another request has made it, such as an apply")
	}
	if p.Count(watches) > 0 && coming.Struck() == 0 {
		coming.Remove()
		c.Must(signIn(c.Context(), "anna", here))
	}
	until("came anna")
	c.Must(signIn(c.Context(), "passer-by", another))
	_, err = leases.Patch(c.Context(), "anna", types.MergePatchType, []byte(`{"spec":{"holderIdentity":"anna"}}`), metav1.PatchOptions{})
	c.Must(err)
	c.Must(leases.Delete(c.Context(), "old", metav1.DeleteOptions{}))
	c.Must(letGo(c.Context()))
	until("left old")
	if times("came bert") == 0 { // events come in order
		c.Mistake("missed between list and create", "came bert, who came after the list and before the program's own Lease", client.Stdout())
	}
	if times("left early") == 0 {
		c.Mistake("left unnoticed", "left early, which was deleted after the list and before the watch", client.Stdout())
	}
	c.Must(leases.Delete(c.Context(), "me", metav1.DeleteOptions{}))
	until("left me")
	c.Must(signIn(c.Context(), "late", here))
	const end = "exit code 0 after its own Lease was deleted"
	err = c.Until(check.Patience(10*time.Second), func(context.Context) error {
		if times("came late") > 0 {
			c.Mistake("goes on without its lease", end, "left me, and then came late")
		}
		if client.Ended() {
			return nil
		}
		return errors.New("it still runs")
	})
	if err != nil {
		c.Fail(end, err.Error())
	}
	known()
	if client.ExitCode() != 0 {
		c.Failf(end, "exit code %d:\n%s", client.ExitCode(), client.Stderr())
	}
	// Who signs in first, anna or the program, is the program's choice.
	want := []string{"came anna", "came bert", "came me", "here early", "here old", "left early", "left me", "left old"}
	if got := slices.Sorted(slices.Values(lines(client))); !slices.Equal(got, want) {
		c.Fail("the lines "+strings.Join(want, ", "), strings.Join(got, ", "))
	}

	client = start("you")
	until("came you")
	p.Cut(watches)
	// To watch again is better than what is asked for, if nothing is missed. So it may go on.
	c.Must(leases.Delete(c.Context(), "you", metav1.DeleteOptions{}))
	if err := c.Until(check.Patience(10*time.Second), func(context.Context) error {
		ended := client.Ended() // before its output, which is complete then
		if times("came anna") > 0 {
			c.Mistake("watched from now", "here anna", "here anna, and then came anna")
		}
		if ended {
			return nil
		}
		return errors.New("it still runs:\n" + client.Stdout())
	}); err != nil {
		c.Fail("an end with an error, because the watch has ended before the program's own Lease", err.Error())
	}
	if times("left you") == 0 && client.ExitCode() == 0 {
		c.Mistake("end of the watch taken for its own", "an exit code other than 0 after the watch has ended", "exit code 0, without left you")
	}
	if times("came you") > 1 {
		c.Fail("came you, once", client.Stdout())
	}

	lists := faultproxy.Match{Verb: "list", Resource: "leases"}
	signedIn, before := p.Count(creates), len(p.Requests(lists))
	failing := p.MustInject(faultproxy.Rule{Match: lists, Fault: faultproxy.Answer, Code: http.StatusInternalServerError})
	client = start("zoe")
	if err := c.Until(check.Patience(10*time.Second), func(context.Context) error {
		if client.Ended() || p.Count(creates) > signedIn {
			return nil
		}
		return errors.New("it has neither ended nor signed in:\n" + client.Stdout())
	}); err != nil {
		c.Fail("an error, because the list was answered with 500", err.Error())
	}
	again := slices.ContainsFunc(p.Requests(lists)[before:], func(r faultproxy.Request) bool { return r.Code == http.StatusOK })
	if p.Count(creates) > signedIn && failing.Struck() > 0 && !again {
		c.Fail("an error, because the list was answered with 500", "a create without a list")
	}
	failing.Remove()
	if client.Ended() && client.ExitCode() == 0 {
		c.Fail("an error after a list that was answered with 500", "exit code 0")
	}

	client = start("bert")
	const refused = "an end with an error, because there is a Lease bert already"
	if err := c.Until(check.Patience(10*time.Second), func(context.Context) error {
		if client.Ended() {
			return nil
		}
		return errors.New("it still runs:\n" + client.Stdout())
	}); err != nil {
		c.Fail(refused, err.Error())
	}
	if client.ExitCode() == 0 {
		c.Fail(refused, "exit code 0:\n"+client.Stdout())
	}
}

// checkSelector has six Secrets, of which one has both the label and the type, and lists with
// the options of the program.
func checkSelector(c *check.C) {
	program := c.Program()
	secrets := c.Client.CoreV1().Secrets(c.Namespace)
	for _, s := range []struct {
		name, team string
		kind       corev1.SecretType
	}{
		{"web-login", "web", corev1.SecretTypeBasicAuth}, {"web-notes", "web", corev1.SecretTypeOpaque}, {"web-token", "web", "example.org/token"},
		{"db-login", "db", corev1.SecretTypeBasicAuth}, {"ops-login", "ops", corev1.SecretTypeBasicAuth}, {"no-login", "", corev1.SecretTypeBasicAuth},
	} {
		labels := map[string]string{"team": s.team}
		if s.team == "" {
			labels = nil
		}
		_, err := secrets.Create(c.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: labels},
			Type:       s.kind, StringData: map[string]string{corev1.BasicAuthUsernameKey: "any"},
		}, metav1.CreateOptions{})
		c.Must(err)
	}
	var options metav1.ListOptions
	if r := c.Run(testenv.Command{Path: program}); json.Unmarshal([]byte(proc.LastLines(r.Stdout, 1)), &options) != nil {
		c.Failf("the options", "exit code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	list, err := secrets.List(c.Context(), options)
	if err != nil {
		c.Fail("options that the API server accepts", err.Error())
	}
	var found []string
	for _, secret := range list.Items {
		found = append(found, secret.Name)
	}
	const want = "the Secret web-login"
	switch got := strings.Join(found, ", "); got {
	case "web-login":
	case "web-login, web-notes, web-token":
		c.Mistake("type forgotten", want, got+"; their types are Opaque and example.org/token")
	case "db-login, no-login, ops-login, web-login":
		c.Mistake("label forgotten", want, got+", and db-login has the label team=db")
	default:
		c.Failf(want, "the list: %s", got)
	}
}

// checkGone has the API server refuse to delete what is not there, what is another object, and what
// somebody may not delete, and gives the program each answer.
func checkGone(c *check.C) {
	program := c.Program()
	nobody := rest.CopyConfig(c.Config)
	nobody.Impersonate.UserName = "nobody"
	asNobody, err := kubernetes.NewForConfig(nobody)
	c.Must(err)
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	_, err = configMaps.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	c.Must(err)
	answer := func(err error, code int32) metav1.Status {
		var refusal apierrors.APIStatus
		if !errors.As(err, &refusal) || refusal.Status().Code != code {
			c.T.Fatalf("deleting: %v, want %d", err, code)
		}
		return refusal.Status()
	}
	exit := func(status metav1.Status) testenv.Result {
		text, err := json.Marshal(status)
		c.Must(err)
		return c.Run(testenv.Command{Path: program, Args: []string{string(text)}})
	}
	notFound := answer(configMaps.Delete(c.Context(), "old", metav1.DeleteOptions{}), http.StatusNotFound)
	missing := exit(notFound)
	forbidden := exit(answer(asNobody.CoreV1().ConfigMaps(c.Namespace).Delete(c.Context(), "old", metav1.DeleteOptions{}), http.StatusForbidden))
	another := exit(answer(configMaps.Delete(c.Context(), "new", *metav1.NewPreconditionDeleteOptions("another")), http.StatusConflict))
	gone := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonGone, Message: "it has moved for good"}
	moved := exit(gone)
	gone.Reason, gone.Message = metav1.StatusReasonExpired, "that version is too old"
	expired := exit(gone)
	// The message is for people, and may change.
	notFound.Message = "nothing here"
	reworded := exit(notFound)
	switch {
	case (moved.ExitCode == 0 || expired.ExitCode == 0) && forbidden.ExitCode != 0:
		c.Mistake("another reason", "nil after 404 NotFound, and an error after 410", "nil after 410")
	case forbidden.ExitCode == 0:
		c.Mistake("every error ignored", "an error after 403", "nil")
	case missing.ExitCode != 0:
		c.Mistake("gone taken for a failure", "nil after 404", missing.Stderr)
	case reworded.ExitCode != 0:
		c.Mistake("message read", "nil after 404 with another message", reworded.Stderr)
	case another.ExitCode == 0:
		c.Fail("an error after 409, because the object of that name is another one", "nil")
	case !strings.Contains(forbidden.Stderr, "deleting: "):
		c.Fail("the error as it was", forbidden.Stderr)
	}
}

// checkSince lists two ConfigMaps, and creates two more. Then it watches from the version that
// the program finds in the list and in the first of those that it has created.
func checkSince(c *check.C) {
	program := c.Program()
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	create := func(name string) *corev1.ConfigMap {
		cm, err := configMaps.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"try": "since"}}}, metav1.CreateOptions{})
		c.Must(err)
		return cm
	}
	create("a")
	create("b")
	options := metav1.ListOptions{LabelSelector: "try=since"}
	list, err := configMaps.List(c.Context(), options)
	c.Must(err)
	// Somebody writes between the list and the create, so the versions of these two are no neighbours.
	_, err = configMaps.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "between"}}, metav1.CreateOptions{})
	c.Must(err)
	own, err := json.Marshal(create("own"))
	c.Must(err)
	create("later")

	text, err := json.Marshal(list)
	c.Must(err)
	r := c.Run(testenv.Command{Path: program, Args: []string{string(text), string(own)}})
	if r.ExitCode != 0 {
		c.Failf("a version", "exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	const want = "a watch that begins with ADDED later"
	options.ResourceVersion, options.TimeoutSeconds = strings.TrimSpace(r.Stdout), new(int64(10))
	w, err := configMaps.Watch(c.Context(), options)
	if err != nil {
		c.Fail(want, err.Error())
	}
	defer w.Stop()
	event, open := <-w.ResultChan()
	if !open {
		c.Failf(want, "from version %q: nothing for 10 s", options.ResourceVersion)
	}
	cm, ok := event.Object.(*corev1.ConfigMap)
	if !ok {
		c.Failf(want, "from version %q: %v", options.ResourceVersion, apierrors.FromObject(event.Object))
	}
	switch got := fmt.Sprintf("%s %s", event.Type, cm.Name); got {
	case "ADDED later":
	case "ADDED b", "ADDED own":
		c.Mistake("older than the write", want, got)
	case "ADDED a":
		c.Mistake("watched from now", want, got)
	default:
		c.Fail(want, got)
	}
}

// checkRetry lets somebody else create the object when the program wants to, and later write
// it between the program's Get and its Update. Then it lets four writers meet.
func checkRetry(c *check.C) {
	program := c.Program()
	p := c.Proxy()
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	// The program itself creates one ConfigMap before it counts.
	creates := faultproxy.Match{Verb: "create", Resource: "configmaps"}
	p.MustInject(faultproxy.Rule{Match: creates, After: 1, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter", Labels: map[string]string{"others": "kept"}, Annotations: map[string]string{"others": "kept"}}, Data: map[string]string{"count": "10", "others": "kept"}}
		_, err := configMaps.Create(ctx, theirs, metav1.CreateOptions{})
		return err
	}})
	updates := faultproxy.Match{Resource: "configmaps", Name: "counter", If: func(r faultproxy.Request) bool { return r.Verb == "update" || r.Verb == "patch" }}
	p.MustInject(faultproxy.Rule{Match: updates, After: 1, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := configMaps.Patch(ctx, "counter", types.MergePatchType, []byte(`{"data":{"theirs":"kept"}}`), metav1.PatchOptions{})
		return err
	}})
	all := faultproxy.Match{Resource: "configmaps", If: func(r faultproxy.Request) bool { return r.Name != "conflict" }} // which is another lesson's
	var miscounted, hurried string                                                                                       // what else was wrong, for a verdict that comes later
	count := func(writers, rounds string) (*testenv.Process, *corev1.ConfigMap) {
		before := p.Count(all)
		program := c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-writers", writers, "-rounds", rounds}})
		err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
			if writers == "1" && check.Conflicts("update", p.Requests(faultproxy.Match{Resource: "configmaps", Name: "counter"})) >= 3 {
				c.Mistake("get outside of the closure", "a Get after each Update that was refused with 409", "three Updates in a row were refused, without a Get between them")
			}
			if writers == "1" && check.Conflicts("create", p.Requests(faultproxy.Match{Resource: "configmaps"})) >= 3 {
				c.Mistake("get outside of the closure", "a Get after a Create that was refused with 409", "three Creates in a row were refused, without a Get between them")
			}
			if program.Ended() {
				return nil
			}
			return fmt.Errorf("it still runs after %d Updates", p.Count(updates))
		})
		if err != nil {
			c.Fail("the program ends", err.Error())
		}
		cm, err := configMaps.Get(c.Context(), "counter", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			c.Must(err)
		}
		refused := 0
		requests := p.Requests(all)[before:]
		for i, r := range requests {
			if r.Code != http.StatusConflict {
				continue
			}
			refused++
			if writers != "1" || r.Verb == "create" || i+1 == len(requests) {
				continue
			}
			if pause := requests[i+1].Started.Sub(r.Started.Add(r.Took)); pause < 5*time.Millisecond { // backoff's Duration
				hurried = fmt.Sprintf("the next request %s after a 409", pause.Round(time.Microsecond))
			}
		}
		_, printed, _ := strings.Cut(program.Stdout(), "rounds: count ")
		if _, printed, _ = strings.Cut(strings.TrimSpace(printed), " "); program.ExitCode() == 0 && printed != fmt.Sprintf("after %d refusals", refused) {
			miscounted = fmt.Sprintf("%s, and %d requests were answered with 409", printed, refused)
		}
		return program, cm
	}

	one, counter := count("1", "3")
	lost := counter.Labels["others"] == "" || counter.Annotations["others"] == ""
	data := counter.Data
	added := len(slices.DeleteFunc(p.Requests(updates), func(r faultproxy.Request) bool { return r.Code != http.StatusOK }))
	var last faultproxy.Request
	if requests := p.Requests(faultproxy.Match{Resource: "configmaps"}); len(requests) > 0 {
		last = requests[len(requests)-1]
	}
	held := fmt.Sprintf("data %v", data)
	const want = "data map[count:13 others:kept theirs:kept]"
	switch {
	case one.ExitCode() != 0 && last.Verb == "create" && last.Code == http.StatusConflict:
		c.Mistake("create not retried", "a Get and an Update after the 409", "no request after it, and exit code 1:\n"+one.Stderr())
	case one.ExitCode() != 0 && last.Verb == "update" && last.Code == http.StatusConflict:
		c.Mistake("conflict not retried", "another Get and Update after the 409", "no request after it, and exit code 1:\n"+one.Stderr())
	case one.ExitCode() != 0:
		c.Failf("exit code 0", "exit code %d:\n%s", one.ExitCode(), one.Stderr())
	case data["others"] == "" || data["theirs"] == "":
		// The Update into which somebody else wrote was refused, so what it lacked was lacking in a later one.
		if slices.ContainsFunc(p.Requests(updates), func(r faultproxy.Request) bool {
			return r.Code == http.StatusConflict && slices.Contains(r.Faults, faultproxy.Call)
		}) {
			c.Mistake("rest of the object lost", want, held)
		}
		c.Mistake("lost update", want, held)
	case data["count"] == "12" && added == 2:
		c.Mistake("refusal taken for success", want, held+", after two Updates")
	case held != want:
		c.Fail(want, held)
	case lost:
		c.Mistake("rest of the object lost", "the label and the annotation others=kept, which somebody else has given to it", fmt.Sprintf("the labels %v, the annotations %v", counter.Labels, counter.Annotations))
	case miscounted != "":
		c.Mistake("refusals miscounted", "the number of answers with 409", miscounted)
	}

	// DefaultRetry tries five times.
	refusals := p.MustInject(faultproxy.Rule{Match: updates, Fault: faultproxy.Answer, Code: http.StatusConflict, Times: 12})
	if often, counter := count("1", "2"); often.ExitCode() != 0 || counter.Data["count"] != "2" {
		held := fmt.Sprintf("count %s, after %d refusals; exit code %d:\n%s", counter.Data["count"], refusals.Struck(), often.ExitCode(), often.Stderr())
		if often.ExitCode() == 0 {
			c.Fail("count 2, after 12 refusals", held)
		}
		c.Mistake("too few tries", "count 2, after 12 refusals", held)
	}
	if hurried != "" {
		c.Mistake("no pause", "a pause of at least 5 ms after each 409, as backoff says", hurried)
	}
	// fails runs the program until it ends with an error, as expected, and looks for what is wrong meanwhile.
	fails := func(expected string, wrong func()) {
		one := c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-writers", "1", "-rounds", "2"}})
		if err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
			ended := one.Ended() // before the last look
			if wrong(); ended {
				return nil
			}
			return errors.New("it still runs")
		}); err != nil {
			c.Fail(expected, err.Error())
		}
		if one.ExitCode() == 0 {
			c.Fail(expected, "exit code 0:\n"+one.Stdout())
		}
	}
	for _, code := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		failing := p.MustInject(faultproxy.Rule{Match: updates, Fault: faultproxy.Answer, Code: code, Times: -1})
		expected := fmt.Sprintf("an error after %d %s", code, http.StatusText(code))
		fails(expected, func() {
			if failing.Struck() > 1 {
				c.Mistake("tries for ever", expected, "another write")
			}
		})
		failing.Remove()
	}
	reads := faultproxy.Match{Verb: "get", Resource: "configmaps", Name: "counter"}
	unread := p.MustInject(faultproxy.Rule{Match: reads, Fault: faultproxy.Answer, Code: http.StatusInternalServerError, Times: -1})
	before := p.Count(all)
	const ends = "an error after a Get that was answered with 500"
	fails(ends, func() {
		failed := false
		for _, r := range p.Requests(all)[before:] {
			if failed && r.Write() {
				c.Failf(ends, "then a %s", r.Verb)
			}
			failed = failed || r.Verb == "get" && r.Code == http.StatusInternalServerError
		}
	})
	unread.Remove()

	// With two rounds, whoever begins with a Create needs another request in the second one.
	first := faultproxy.Match{Resource: "configmaps", If: func(r faultproxy.Request) bool {
		return r.Verb == "list" || r.Name == "counter" && r.Verb != "delete"
	}}
	if r := c.InterruptAt(first, testenv.Command{Path: program, Args: []string{"-writers", "1", "-rounds", "2"}}); !strings.Contains(r.Stderr, "writer 0: ") { // which count says of an error of addOne
		c.Mistake("success that was none", "an error of addOne, whose first attempt SIGINT has ended", "addOne has returned nil:\n"+r.Stderr)
	}

	four, counter := count("4", "5")
	if got := counter.Data["count"]; got != "20" {
		c.Failf("count 20 after five rounds of four writers", "count %s\n%s", got, four.Stderr())
	}
	if miscounted != "" {
		c.Mistake("refusals miscounted", "the number of answers with 409", miscounted)
	}
}

// checkPages deletes an object of the last page before the second list. That page is as full as the others.
func checkPages(c *check.C) {
	program := c.Program()
	p := c.Proxy()
	lists := faultproxy.Match{Verb: "list", Resource: "configmaps"}
	p.MustInject(faultproxy.Rule{Match: lists, After: 1, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		return c.Client.CoreV1().ConfigMaps(c.Namespace).Delete(ctx, "page-024", metav1.DeleteOptions{})
	}})
	paging := c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-objects", "30", "-limit", "6"}})
	err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
		first := 0
		for i, r := range p.Requests(lists) {
			q := query(c, r)
			switch {
			case i == 0 && q.Get("limit") == "":
				c.Mistake("no limit", "a list request with limit=6", "?"+r.Query)
			case q.Get("continue") != "" && q.Get("resourceVersion") != "":
				c.Mistake("version sent with continue", "a list request with continue, and without resourceVersion", fmt.Sprintf("resourceVersion=%s besides continue; the answer was %d", q.Get("resourceVersion"), r.Code))
			case q.Get("continue") == "":
				first++
			}
		}
		if first > 3 { // the pager asks for it, too
			c.Mistake("page one for ever", "one list request without continue, and four with it", fmt.Sprintf("%d without it", first))
		}
		if paging.Ended() {
			return nil
		}
		return fmt.Errorf("it still runs after %d list requests", p.Count(lists))
	})
	if err != nil {
		c.Fail("the program ends", err.Error())
	}
	const want = "by hand: 30"
	output := paging.Stdout()
	_, after, found := strings.Cut(output, "by hand: ")
	total, _, _ := strings.Cut(after, "\n")
	switch {
	case paging.ExitCode() != 0 || !found:
		c.Failf(want, "exit code %d:\n%s%s", paging.ExitCode(), output, paging.Stderr())
	case total == "6" && p.Count(lists) == 6: // five are the pager's
		c.Mistake("only the first page", "five list requests, "+want, "one list request, by hand: "+total)
	case total != "30":
		c.Fail("the state of the first page, which had one object more than there are now: "+want, "by hand: "+total)
	case p.Count(lists) != 10:
		c.Failf("five list requests of at most 6 objects", "%d", p.Count(lists)-5)
	}
	var printed strings.Builder
	for page := range 5 {
		fmt.Fprintf(&printed, "page %d: 6 objects, as of the first page: true\n", page+1)
	}
	if before, _, _ := strings.Cut(output, "by hand: "); before != printed.String() {
		c.Fail(printed.String(), before)
	}

	for _, code := range []int{http.StatusInternalServerError, http.StatusGone} {
		p.MustInject(faultproxy.Rule{Match: lists, After: 1, Fault: faultproxy.Answer, Code: code})
		r := c.Run(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-objects", "9", "-limit", "4"}})
		_, after, _ := strings.Cut(r.Stdout, "by hand: ")
		if total, _, _ := strings.Cut(after, "\n"); r.ExitCode == 0 && total != "9" { // to begin again is better than what is asked for
			c.Mistake("part for the whole", fmt.Sprintf("an error, because the second page was answered with %d", code), "by hand: "+total)
		}
	}
}

// oneWatch has a program follow a watch that brings one ERROR event and ends, and say whether it was stopped.
const oneWatch = `package main

import (
	"context"
	"fmt"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

type oneWatch struct {
	corev1client.ConfigMapInterface
	events  chan apiwatch.Event
	stopped bool
}

func (w *oneWatch) Watch(context.Context, metav1.ListOptions) (apiwatch.Interface, error) { return w, nil }

func (w *oneWatch) ResultChan() <-chan apiwatch.Event { return w.events }

func (w *oneWatch) Stop() { w.stopped = true }

func init() {
	if os.Getenv("ONE_WATCH") == "" {
		return
	}
	w := &oneWatch{events: make(chan apiwatch.Event, 1)}
	status := apierrors.NewResourceExpired("too old").Status()
	w.events <- apiwatch.Event{Type: apiwatch.Error, Object: &status}
	close(w.events)
	_, err := follow(context.Background(), w, "1")
	fmt.Printf("stopped %t, error %v\n", w.stopped, err)
	os.Exit(0)
}
`

// checkFollow first ends a watch with an ERROR event, and then lets the program run
// as it is.
func checkFollow(c *check.C) {
	program := c.Program(testenv.AddFile("one_watch.go", oneWatch))
	p := c.Proxy()
	watches := faultproxy.Match{Verb: "watch", Resource: "configmaps"}
	start := func() *testenv.Process {
		return c.Start(testenv.Command{Path: program, Args: []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace}})
	}
	gone := p.MustInject(faultproxy.Rule{Match: watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: -1})
	failing := start()
	err := c.Until(check.Patience(15*time.Second), func(context.Context) error {
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
	if r := c.Run(testenv.Command{Path: program, Env: []string{"ONE_WATCH=yes"}, Timeout: check.Patience(10 * time.Second)}); strings.Contains(r.Stdout, "stopped false") {
		c.Mistake("watch not stopped", "a call of Stop before follow returns an error", r.Stdout)
	}
	for _, r := range p.Requests(watches) {
		if query(c, r).Get("timeoutSeconds") != "2" {
			c.Fail("timeoutSeconds=2, which asks the server to end the watch after two seconds", "?"+r.Query)
		}
	}

	// What the first watch sees last is a deletion.
	var watching *testenv.Process
	check.UntilSeen(p, watches, 3, func() {
		p.MustInject(faultproxy.Rule{Match: watches, Fault: faultproxy.Call, Times: 1, Call: func(ctx context.Context, _ faultproxy.Request) error {
			flash := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "flash", Labels: map[string]string{"lesson": "watch"}}}
			configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
			_, err := configMaps.Create(ctx, flash, metav1.CreateOptions{})
			return errors.Join(err, configMaps.Delete(ctx, "flash", metav1.DeleteOptions{}))
		}})
		before, all := p.Count(watches), p.Count(faultproxy.Match{})
		watching = start()
		idle, seen := 0, time.Time{} // looks since the last answer, of 50 ms each: a machine that stands still does not look
		err = c.Until(check.Patience(30*time.Second), func(context.Context) error {
			if watching.Ended() {
				return nil
			}
			if n := p.Count(watches) - before; n == 0 || n > 2 {
				return errors.New("it still runs")
			}
			// Between two watches are other requests, and nothing to wait for. That a program
			// does not go on can only be told by a time: that of our looks since its last answer.
			var last time.Time
			for _, r := range p.Requests(faultproxy.Match{})[all:] {
				if r.Took == 0 {
					return errors.New("a request is under way")
				}
				if end := r.Started.Add(r.Took); end.After(last) {
					last = end
				}
			}
			if idle++; !last.Equal(seen) {
				idle, seen = 0, last
			}
			if idle >= 80 {
				c.Mistake("closed channel not noticed", "follow returns when the connection ends", "four seconds after its end, follow has not returned")
			}
			return errors.New("it still runs")
		})
		if err != nil {
			c.Failf("the program ends", "%v\n%s", err, watching.Stdout())
		}
	})
	output := watching.Stdout()
	first, rest, _ := strings.Cut(output, "watch again from now:")
	_, last, _ := strings.Cut(rest, "watch again from the last version:")
	const want = `listed early
watch:
  ADDED live
  ADDED flash
  DELETED flash
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
	case strings.Contains(last, "ADDED live"), strings.Contains(last, "DELETED flash"):
		c.Mistake("version not kept", "the last watch begins at the version of the last event", last)
	case output != want || watching.ExitCode() != 0:
		c.Failf(want, "%s%sexit code %d", output, watching.Stderr(), watching.ExitCode())
	}

	// The first watch shows nothing, so what it returns is the version from which it began.
	p.MustInject(faultproxy.Rule{Match: watches, Fault: faultproxy.Drop, Event: "ADDED", Object: "live"})
	quiet := start()
	if err := c.Until(check.Patience(30*time.Second), func(context.Context) error {
		if quiet.Ended() {
			return nil
		}
		return errors.New("it still runs")
	}); err != nil {
		c.Failf("the program ends", "%v\n%s", err, quiet.Stdout())
	}
	const sinceList = "ADDED live, ADDED brief, DELETED brief and DELETED early, from the version of the list"
	switch _, last, _ := strings.Cut(quiet.Stdout(), "watch again from the last version:"); {
	case !strings.Contains(last, "ADDED brief"):
		c.Mistake("no event and no version", sinceList+", after a watch that has shown no event", last)
	case !strings.Contains(last, "ADDED live"):
		c.Fail(sinceList, last)
	}
}

// checkSafePatch lets somebody change the Deployment between the read and the
// patch, and then shows the program statuses that are not what they look like.
func checkSafePatch(c *check.C) {
	program := c.Program()
	r := &rolloutTest{Env: c.Env, t: c.T}
	d := rolloutDeployment("web-1", "web")
	never(d) // so nothing but the statuses below makes it look complete
	d.Spec.Replicas = new(int32(2))
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
	p.KeepBodies()
	const rival = "workshop/rival:1"
	patches := faultproxy.Match{Verb: "patch", Resource: "deployments", Name: "web-1", If: faultproxy.Request.Write}
	p.MustInject(faultproxy.Rule{Match: patches, Fault: faultproxy.Call, Call: func(ctx context.Context, _ faultproxy.Request) error {
		_, err := c.Client.AppsV1().Deployments(c.Namespace).Patch(ctx, "web-1", types.StrategicMergePatchType,
			[]byte(`{"metadata":{"labels":{"rival":"kept"}},"spec":{"template":{"spec":{"containers":[{"name":"main","image":"`+rival+`"}]}}}}`), metav1.PatchOptions{FieldManager: "rival"})
		return err
	}})
	args := []string{"-kubeconfig", p.Kubeconfig, "-namespace", c.Namespace, "-selector", "app=web", "-container", "main"}
	rollout := c.Start(testenv.Command{Path: program, Args: append(slices.Clone(args), "-image", rolloutNew, "-stages", "100%", "-timeout", "5m"), Timeout: 5 * time.Minute})
	const both = "the image of main and the record of the previous one, written at once"
	err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
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
	for _, r := range p.Requests(patches) {
		var patch any
		if json.Unmarshal(r.Body, &patch) != nil {
			continue // the server has not taken it
		}
		for _, field := range slices.Sorted(slices.Values(fields("", patch))) {
			if !slices.Contains(ownFields, field) {
				c.Mistake("more than the change", "a patch with the record, the image of main and the resourceVersion", strings.TrimPrefix(field, ".")+" in "+string(r.Body))
			}
		}
	}
	d, _ = main()
	if record := d.Annotations[rolloutRecord]; !strings.Contains(record, rival) {
		c.Fail("a record that goes back to "+rival, record)
	}
	if d.Labels["rival"] != "kept" || len(d.Spec.Template.Spec.Containers) != 2 {
		c.Failf("the label of somebody else and the container side as they were", "labels %v, %d containers", d.Labels, len(d.Spec.Template.Spec.Containers))
	}

	watches := faultproxy.Match{Verb: "watch*", Resource: "deployments"}
	if err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
		if p.Open(watches) == 0 {
			return errors.New("no watch is open")
		}
		return nil
	}); err != nil {
		c.Failf("a watch of the Deployment that is rolled out", "%v\n%s", err, rollout.Stderr())
	}
	// say writes a status, which is in the cluster for a moment, until the controller corrects it.
	say := func(status func(generation int64) appsv1.DeploymentStatus) (changed bool) {
		patient := retry.DefaultBackoff // the Deployment's controller writes, too
		patient.Steps += 2
		c.Must(retry.RetryOnConflict(patient, func() error {
			d := r.get("web-1")
			conditions := d.Status.Conditions
			d.Status = status(d.Generation)
			d.Status.Conditions = conditions
			now, err := c.Client.AppsV1().Deployments(c.Namespace).UpdateStatus(c.Context(), d, metav1.UpdateOptions{})
			changed = err == nil && now.ResourceVersion != d.ResourceVersion
			return err
		}))
		return changed
	}
	for _, s := range []struct {
		mistake, what string
		status        func(generation int64) appsv1.DeploymentStatus
	}{
		{"status of an old generation", "observedGeneration below the generation, and all replicas updated and available", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation - 1, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
		}},
		{"old pods counted", "two available replicas, and none that is updated", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 2, UpdatedReplicas: 0, ReadyReplicas: 2, AvailableReplicas: 2}
		}},
		{"old pods counted", "two replicas that are updated and available, and an old one besides", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 3, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UnavailableReplicas: 1}
		}},
		{"fewer replicas are enough", "nothing is updated, and nothing available, of the two replicas that the spec wants", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, UnavailableReplicas: 2}
		}},
		{"fewer replicas are enough", "one replica, updated and available, of the two that the spec wants", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, UnavailableReplicas: 1}
		}},
		{"ready taken for available", "two replicas that are updated and ready, and not available yet", func(generation int64) appsv1.DeploymentStatus {
			return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 0, UnavailableReplicas: 2}
		}},
	} {
		events := func() (n int) {
			for _, r := range p.Requests(watches) {
				n += r.Events
			}
			return n
		}
		before, changes := events(), 0
		for range 3 { // each is an event that the program sees, unless the controller was too slow to change it back
			if say(s.status) {
				changes++
			}
		}
		// When these have come, a program that goes on waiting says nothing. It gets a second.
		c.Must(c.Until(time.Minute, func(context.Context) error {
			if n := events() - before; n < changes && !strings.Contains(rollout.Stdout(), "is available") && !rollout.Ended() {
				return fmt.Errorf("%d events have come", n)
			}
			return nil
		}))
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

	// And what is complete is called so.
	rollout = c.Start(testenv.Command{Path: program, Args: append(slices.Clone(args), "-image", rolloutNew, "-stages", "100%", "-timeout", "5m"), Timeout: 5 * time.Minute})
	if err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
		if _, image := main(); image == rolloutNew && p.Open(watches) > 0 {
			say(func(generation int64) appsv1.DeploymentStatus {
				return appsv1.DeploymentStatus{ObservedGeneration: generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
			})
		}
		if !strings.Contains(rollout.Stdout(), "is available") {
			return errors.New("it still waits\n" + rollout.Stdout() + rollout.Stderr())
		}
		return nil
	}); err != nil {
		c.Mistake("never complete", "the rollout ends: two replicas, which are updated and available, and a status about this generation", err.Error())
	}
	// At its end it removes the record, by a patch without a container.
	if err := c.Until(check.Patience(20*time.Second), func(context.Context) error {
		if !rollout.Ended() {
			return errors.New("it goes on after all is available")
		}
		return nil
	}); err != nil {
		c.Fail("the rollout ends, after a patch without a container has removed the record", err.Error())
	}
	if d, _ := main(); rollout.ExitCode() != 0 || d.Annotations[rolloutRecord] != "" {
		c.Failf("exit code 0, and no record, which a patch without a container removes", "exit code %d, record %q\n%s", rollout.ExitCode(), d.Annotations[rolloutRecord], rollout.Stderr())
	}
}

// ownFields are what a patch may hold: the record, the image of main, and what nobody can change.
var ownFields = []string{
	".apiVersion", ".kind", ".metadata.name", ".metadata.namespace", ".metadata.uid", ".metadata.generation", ".metadata.creationTimestamp", ".metadata.resourceVersion",
	".metadata.annotations." + rolloutRecord,
	".spec.template.metadata.creationTimestamp", ".spec.template.spec.containers.name=main", ".spec.template.spec.containers.image",
}

// fields returns the paths of what a patch sets or removes. An order of containers, as kubectl
// writes it, is none.
func fields(path string, patch any) (paths []string) {
	switch value := patch.(type) {
	case map[string]any:
		for key, v := range value {
			if !strings.HasPrefix(key, "$setElementOrder/") {
				paths = append(paths, fields(path+"."+key, v)...)
			}
		}
	case []any:
		for _, v := range value {
			paths = append(paths, fields(path, v)...)
		}
	default:
		if strings.HasSuffix(path, ".containers.name") {
			path += fmt.Sprintf("=%v", value)
		}
		paths = []string{path}
	}
	return paths
}
