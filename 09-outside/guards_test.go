package outside

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/09-outside/pkg/apis/outside/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// guards are those of the controller, each of which a line or two of it are there for.
var guards = controllertest.Guards{Program: "./09-outside/coldroom", Without: "without.go", Changes: map[string][]testenv.ProgramOption{
	"recorded key": {testenv.Replace("controller.go", "c.store.rent(ctx, request.Key,", `c.store.rent(ctx, map[bool]string{false: request.Key, true: time.Now().String()}[without("recorded key")],`)},
	"finalizer":    {testenv.Replace("controller.go", "case !slices.Contains(cr.Finalizers, v1alpha1.Finalizer):", `case !slices.Contains(cr.Finalizers, v1alpha1.Finalizer) && !without("finalizer"):`)},
	"finalizer first": {testenv.Replace("controller.go", "\t\tcr.Finalizers = append(cr.Finalizers, v1alpha1.Finalizer)",
		"\t\tif without(\"finalizer first\") && cr.Status.RoomID == \"\" {\n\t\t\treturn c.rent(ctx, cr)\n\t\t}\n\t\tcr.Finalizers = append(cr.Finalizers, v1alpha1.Finalizer)")},
	"catching up":             {testenv.Replace("controller.go", "if behind {", `if behind && !without("catching up") {`)},
	"asking again at the end": {testenv.Replace("controller.go", `if request := cr.Status.Request; cr.Status.RoomID == ""`, `if request := cr.Status.Request; !without("asking again at the end") && cr.Status.RoomID == ""`)},
	"adoption":                {testenv.Replace("controller.go", "if err == nil && room.State != client.Emptying && ours(cr, room) {\n\t\t\t\tcr.Status.RoomID", "if err == nil && room.State != client.Emptying && ours(cr, room) && !without(\"adoption\") {\n\t\t\t\tcr.Status.RoomID")},
	"certain refusals":        {testenv.Replace("store.go", "func neverDone(err error) string {\n", "func neverDone(err error) string {\n\tif without(\"certain refusals\") {\n\t\treturn forGood(err)\n\t}\n")},
	"late lists":              {testenv.Replace("controller.go", "\treturn true, c.late\n", "\tif without(\"late lists\") {\n\t\treturn true, 0\n\t}\n\treturn true, c.late\n")},
	"a look at the room":      {testenv.Replace("controller.go", "room, err := c.store.room(ctx, listed.Id) // as it is now\n\t\t\tif err != nil && !gone(err) {", "room, err := c.store.room(ctx, listed.Id) // as it is now\n\t\t\tif gone(err) && without(\"a look at the room\") {\n\t\t\t\troom, err = &listed, nil\n\t\t\t}\n\t\t\tif err != nil && !gone(err) {")},
	"rollback":                {testenv.Replace("controller.go", "case room.State == client.Closed: // it was", `case room.State == client.Closed && !(without("rollback") && resize != nil): // it was`)},
	"end of a refusal":        {testenv.Replace("controller.go", "if message := neverDone(err); message != \"\" {\n", "if message := neverDone(err); message != \"\" && !without(\"end of a refusal\") {\n")},
	"time of a refusal":       {testenv.Replace("controller.go", "{ a.Refused, a.Since = message, metav1.Now() }", `{ if a.Refused = message; !without("time of a refusal") { a.Since = metav1.Now() } }`)},
	"record of a refusal":     {testenv.Replace("controller.go", "if cr.Status.Cooling != nil {", `if cr.Status.Cooling != nil && !without("record of a refusal") {`)},
	"patience":                {testenv.Replace("store.go", "if wait := time.Until(s.patience); wait > 0 {", `if wait := time.Until(s.patience); wait > 0 && !without("patience") {`)},
	"waiting for the end":     {testenv.Replace("controller.go", "\t\tcase again == 0:\n", "\t\tcase again == 0 && !without(\"waiting for the end\"):\n")},
	"the store's own 404":     {testenv.Replace("store.go", `&& r.Reason == "NotFound"`, `&& (r.Reason == "NotFound" || without("the store's own 404"))`)},
	"its own tag":             {testenv.Replace("controller.go", "return room.Tags != nil &&", "return without(\"its own tag\") || room.Tags != nil &&")},
}}

