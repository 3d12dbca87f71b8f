package xray_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/xray"
)

// Each button's effect is asserted on the wire: on what the proxy did, and on
// what kubectl or the informer program did about it.

func ofWatch(kind, fault string) func(xray.Item) bool {
	return func(i xray.Item) bool {
		return string(i.Kind) == kind && strings.HasPrefix(i.Verb, "watch") && i.Resource == "configmaps" && i.Fault == fault
	}
}

// informs starts a program with an informer of ConfigMaps, and waits until it watches.
func (r *room) informs() {
	r.t.Helper()
	r.Start(r.command("exec " + r.Program("./03-informer/shared-informer") + " -namespace " + r.Namespace))
	r.Until("the informer's watch has brought its first events", func(i xray.Item) bool {
		return i.Program == "shared-informer" && i.Kind == "event" && i.Type == "BOOKMARK"
	})
}

// after returns a condition for items that come after one.
func after(first xray.Item, f func(xray.Item) bool) func(xray.Item) bool {
	return func(i xray.Item) bool { return i.ID > first.ID && f(i) }
}

func TestButtonCut(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	if got := r.press("cut?resource=configmaps"); !strings.HasPrefix(got, "1 watch of configmaps cut.") {
		t.Error(got)
	}
	cut := r.Until("the watch is cut", ofWatch("fault", "cut"))
	r.Until("it ends", func(i xray.Item) bool { return i.Kind == "ended" && i.ID == cut.ID })
	r.Until("the informer watches again", after(cut, ofWatch("begun", "")))
	r.Until("the button is a part of the recording", func(i xray.Item) bool { return i.Kind == "button" && strings.Contains(i.What, "1 watch") })
}

func TestButtonStallAndClear(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	r.press("stall")
	cut := r.Until("the watch is cut", ofWatch("fault", "cut"))
	stalled := r.Until("the next one is stalled", after(cut, ofWatch("fault", "stall")))
	r.bash("kubectl create configmap meanwhile")
	r.press("clear")
	r.Until("the event arrives with the stalled watch", func(i xray.Item) bool {
		return i.Kind == "event" && i.Object == "meanwhile" && i.ID == stalled.ID
	})
}

func TestButtonGone(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	r.press("gone?program=shared-informer")
	gone := r.Until("410", ofWatch("fault", "error-event"))
	r.Until("the informer reads everything again", after(gone, func(i xray.Item) bool {
		return i.Kind == "begun" && i.Program == "shared-informer" && (i.Verb == "watch-list" || i.Verb == "list")
	}))
	// client-go does the same after other errors, so look at this one.
	r.press("gone?program=curl")
	if result := r.bash(r.curl("configmaps?watch=1")); !strings.Contains(result.Stdout, `"code":410`) {
		t.Errorf("a watch gets %s", result.Stdout)
	}
}

func TestButtonDrop(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	r.press("drop?resource=configmaps&program=shared-informer")
	r.bash("kubectl create configmap lost; kubectl create configmap next")
	r.Until("an event is dropped", func(i xray.Item) bool { return i.Kind == "fault" && i.Fault == "drop" && i.Object == "lost" })
	r.Until("the next one arrives", func(i xray.Item) bool { return i.Kind == "event" && i.Object == "next" })
	_, items := r.Recording()
	for _, i := range items {
		if i.Kind == "event" && i.Object == "lost" {
			t.Errorf("it has arrived: %+v", i)
		}
	}
}

func TestButtonDelay(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	r.press("delay")
	r.bash("kubectl create configmap late")
	struck := r.Until("an event is delayed", func(i xray.Item) bool { return i.Kind == "fault" && i.Fault == "delay" && i.Object == "late" })
	passed := r.Until("it arrives", func(i xray.Item) bool { return i.Kind == "event" && i.Object == "late" })
	if d := passed.Time - struck.Time; d < 4900 {
		t.Errorf("late by %d ms", d)
	}
}

func TestButtonConflict(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.press("conflict?program=kubectl")
	r.bash(`kubectl create configmap a; kubectl patch configmap a --patch '{"data":{"v":"1"}}'; kubectl get configmap a`)
	r.Until("409", func(i xray.Item) bool {
		return i.Kind == "ended" && i.Code == http.StatusConflict && i.Verb == "patch" && i.Name == "a"
	})
	r.Until("create passes", func(i xray.Item) bool { return i.Kind == "ended" && i.Verb == "create" && i.Code == http.StatusCreated })
}

func TestButtonsAwayAndBack(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	r.press("away")
	lost := r.Until("the watch is lost", ofWatch("fault", "unreachable"))
	if result := r.Run(r.command("kubectl get configmaps")); result.ExitCode == 0 || !strings.Contains(result.Stderr, "refused") {
		t.Errorf("kubectl: %d %s", result.ExitCode, result.Stderr)
	}
	r.press("back")
	r.Until("the informer watches again", after(lost, ofWatch("begun", "")))
}

func TestUnknownButton(t *testing.T) {
	t.Parallel()
	r := enter(t)
	resp, err := http.Post(r.url+"/faults/none", "", nil)
	fatal.If(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Error(resp.Status)
	}
	if resp, err = http.Get(r.url + "/faults/cut"); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a GET cuts watches: %s", resp.Status)
	}
}
