package outside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/09-outside/client"
	"github.com/k8s-go/workshop/09-outside/pkg/apis/outside/v1alpha1"
	"github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned"
	typed "github.com/k8s-go/workshop/09-outside/pkg/generated/clientset/versioned/typed/outside/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/freeport"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestREADME(t *testing.T) { testenv.README(t) }

func TestMain(m *testing.M) { testenv.Main(m) }

const crd = "config/crd/outside.k8s-go.openshift.org_coldrooms.yaml"

// A company is a running cold store, as its owner sees it.
type company struct {
	*testenv.Env
	t       testing.TB
	command testenv.Command
	process *testenv.Process
	address string
}

var address = regexp.MustCompile(`cold-store: (http://\S+),`)

// open starts a cold store, in which things happen faster than in the lesson.
func open(t testing.TB, e *testenv.Env, flags ...string) *company {
	t.Helper()
	listen, err := freeport.Address("127.0.0.1") // it has to be free again after a restart
	fatal.If(t, err)
	c := &company{Env: e, t: t, command: testenv.Command{Path: e.Program("./09-outside/cold-store"), Timeout: 4 * time.Minute,
		Args: append([]string{"-listen", listen, "-ledger", filepath.Join(t.TempDir(), "ledger"), "-prepare", "200ms", "-empty", "200ms"}, flags...)}}
	c.start()
	return c
}

// start opens the store.
func (c *company) start() {
	c.t.Helper()
	c.process = c.Start(c.command)
	c.Eventually(time.Minute, func(context.Context) error {
		m := address.FindStringSubmatch(c.process.Stdout())
		if m == nil {
			return fmt.Errorf("it does not say where it listens: %s", c.process.Stderr())
		}
		c.address = m[1]
		return nil
	})
}

func (c *company) kill() {
	c.process.Kill()
	c.process.Wait()
}

// call makes a call with a JSON body, and decodes the answer.
func (c *company) call(method, path string, header http.Header, body, into any) int {
	c.t.Helper()
	code, err := c.try(method, path, header, body, into)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return code
}

func (c *company) try(method, path string, header http.Header, body, into any) (int, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.address+path, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	if header != nil {
		r.Header = header
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	data, err = io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return 0, err
	}
	if into != nil && answer.StatusCode < 300 {
		err = json.Unmarshal(data, into)
	}
	return answer.StatusCode, err
}

// owner makes a call as the owner of the store, and expects it to be served.
func (c *company) owner(method, path string, body any) {
	c.t.Helper()
	if code := c.call(method, "/owner"+path, nil, body, nil); code >= 300 {
		c.t.Fatalf("%s %s %v: %d", method, path, body, code)
	}
}

// A fault is the store's Fault.
type fault struct {
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
	Changes bool   `json:"changes,omitempty"`
	Skip    int    `json:"skip,omitempty"`
	Times   int    `json:"times,omitempty"`
	Do      string `json:"do"`
	After   bool   `json:"after,omitempty"`
	Code    int    `json:"code,omitempty"`
	Retry   int    `json:"retryAfter,omitempty"`
	Delay   string `json:"delay,omitempty"`
	Struck  int    `json:"struck,omitempty"`
}

// strikes says how often the first fault has struck; 0 if there is none.
func (c *company) strikes() int {
	c.t.Helper()
	var all []fault
	if c.call("GET", "/owner/faults", nil, nil, &all); len(all) > 0 {
		return all[0].Struck
	}
	return 0
}

// struck waits until the first fault has struck.
func (c *company) struck() {
	c.t.Helper()
	c.Eventually(time.Minute, func(context.Context) error {
		if c.strikes() == 0 {
			return fmt.Errorf("it has not struck: %v", c.calls())
		}
		return nil
	})
}

// An entry is what the ledger says of a call.
type entry struct {
	Time   time.Time
	By     string
	Method string
	Path   string
	Key    string
	Code   int
	Fault  string
	Effect *struct {
		Kind string
		Room client.Room
	}
}