// Each guard is there for a claim, which holds with it, and not without it.
func TestGuards(t *testing.T) {
	t.Parallel()
	late := []string{"-lag", "30s"} // no list shows what has just happened
	for name, tc := range map[string]struct {
		store  []string
		claim  func(*tenant) error
		guards map[string]string // and what the claim says without each
	}{
		"forbidden":           {late, isForbidden, map[string]string{"certain refusals": "two rooms"}},
		"an old key":          {[]string{"-lag", "4s", "-remembered", "1s"}, waitsForLists, map[string]string{"late lists": "two rooms"}},
		"a clock that jumped": {[]string{"-lag", "4s"}, waitsThoughItIsLate, map[string]string{"late lists": "two rooms"}},
		"a used key":          {[]string{"-lag", "4s"}, takesAnotherKey, map[string]string{"late lists": "two rooms"}},
		"a used key, deleted": {[]string{"-lag", "4s"}, leavesNoOther, nil},
		"given up by hand":    {[]string{"-lag", "3s"}, looksOnce, map[string]string{"a look at the room": "calls for one room"}},
		"one room":            {late, rentsOnce, map[string]string{"recorded key": "two rooms"}},
		"nothing left":        {late, leavesNothing, map[string]string{"finalizer": "still rented", "finalizer first": "still rented", "asking again at the end": "still rented"}},
		"the room it had":     {[]string{"-remembered", "1ms"}, adopts, map[string]string{"adoption": "two rooms"}},
		"open again":          {[]string{"-quota", "10"}, rollsBack, map[string]string{"rollback": "stays closed"}},
		"one change":          {[]string{"-quota", "10"}, changesOnce, map[string]string{"catching up": "was closed"}},
		"few calls":           {[]string{"-quota", "10"}, asksRarely, map[string]string{"end of a refusal": "calls for what was refused"}},
		"a slow refusal":      {[]string{"-quota", "10"}, waitsFromTheAnswer, map[string]string{"time of a refusal": "after its refusal"}},
		"too warm":            {nil, changesRarely("PATCH", "", `{"spec":{"celsius":-20}}`), map[string]string{"record of a refusal": "calls for what was refused"}},
		"not closed":          {nil, changesRarely("POST", "/close", `{"spec":{"pallets":9}}`), nil},
		"a gateway's 404":     {late, looksAgain, map[string]string{"the store's own 404": "two rooms"}},
		"another store":       {nil, leavesOthersAlone, map[string]string{"its own tag": "somebody else's"}},
		"patience":            {nil, waitsAsTold, map[string]string{"patience": "asked for 3 s"}},
		"the end of the end":  {[]string{"-empty", "8s"}, endsLast, map[string]string{"waiting for the end": "gone before its room"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := tc.claim(newTenant(t, tc.store)); err != nil {
				t.Error(err)
			}
		})
		for guard, says := range tc.guards {
			t.Run(name+" without "+guard, func(t *testing.T) {
				t.Parallel()
				store := tc.store
				if guard == "late lists" {
					store = slices.Concat(store, late) // a slow start must not help it
				}
				f := newTenant(t, store)
				f.Command.Path = guards.Build(t, f.Env, guard)
				f.Command.Env = append(f.Command.Env, controllertest.WithoutEnv+"="+guard)
				if err := tc.claim(f); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("without the guard: %v; want an error with %q", err, says)
				}
			})
		}
	}
}

// loseRent has the store carry out the next rent without an answer, and kills the controller then.
func (f *tenant) loseRent(name string) {
	f.T.Helper()
	f.company.owner("POST", "/faults", fault{Method: "POST", Path: "/v1/rooms", Do: "silent", After: true})
	f.Start()
	f.create(name, 4)
	f.company.struck()
	f.Kill()
	f.company.owner("DELETE", "/faults", nil)
}

