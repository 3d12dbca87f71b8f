package xray

import "slices"

// A Tour is a scenario to run and what to look at.
type Tour struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Command string   `json:"command"` // in a terminal, at the root of the clone
	Look    []string `json:"look"`
}

var tours = []Tour{
	{
		Name: "edge-vs-level", Title: "A lost event: edge against level", Command: "bash internal/xray/tours/edge-vs-level.sh",
		Look: []string{
			"keeper-edge and keeper-level each watch pods and each create three.",
			"The script deletes one pod of each, and the proxy drops both DELETED events. The wire shows two faults named drop.",
			"keeper-level lists its pods every two seconds, so it soon sends a create.",
			"keeper-edge sends nothing more, because the only event that would make it act is lost.",
		},
	},
	{
		Name: "tombstone", Title: "A missed deletion: the tombstone", Command: "bash internal/xray/tours/tombstone.sh",
		Look: []string{
			"tombstones opens its watch, and its cache holds one ConfigMap.",
			"The proxy cuts the watch and answers the next attempt with 410 Gone, so history is gone for this client.",
			"The new list stalls while kubectl deletes the ConfigMap: no DELETED event will ever pass on the wire.",
			"The list arrives without the ConfigMap, and the informer hands its handler a tombstone in place of an object.",
			"The handler's type assertion panics, so all requests of tombstones end.",
		},
	},
	{
		Name: "hot-loop", Title: "find-the-bugs: the hot loop", Command: "bash internal/xray/tours/hot-loop.sh",
		Look: []string{
			"find-the-bugs updates a Deployment each second, though nothing has changed.",
			"Then the proxy answers its updates with 500, and the program sends the next one at once: more than a hundred a second.",
			"Its queue never shows a key that backs off, because the program calls Add in place of AddRateLimited.",
			"When the faults end, the rate falls back to one update a second.",
		},
	},
}

// Tour returns the command of a tour.
func (h *Hub) Tour(name string) (command string, ok bool) {
	i := slices.IndexFunc(tours, func(t Tour) bool { return t.Name == name })
	if i < 0 {
		return "", false
	}
	return tours[i].Command, true
}
