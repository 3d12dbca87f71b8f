package controller

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"example.org/widgets/api/v1alpha1"
	"example.org/widgets/internal/loop"
)

var key = cache.NewObjectName("shop", "a")

func newWidget(change ...func(*v1alpha1.Widget)) *v1alpha1.Widget {
	o := &v1alpha1.Widget{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "1", Generation: 3, ResourceVersion: "10"},
		Spec:       v1alpha1.WidgetSpec{Text: "hello"},
	}
	for _, f := range change {
		f(o)
	}
	return o
}

// configMap is one that the Widget of a UID controls, or nobody.
func configMap(owner types.UID, text string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, ResourceVersion: "11", Labels: map[string]string{Label: Manager}},
		Data:       map[string]string{TextKey: text},
	}
	if owner != "" {
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(newWidget(), v1alpha1.GroupVersionKind)}
		c.OwnerReferences[0].UID = owner
	}
	return c
}

// A store says how new it is, as that of an informer does.
type store struct {
	cache.Indexer
	version string
}

func (s *store) LastStoreSyncResourceVersion() string { return s.version }

// A try is one call of reconcile, on caches and a server that the test has filled.
type try struct {
	*Controller
	core     *fake.Clientset
	reported []v1alpha1.WidgetStatus
	cached   *store
	owner    *v1alpha1.Widget // as the server has it; nil if it is gone
}

func tryFor(t *testing.T, owner *v1alpha1.Widget, cached, live *corev1.ConfigMap) *try {
	t.Helper()
	filled := func(objects ...metav1.Object) *store {
		s := &store{cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), "20"}
		for _, o := range objects {
			if err := s.Add(o); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	y := &try{core: fake.NewClientset(), cached: filled(), owner: owner}
	if cached != nil {
		y.cached = filled(cached)
	}
	if live != nil {
		y.core = fake.NewClientset(live)
	}
	y.Controller = &Controller{recorder: events.NewFakeRecorder(10), owners: filled(owner), configMaps: y.cached, clients: clients{
		configMaps: y.core.CoreV1(),
		read: func(context.Context, cache.ObjectName) (*v1alpha1.Widget, error) {
			if y.owner == nil {
				return nil, apierrors.NewNotFound(gr, key.Name)
			}
			return y.owner, nil
		},
		report: func(_ context.Context, o *v1alpha1.Widget) (*v1alpha1.Widget, error) {
			y.reported = append(y.reported, o.Status)
			o = o.DeepCopy()
			o.ResourceVersion = "20"
			return o, nil
		}}}
	y.loop = loop.New("widget", y.reconcile, loop.Options{})
	return y
}

// fail lets the server answer a verb with an error.
func (y *try) fail(verb string, err error) {
	y.core.PrependReactor(verb, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// live returns the ConfigMap that the server has, without a trace in verbs.
func (y *try) live(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	o, err := y.core.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return o.(*corev1.ConfigMap)
}

// verbs are those of the requests for ConfigMaps.
func (y *try) verbs() (verbs []string) {
	for _, a := range y.core.Actions() {
		verbs = append(verbs, a.GetVerb())
	}
	return verbs
}

// reports gives a Widget a status that is about its newest spec.
func reports(s metav1.ConditionStatus, reason, message string) func(*v1alpha1.Widget) {
	return func(o *v1alpha1.Widget) {
		o.Status.ObservedGeneration = o.Generation
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady,
			Status: s, Reason: reason, Message: message, ObservedGeneration: o.Generation})
	}
}

var (
	gr      = schema.GroupResource{Resource: "configmaps"}
	quota   = apierrors.NewForbidden(gr, key.Name, errors.New("exceeded quota: small"))
	busy    = apierrors.NewTooManyRequests("busy", 7)
	changed = apierrors.NewConflict(gr, key.Name, errors.New("somebody was faster"))
	exists  = apierrors.NewAlreadyExists(gr, key.Name)
	ending  = &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}}}
)