func rentsOnce(f *tenant) error {
	f.loseRent("fish")
	f.Start()
	f.ready("fish")
	return f.company.doubles()
}

// isForbidden: the request was carried out, and is forbidden when it is sent again.
func isForbidden(f *tenant) error {
	f.Command.Args = append(f.Command.Args, "-retry", "1s")
	f.loseRent("fish")
	f.company.owner("POST", "/faults", fault{Method: "POST", Path: "/v1/rooms", Times: -1, Do: "answer", Code: http.StatusForbidden})
	f.Start()
	f.until("fish", func(cr *v1alpha1.ColdRoom) error { // it takes that for an answer, or asks again
		if f.company.strikes() < 3 && condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused)(cr) != nil {
			return errors.New("it does neither")
		}
		return nil
	})
	f.patch("fish", `{"spec":{"pallets":5}}`)
	struck := f.company.strikes()
	f.until("fish", func(cr *v1alpha1.ColdRoom) error { // it asks for that, or goes on asking for what it had written down
		if f.company.strikes() < struck+2 && (cr.Status.Request == nil || cr.Status.Request.Pallets != 5) {
			return errors.New("it does neither")
		}
		return nil
	})
	f.company.owner("DELETE", "/faults", nil)
	f.ready("fish")
	return f.company.doubles()
}

// waitsForLists: the store has forgotten the key, and its lists do not show yet what it has led to.
func waitsForLists(f *tenant) error {
	f.Command.Args = append(f.Command.Args, "-remembered", "1s", "-late", "5s")
	f.loseRent("fish")
	time.Sleep(1500 * time.Millisecond)
	f.Start()
	f.ready("fish")
	return f.company.doubles()
}

// waitsThoughItIsLate: the clock says that the request was sent yesterday, but it was sent just now.
func waitsThoughItIsLate(f *tenant) error {
	f.Command.Args = append(f.Command.Args, "-late", "5s")
	f.loseRent("fish")
	f.patchStatus("fish", fmt.Sprintf(`{"status":{"request":{"since":%q}}}`, time.Now().Add(-24*time.Hour).UTC().Format(time.RFC3339)))
	f.Start()
	f.ready("fish")
	return f.company.doubles()
}

// takesAnotherKey: the status is lost, and the first key belongs to a request that is not that of the new spec.
func takesAnotherKey(f *tenant) error {
	f.Command.Args = append(f.Command.Args, "-late", "5s")
	f.loseRent("fish")
	f.patchStatus("fish", `{"status":null}`)
	f.patch("fish", `{"spec":{"pallets":5}}`)
	f.Start()
	f.ready("fish")
	return f.company.doubles()
}

// looksOnce: somebody has given the room up, and lists go on showing it for a while.
func looksOnce(f *tenant) error {
	f.Start()
	f.create("fish", 4)
	first := f.ready("fish").Status.RoomID
	time.Sleep(3 * time.Second) // until lists show it
	f.company.owner("DELETE", "/rooms/"+first, nil)
	before := len(f.company.ledger())
	f.until("fish", func(cr *v1alpha1.ColdRoom) error {
		if id := cr.Status.RoomID; id == "" || id == first {
			return fmt.Errorf("the room is %q", id)
		}
		return nil
	})
	f.ready("fish")
	if n := len(f.company.ledger()) - before; n > 20 {
		return fmt.Errorf("%d calls for one room", n)
	}
	return f.company.doubles()
}

// leavesNothing: nobody has seen the answer to the rent when the ColdRoom is deleted.
func leavesNothing(f *tenant) error {
	f.loseRent("fish")
	return f.givesUp("fish")
}

