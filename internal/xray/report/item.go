package report

// An Item is one line of the X-ray: what has passed on the wire, or what a
// program has reported. It never holds a request's body or an object's content.
type Item struct {
	Time    int64  `json:"t"` // Unix milliseconds
	Kind    Kind   `json:"kind"`
	Program string `json:"program,omitempty"`
	PID     int    `json:"pid,omitempty"`

	// On the wire.
	ID              int     `json:"id,omitempty"`
	Verb            string  `json:"verb,omitempty"`
	Group           string  `json:"group,omitempty"`
	Resource        string  `json:"resource,omitempty"`
	Namespace       string  `json:"namespace,omitempty"`
	Name            string  `json:"name,omitempty"`
	Path            string  `json:"path,omitempty"`
	Code            int     `json:"code,omitempty"`
	Took            float64 `json:"took,omitempty"` // milliseconds
	Events          int     `json:"events,omitempty"`
	Type            string  `json:"type,omitempty"`
	Object          string  `json:"object,omitempty"`
	ResourceVersion string  `json:"resourceVersion,omitempty"`
	Fault           string  `json:"fault,omitempty"`

	// In the program.
	Step    string  `json:"step,omitempty"`
	Key     string  `json:"key,omitempty"`
	What    string  `json:"what,omitempty"`
	Reason  string  `json:"reason,omitempty"`
	Until   int64   `json:"until,omitempty"` // Unix milliseconds
	Caches  []Cache `json:"caches,omitempty"`
	Queue   *Queue  `json:"queue,omitempty"`
	Workers int     `json:"workers,omitempty"`
	Missed  int     `json:"missed,omitempty"` // so many steps a program could not report
}

// Kind says what an Item is.
type Kind string

// The kinds of items.
const (
	Begun   Kind = "begun"   // a request has reached the proxy
	Event   Kind = "event"   // an event of a watch goes to its client
	Fault   Kind = "fault"   // a fault strikes a request or an event
	Ended   Kind = "ended"   // the request has its answer, or will have none
	Button  Kind = "button"  // somebody has pressed a fault button
	Program Kind = "program" // a program begins or ends to report, or has to leave something out
	Step    Kind = "step"    // a step of a program's loop
	State   Kind = "state"   // what a program's caches and queue hold
)

// A Cache is the state of one informer.
type Cache struct {
	Resource        string `json:"resource"`
	Objects         int    `json:"objects"`
	ResourceVersion string `json:"resourceVersion"`
	Behind          int    `json:"behind"` // so many events have passed on the wire that the cache does not show yet
}

// A Queue is the state of a workqueue: numbers of keys.
type Queue struct {
	Waiting    int `json:"waiting"`
	Working    int `json:"working"`
	BackingOff int `json:"backingOff"`
}