func (e entry) String() string {
	s := fmt.Sprintf("%s %s %d", e.Method, e.Path, e.Code)
	if e.Effect != nil {
		s += " " + e.Effect.Kind + " " + e.Effect.Room.Id
	}
	return strings.TrimSpace(s + " " + e.Fault)
}

// ledger reads all that has happened.
func (c *company) ledger() (all []entry) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.address+"/owner/ledger", nil)
	fatal.If(c.t, err)
	answer, err := http.DefaultClient.Do(r)
	fatal.If(c.t, err)
	defer answer.Body.Close()
	for d := json.NewDecoder(answer.Body); ; {
		var e entry
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, e)
	}
}

// calls are those of tenants that were to change something.
func (c *company) calls() (all []entry) {
	for _, e := range c.ledger() {
		if e.By == "tenant" && e.Method != http.MethodGet {
			all = append(all, e)
		}
	}
	return all
}

// rooms are those that are rented now, however late lists are.
func (c *company) rooms() (rooms []client.Room) {
	last := map[string]client.Room{}
	for _, e := range c.ledger() {
		if e.Effect != nil {
			last[e.Effect.Room.Id] = e.Effect.Room
		}
	}
	for _, r := range last {
		if r.State != client.Emptying {
			rooms = append(rooms, r)
		}
	}
	return rooms
}

// doubles says when somebody had two rooms at the same time.
func (c *company) doubles() error {
	has := map[string]map[string]bool{}
	for _, e := range c.ledger() {
		if e.Effect == nil || e.Effect.Room.Tags == nil {
			continue
		}
		uid := (*e.Effect.Room.Tags)[v1alpha1.UIDTag]
		if has[uid] == nil {
			has[uid] = map[string]bool{}
		}
		if e.Effect.Room.State == client.Emptying {
			delete(has[uid], e.Effect.Room.Id)
		} else if has[uid][e.Effect.Room.Id] = true; len(has[uid]) > 1 {
			return fmt.Errorf("two rooms for one ColdRoom: %s\n%v", e, c.calls())
		}
	}
	return nil
}

// A tenant is a company, and a controller in a namespace that has not started yet.
type tenant struct {
	*controllertest.Controller
	company *company
	cold    typed.ColdRoomInterface

	meanwhile func() // is called again and again while the test waits
}

func newTenant(t testing.TB, store []string, flags ...string) *tenant {
	t.Helper()
	e := testenv.New(t)
	crdtest.Share(t, e, crd)
	own, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	company := open(t, e, store...)
	f := &tenant{controllertest.New(t, e, e.Program("./09-outside/coldroom"), append([]string{"-store", company.address, "-poll", "300ms"}, flags...)...), company, own.OutsideV1alpha1().ColdRooms(e.Namespace), func() {}}
	e.FreeAtEnd(coldRooms)
	return f
}

// coldRooms are the resource of the controller.
var coldRooms = schema.GroupVersionResource{Group: v1alpha1.GroupName, Version: v1alpha1.GroupVersion.Version, Resource: "coldrooms"}

func (f *tenant) create(name string, pallets int32) *v1alpha1.ColdRoom {
	f.T.Helper()
	cr, err := f.cold.Create(f.Context(), &v1alpha1.ColdRoom{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ColdRoomSpec{Pallets: pallets}}, metav1.CreateOptions{})
	fatal.If(f.T, err)
	return cr
}

func (f *tenant) patch(name, patch string) {
	f.T.Helper()
	if _, err := f.cold.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		f.T.Fatal(err)
	}
}

func (f *tenant) patchStatus(name, patch string) {
	f.T.Helper()
	if _, err := f.cold.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		f.T.Fatal(err)
	}
}

func (f *tenant) delete(name string) {
	f.T.Helper()
	fatal.If(f.T, f.cold.Delete(f.Context(), name, metav1.DeleteOptions{}))
}

