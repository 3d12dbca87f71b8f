package outside

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/09-outside/client"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"once": checkOnce, "leave": checkLeave, "change": checkChange})
}

const (
	roomAnnotation    = "outside.k8s-go.openshift.org/room"
	refusedAnnotation = "outside.k8s-go.openshift.org/refused"
)

// A shelf is a learner's program with its store.
type shelf struct {
	*check.C
	company *company
	proxy   *testenv.Proxy
	command testenv.Command
	process *testenv.Process
}

func newShelf(c *check.C, flags ...string) *shelf {
	s := &shelf{C: c, company: open(c.T, c.Env, flags...), proxy: c.Proxy()}
	s.command = testenv.Command{Path: c.Program(), Args: []string{"-namespace", c.Namespace, "-store", s.company.address}, Env: []string{"KUBECONFIG=" + s.proxy.Kubeconfig}}
	c.FreeAtEnd(corev1.SchemeGroupVersion.WithResource("configmaps"))
	return s
}

func (s *shelf) start() { s.process = s.Start(s.command) }

func (s *shelf) create(name string, pallets int, finalizers ...string) {
	_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"shelf": ""}, Finalizers: finalizers},
		Data: map[string]string{"pallets": fmt.Sprint(pallets)}}, metav1.CreateOptions{})
	s.Must(err)
}

func (s *shelf) get(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	return s.Client.CoreV1().ConfigMaps(s.Namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s *shelf) patch(name string, kind types.PatchType, patch string) {
	_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Patch(s.Context(), name, kind, []byte(patch), metav1.PatchOptions{})
	s.Must(err)
}

func (s *shelf) want(name string, pallets int) {
	s.patch(name, types.MergePatchType, fmt.Sprintf(`{"data":{"pallets":"%d"}}`, pallets))
}

// gone says whether a ConfigMap is.
func (s *shelf) gone(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.get(ctx, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New(name+" is there"))
	}
}

// count counts those of the calls to the store that are such.
func count(calls []entry, such func(entry) bool) (n int) {
	for _, e := range calls {
		if such(e) {
			n++
		}
	}
	return n
}

func (s *shelf) delete(name string) {
	s.Must(s.Client.CoreV1().ConfigMaps(s.Namespace).Delete(s.Context(), name, metav1.DeleteOptions{}))
}

// until fails the check if f does not come true, and before that asks whether a mistake explains it.
func (s *shelf) until(expected string, mistake func() error, f func(context.Context) error) {
	s.T.Helper()
	var certain error
	err := s.Until(check.Patience(15*time.Second), func(ctx context.Context) error {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if s.process.Ended() {
			certain = fmt.Errorf("the program has ended:\n%s", s.process.Stderr())
			return nil
		}
		if mistake != nil {
			if certain = mistake(); certain != nil {
				return nil
			}
		}
		return err
	})
	var named *named
	switch {
	case errors.As(certain, &named):
		s.Mistake(named.mistake, expected, named.held)
	case certain != nil:
		s.Fail(expected, certain.Error())
	case err != nil:
		s.Fail(expected, fmt.Sprintf("%v; the calls were %v", err, s.company.calls()))
	}
}

// named is what was held, where a mistake explains it.
type named struct{ mistake, held string }

func (n *named) Error() string { return n.held }

// rented waits until a ConfigMap names a room, and returns its ID.
func (s *shelf) rented(name string, mistake func() error) (id string) {
	s.T.Helper()
	s.until("the annotation "+roomAnnotation+" of "+name+" has the ID of its room", mistake, func(ctx context.Context) error {
		cm, err := s.get(ctx, name)
		if err != nil {
			return err
		}
		if id = cm.Annotations[roomAnnotation]; id == "" {
			return errors.New("it has none")
		}
		return nil
	})
	return id
}

// listed shows rooms as the lesson's rooms does.
func listed(rooms []client.Room) string {
	var lines []string
	for _, r := range rooms {
		lines = append(lines, fmt.Sprintf("%s %s pallets=%d celsius=%d %s", r.Id, r.Name, r.Pallets, r.Celsius, r.State))
	}
	if lines == nil {
		return "no room"
	}
	return strings.Join(lines, ", ")
}