// What one look at the caches leads to.
func TestReconcile(t *testing.T) {
	written := reports(metav1.ConditionTrue, v1alpha1.ReasonWritten, "the ConfigMap holds the text")
	newer := configMap("1", "newer")
	newer.ResourceVersion = "12"
	for _, tc := range []struct {
		name         string
		owner        *v1alpha1.Widget
		cached, live *corev1.ConfigMap
		fail         string // the verb that the server answers with err
		err          error

		verbs  []string               // of the requests for ConfigMaps
		text   string                 // in the ConfigMap afterwards, if there is one
		status metav1.ConditionStatus // of Ready, if anything is reported
		reason string
		again  time.Duration
	}{
		{name: "creates", owner: newWidget(), verbs: []string{"create"}, text: "hello", status: "True", reason: "Written"},
		{name: "corrects", owner: newWidget(written), cached: configMap("1", "drift"), live: configMap("1", "drift"), verbs: []string{"update"}, text: "hello"},
		{name: "leaves what is right", owner: newWidget(written), cached: configMap("1", "hello"), live: configMap("1", "hello"), text: "hello"},
		{name: "reports a new generation", owner: newWidget(), cached: configMap("1", "hello"), live: configMap("1", "hello"), text: "hello", status: "True", reason: "Written"},
		{name: "leaves what is somebody else's", owner: newWidget(), live: configMap("", "mine"), verbs: []string{"create", "get"}, text: "mine",
			status: "False", reason: "NotOwned", again: time.Minute},
		{name: "leaves what an earlier Widget of the name had", owner: newWidget(), cached: configMap("0", "old"), live: configMap("0", "old"), text: "old",
			status: "False", reason: "NotOwned", again: time.Minute},
		{name: "finds its own that the cache does not show", owner: newWidget(), live: configMap("1", "hello"), verbs: []string{"create", "get"}, text: "hello", status: "True", reason: "Written"},
		{name: "leaves what is being deleted", owner: newWidget(func(o *v1alpha1.Widget) { o.DeletionTimestamp = &metav1.Time{} })},
		{name: "reports a refusal", owner: newWidget(written), fail: "create", err: quota, verbs: []string{"create", "get"}, status: "False", reason: "Refused"},
		{name: "reports a refusal once", owner: newWidget(reports(metav1.ConditionFalse, v1alpha1.ReasonRefused, quota.Error())), fail: "create", err: quota, verbs: []string{"create", "get"}},
		{name: "corrects what the cache shows no longer, behind a refusal", owner: newWidget(), live: configMap("1", "drift"), fail: "create", err: quota, verbs: []string{"create", "get", "update"}, text: "hello", status: "True", reason: "Written"},
		{name: "leaves what is somebody else's, behind a refusal", owner: newWidget(), live: configMap("", "mine"), fail: "create", err: quota, verbs: []string{"create", "get"}, text: "mine",
			status: "False", reason: "NotOwned", again: time.Minute},
		{name: "reports a refusal that looks like a conflict", owner: newWidget(written), fail: "create", err: changed, verbs: []string{"create", "get"}, status: "False", reason: "Refused"},
		{name: "reports a refusal that says that there is one", owner: newWidget(written), fail: "create", err: exists, verbs: []string{"create", "get"}, status: "False", reason: "Refused"},
		{name: "reports a refused correction", owner: newWidget(written), cached: configMap("1", "drift"), live: configMap("1", "drift"), fail: "update", err: changed,
			verbs: []string{"update", "get"}, text: "drift", status: "False", reason: "Refused"},
		{name: "reports no overload", owner: newWidget(written), fail: "create", err: busy, verbs: []string{"create"}},
		{name: "reports no conflict", owner: newWidget(written), cached: configMap("1", "drift"), live: newer, fail: "update", err: changed, verbs: []string{"update", "get"}, text: "newer"},
		{name: "ends with the namespace", owner: newWidget(), fail: "create", err: ending, verbs: []string{"create"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			y := tryFor(t, tc.owner, tc.cached, tc.live)
			if tc.fail != "" {
				y.fail(tc.fail, tc.err)
			}
			again, err := y.reconcile(t.Context(), key)
			if want := tc.err != nil && tc.err != ending && (tc.live == nil || tc.fail != "create"); (err != nil) != want || want && !errors.Is(err, tc.err) && loop.Refused(err) != tc.err.Error() || again != tc.again {
				t.Errorf("got %v, %v; want %v, %v", again, err, tc.again, tc.err)
			}
			if verbs := y.verbs(); !slices.Equal(verbs, tc.verbs) {
				t.Errorf("requests: %q, want %q", verbs, tc.verbs)
			}
			if now := y.live(t); tc.text == "" && now != nil || tc.text != "" && (now == nil || now.Data[TextKey] != tc.text) {
				t.Errorf("the ConfigMap is %v, want %q", now, tc.text)
			}
			if tc.reason == "" {
				if len(y.reported) > 0 {
					t.Errorf("reported %+v, want nothing", y.reported)
				}
				return
			}
			if len(y.reported) != 1 {
				t.Fatalf("reported %+v, want one status", y.reported)
			}
			ready := meta.FindStatusCondition(y.reported[0].Conditions, v1alpha1.ConditionReady)
			if y.reported[0].ObservedGeneration != 3 || ready == nil || ready.Status != tc.status || ready.Reason != tc.reason {
				t.Errorf("reported %+v, want Ready=%s, %s", y.reported[0], tc.status, tc.reason)
			}
			if tc.reason == v1alpha1.ReasonRefused && ready.Message != tc.err.Error() {
				t.Errorf("the message is %q", ready.Message)
			}
		})
	}
}

