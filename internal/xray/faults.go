package xray

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/xray/report"
)

// delay is by how much the button delays an event.
const delay = 5 * time.Second

// change is the pattern of the events that are about an object.
const change = "[AMD]*" // ADDED MODIFIED DELETED

// A target says whom a fault strikes: everybody if it is empty.
type target struct{ resource, program string }

func (t target) strikes(r faultproxy.Request) bool {
	resource, _, _ := strings.Cut(r.Resource, "/") // with its subresources
	return (t.resource == "" || t.resource == resource) && (t.program == "" || t.program == programOf(r.UserAgent))
}

// String names the target as a part of a sentence.
func (t target) String() string {
	s := ""
	if t.resource != "" {
		s += " of " + t.resource
	}
	if t.program != "" {
		s += " by " + t.program
	}
	return s
}

// press does what a button says, and returns one line that says what was done.
func (h *Hub) press(button string, t target) (string, error) {
	watches := faultproxy.Match{Verb: faultproxy.Watches.Verb, If: t.strikes}
	event := faultproxy.Rule{Match: watches, Event: change}
	message, err := "", error(nil)
	switch button {
	case "cut":
		message = fmt.Sprintf("%s%s cut. A client that works well watches again.", plural(h.proxy.Cut(watches), "watch", "watches"), t)
	case "stall":
		_, err = h.proxy.Inject(faultproxy.Rule{Match: watches, Fault: faultproxy.Stall, Times: -1})
		message = fmt.Sprintf("%s%s cut, and no new one gets an answer until you press Clear.", plural(h.proxy.Cut(watches), "watch", "watches"), t)
	case "gone":
		open := h.proxy.Open(watches)
		_, err = h.proxy.Inject(faultproxy.Rule{Match: watches, Fault: faultproxy.ErrorEvent, Code: http.StatusGone, Times: max(open, 1)})
		h.proxy.Cut(watches)
		message = fmt.Sprintf("%s%s cut. The next %s told by 410 Gone that its history is gone.", plural(open, "watch", "watches"), t, plural(max(open, 1), "attempt is", "attempts are"))
	case "drop":
		event.Fault = faultproxy.Drop
		_, err = h.proxy.Inject(event)
		message = fmt.Sprintf("The next event of a watch%s gets lost.", t)
	case "delay":
		event.Fault, event.Delay = faultproxy.Delay, delay
		_, err = h.proxy.Inject(event)
		message = fmt.Sprintf("The next event of a watch%s arrives %s later, and so do the events behind it.", t, delay)
	case "conflict":
		_, err = h.proxy.Inject(faultproxy.Rule{Fault: faultproxy.Answer, Code: http.StatusConflict, Match: faultproxy.Match{If: func(r faultproxy.Request) bool {
			housekeeping := t.resource == "" && (r.Group == "coordination.k8s.io" || r.Group == "events.k8s.io")
			return (r.Verb == "update" || r.Verb == "patch") && r.Write() && !housekeeping && t.strikes(r)
		}}})
		message = fmt.Sprintf("The next update or patch%s is answered by 409 Conflict.", t)
	case "away":
		h.proxy.Down()
		message = "The API server cannot be reached until you press Server back."
	case "back":
		err = h.proxy.Up()
		message = "The API server can be reached again."
	case "clear":
		h.proxy.Clear()
		message = "No faults are waiting any more, and what was stalled goes on."
	default:
		err = errors.New("there is no such button: choose cut, stall, gone, drop, delay, conflict, away, back or clear")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", button, err)
	}
	h.say(Item{Kind: report.Button, What: message})
	return message, nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}
