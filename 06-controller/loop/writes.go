package loop

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Writes remembers what this process has written because of each key. The API
// server answers a write before its event reaches the cache, so a controller that
// looks at the cache in between would do the same again. The zero value is ready for
// use, from any number of goroutines.
type Writes struct {
	mu  sync.Mutex
	all map[cache.ObjectName][]write // one for each store
}

type write struct {
	store   cache.Store
	version string // the highest resourceVersion; empty if no answer has named one
	lost    bool   // there was a write without an answer, which may have been carried out at any time
}

// Record notes a write to an object of a store. The resourceVersion is that of the
// server's answer; it is empty if no answer came, so that nobody knows what was written.
func (w *Writes) Record(key cache.ObjectName, store cache.Store, resourceVersion string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.find(key, store)
	if known == nil {
		if w.all == nil {
			w.all = map[cache.ObjectName][]write{}
		}
		w.all[key] = append(w.all[key], write{store: store})
		known = w.find(key, store)
	}
	switch {
	case resourceVersion == "":
		known.lost = true
	case known.version == "" || compare(known.version, resourceVersion) == older: // answers can overtake each other
		known.version = resourceVersion
	}
}

// Behind reports whether a store does not show yet what was written because of a
// key. Then do nothing: the event that is missing brings the key back. Ask before you
// read the store, which may catch up in between. A store that does not know its version
// counts as up to date, or the key would wait for ever.
func (w *Writes) Behind(key cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.all[key] {
		if known.version != "" && compare(known.store.LastStoreSyncResourceVersion(), known.version) == older {
			return true
		}
	}
	return false
}

// Certain reports whether a store shows everything that was written because of a
// key. It is false whenever nobody knows: before the first write of this process,
// after a write without an answer, and if the store does not know its version. Then
// ask the API server before anything that cannot be undone.
func (w *Writes) Certain(key cache.ObjectName, store cache.Store) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.find(key, store)
	return known != nil && !known.lost && compare(store.LastStoreSyncResourceVersion(), known.version) == reached
}

// Lost reports whether there was a write without an answer. Then no event is certain to
// be the last one, so it makes no sense to wait for it.
func (w *Writes) Lost(key cache.ObjectName, store cache.Store) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.find(key, store)
	return known != nil && known.lost
}

// Forget is for a key whose object is gone.
func (w *Writes) Forget(key cache.ObjectName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, key)
}

func (w *Writes) find(key cache.ObjectName, store cache.Store) *write {
	for i := range w.all[key] {
		if w.all[key][i].store == store {
			return &w.all[key][i]
		}
	}
	return nil
}

type order int

const (
	unknown order = iota // one of the two is no version: a store returns "" while the feature gate AtomicFIFO is off
	older
	reached // the same or newer
)

func compare(version, than string) order {
	switch o, err := resourceversion.CompareResourceVersion(version, than); {
	case err != nil:
		return unknown
	case o < 0:
		return older
	default:
		return reached
	}
}