// The garbage collector deletes the ConfigMap of a Widget that goes, and nobody makes it again.
func TestDoesNotRaceTheGarbageCollector(t *testing.T) {
	written := newWidget(reports(metav1.ConditionTrue, v1alpha1.ReasonWritten, ""))
	for name, tc := range map[string]struct {
		live  *v1alpha1.Widget
		err   error
		verbs []string
	}{
		"it goes, which the cache does not show yet": {newWidget(func(o *v1alpha1.Widget) { o.DeletionTimestamp = &metav1.Time{} }), loop.ErrStale, nil},
		"it is gone":             {nil, loop.ErrStale, nil},
		"it was made again":      {newWidget(func(o *v1alpha1.Widget) { o.UID = "another" }), loop.ErrStale, nil},
		"somebody else did that": {written, nil, []string{"create"}},
	} {
		for _, cached := range []*v1alpha1.Widget{written, newWidget()} { // the first ConfigMap of a Widget races it, too
			y := tryFor(t, cached, nil, nil)
			y.owner = tc.live
			if _, err := y.reconcile(t.Context(), key); !errors.Is(err, tc.err) || !slices.Equal(y.verbs(), tc.verbs) {
				t.Errorf("%s: %v, requests %q; want %v, %q", name, err, y.verbs(), tc.err, tc.verbs)
			}
		}
	}
}

// A cache that does not show the own write yet is too old to act on.
func TestWaitsForItsOwnWrite(t *testing.T) {
	y := tryFor(t, newWidget(), nil, nil)
	y.core.PrependReactor("create", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		made := configMap("1", "hello")
		made.ResourceVersion = "21"
		return true, made, nil
	})
	if _, err := y.reconcile(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	again, err := y.reconcile(t.Context(), key)
	if !errors.Is(err, loop.ErrBehind) || again != patienceWithCache || !slices.Equal(y.verbs(), []string{"create"}) || len(y.reported) != 1 {
		t.Errorf("on an old cache: %v, %v, requests %q, %d reports", again, err, y.verbs(), len(y.reported))
	}
	y.cached.version = "21"
	if err := y.cached.Add(configMap("1", "hello")); err != nil {
		t.Fatal(err)
	}
	if again, err := y.reconcile(t.Context(), key); err != nil || again != 0 {
		t.Errorf("when the cache has caught up: %v, %v", again, err)
	}
}

// A racing store catches up with the last write while it is read.
type racing struct{ *store }

func (r racing) GetByKey(key string) (o any, exists bool, err error) {
	o, exists, err = r.Indexer.GetByKey(key)
	r.version = "21"
	return o, exists, err
}

func TestActsOnNothingReadBeforeTheCacheHasCaughtUp(t *testing.T) {
	y := tryFor(t, newWidget(), nil, nil)
	y.owners = racing{y.owners.(*store)}
	y.writes.Record(key, y.owners, "21")
	if _, err := y.reconcile(t.Context(), key); !errors.Is(err, loop.ErrBehind) || len(y.core.Actions()) > 0 {
		t.Errorf("%v, and the requests %q", err, y.verbs())
	}
}