// until waits for a ColdRoom.
func (f *tenant) until(name string, check func(*v1alpha1.ColdRoom) error) (cr *v1alpha1.ColdRoom) {
	f.T.Helper()
	f.Eventually(time.Minute, func(ctx context.Context) (err error) {
		f.meanwhile()
		if cr, err = f.cold.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if err := check(cr); err != nil {
			return fmt.Errorf("%w\nstatus %+v", err, cr.Status)
		}
		return nil
	})
	return cr
}

// ready: it has a room, which is as it wants.
func (f *tenant) ready(name string) *v1alpha1.ColdRoom {
	f.T.Helper()
	return f.until(name, func(cr *v1alpha1.ColdRoom) error {
		for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionSynced} {
			if c := meta.FindStatusCondition(cr.Status.Conditions, condition); c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != cr.Generation {
				return fmt.Errorf("it is not %s", condition)
			}
		}
		if *cr.Status.Pallets != cr.Spec.Pallets || *cr.Status.Celsius != *cr.Spec.Celsius {
			return errors.New("its status says another size or temperature")
		}
		return nil
	})
}

func (f *tenant) gone(name string) {
	f.T.Helper()
	f.Eventually(time.Minute, func(ctx context.Context) error {
		f.meanwhile()
		cr, err := f.cold.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("it is still there: %+v\ncalls %v", cr.Status, f.company.calls()))
	})
}

func condition(of, reason string) func(*v1alpha1.ColdRoom) error {
	return func(cr *v1alpha1.ColdRoom) error {
		if c := meta.FindStatusCondition(cr.Status.Conditions, of); c == nil || c.Reason != reason {
			return fmt.Errorf("the condition %s is not %s", of, reason)
		}
		return nil
	}
}

// holds fails unless exactly these rooms are rented, and nobody ever had two.
func (f *tenant) holds(wants map[string]int) {
	f.T.Helper()
	got := map[string]int{}
	for _, r := range f.company.rooms() {
		got[strings.TrimPrefix(r.Name, f.Namespace+"/")] += r.Pallets
	}
	if fmt.Sprint(got) != fmt.Sprint(wants) {
		f.T.Errorf("rented are %v, want %v\n%v", got, wants, f.company.calls())
	}
	if err := f.company.doubles(); err != nil {
		f.T.Error(err)
	}
}

