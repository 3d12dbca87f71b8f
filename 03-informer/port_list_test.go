package informer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A portLearner is a run of a learner's port-list.
type portLearner struct{ *learner }

func newPortLearner(c *check.C) portLearner { return portLearner{newLearner(c)} }

func (l portLearner) start(environ ...string) {
	l.T.Helper()
	l.Process = l.Start(testenv.Command{Path: l.program, Args: []string{"-namespace", l.Namespace}, Timeout: 5 * time.Minute,
		Env: append([]string{"KUBECONFIG=" + missing + string(os.PathListSeparator) + l.proxy.Kubeconfig}, environ...)})
}

// missing is a file in the list KUBECONFIG that does not exist, which clientcmd allows.
const missing = "/nonexistent/kubeconfig"

// connected ends the check if the program has ended because it took the list for one file.
func (l portLearner) connected(err error) {
	l.T.Helper()
	if errors.Is(err, errEnded) && strings.Contains(l.Stderr(), missing) {
		l.Mistake("one kubeconfig", "the cluster of the file that is there, of the two that KUBECONFIG names", l.output(err))
	}
}

// restart shows whether a new process, with a new queue and new caches, does what the old one did not do.
func (l portLearner) restart() {
	l.T.Helper()
	_ = l.Signal(os.Kill) // it may have ended
	<-l.Done()
	l.start()
}

// service creates or changes a Service with a value of the label ports.
func (l portLearner) service(name, label string, ports map[string]int32) *corev1.Service {
	l.T.Helper()
	labels := map[string]string{}
	if label != "" {
		labels["ports"] = label
	}
	return l.labelled(name, labels, ports)
}

// mirrored creates a Service with a value of the label mirror.
func (l portLearner) mirrored(name, value string) {
	l.T.Helper()
	l.labelled(name, map[string]string{"mirror": value}, map[string]int32{"": 80})
}

// labelled creates or changes a Service. Its target ports are other numbers than its ports.
func (l portLearner) labelled(name string, labels map[string]string, ports map[string]int32) *corev1.Service {
	l.T.Helper()
	spec := applycorev1.ServiceSpec()
	for port, number := range ports {
		p := applycorev1.ServicePort().WithPort(number).WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromInt32(number + 8000))
		if port != "" {
			p.WithName(port)
		}
		spec.WithPorts(p)
	}
	apply := applycorev1.Service(name, l.Namespace).WithLabels(labels).WithSpec(spec)
	s, err := l.Client.CoreV1().Services(l.Namespace).Apply(l.Context(), apply, metav1.ApplyOptions{FieldManager: "test", Force: true})
	l.Must(err)
	return s
}

// touch changes something of a Service that no list depends on.
func (l portLearner) touch(name string) {
	l.T.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, time.Now().UnixNano())
	_, err := l.Client.CoreV1().Services(l.Namespace).Patch(l.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	l.Must(err)
}

const withoutFinalizers = `{"metadata":{"finalizers":null}}`