// crash has the store carry out a call without an answer, kills the program then, and does something
// before the program starts again.
func (s *shelf) crash(f fault, begin, meanwhile func()) {
	s.T.Helper()
	f.Do, f.After = "silent", true
	s.company.owner("DELETE", "/faults", nil) // earlier ones have been struck
	s.company.owner("POST", "/faults", f)
	begin()
	s.until("a call "+f.Method+" "+f.Path, nil, func(context.Context) error {
		if s.company.strikes() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	s.process.Kill()
	s.process.Wait()
	s.company.owner("DELETE", "/faults", nil)
	meanwhile()
	s.start()
}

// twice says what is wrong with the requests for rooms after the first calls, as soon as there are more rooms than that.
func (s *shelf) twice(calls, rooms int) error {
	rented := len(s.company.rooms()) // before the calls, so that those show how each of them came about
	keys, repeated := map[string]bool{}, 0
	for _, e := range s.company.calls()[calls:] {
		if e.Method != http.MethodPost || e.Path != "/v1/rooms" {
			continue
		}
		switch keys[e.Key] = true; e.Code {
		case http.StatusConflict:
			return &named{"another request", fmt.Sprint(s.company.calls()[calls:])}
		case http.StatusOK:
			repeated++
		}
	}
	held := fmt.Sprintf("%d requests, with the keys %q", len(s.company.calls())-calls, slices.Sorted(maps.Keys(keys)))
	switch {
	case rented <= rooms && repeated > 3:
		return &named{"second answer", fmt.Sprintf("the same request %d times more, each answered with 200", repeated)}
	case rented <= rooms:
		return nil
	case keys[""]:
		return &named{"no key", held}
	case len(keys) > 1:
		return &named{"another key", held}
	}
	return errors.New(held)
}

// once waits for a ConfigMap's room, and fails the check if there is a second one.
func (s *shelf) once(name string, calls, rooms int) {
	s.T.Helper()
	wrong := func() error { return s.twice(calls, rooms) }
	s.rented(name, wrong)
	expected := "one room for " + name
	if n := (*named)(nil); errors.As(wrong(), &n) {
		if n.mistake != "second answer" { // it was understood in the end
			s.Mistake(n.mistake, expected, n.held)
		}
	} else if err := wrong(); err != nil {
		s.Fail(expected, err.Error())
	}
}

func checkOnce(c *check.C) {
	s := newShelf(c, "-lag", "3s", "-quota", "50") // no list shows what has just happened
	s.start()
	s.create("fish", 4)
	first := s.rented("fish", nil)
	if rooms := s.company.rooms(); len(rooms) != 1 || rooms[0].Id != first || rooms[0].Pallets != 4 || rooms[0].Celsius != -18 {
		s.Fail("one room with 4 pallets and -18 degrees, whose ID the ConfigMap has", fmt.Sprintf("%s, and %s", first, listed(rooms)))
	}
	before := len(s.company.calls())
	s.crash(fault{Method: "POST", Path: "/v1/rooms"}, func() { s.create("meat", 3) }, func() { s.want("meat", 5) })
	s.once("meat", before, 2)

	// What it has written down does not show in its cache, and the answer is lost.
	before = len(s.company.calls())
	behind := s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "configmaps"}, Object: "milk", Fault: faultproxy.Hold, After: 1, Times: -1})
	s.company.owner("POST", "/faults", fault{Method: "POST", Path: "/v1/rooms", Do: "answer", Code: http.StatusInternalServerError, After: true})
	s.create("milk", 2)
	asked := func(times int) func(context.Context) error {
		return func(context.Context) error {
			// The room of meat may be changed only now.
			n := count(s.company.calls()[before:], func(e entry) bool { return e.Method == http.MethodPost && e.Path == "/v1/rooms" })
			if n < times {
				return fmt.Errorf("there were %d", n)
			}
			return nil
		}
	}
	s.until("milk is changed, or a room is asked for", nil, func(ctx context.Context) error {
		cm, err := s.get(ctx, "milk")
		if err == nil && (len(cm.Annotations) > 0 || len(cm.Finalizers) > 0) {
			return nil
		}
		return errors.Join(err, asked(1)(ctx))
	})
	_ = s.Until(2*time.Second, asked(2)) // whoever reads the cache only cannot ask again before the event comes
	behind.Remove()
	s.until("a call POST /v1/rooms", nil, asked(1))
	s.company.owner("DELETE", "/faults", nil)
	s.once("milk", before, 3)

	// What is to be written down is refused at first.
	before = len(s.company.calls())
	s.proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Resource: "configmaps", Name: "salt", If: func(r faultproxy.Request) bool { return r.Verb == "update" || r.Verb == "patch" }},
		Fault: faultproxy.Answer, Code: http.StatusInternalServerError})
	s.crash(fault{Method: "POST", Path: "/v1/rooms"}, func() { s.create("salt", 1) }, func() {})
	s.once("salt", before, 4)

	// The store has rented a room, and whoever asks gets 403, or no answer, until somebody has changed the ConfigMap.
	for i, lost := range []fault{{Do: "answer", Code: http.StatusForbidden}, {Do: "close"}} {
		name, rooms := fmt.Sprintf("herbs-%d", i), 5+i
		before = len(s.company.calls())
		lost.Method, lost.Path, lost.After = "POST", "/v1/rooms", true
		s.company.owner("POST", "/faults", lost)
		lost.After, lost.Times = false, -1
		s.company.owner("POST", "/faults", lost)
		s.create(name, 2)
		s.until("a request for a room for "+name, nil, asked(1))
		s.want(name, 3)
		_ = s.Until(5*time.Second, asked(len(s.company.calls())-before+4)) // whoever waits longer repeats it later
		s.company.owner("DELETE", "/faults", nil)
		forgotten := func() error {
			err := s.twice(before, rooms)
			if n := (*named)(nil); errors.As(err, &n) && n.mistake != "second answer" {
				return &named{"forgets its request", n.held}
			}
			return err
		}
		s.rented(name, forgotten)
		if n := (*named)(nil); errors.As(forgotten(), &n) && n.mistake != "second answer" {
			s.Mistake(n.mistake, "one room for "+name, n.held)
		}
	}

	s.delete("fish")
	s.until("fish is gone", nil, s.gone("fish"))
	s.create("fish", 4)
	again := s.rented("fish", func() error {
		for _, e := range s.company.calls() {
			if e.Method == http.MethodPost && e.Path == "/v1/rooms" && e.Code == http.StatusNotFound {
				return &named{"key of the name", "the store answers 404: the room of this key has been given up"}
			}
		}
		return nil
	})
	if again == first {
		s.Mistake("key of the name", "a room of its own for the second fish", again+", which was that of the first one")
	}

	// What was refused has led to nothing, so there is nothing to repeat.
	for _, tc := range []struct {
		name          string
		pallets, code int
	}{{"rice", 101, http.StatusUnprocessableEntity}, {"oats", 51, http.StatusPaymentRequired}} { // no room is so large, and there are 50 pallets
		before = len(s.company.calls())
		refused := func() int {
			return count(s.company.calls()[before:], func(e entry) bool { return e.Code == tc.code })
		}
		s.create(tc.name, tc.pallets)
		s.until(fmt.Sprintf("a request for %d pallets, which the store refuses", tc.pallets), nil, func(context.Context) error {
			if refused() == 0 {
				return errors.New("there was none")
			}
			return nil
		})
		s.want(tc.name, 1)
		so := refused()
		s.rented(tc.name, func() error {
			if n := refused() - so; n > 4 {
				return &named{"asks for what was refused", fmt.Sprintf("%d pallets, asked for %d times more, and each time refused with %d", tc.pallets, n, tc.code)}
			}
			return nil
		})
	}

	// Without the label it is anybody's. A later one shows that its turn has come.
	had := len(s.company.rooms())
	_, err := s.Client.CoreV1().ConfigMaps(s.Namespace).Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "sugar", Labels: map[string]string{"shelves": ""}},
		Data: map[string]string{"pallets": "1"}}, metav1.CreateOptions{})
	s.Must(err)
	s.create("last", 1)
	s.rented("last", nil)
	if rooms := s.company.rooms(); len(rooms) > had+1 {
		s.Mistake("label ignored", "no room for sugar, which has no label shelf", listed(rooms))
	}
}