// leavesNoOther: the same, and the key that is written down belongs to another request.
func leavesNoOther(f *tenant) error {
	f.Command.Args = append(f.Command.Args, "-late", "5s")
	f.loseRent("fish")
	f.patchStatus("fish", `{"status":{"request":{"pallets":5}}}`)
	return f.givesUp("fish")
}

// givesUp deletes a ColdRoom before the next process starts.
func (f *tenant) givesUp(name string) error {
	f.T.Helper()
	f.delete(name)
	f.Start()
	f.gone(name)
	if rooms := f.company.rooms(); len(rooms) > 0 {
		return fmt.Errorf("its ColdRoom is gone, and it is still rented: %+v", rooms)
	}
	return nil
}

// adopts: the status is lost, and the store has forgotten the key. While it knows the key, the same
// request leads to the same room in any case.
func adopts(f *tenant) error {
	f.Start()
	f.create("fish", 4)
	cr := f.ready("fish")
	f.Stop()
	cr.Status = v1alpha1.ColdRoomStatus{}
	if _, err := f.cold.UpdateStatus(f.Context(), cr, metav1.UpdateOptions{}); err != nil {
		return err
	}
	f.Start()
	f.ready("fish")
	return f.company.doubles()
}

func rollsBack(f *tenant) error {
	f.Start()
	f.create("fish", 6)
	f.ready("fish")
	f.patch("fish", `{"spec":{"pallets":11}}`)
	f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused))
	var err error
	f.Eventually(time.Minute, func(context.Context) error {
		looks, refused := 0, false
		for _, e := range f.company.ledger() {
			switch {
			case e.Code == http.StatusPaymentRequired:
				refused = true
			case refused && strings.HasSuffix(e.Path, "/open"):
				return nil
			case refused && e.Method == http.MethodGet:
				looks++
			}
		}
		if looks < 15 {
			return fmt.Errorf("it has looked %d times", looks)
		}
		err = errors.New("its change was refused, and it stays closed")
		return nil
	})
	return err
}

// changesOnce: the cache does not show that a change was refused.
func changesOnce(f *tenant) error {
	f.Start()
	f.create("fish", 6)
	f.ready("fish")
	time.Sleep(time.Second) // until the events of all that was written before have come
	// Those of the patch, and of the record that follows, still come.
	behind := f.Proxy.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "coldrooms"}, Fault: faultproxy.Hold, After: 2, Times: -1})
	f.patch("fish", `{"spec":{"pallets":11}}`)
	f.Struck(behind, 1)
	time.Sleep(2 * time.Second)
	closed := 0
	for _, e := range f.company.calls() {
		if strings.HasSuffix(e.Path, "/close") {
			closed++
		}
	}
	behind.Remove()
	if closed != 1 {
		return fmt.Errorf("it was closed %d times for one change", closed)
	}
	f.until("fish", condition(v1alpha1.ConditionSynced, v1alpha1.ReasonRefused))
	return nil
}

func asksRarely(f *tenant) error {
	f.Start()
	f.create("fish", 11)
	f.Eventually(time.Minute, func(context.Context) error {
		if len(f.company.calls()) == 0 {
			return errors.New("it has not asked")
		}
		return nil
	})
	time.Sleep(3 * time.Second)
	if n := len(f.company.calls()); n > 2 {
		return fmt.Errorf("%d calls for what was refused", n)
	}
	return nil
}

// waitsFromTheAnswer: the store takes longer to refuse than a refusal holds.
func waitsFromTheAnswer(f *tenant) error {
	const retry, slow = 4 * time.Second, 4500 * time.Millisecond
	f.Command.Args = append(f.Command.Args, "-retry", retry.String())
	f.company.owner("POST", "/faults", fault{Method: "POST", Path: "/v1/rooms", Times: -1, Do: "slow", Delay: slow.String()})
	f.Start()
	f.create("fish", 11)
	var calls []entry
	f.Eventually(time.Minute, func(context.Context) error {
		if calls = f.company.calls(); len(calls) < 2 {
			return fmt.Errorf("%d calls", len(calls))
		}
		return nil
	})
	// The ledger has each call when it is answered. The status has whole seconds.
	if wait := calls[1].Time.Sub(calls[0].Time) - slow; wait < retry-1500*time.Millisecond {
		return fmt.Errorf("asked again %s after its refusal, which holds for %s", wait, retry)
	}
	return nil
}