// forge changes a list as somebody else does.
func (l portLearner) forge(name, patch string) {
	l.T.Helper()
	_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(l.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	l.Must(err)
}

// ports is what a list is to hold, for a comparison or a sentence.
type ports map[string]string

func (p ports) String() string {
	if p == nil {
		return "nothing, because it does not exist"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		all = append(all, name+"="+p[name])
	}
	return "{" + strings.Join(all, " ") + "}"
}

// list returns a Service's list, or nil.
func (l portLearner) list(name string) *corev1.ConfigMap {
	l.T.Helper()
	cm, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Get(l.Context(), name+"-ports", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	l.Must(err)
	return cm
}

// holds waits until a Service's list holds the ports, or does not exist if there are none to hold.
func (l portLearner) holds(timeout time.Duration, name string, want ports) error {
	l.T.Helper()
	var held ports
	err := l.until(timeout, func(context.Context) error {
		held = nil
		if cm := l.list(name); cm != nil {
			held = ports{}
			maps.Copy(held, cm.Data)
		}
		if held.String() == want.String() {
			return nil
		}
		return errors.New("not yet")
	})
	if err != nil && !errors.Is(err, errEnded) {
		return fmt.Errorf("after %s, %s-ports holds %s", timeout.Round(time.Second), name, held)
	}
	return err
}

// settles is holds for what a known mistake prevents. A program that is only late is given as long as it needs
// for what happened after that: a Service of its own, and a change of its list.
func (l portLearner) settles(name string, want ports) error {
	l.T.Helper()
	err := l.holds(soon(), name, want)
	if err == nil || errors.Is(err, errEnded) {
		return err
	}
	later, made := fmt.Sprintf("later-%d", time.Now().UnixNano()), ports{"http": "80"}
	l.service(later, "listed", map[string]int32{"http": 80})
	if l.holds(patience(), later, made) == nil {
		l.forge(later+"-ports", `{"data":{"http":"1"}}`)
		_ = l.holds(soon(), later, made) // of this, some know nothing
	}
	return l.holds(soon(), name, want)
}

// mustHold is holds for what no known mistake prevents.
func (l portLearner) mustHold(name string, want ports, when string) {
	l.T.Helper()
	if err := l.holds(patience(), name, want); err != nil {
		l.fail(expectedList(name, want, when), err)
	}
}

func expectedList(name string, want ports, when string) string {
	return fmt.Sprintf("%s, %s-ports holds %s", when, name, want)
}

// fail ends the check with what no known mistake explains.
func (l portLearner) fail(expected string, err error) {
	l.T.Helper()
	if errors.Is(err, errEnded) {
		l.Fail(expected, l.output(err))
	}
	l.Fail(expected, err.Error()+"\n"+l.output(nil))
}

// soon is how long a program has that was told of what it is to do. A check that then
// finds nothing done does not say so, but makes sure of the cause.
func soon() time.Duration { return patience() / 3 }

func readsOf(resource string) faultproxy.Match {
	return faultproxy.Match{Resource: resource, If: func(r faultproxy.Request) bool { return r.Verb == "list" || strings.HasPrefix(r.Verb, "watch") }}
}

func watchesOf(resource string) faultproxy.Match {
	return faultproxy.Match{Verb: "watch*", Resource: resource}
}

// watching waits until both watches are open.
func (l portLearner) watching() {
	l.T.Helper()
	const expected = "a watch of services and a watch of configmaps"
	open := func(resource string) bool { return l.proxy.Open(watchesOf(resource)) > 0 }
	if err := l.until(patience(), func(context.Context) error {
		if !open("services") && !open("configmaps") {
			return errors.New("no request for either")
		}
		return nil
	}); err != nil {
		l.connected(err)
		if !errors.Is(err, errEnded) && l.proxy.Count(faultproxy.Match{}) == 0 {
			l.Mistake("nothing started", expected, l.output(err)+"\n  it has sent no request")
		}
		l.Fail(expected, l.output(err))
	}
	// The second one may begin when the first one has sent all that exists; so little takes no time.
	missing := ""
	err := l.until(2*soon(), func(context.Context) error {
		for _, resource := range []string{"services", "configmaps"} {
			if !open(resource) {
				missing = resource
				return errors.New("not yet")
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnded):
		l.Fail(expected, l.output(err))
	case err != nil:
		l.Mistake("one watch missing", expected, "no watch of "+missing+" after "+(2*soon()).Round(time.Second).String())
	}
	for _, resource := range []string{"services", "configmaps"} {
		for _, r := range l.proxy.Requests(readsOf(resource)) {
			if r.Namespace == "" {
				l.Mistake("all namespaces", "reads in the namespace "+l.Namespace+" only", r.Verb+" "+r.Path)
			}
		}
	}
}

// ends waits for the end after a SIGTERM.
func (l portLearner) ends() (code int) {
	l.T.Helper()
	l.Must(l.Signal(syscall.SIGTERM))
	// Nothing is under way, so all that is left to do takes milliseconds.
	const expected = "exit code 0 after SIGTERM"
	if !l.endsWithin(2 * soon()) {
		l.Mistake("does not end", expected, l.output(nil)+"\n  "+(2*soon()).Round(time.Second).String()+" after SIGTERM")
	}
	if code = l.ExitCode(); code == -1 {
		l.Mistake("sigterm not caught", expected, "SIGTERM has killed the program")
	}
	return code
}

// checkWatch first looks at the watches and at the end. Then it holds one of the two
// first answers back: a list that exists is all right, but a program that does not wait
// for it does not know that, and writes.
func checkWatch(c *check.C) {
	l := newPortLearner(c)
	web := l.service("web", "listed", map[string]int32{"http": 80})
	_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Create(l.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "web-ports", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(web, corev1.SchemeGroupVersion.WithKind("Service"))}},
		Data:       map[string]string{"http": "80"},
	}, metav1.CreateOptions{})
	l.Must(err)
	l.start()
	l.watching()
	for pause := time.Second; ; pause *= 3 {
		// A program that is told to stop before it has begun may call that an error. What it
		// does with a cache that is full, nobody sees from here, so it gets more time if it ends badly.
		time.Sleep(pause / 3)
		code := l.ends()
		if code == 0 {
			break
		}
		if pause > 3*time.Second {
			l.Mistake("stop is an error", "exit code 0 after SIGTERM", l.output(errEnded))
		}
		l.start()
		l.watching()
	}

	stall := l.proxy.MustInject(faultproxy.Rule{Match: readsOf("configmaps"), Fault: faultproxy.Stall, Times: -1})
	written := l.proxy.Count(listWrites)
	l.start()
	if err := l.struck(stall); err != nil {
		l.Fail("a watch of configmaps", l.output(err))
	}
	// That nothing is written is no event. A worker needs milliseconds for its first key.
	err = l.until(1500*time.Millisecond, func(context.Context) error {
		if l.proxy.Count(listWrites) == written {
			return errors.New("it waits, as it should")
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnded):
		l.Fail("the program waits for the API server", l.output(err))
	case err == nil:
		writes := l.proxy.Requests(listWrites)
		l.Mistake("work before sync", "no write before both caches are filled", writes[len(writes)-1].String())
	}
	stall.Remove()
	l.watching()
}

// checkCreate has Services before the program begins and later.
func checkCreate(c *check.C) {
	l := newPortLearner(c)
	early := l.service("early", "listed", map[string]int32{"http": 80, "metrics": 9090})
	l.service("hidden", "hidden", map[string]int32{"http": 80})
	l.service("plain", "", map[string]int32{"http": 80})
	l.proxy.KeepBodies()
	invalid := faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Write() && r.Code == 422 }}
	refused := func() int { return l.proxy.Count(invalid) }
	l.start()
	const first = "when early is labelled ports=listed"
	want := ports{"http": "80", "metrics": "9090"}
	var held *corev1.ConfigMap
	err := l.until(patience(), func(context.Context) error {
		if held = l.list("early"); held == nil && refused() == 0 {
			return errors.New("there is no early-ports")
		}
		return nil
	})
	switch {
	case err != nil:
		l.fail(expectedList("early", want, first), err)
	case held == nil:
		for _, r := range l.proxy.Requests(invalid) { // in JSON or protobuf, a UID and a kind are readable
			if bytes.Contains(r.Body, []byte(early.UID)) && !bytes.Contains(r.Body, []byte("Service")) {
				l.Mistake("reference without a kind", "an owner reference to v1, Service", "422 Invalid: the reference names no kind")
			}
		}
		l.Fail(expectedList("early", want, first), "the API server has refused it: 422 Invalid\n"+l.output(nil))
	}
	const owner = "a controller reference to Service early"
	switch owned := held.OwnerReferences; {
	case len(owned) == 0:
		l.Mistake("no owner", owner, "early-ports without an owner reference")
	case len(owned) > 1 || owned[0].UID != early.UID:
		l.Failf(owner, "%+v", owned)
	case !metav1.IsControlledBy(held, early):
		l.Mistake("owner is no controller", owner, "an owner reference without controller: true")
	case owned[0].APIVersion != "v1" || owned[0].Kind != "Service" || owned[0].Name != "early":
		l.Failf(owner, "%+v", owned[0])
	}
	targets := ports{"http": "8080", "metrics": "17090"}
	switch got := ports(held.Data); {
	case got.String() == targets.String():
		l.Mistake("target ports", expectedList("early", want, first), "early-ports holds "+got.String()+", the target ports")
	case got.String() != want.String():
		l.Fail(expectedList("early", want, first), "early-ports holds "+got.String())
	}

	before := l.proxy.Count(listWrites)
	l.service("late", "listed", map[string]int32{"https": 443})
	want = ports{"https": "443"}
	if err := l.settles("late", want); err != nil {
		expected := expectedList("late", want, "when late appears while the program runs")
		if !errors.Is(err, errEnded) && l.proxy.Count(listWrites) == before {
			if l.restart(); l.holds(soon(), "late", want) == nil {
				l.Mistake("only what was there", expected, "there is none until the program is started again")
			}
		}
		l.fail(expected, err)
	}
	before = refused()
	l.service("single", "listed", map[string]int32{"": 80})
	err = l.until(patience(), func(context.Context) error {
		if l.list("single") == nil && refused() == before {
			return errors.New("there is no single-ports")
		}
		return nil
	})
	const nameless = "when single has one port, without a name, single-ports holds {}"
	switch {
	case err != nil:
		l.fail(nameless, err)
	case l.list("single") == nil:
		l.Mistake("port without a name", nameless, "422 Invalid: a key of a ConfigMap cannot be empty")
	case len(l.list("single").Data) > 0:
		l.Fail(nameless, "it holds "+ports(l.list("single").Data).String())
	}
	// The program takes keys in the order of their events, so those of the beginning are done.
	l.idle()
	const none = "lists of early, late and single only"
	switch {
	case l.list("plain") != nil:
		l.Mistake("label ignored", none, "a list of plain, which has no label")
	case l.list("hidden") != nil:
		l.Mistake("any value of the label", none, "a list of hidden, whose label is ports=hidden")
	}
}