// What only the server has shown may be gone before the cache shows it, and then no event tells of that.
func TestLooksAgainAtWhatTheCacheDoesNotShow(t *testing.T) {
	live := configMap("1", "hello")
	live.ResourceVersion = "21"
	y := tryFor(t, newWidget(reports(metav1.ConditionTrue, v1alpha1.ReasonWritten, "the ConfigMap holds the text")), nil, live)
	if again, err := y.reconcile(t.Context(), key); err != nil || again != patienceWithCache || len(y.reported) != 0 {
		t.Errorf("of a ConfigMap that was found live: again after %s, %v, %d reports", again, err, len(y.reported))
	}
}

// The event of its own report does not make it ask again, but any other does.
func TestTriesAgainForWhatOthersDo(t *testing.T) {
	version := func(o *v1alpha1.Widget, resourceVersion string) *v1alpha1.Widget {
		o.ResourceVersion = resourceVersion
		return o
	}
	refused := func(message string) *v1alpha1.Widget {
		return version(newWidget(reports(metav1.ConditionFalse, v1alpha1.ReasonRefused, message)), "20")
	}
	relabeled := refused("no")
	relabeled.Labels = map[string]string{"by": "its author"}
	const written, refusal = v1alpha1.ReasonWritten, v1alpha1.ReasonRefused
	for _, tc := range []struct {
		name     string
		reported string // the reason of its last report
		old, now any
		want     bool
	}{
		{"its first report", refusal, version(newWidget(), "19"), refused("no"), true},
		{"a report with another message", refusal, version(refused("not now"), "19"), refused("no"), true},
		{"a refusal that somebody has restored", written, version(newWidget(), "19"), refused("no"), false},
		{"a change of somebody else", refusal, version(refused("no"), "19"), relabeled, false},
		{"a resync", refusal, refused("no"), refused("no"), false},
		{"the report of a success", written, version(newWidget(), "19"), version(newWidget(reports(metav1.ConditionTrue, written, "")), "20"), false},
		{"a ConfigMap", refusal, configMap("1", "hello"), configMap("2", "hello"), false},
	} {
		y := tryFor(t, newWidget(), nil, nil)
		for _, reason := range []string{refusal, tc.reported} {
			if err := y.report(t.Context(), key, newWidget(), metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}); err != nil {
				t.Fatal(err)
			}
		}
		if got := y.reportsRefusal(tc.old, tc.now); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// What is said to be gone, and is not, gets its status with the next look.
func TestBelievesOnlyTheCacheThatAWidgetIsGone(t *testing.T) {
	y := tryFor(t, newWidget(), nil, nil)
	y.clients.report = func(context.Context, *v1alpha1.Widget) (*v1alpha1.Widget, error) {
		return nil, apierrors.NewNotFound(gr, key.Name)
	}
	if _, err := y.reconcile(t.Context(), key); !errors.Is(err, loop.ErrStale) {
		t.Errorf("got %v, want another look", err)
	}
}

// A request of a worker is sent once, with a deadline, and the queue waits for the
// time that the server names. client-go itself would repeat it, with the worker asleep.
func TestAsksAnOverloadedServerOnce(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("timeout"))
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	c, stop, err := New(t.Context(), &rest.Config{Host: server.URL, QPS: -1}, "", loop.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := c.owners.Add(newWidget()); err != nil {
		t.Fatal(err)
	}
	_, err = c.reconcile(t.Context(), key)
	if wait := loop.RetryAfter(err); wait != 7*time.Second {
		t.Errorf("the queue is to wait for %v after %v", wait, err)
	}
	if _, err := c.clients.configMaps.ConfigMaps(key.Namespace).Create(t.Context(), configMap("", ""), metav1.CreateOptions{}); loop.RetryAfter(err) != 7*time.Second {
		t.Errorf("the ConfigMap: %v", err)
	}
	if _, err := c.clients.report(t.Context(), newWidget()); loop.RetryAfter(err) != 7*time.Second {
		t.Errorf("the status: %v", err)
	}
	want := []string{"GET /apis/" + v1alpha1.GroupVersion.String() + "/namespaces/shop/widgets/a 30s", "POST /api/v1/namespaces/shop/configmaps 30s", "PUT /apis/" + v1alpha1.GroupVersion.String() + "/namespaces/shop/widgets/a/status 30s"}
	if !slices.Equal(got, want) {
		t.Errorf("requests: %q, want %q", got, want)
	}
}