// changesRarely: it goes on looking at the room, and does not ask again for what was refused.
func changesRarely(method, path, patch string) func(*tenant) error {
	return func(f *tenant) error {
		f.Start()
		f.create("fish", 1)
		f.ready("fish")
		f.company.owner("POST", "/faults", fault{Method: method, Path: "/v1/rooms/*" + path, Times: -1, Do: "answer", Code: http.StatusUnprocessableEntity})
		f.patch("fish", patch)
		calls := 0
		f.Eventually(time.Minute, func(context.Context) error {
			calls = 0
			looks := 0
			for _, e := range f.company.ledger() {
				switch {
				case e.Fault != "":
					calls++
				case calls > 0 && e.By == "tenant" && e.Method == http.MethodGet:
					looks++
				}
			}
			if looks < 5 {
				return fmt.Errorf("%d looks after the refusal", looks)
			}
			return nil
		})
		if calls > 1 {
			return fmt.Errorf("%d calls for what was refused", calls)
		}
		return nil
	}
}

// looksAgain: something in front of the store answers 404 for a moment, while lists do not show the room yet.
func looksAgain(f *tenant) error {
	f.Start()
	f.create("fish", 4)
	f.ready("fish")
	f.company.owner("POST", "/faults", fault{Method: "GET", Path: "/v1/rooms/*", Do: "answer", Code: http.StatusNotFound})
	f.company.struck()
	time.Sleep(2 * time.Second)
	f.ready("fish")
	return f.company.doubles()
}

// leavesOthersAlone: what the status calls its room is somebody else's, as when the store was replaced.
func leavesOthersAlone(f *tenant) error {
	body := map[string]any{"name": f.Namespace + "/fish", "pallets": 1, "celsius": 0}
	if code := f.company.call("POST", "/v1/rooms", nil, body, nil); code != http.StatusCreated {
		return fmt.Errorf("renting a room: %d", code)
	}
	cr := f.create("fish", 4)
	cr.Status.RoomID = "room-1"
	if _, err := f.cold.UpdateStatus(f.Context(), cr, metav1.UpdateOptions{}); err != nil {
		return err
	}
	f.Start()
	f.ready("fish")
	f.delete("fish")
	f.gone("fish")
	if rooms := f.company.rooms(); len(rooms) != 1 || rooms[0].Pallets != 1 || rooms[0].Celsius != 0 {
		return fmt.Errorf("somebody else's room was taken: rented are %+v", rooms)
	}
	return nil
}

func waitsAsTold(f *tenant) error {
	f.company.owner("POST", "/faults", fault{Method: "POST", Do: "answer", Code: http.StatusTooManyRequests, Retry: 3})
	f.Start()
	f.create("first", 1)
	f.company.struck()
	f.create("second", 1)
	f.ready("first")
	f.ready("second")
	var told time.Time
	for _, e := range f.company.ledger() {
		if e.Code == http.StatusTooManyRequests {
			told = e.Time
		}
		if after := e.Time.Sub(told); e.By == "tenant" && after > 0 && after < 2*time.Second {
			return fmt.Errorf("%s came %s after the store asked for 3 s", e, after)
		}
	}
	return nil
}

func endsLast(f *tenant) error {
	f.Start()
	f.create("fish", 4)
	f.ready("fish")
	f.delete("fish")
	f.gone("fish")
	var rooms struct {
		Rooms []struct{ ID, State string }
	}
	if f.company.call("GET", "/v1/rooms", nil, nil, &rooms); len(rooms.Rooms) > 0 {
		return fmt.Errorf("it is gone before its room: %+v", rooms)
	}
	return nil
}