// idle waits until no request is under way.
func (l portLearner) idle() {
	l.T.Helper()
	if err := l.until(patience(), func(context.Context) error {
		if l.proxy.Count(underWay) > 0 {
			return errors.New("a request is under way")
		}
		return nil
	}); err != nil {
		l.Fail("a program that works", l.output(err))
	}
}

// restored waits until a list is right again after somebody has changed it. If it is not,
// an event of the Service shows whether the program would know what to do.
func (l portLearner) restored(name string, want ports, when, lost string) {
	l.T.Helper()
	err := l.settles(name, want)
	if err == nil {
		return
	}
	expected := expectedList(name, want, when)
	if errors.Is(err, errEnded) {
		if _, crash, ok := strings.Cut(l.Stderr(), "interface conversion:"); ok && strings.Contains(crash, "DeletedFinalStateUnknown") {
			crash, _, _ = strings.Cut(crash, "\n")
			l.Mistake("tombstone panics", expected, "panic: interface conversion:"+crash)
		}
		l.fail(expected, err)
	}
	l.touch(name)
	if l.holds(soon(), name, want) == nil {
		l.Mistake(lost, expected, "it does so only when something happens to its Service, too")
	}
	if l.restart(); l.holds(soon(), name, want) == nil {
		l.Mistake("acts only once", expected, err.Error()+", until the program is started again")
	}
	if l.list(name) != nil {
		if l.proxy.Count(faultproxy.Match{Verb: "patch", Resource: "configmaps", Name: name + "-ports", If: func(r faultproxy.Request) bool { return r.Code == http.StatusConflict }}) > 0 {
			l.Fail(expected, err.Error()+", and the API server has answered a patch of your program with 409: an apply without Force takes no field that somebody else owns")
		}
		if l.proxy.Count(faultproxy.Match{Verb: "delete", Resource: "configmaps", Name: name + "-ports"}) > 0 {
			l.Fail(expected, err.Error()+", and your program has tried to delete it, which may take its time")
		}
		l.Mistake("never changed", expected, err.Error())
	}
	l.fail(expected, err)
}