// As long as the store wants to be left alone, nobody can say anything about a new generation.
func TestObservesNothingWhileTheStoreIsBusy(t *testing.T) {
	t.Parallel()
	f := newTenant(t, nil)
	f.Start()
	f.create("fish", 4)
	f.ready("fish")
	f.company.owner("POST", "/faults", fault{Path: "/v1/rooms/*", Times: -1, Do: "answer", Code: http.StatusTooManyRequests, Retry: 4})
	f.company.struck()
	f.patch("fish", `{"spec":{"pallets":9}}`)
	if err := f.Hold(2*time.Second, func() error {
		cr, err := f.cold.Get(f.Context(), "fish", metav1.GetOptions{})
		if err == nil && cr.Status.ObservedGeneration == cr.Generation && meta.IsStatusConditionTrue(cr.Status.Conditions, v1alpha1.ConditionSynced) {
			err = fmt.Errorf("generation %d is observed and Synced, with %d pallets", cr.Generation, *cr.Status.Pallets)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	f.company.owner("DELETE", "/faults", nil)
	f.ready("fish")
}

// behind starts the controller with a gateway in the place of the store.
func (f *tenant) behind(gateway http.HandlerFunc) {
	f.T.Helper()
	server := httptest.NewServer(gateway)
	f.T.Cleanup(server.Close)
	f.Start("-store", server.URL)
}

// What the store says fits into a condition and into an Event, be it a whole page.
func TestLongRefusalsAreReported(t *testing.T) {
	t.Parallel()
	f := newTenant(t, nil)
	f.behind(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"rooms": []}`))
			return
		}
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = w.Write([]byte("<html>\xe9" + strings.Repeat("no ", 20_000)))
	})
	f.create("fish", 4)
	f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused))
	f.Eventually(time.Minute, func(ctx context.Context) error {
		events, err := f.Client.EventsV1().Events(f.Namespace).List(ctx, metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool { return e.Reason == v1alpha1.ReasonRefused }) {
			err = errors.New("no Event says that")
		}
		return err
	})
}

// A store that fails is left alone for longer and longer, whatever it says, and the status says why.
func TestFailuresAreNoReasonToHurry(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(w http.ResponseWriter, call int32){
		// Reported are the words of the first time.
		"other words each time": func(w http.ResponseWriter, call int32) {
			http.Error(w, fmt.Sprintf("who are you? (request %d)", call), http.StatusForbidden)
		},
		"another code each time": func(w http.ResponseWriter, call int32) { http.Error(w, "no", http.StatusBadGateway+int(call%2)) },
		"no patience at all": func(w http.ResponseWriter, _ int32) {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		},
		"an hour of patience": func(w http.ResponseWriter, _ int32) {
			w.Header().Set("Retry-After", "3600")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTenant(t, nil)
			var calls atomic.Int32
			f.behind(func(w http.ResponseWriter, _ *http.Request) { fails(w, calls.Add(1)) })
			f.create("fish", 4)
			f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonFailing))
			before, writes := calls.Load(), len(f.Writes())
			time.Sleep(5 * time.Second)
			most := 0
			if name == "another code each time" {
				most = 12 // each is reported
			}
			if n, writes := calls.Load()-before, len(f.Writes())-writes; n > 12 || writes > most { // the waits double
				t.Errorf("%d calls and %d writes in five seconds", n, writes)
			}
		})
	}
}

// A temperature that the store refuses is reported, and holds up no change of size: the room would
// stay closed.
func TestRefusedTemperatureHoldsUpNoResize(t *testing.T) {
	t.Parallel()
	f := newTenant(t, nil)
	f.Start()
	f.create("fish", 4)
	f.ready("fish")
	f.company.owner("POST", "/faults", fault{Method: "PATCH", Times: -1, Do: "answer", Code: http.StatusUnprocessableEntity})
	f.patch("fish", `{"spec":{"celsius":-20,"pallets":9}}`)
	f.until("fish", func(cr *v1alpha1.ColdRoom) error {
		if r := f.company.rooms()[0]; r.Pallets != 9 || r.State != client.Ready {
			return fmt.Errorf("the room is %+v, want 9 pallets, and open", r)
		}
		if c := meta.FindStatusCondition(cr.Status.Conditions, v1alpha1.ConditionSynced); cr.Status.Resize != nil || c == nil || c.Reason != v1alpha1.ReasonRefused || c.ObservedGeneration != cr.Generation {
			return fmt.Errorf("its status is %+v, want no resize, and Synced with the reason Refused", cr.Status)
		}
		return nil
	})
	f.company.owner("DELETE", "/faults", nil)
	f.patch("fish", `{"spec":{"celsius":-21}}`)
	f.ready("fish")
}

// A room follows its ColdRoom: size, temperature, what people do by hand, and the end.
func TestColdRooms(t *testing.T) {
	t.Parallel()
	f := newTenant(t, nil)
	f.Start()
	// The answer to the first status is that there is no such ColdRoom, which is not true.
	f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "coldrooms/status"}, Fault: faultproxy.Answer, Code: http.StatusNotFound})
	f.create("fish", 4)
	first := f.ready("fish").Status.RoomID
	f.patch("fish", `{"spec":{"celsius":-25}}`)
	f.ready("fish")
	f.patch("fish", `{"spec":{"pallets":9}}`)
	if cr := f.ready("fish"); cr.Status.RoomID != first || cr.Status.Resize != nil || cr.Status.Request != nil {
		t.Errorf("after a change of size, its status is %+v, want the same room %s and nothing under way", cr.Status, first)
	}
	f.holds(map[string]int{"fish": 9})

	// Nothing tells the controller of these; it finds them when it looks again.
	f.company.owner("PATCH", "/rooms/"+first, map[string]any{"celsius": 5, "pallets": 1, "state": "Closed"})
	f.Eventually(time.Minute, func(context.Context) error {
		if r := f.company.rooms()[0]; r.Celsius != -25 || r.Pallets != 9 || r.State != client.Ready {
			return fmt.Errorf("what somebody has done by hand stays: %+v", r)
		}
		return nil
	})
	f.company.owner("DELETE", "/rooms/"+first, nil)
	f.until("fish", func(cr *v1alpha1.ColdRoom) error {
		if id := cr.Status.RoomID; id == "" || id == first {
			return fmt.Errorf("the room is %q", id)
		}
		return nil
	})
	f.ready("fish")
	f.holds(map[string]int{"fish": 9})

	f.create("kept", 2)
	f.ready("kept")
	f.patch("kept", `{"spec":{"deletionPolicy":"Orphan"}}`)
	f.delete("kept")
	f.gone("kept")
	f.delete("fish")
	f.gone("fish")
	f.holds(map[string]int{"kept": 2})
	f.Stop()
}

// What the store refuses is in the status, costs few calls, and leaves nothing half-done.
func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newTenant(t, []string{"-quota", "10"}, "-retry", "2s")
	f.Start()
	f.create("fish", 6)
	f.ready("fish")
	f.create("meat", 6)
	refused := f.until("meat", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused))
	if message := meta.FindStatusCondition(refused.Status.Conditions, v1alpha1.ConditionSynced).Message; !strings.Contains(message, "6 of 10 pallets") {
		t.Errorf("the status says %q, and nothing of the quota", message)
	}

	// A change of three calls, whose second one is refused, is taken back.
	f.patch("fish", `{"spec":{"pallets":11}}`)
	f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused))
	f.until("fish", condition(v1alpha1.ConditionReady, v1alpha1.ReasonReady))
	f.holds(map[string]int{"fish": 6})
	began, before := time.Now(), len(f.company.calls())
	time.Sleep(5 * time.Second)
	// Each asks again every two seconds: one call for meat, four for fish (close, size, open).
	n := len(f.company.calls()) - before
	if rounds := 2 + int(time.Since(began)/(2*time.Second)); n > rounds*4 {
		t.Errorf("%d calls within 5 s for what is refused, and -retry is 2 s\n%v", n, f.company.calls())
	}

	// A change of the spec ends the wait, and so does time, also if the clock was a day ahead.
	f.patchStatus("meat", fmt.Sprintf(`{"status":{"request":{"since":%q}}}`, time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339)))
	f.patch("fish", `{"spec":{"pallets":4}}`)
	f.ready("fish")
	f.ready("meat")
	f.holds(map[string]int{"fish": 4, "meat": 6})

	// What nobody may empty is not given up, and its ColdRoom stays until then.
	id := f.ready("meat").Status.RoomID
	f.company.owner("PATCH", "/rooms/"+id, map[string]any{"locked": true})
	f.delete("meat")
	f.until("meat", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused))
	f.company.owner("PATCH", "/rooms/"+id, map[string]any{"locked": false})
	f.gone("meat")
	f.Stop()
}

// work is what the tests with faults have done: rooms are rented, changed, and given up.
func (f *tenant) work() {
	f.T.Helper()
	f.create("fish", 4)
	f.create("meat", 5)
	f.ready("fish")
	f.ready("meat")
	f.patch("meat", `{"spec":{"pallets":7}}`)
	f.delete("fish")
	f.ready("meat")
	f.gone("fish")
}

// Killed before and after each of its calls, it does neither rent a second room nor forget one.
func TestKilledAtEachCall(t *testing.T) {
	t.Parallel()
	undisturbed := newTenant(t, nil)
	undisturbed.Start()
	undisturbed.work()
	undisturbed.holds(map[string]int{"meat": 7})
	undisturbed.Stop()
	calls := len(undisturbed.company.calls())
	if calls < 6 { // two rents, close, size, open, and one given up
		t.Fatalf("%d calls: %v", calls, undisturbed.company.calls())
	}
	for _, after := range []bool{false, true} {
		for i := range calls {
			t.Run(fmt.Sprintf("call %d after=%t", i+1, after), func(t *testing.T) {
				t.Parallel()
				f := newTenant(t, []string{"-lag", "2s"}) // no list shows what has just happened
				f.Start()
				f.company.owner("POST", "/faults", fault{Changes: true, Skip: i, Do: "silent", After: after})
				killed := false
				f.meanwhile = func() {
					if !killed && f.company.strikes() > 0 {
						killed = true
						f.Kill()
						f.company.owner("DELETE", "/faults", nil)
						f.Start()
					}
				}
				f.work()
				if !killed {
					t.Fatalf("there was no such call: %v", f.company.calls())
				}
				f.holds(map[string]int{"meat": 7})
				f.delete("meat")
				f.gone("meat")
				f.holds(map[string]int{})
			})
		}
	}
}

// While the store is away, the status says so. What it has done before is in its ledger.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	f := newTenant(t, nil)
	f.Start()
	f.create("fish", 4)
	f.ready("fish")
	f.company.kill()
	f.create("meat", 5)
	for _, name := range []string{"fish", "meat"} {
		f.until(name, condition(v1alpha1.ConditionSynced, v1alpha1.ReasonFailing))
	}
	f.company.start()
	f.ready("fish")
	f.ready("meat")
	f.holds(map[string]int{"fish": 4, "meat": 5})
	f.Stop()
}

// The token is that of the Secret, also after it was replaced. When the Secret is gone, the last one is good enough to give rooms up.
func TestCredentials(t *testing.T) {
	t.Parallel()
	f := newTenant(t, []string{"-token", "first"}, "-secret", "cold-store")
	f.Start()
	f.create("fish", 4)
	f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonFailing)) // there is no Secret
	secrets := f.Client.CoreV1().Secrets(f.Namespace)
	secret, err := secrets.Create(f.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cold-store"}, StringData: map[string]string{"token": "first\n"}}, metav1.CreateOptions{})
	fatal.If(t, err)
	f.ready("fish")
	f.company.owner("PATCH", "/settings", map[string]any{"token": "second"})
	f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonFailing))
	secret.StringData = map[string]string{"token": "second"}
	if _, err := secrets.Update(f.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.ready("fish")
	fatal.If(t, secrets.Delete(f.Context(), secret.Name, metav1.DeleteOptions{}))
	f.delete("fish")
	f.gone("fish")
	f.holds(map[string]int{})
	f.Stop()
}

// -rate holds for all keys together.
func TestRate(t *testing.T) {
	t.Parallel()
	f := newTenant(t, nil, "-rate", "10")
	f.Start()
	for i := range 8 {
		f.create(fmt.Sprint("room-", i), 1)
	}
	for i := range 8 {
		f.ready(fmt.Sprint("room-", i))
	}
	all := slices.DeleteFunc(f.company.ledger(), func(e entry) bool { return e.By != "tenant" })
	for i, e := range all {
		// 10 at once, and 10 in the second after that; each of the 4 workers may have had leave for one before.
		if j := i + 24; j < len(all) && all[j].Time.Sub(e.Time) < 900*time.Millisecond {
			t.Fatalf("25 calls within %s, and -rate is 10", all[j].Time.Sub(e.Time))
		}
	}
	f.Stop()
}