func checkLeave(c *check.C) {
	s := newShelf(c, "-empty", "1500ms", "-lag", "5s") // no list shows what has just happened
	s.start()
	s.create("fish", 4)
	fish := s.rented("fish", nil)
	cm, err := s.get(s.Context(), "fish")
	c.Must(err)
	for _, method := range []string{"GET", "DELETE"} { // which says nothing about the room
		s.company.owner("POST", "/faults", fault{Method: method, Path: "/v1/rooms/" + fish, Do: "answer", Code: http.StatusServiceUnavailable})
	}
	s.delete("fish")
	expected := "fish and its room are gone, the room first"
	if len(cm.Finalizers) == 0 {
		s.Mistake("no finalizer", expected, "fish is gone, and has had no finalizer")
	}
	// A second look after the store has said 404 would let it go.
	s.until(expected, func() error {
		lost := count(s.company.calls(), func(e entry) bool { return e.Method == http.MethodDelete && e.Code == http.StatusNotFound })
		if lost > 3 {
			return &named{"never lets go", fmt.Sprintf("%d times the store has said that there is no such room", lost)}
		}
		return nil
	}, s.gone("fish"))
	if rooms := s.company.rooms(); len(rooms) > 0 {
		s.Fail(expected, listed(rooms))
	}
	s.company.owner("DELETE", "/faults", nil) // that of GET, if nobody has looked
	if code := s.company.call("GET", "/v1/rooms/"+fish, nil, nil, nil); code != http.StatusNotFound {
		s.Mistake("gone too early", expected, fmt.Sprintf("fish is gone, and %s is being emptied", fish))
	}

	const others = "example.org/somebody-else"
	s.create("tea", 2, others)
	id := s.rented("tea", nil)
	s.company.owner("PATCH", "/rooms/"+id, map[string]any{"locked": true})
	looked := func() int {
		return count(s.company.ledger(), func(e entry) bool {
			return e.Method == http.MethodGet && e.By == "tenant" && strings.HasSuffix(e.Path, "/"+id)
		})
	}
	s.delete("tea")
	before := looked()
	s.until("the store is asked to take back a locked room, and refuses, or is asked twice whether the room is locked", nil, func(context.Context) error {
		if count(s.company.calls(), func(e entry) bool { return e.Method == http.MethodDelete && e.Code == http.StatusConflict }) == 0 && looked() < before+2 {
			return errors.New("it was not asked")
		}
		return nil
	})
	s.company.owner("PATCH", "/rooms/"+id, map[string]any{"locked": false})
	expected = "tea loses its finalizer when the room has been unlocked and is gone, and keeps somebody else's"
	taken := false
	s.until(expected, nil, func(ctx context.Context) error {
		cm, err := s.get(ctx, "tea")
		if taken = apierrors.IsNotFound(err); taken {
			return nil
		}
		if err == nil && !slices.Equal(cm.Finalizers, []string{others}) {
			err = fmt.Errorf("the finalizers are %q", cm.Finalizers)
		}
		return err
	})
	if rooms := s.company.rooms(); len(rooms) > 0 {
		s.Mistake("lets go of a locked room", expected, "tea has lost its finalizer, and there is "+listed(rooms))
	}
	if taken {
		s.Mistake("everybody's finalizers", expected, "tea is gone")
	}
	s.patch("tea", types.MergePatchType, `{"metadata":{"finalizers":null}}`)

	// Somebody else gives the room up.
	s.create("oil", 2)
	oil := s.rented("oil", nil)
	s.company.call("DELETE", "/v1/rooms/"+oil, nil, nil, nil)
	s.until(oil+" is gone", nil, func(context.Context) error {
		if code := s.company.call("GET", "/v1/rooms/"+oil, nil, nil, nil); code != http.StatusNotFound {
			return fmt.Errorf("the store answers %d", code)
		}
		return nil
	})
	s.delete("oil")
	s.until("oil is gone, whose room somebody else has given up", nil, s.gone("oil"))

	held := 0
	s.crash(fault{Method: "POST", Path: "/v1/rooms"}, func() { s.create("meat", 3) }, func() {
		cm, err := s.get(s.Context(), "meat")
		c.Must(err)
		held = len(cm.Finalizers)
		s.delete("meat")
	})
	expected = "meat and its room are gone, although nobody has seen the answer to the rent"
	if held == 0 {
		s.Mistake("finalizer too late", expected, "meat is gone, and there is "+listed(s.company.rooms()))
	}
	s.until(expected, nil, s.gone("meat"))
	if rooms := s.company.rooms(); len(rooms) > 0 {
		s.Mistake("unknown room", expected, "meat is gone, and there is "+listed(rooms))
	}

	// There is no room, and there never was one: the store refuses the request whenever it is sent.
	refused := func() int {
		return count(s.company.calls(), func(e entry) bool { return e.Code == http.StatusUnprocessableEntity })
	}
	s.crash(fault{Method: "POST", Path: "/v1/rooms"}, func() { s.create("rice", 101) }, func() { s.delete("rice") })
	s.until("rice is gone, for which the store has rented no room", func() error {
		if n := refused() - 1; n > 4 {
			return &named{"waits for no room", fmt.Sprintf("101 pallets, asked for %d times more, and rice stays", n)}
		}
		return nil
	}, s.gone("rice"))

	s.create("salt", 1)
	salt := s.rented("salt", nil)
	s.patch("salt", types.MergePatchType, `{"metadata":{"labels":{"shelf":null}}}`)
	given := func(context.Context) error {
		if count(s.company.calls(), func(e entry) bool { return e.Method == http.MethodDelete && e.Path == "/v1/rooms/"+salt }) == 0 {
			return errors.New("nobody has given it up")
		}
		return nil
	}
	// When a later one has its room, the turn of salt has begun; the time is for its two calls.
	s.create("later", 1)
	s.rented("later", nil)
	if given(s.Context()) == nil {
		s.Fail("salt, which has lost its label, has its room until it is deleted", "the room has been given up")
	}
	s.delete("salt")
	expected = "salt, which has lost its label, and its room are gone"
	s.create("last", 1)
	s.rented("last", nil)
	if err := s.Until(check.Patience(10*time.Second), given); err != nil {
		s.Mistake("only with the label", expected, fmt.Sprintf("%v: %s", err, listed(s.company.rooms())))
	}
	s.until(expected, nil, s.gone("salt"))
}