// Writes of lists: a program may also write Events about them, and Leases.
var (
	listWrites         = faultproxy.Match{Resource: "configmaps", If: faultproxy.Request.Write}
	acceptedListWrites = faultproxy.Match{Resource: "configmaps", If: acceptedWrites.If}
)

const finalizer = "workshop.k8s-go.dev/check"

// freed removes what finalizers a Service and its list have at the end of the check, or the namespace would stay.
func (l portLearner) freed(name string) {
	l.AtEnd(func(ctx context.Context) error {
		_, err := l.Client.CoreV1().Services(l.Namespace).Patch(ctx, name, types.MergePatchType, []byte(withoutFinalizers), metav1.PatchOptions{})
		return err
	}, func(ctx context.Context) error {
		_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(ctx, name+"-ports", types.MergePatchType, []byte(withoutFinalizers), metav1.PatchOptions{})
		return err
	})
}

// checkRestore changes and deletes lists, and changes and deletes Services. One has a dash in its name.
func checkRestore(c *check.C) {
	l := newPortLearner(c)
	l.service("my-shop", "listed", map[string]int32{"http": 80, "metrics": 9090})
	l.start()
	want := ports{"http": "80", "metrics": "9090"}
	l.mustHold("my-shop", want, "when my-shop is labelled ports=listed")
	l.forge("my-shop-ports", `{"metadata":{"labels":{"color":"blue"},"annotations":{"color":"blue"}},"data":{"http":"1"}}`)
	l.restored("my-shop", want, "when somebody has changed it", "list forgotten")
	// kept ends the check unless the metadata holds what somebody else has put there.
	kept := func(what string, is func(*corev1.ConfigMap) bool) {
		if now := l.list("my-shop"); now != nil && !is(now) {
			l.Mistake("rest of the list lost", what+", which somebody else has given to my-shop-ports",
				fmt.Sprintf("the labels %v, the annotations %v and the finalizers %v", now.Labels, now.Annotations, now.Finalizers))
		}
	}
	kept("the label color=blue", func(list *corev1.ConfigMap) bool { return list.Labels["color"] == "blue" })
	kept("the annotation color=blue", func(list *corev1.ConfigMap) bool { return list.Annotations["color"] == "blue" })
	l.freed("my-shop")
	l.forge("my-shop-ports", fmt.Sprintf(`{"metadata":{"finalizers":[%q]},"data":{"http":"2"}}`, finalizer))
	l.restored("my-shop", want, "when somebody has changed it again", "list forgotten")
	kept("the finalizer "+finalizer, func(list *corev1.ConfigMap) bool { return slices.Contains(list.Finalizers, finalizer) })
	l.forge("my-shop-ports", withoutFinalizers)

	// Between the program's look and its Update, somebody else writes. A patch leaves that alone.
	meanwhile := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "configmaps", Name: "my-shop-ports"}, Fault: faultproxy.Call,
		Call: func(ctx context.Context, _ faultproxy.Request) error {
			_, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Patch(ctx, "my-shop-ports", types.MergePatchType, []byte(`{"metadata":{"annotations":{"size":"big"}}}`), metav1.PatchOptions{})
			return err
		}})
	l.forge("my-shop-ports", `{"data":{"http":"3"}}`)
	l.restored("my-shop", want, "when two others have changed it", "list forgotten")
	l.idle()
	meanwhile.Remove()
	for _, r := range l.proxy.Requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return slices.Contains(r.Faults, faultproxy.Call) }}) {
		if r.Code/100 == 2 { // a later Update from an older look may bring the annotation back
			l.Mistake("update without a version", "409 Conflict for an Update, because somebody has annotated my-shop-ports after the program had read it", r.String())
		}
	}
	l.remove("my-shop-ports")
	l.restored("my-shop", want, "when somebody has deleted it", "list forgotten")

	follows := func(when string, merged ports) {
		err := l.settles("my-shop", want)
		if err == nil {
			return
		}
		expected := expectedList("my-shop", want, when)
		switch list := l.list("my-shop"); {
		case errors.Is(err, errEnded):
		case list != nil && ports(list.Data).String() == merged.String():
			l.Mistake("old key kept", expected, "my-shop-ports holds "+merged.String())
		default:
			if l.restart(); l.holds(soon(), "my-shop", want) == nil {
				l.Mistake("service forgotten", expected, "it does so when the program is started again")
			}
			l.Mistake("never changed", expected, err.Error())
		}
		l.fail(expected, err)
	}
	l.service("my-shop", "listed", map[string]int32{"http": 80, "https": 443})
	want = ports{"http": "80", "https": "443"}
	follows("when my-shop has https in place of metrics", ports{"http": "80", "https": "443", "metrics": "9090"})
	l.service("my-shop", "listed", map[string]int32{"http": 80})
	all := want
	want = ports{"http": "80"}
	follows("when my-shop has no https any more", all)
	l.service("my-shop", "", map[string]int32{"http": 80})
	if err := l.settles("my-shop", nil); err != nil {
		const gone = "when my-shop has lost its label, there is no my-shop-ports"
		if errors.Is(err, errEnded) {
			l.fail(gone, err)
		}
		if l.restart(); l.holds(soon(), "my-shop", nil) == nil {
			l.Fail(gone, "it goes when the program is started again")
		}
		l.Mistake("list kept", gone, err.Error())
	}
	l.service("my-shop", "listed", map[string]int32{"http": 80})
	l.mustHold("my-shop", want, "when my-shop has its label again")
	// What it mends its cache has: a list whose event has not come yet would go unnoticed. The informer
	// of Services waits for an answer, and so repeats nothing: only the event of the list tells of this.
	l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: "services"}, Fault: faultproxy.ErrorEvent, Code: 410})
	deaf := l.proxy.MustInject(faultproxy.Rule{Match: watchesOf("services"), Fault: faultproxy.Stall, Times: -1})
	l.proxy.Cut(watchesOf("services"))
	if err := l.struck(deaf); err != nil {
		l.Fail("the program watches the services again after 410 Gone", l.output(err))
	}
	l.forge("my-shop-ports", `{"data":{"http":"1"}}`)
	if err := l.holds(patience(), "my-shop", want); err != nil {
		l.fail(expectedList("my-shop", want, "when somebody has changed it, while the API server tells nothing about Services"), err)
	}
	deaf.Remove()

	// The program reads the state again, in which the list is missing, and no event says so.
	l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch", Resource: "configmaps"}, Fault: faultproxy.ErrorEvent, Code: 410})
	again := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Resource: "configmaps", If: func(r faultproxy.Request) bool {
		return r.Verb == "list" || r.Verb == "watch-list"
	}}, Fault: faultproxy.Stall, Times: -1})
	l.proxy.Cut(watchesOf("configmaps"))
	if err := l.struck(again); err != nil {
		l.Fail("the program reads the configmaps again after 410 Gone", l.output(err))
	}
	l.remove("my-shop-ports")
	again.Remove()
	const unseen = "when it was deleted, and only a new list shows that"
	l.restored("my-shop", want, unseen, "tombstone ignored")

	// A finalizer holds a Service that is being deleted, and then another one its list, when the Service is gone.
	l.freed("going")
	l.service("going", "listed", map[string]int32{"http": 80})
	l.mustHold("going", want, "when going is labelled ports=listed")
	services := l.Client.CoreV1().Services(l.Namespace)
	_, err := services.Patch(l.Context(), "going", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"finalizers":[%q]}}`, finalizer), metav1.PatchOptions{})
	l.Must(err)
	l.forge("going-ports", fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, finalizer))
	l.Must(services.Delete(l.Context(), "going", metav1.DeleteOptions{}))
	// seen waits until the program has handled later events of both kinds.
	seen := func(port int32) {
		want = ports{"http": fmt.Sprint(port)}
		l.service("my-shop", "listed", map[string]int32{"http": port})
		l.mustHold("my-shop", want, "when the port of my-shop has changed")
		l.forge("my-shop-ports", `{"data":{"http":"1"}}`)
		l.mustHold("my-shop", want, "when somebody has changed it")
		l.idle()
	}
	left := func(when string, written int) {
		if writes := l.proxy.Requests(writesOfGoing); len(writes) > written {
			l.Mistake("deleted service", "no write for going-ports, "+when, writes[len(writes)-1].String())
		}
	}
	seen(81)
	written := l.proxy.Count(writesOfGoing)
	l.forge("going-ports", `{"data":{"http":"1"}}`)
	seen(82)
	left("when its Service is being deleted, and somebody has changed it", written)
	_, err = services.Patch(l.Context(), "going", types.MergePatchType, []byte(withoutFinalizers), metav1.PatchOptions{})
	l.Must(err)
	seen(83)
	left("when its Service is gone", written)
}

// writesOfGoing are those for the list of the Service going that is there.
var writesOfGoing = faultproxy.Match{Name: "going-ports", If: faultproxy.Request.Write}

// checkCalm counts writes, and has writes fail.
func checkCalm(c *check.C) {
	l := newPortLearner(c)
	l.set("taken-ports", "foreign")
	l.set("owned-ports", "foreign")
	foreign := map[string]*corev1.ConfigMap{"taken": l.list("taken")}
	owner := metav1.NewControllerRef(foreign["taken"], corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	l.forge("owned-ports", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"controller":true}]}}`, owner.Name, owner.UID))
	foreign["owned"] = l.list("owned")
	// The list of an earlier Service of that name, which the garbage collector cannot remove yet.
	l.set("earlier-ports", "foreign")
	l.forge("earlier-ports", `{"metadata":{"finalizers":["`+finalizer+`"],
		"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"earlier","uid":"an-earlier-one","controller":true}]}}`)
	l.freed("earlier")
	for _, name := range []string{"taken", "owned", "earlier", "a"} {
		l.service(name, "listed", map[string]int32{"http": 80})
	}
	l.service("single", "listed", map[string]int32{"": 80})
	// Whoever sorts the ports of a cached Service, by name or number, in either direction, changes these.
	_, err := l.Client.CoreV1().Services(l.Namespace).Create(l.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "three", Labels: map[string]string{"ports": "listed"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "metrics", Port: 9090}, {Name: "http", Port: 80}, {Name: "web", Port: 8443}}},
	}, metav1.CreateOptions{})
	l.Must(err)
	l.set("alone-ports", "foreign") // there is no Service alone
	foreign["alone"] = l.list("alone")
	l.proxy.KeepBodies()
	l.start("KUBE_CACHE_MUTATION_DETECTOR=true")
	l.calmly("single", ports{}, "when single has one port, without a name")
	l.calmly("three", ports{"http": "80", "metrics": "9090", "web": "8443"}, "when three is labelled ports=listed")
	l.calmly("a", ports{"http": "80"}, "when a is labelled ports=listed")
	l.forge("a-ports", `{"data":{"http":"1"}}`)
	l.calmly("a", ports{"http": "80"}, "when somebody has changed it")
	l.idle()

	// None of this needs a write. What the program takes later are b and c.
	before := l.proxy.Count(acceptedListWrites)
	l.touch("a")
	l.touch("single")
	l.forge("a-ports", `{"metadata":{"labels":{"color":"blue"}}}`)
	for _, name := range []string{"taken", "owned"} {
		l.service(name, "", map[string]int32{"http": 80})
	}
	for _, name := range []string{"b", "c"} {
		l.service(name, "listed", map[string]int32{"http": 80})
		l.calmly(name, ports{"http": "80"}, "when "+name+" is labelled ports=listed")
	}
	l.idle()
	for name, was := range foreign {
		if now := l.list(name); now == nil || now.ResourceVersion != was.ResourceVersion {
			held := "it is gone"
			if now != nil {
				held = fmt.Sprintf("it has data %v and owners %v", now.Data, now.OwnerReferences)
			}
			l.Mistake("foreign list touched", name+"-ports, which somebody else has made, stays as it is", held)
		}
	}
	if n := l.proxy.Count(faultproxy.Match{Name: "earlier-ports", If: acceptedListWrites.If}); n > 0 {
		l.Mistake("owner by name", "earlier-ports, whose owner is an earlier Service of that name, stays as it is", fmt.Sprintf("%d writes", n))
	}
	if n := l.proxy.Count(acceptedListWrites) - before; n > 2 {
		l.Mistake("write without a difference", "2 writes: the lists of b and c are created", fmt.Sprintf("%d writes, after an annotation of the Services a and single, and a label of a's list", n))
	}

	// What stood in the way goes. What the program takes before that is e.
	for _, name := range []string{"taken", "e"} {
		l.service(name, "listed", map[string]int32{"http": 80})
	}
	l.calmly("e", ports{"http": "80"}, "when e is labelled ports=listed")
	l.remove("taken-ports")
	if err := l.settles("taken", ports{"http": "80"}); err != nil {
		expected := expectedList("taken", ports{"http": "80"}, "when somebody else's ConfigMap of that name is deleted")
		l.detected(expected, err)
		if l.touch("taken"); l.holds(soon(), "taken", ports{"http": "80"}) == nil {
			l.Mistake("free name unnoticed", expected, "it does so only when something happens to its Service, too")
		}
		l.fail(expected, err)
	}

	l.remove("earlier-ports")
	l.forge("earlier-ports", withoutFinalizers)
	l.mustHold("earlier", ports{"http": "80"}, "when the list of the earlier Service is gone")

	// The eighth try comes 5+10+...+320 = 635 ms after the first. Every error counts, so the first one is another.
	const tries = 8
	notOfF := faultproxy.Match{Resource: "configmaps", If: func(r faultproxy.Request) bool {
		return r.Write() && r.Name != "f-ports" && !bytes.Contains(r.Body, []byte("f-ports"))
	}}
	forbidden := l.proxy.MustInject(faultproxy.Rule{Match: notOfF, Fault: faultproxy.Answer, Code: 403})
	failing := l.proxy.MustInject(faultproxy.Rule{Match: notOfF, Fault: faultproxy.Answer, Code: 500, Times: -1})
	l.service("d", "listed", map[string]int32{"http": 80})
	l.strikes(forbidden, "a list of d")
	quiet, silent := 0, false
	err = l.until(patience(), func(context.Context) error {
		n := forbidden.Struck() + failing.Struck()
		if quiet++; n > 1 {
			quiet = 0
		}
		// The wait for the next try passes by the clock: 5 ms, of which this grants 3 s, counted in looks, because a
		// machine that stands still does not look.
		if silent = quiet > 60; n >= tries || silent {
			return nil
		}
		return fmt.Errorf("%d tries", n)
	})
	expected := fmt.Sprintf("%d tries to create d-ports, each later than the one before, while the API server answers 403 and then 500", tries)
	switch {
	case err != nil:
		l.detected(expected, err)
		l.fail(expected, err)
	case silent:
		l.Mistake("error not retried", expected, "one try in 3 s, answered by 403 Forbidden")
	}
	refused := func(r faultproxy.Request) bool { return slices.Contains(r.Faults, faultproxy.Answer) }
	// Before each try the program may read, which is no wait.
	ofD := func(r faultproxy.Request) bool {
		return refused(r) || r.Verb == "get" && (r.Name == "d" || r.Name == "d-ports")
	}
	asked := l.proxy.Requests(faultproxy.Match{If: func(r faultproxy.Request) bool { return !strings.HasPrefix(r.Verb, "watch") }})
	var pauses, alone []time.Duration // alone: what the queue and the client's own limit do for another key is no wait for d either
	for i := slices.IndexFunc(asked, refused); len(pauses) < tries-1; i++ {
		if !refused(asked[i]) {
			continue
		}
		next := i + 1 + slices.IndexFunc(asked[i+1:], ofD)
		pauses = append(pauses, between(asked[i], asked[next]))
		if next == i+1 && len(pauses) <= 3 {
			alone = append(alone, pauses[len(pauses)-1])
		}
	}
	// With a back-off the last one is 320 ms. The client's own limit of five requests a second makes 200 ms between two of them.
	// Pauses of another length are somebody's own, and need only grow.
	own := len(alone) > 0 && slices.Min(alone) >= 20*time.Millisecond && slices.Min(alone) < 150*time.Millisecond
	last := pauses[tries-2]
	growing := last >= 30*time.Millisecond && last < 180*time.Millisecond // as from one or two milliseconds on; more may be the client's own limit
	for i := tries - 4; i <= tries-2; i++ {
		growing = growing && pauses[i] >= pauses[i-1]*3/2
	}
	switch {
	case last < 250*time.Millisecond && !own && !growing:
		l.Mistake("hot loop", expected, fmt.Sprintf("%s between the seventh try and the next request", last.Round(time.Millisecond)))
	case len(alone) > 0 && last < slices.Min(alone)*6/5:
		first := slices.Min(alone)
		l.Failf(expected, "%s after one of the first tries, and %s after the seventh", first.Round(time.Millisecond), last.Round(time.Millisecond))
	}
	// d fails on, later each time, and has the worker no longer than one try takes.
	tried, began := failing.Struck(), time.Now()
	l.service("f", "listed", map[string]int32{"http": 80})
	heldUp := false
	err = l.until(patience(), func(context.Context) error {
		if heldUp = failing.Struck() >= tried+3 && time.Since(began) > 3*time.Second; heldUp || l.list("f") != nil {
			return nil
		}
		return errors.New("there is no f-ports")
	})
	const meanwhile = "a list of f, while writes of the list of d fail"
	switch {
	case err != nil:
		l.detected(meanwhile, err)
		l.fail(meanwhile, err)
	case heldUp:
		l.Mistake("others held up", meanwhile, fmt.Sprintf("%d more tries for d, and none for f", failing.Struck()-tried))
	}
	failing.Remove()
	l.calmly("d", ports{"http": "80"}, "when the API server works again")

	// After eight failures that were not forgotten, the next try comes after 1.28 s, and the one
	// after the next failure later still. If they were forgotten, only a machine that stands still
	// lets a try be so late, and not twice.
	const late = 1100 * time.Millisecond
	pause := late
	for port := int32(81); port <= 82 && pause >= late; port++ {
		first := len(l.proxy.Requests(listWrites))
		once := l.proxy.MustInject(faultproxy.Rule{Match: listWrites, Fault: faultproxy.Answer, Code: 500})
		l.service("d", "listed", map[string]int32{"http": port})
		if err := l.struck(once); err != nil {
			l.Fail("a write, because a port of d has changed", l.output(err))
		}
		l.calmly("d", ports{"http": fmt.Sprint(port)}, "when the API server works again")
		tried := l.proxy.Requests(listWrites)[first:]
		pause = between(tried[0], tried[1])
	}
	if pause >= late {
		l.Mistake("forget missing", "the second try to change d-ports comes 5 ms after the first", "it comes after "+pause.Round(time.Millisecond).String())
	}
	// Between the program's look and its delete, somebody puts a ConfigMap of their own in the list's place.
	var theirs *corev1.ConfigMap
	lists := l.Client.CoreV1().ConfigMaps(l.Namespace)
	replaced := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete", Resource: "configmaps", Name: "c-ports"}, Fault: faultproxy.Call,
		Call: func(ctx context.Context, _ faultproxy.Request) (err error) {
			if err := lists.Delete(ctx, "c-ports", metav1.DeleteOptions{}); err != nil {
				return err
			}
			theirs, err = lists.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c-ports"}}, metav1.CreateOptions{})
			return err
		}})
	l.service("c", "", map[string]int32{"http": 80})
	l.strikes(replaced, "a delete of c-ports, because c has lost its label")
	l.idle()
	if now := l.list("c"); now == nil || now.UID != theirs.UID {
		l.Mistake("deleted by name", "the ConfigMap c-ports stays, which somebody has put into the place of the list since the program looked at it", "it is gone")
	}
	// The same for b, whose list somebody takes over: its UID stays.
	takenOver := l.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "delete", Resource: "configmaps", Name: "b-ports"}, Fault: faultproxy.Call,
		Call: func(ctx context.Context, _ faultproxy.Request) error {
			_, err := lists.Patch(ctx, "b-ports", types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{})
			return err
		}})
	l.service("b", "", map[string]int32{"http": 80})
	l.strikes(takenOver, "a delete of b-ports, because b has lost its label")
	l.idle()
	if l.list("b") == nil {
		l.Mistake("deleted without a version", "the ConfigMap b-ports stays, whose owner reference somebody has removed since the program looked at it", "it is gone")
	}

	// The list of b has lost its owner, and keeps all else by which it may be known. What the program takes later is h, twice.
	l.forge("b-ports", `{"metadata":{"ownerReferences":null},"data":{"http":"1"}}`)
	l.touch("b")
	l.service("h", "listed", map[string]int32{"http": 80})
	l.calmly("h", ports{"http": "80"}, "when h is labelled ports=listed")
	l.forge("h-ports", `{"data":{"http":"1"}}`)
	l.calmly("h", ports{"http": "80"}, "when somebody has changed it")
	l.idle()
	if now := l.list("b"); now == nil || now.Data["http"] != "1" || len(now.OwnerReferences) > 0 {
		held := "it is gone"
		if now != nil {
			held = fmt.Sprintf("it has data %v and owners %v", now.Data, now.OwnerReferences)
		}
		l.Mistake("owner by label", "b-ports, which has lost its owner reference, stays as it is", held)
	}

	// It is told to stop while a write is under way.
	ofG := faultproxy.Match{If: func(r faultproxy.Request) bool {
		return r.Write() && (r.Name == "g-ports" || bytes.Contains(r.Body, []byte("g-ports")))
	}}
	told := l.proxy.MustInject(faultproxy.Rule{Match: ofG, Fault: faultproxy.Call, Call: l.Process.TerminateDuring})
	l.service("g", "listed", map[string]int32{"http": 80})
	l.strikes(told, "a list of g")
	err = l.until(patience(), func(context.Context) error { return errors.New("it runs") })
	const ended = "exit code 0 after SIGTERM, when the write that was under way has ended"
	l.detected(ended, err)
	if errors.Is(err, errEnded) && l.list("g") == nil {
		l.Mistake("work cut off", ended, fmt.Sprintf("exit code %d, and there is no g-ports", l.ExitCode()))
	}
	if !errors.Is(err, errEnded) || l.ExitCode() != 0 {
		l.Fail(ended, l.output(err))
	}
}

// strikes waits until the program has sent what is expected of it, and an injection has struck that.
func (l portLearner) strikes(i *faultproxy.Injection, expected string) {
	l.T.Helper()
	if err := l.struck(i); err != nil {
		l.detected(expected, err)
		l.Fail(expected, l.output(err))
	}
}

// calmly is mustHold where the mutation detector may end the program.
func (l portLearner) calmly(name string, want ports, when string) {
	l.T.Helper()
	if err := l.holds(patience(), name, want); err != nil {
		l.detected(expectedList(name, want, when), err)
		l.fail(expectedList(name, want, when), err)
	}
}

// detected ends the check if the mutation detector has ended the program.
func (l portLearner) detected(expected string, err error) {
	l.T.Helper()
	const says = "panic: cache *v1."
	if _, after, ok := strings.Cut(l.Stderr(), says); ok && errors.Is(err, errEnded) {
		what, _, _ := strings.Cut(after, "\n")
		l.Mistake("cached object changed", expected, says+what)
	}
}