func checkChange(c *check.C) {
	s := newShelf(c, "-quota", "10", "-prepare", "100ms")
	s.start()
	s.create("fish", 4)
	id := s.rented("fish", nil)
	now := func() client.Room {
		for _, r := range s.company.rooms() {
			if r.Id == id {
				return r
			}
		}
		s.Fail("the room "+id+" of fish", "it is gone")
		return client.Room{}
	}
	is := func(pallets int) func(context.Context) error {
		return func(context.Context) error {
			if r := now(); r.Pallets != pallets || r.State == client.Closed {
				return fmt.Errorf("it has %d and is %s", r.Pallets, r.State)
			}
			return nil
		}
	}
	s.want("fish", 6)
	s.until("the room has 6 pallets and is open", nil, is(6))

	// Once the room cannot be opened again, which must not be the end of it.
	s.company.owner("POST", "/faults", fault{Method: "POST", Path: "/v1/rooms/" + id + "/open", Do: "answer", Code: http.StatusServiceUnavailable})
	s.want("fish", 11)
	refusals := func() int {
		return count(s.company.calls(), func(e entry) bool { return e.Code == http.StatusPaymentRequired })
	}
	expected := "the room is open with 6 pallets, and the annotation " + refusedAnnotation + " says why"
	earlier := 0
	again := func() error {
		if n := refusals() - earlier; n > 3 {
			return &named{"asked again and again", fmt.Sprintf("%d requests for 11 pallets", n)}
		}
		return nil
	}
	s.until("a request for 11 pallets, which the store refuses", nil, func(context.Context) error {
		if refusals() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	// A look for another reason shows whether it stays with what it has done; nothing is seen of a look that does nothing.
	// Where one comes between reading and writing, the program is refused what it has wanted to write down: then the next ones wait longer.
	conflict := faultproxy.Match{Resource: "configmaps", Name: "fish", If: func(r faultproxy.Request) bool { return r.Write() && r.Code == http.StatusConflict }}
	looks, conflicts, pause := 0, 0, time.Duration(0)
	begin := func() { looks, pause = 0, 300*time.Millisecond } // looks of what comes now
	begin()
	look := func() error {
		looks++
		s.patch("fish", types.MergePatchType, fmt.Sprintf(`{"metadata":{"annotations":{"look":"%d"}}}`, time.Now().UnixNano()))
		time.Sleep(pause)
		if n := s.proxy.Count(conflict); n > conflicts {
			earlier, conflicts, looks, pause = earlier+n-conflicts, n, 0, 2*pause
		}
		return again()
	}
	s.until(expected, func() error {
		if err := look(); err != nil || looks < 10 {
			return err
		}
		cm, err := s.get(s.Context(), "fish")
		switch {
		case err != nil:
			return err
		case now().State == client.Closed:
			return &named{"stays closed", "the room is closed"}
		case cm.Annotations[refusedAnnotation] == "":
			return &named{"said nowhere", "the room is open, and there is no such annotation"}
		}
		return nil
	}, func(ctx context.Context) error {
		cm, err := s.get(ctx, "fish")
		if err == nil && cm.Annotations[refusedAnnotation] == "" {
			err = errors.New("there is no such annotation")
		}
		return errors.Join(err, is(6)(ctx))
	})
	for range 4 {
		if err := look(); err != nil {
			s.Mistake("asked again and again", expected, err.Error())
		}
	}
	cm, err := s.get(s.Context(), "fish")
	c.Must(err)
	if said := cm.Annotations[refusedAnnotation]; !strings.Contains(said, "no room for 11") && !strings.Contains(said, "QuotaExceeded") && !strings.Contains(said, "402") {
		s.Fail("the annotation "+refusedAnnotation+" says what the store has said, such as that there is no room for 11", said)
	}

	// The next process has only what is written down.
	earlier = refusals()
	s.process.Kill()
	s.process.Wait()
	s.start()
	s.create("later", 1) // whose turn comes after that of fish
	s.rented("later", nil)
	_ = look()
	if n := refusals() - earlier; n > 0 {
		s.Mistake("forgotten with the process", "no request for 11 pallets after the process has been killed and started again, as nobody has changed data.pallets", fmt.Sprint(n))
	}

	before := len(s.company.calls())
	s.want("fish", 5)
	begin()
	s.until("the room has 5 pallets, and the annotation is gone", func() error {
		if err := look(); err != nil || looks < 10 {
			return err
		}
		if is(5)(s.Context()) == nil {
			return &named{"still refused", "the room has 5 pallets, and the annotation is there"}
		}
		for _, e := range s.company.calls()[before:] {
			if e.Method == http.MethodPut {
				return nil
			}
		}
		return &named{"refused for ever", "no request for 5 pallets"}
	}, func(ctx context.Context) error {
		cm, err := s.get(ctx, "fish")
		if err == nil && cm.Annotations[refusedAnnotation] != "" {
			err = errors.New("the annotation is there")
		}
		return errors.Join(err, is(5)(ctx))
	})

	// Refused once more, and then nothing but what the room has is wanted.
	earlier = refusals()
	s.want("fish", 11)
	begin()
	s.until("the room is open with 5 pallets, and the annotation is there again", look, func(ctx context.Context) error {
		cm, err := s.get(ctx, "fish")
		if err == nil && cm.Annotations[refusedAnnotation] == "" {
			err = errors.New("there is no such annotation")
		}
		return errors.Join(err, is(5)(ctx))
	})
	s.want("fish", 5)
	s.until("the room has the 5 pallets that are wanted again, and the annotation is gone", func() error {
		if err := look(); err != nil || looks < 10 {
			return err
		}
		if is(5)(s.Context()) == nil {
			return &named{"still refused", "the room has 5 pallets, and the annotation is there"}
		}
		return nil
	}, func(ctx context.Context) error {
		cm, err := s.get(ctx, "fish")
		if err == nil && cm.Annotations[refusedAnnotation] != "" {
			err = errors.New("the annotation is there")
		}
		return errors.Join(err, is(5)(ctx))
	})

	s.delete("later") // what comes needs its pallet
	s.until("later, which was deleted, and its room are gone", nil, s.gone("later"))
	// Killed after each of the first two calls.
	for pallets, call := range map[int]fault{7: {Method: "POST", Path: "/v1/rooms/" + id + "/close"}, 8: {Method: "PUT", Path: "/v1/rooms/" + id + "/size"}} {
		s.crash(call, func() { s.want("fish", pallets) }, func() {})
		other := fmt.Sprintf("after-%d", pallets) // that has its room when the next process works
		s.create(other, 1)
		s.rented(other, nil)
		begin()
		s.until(fmt.Sprintf("after a crash, the room has %d pallets and is open", pallets), func() error {
			if err := look(); err != nil || looks < 20 { // the program has to start first
				return err
			}
			if now().State == client.Closed {
				return &named{"left closed", "the room is closed"}
			}
			return nil
		}, is(pallets))
	}
}
