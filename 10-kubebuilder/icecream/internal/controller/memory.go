package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A memory is what one Icecream's reconciliations know of each other. There is never more
// than one of them at a time, and after a restart none is needed: the cache is new then.
type memory struct {
	asleep  time.Time         // the server has asked to be left alone until then
	written map[string]string // the resourceVersions of our own writes that the cache may not show yet
	refused atomic.Bool       // the last report is a refusal; the watch reads this, too
}

// triesAgain says whether our own last report about an Icecream is a refusal, which is tried again.
func (r *IcecreamReconciler) triesAgain(ice client.Object) bool {
	m, ok := r.memories.Load(client.ObjectKeyFromObject(ice))
	return ok && m.(*memory).refused.Load()
}

func (m *memory) wrote(o client.Object) {
	m.written[id(o, client.ObjectKeyFromObject(o))] = o.GetResourceVersion()
}

func id(o client.Object, name client.ObjectKey) string { return fmt.Sprintf("%T %s", o, name) }

// read reads from the cache, or from the API server while the cache does not show our own last
// write: the answer to a write comes before its event.
func (r *IcecreamReconciler) read(ctx context.Context, name client.ObjectKey, o client.Object, m *memory) error {
	err := r.Get(ctx, name, o)
	version := m.written[id(o, name)]
	if version == "" || client.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil {
		if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version); err != nil || order >= 0 {
			delete(m.written, id(o, name))
			return err
		}
	}
	if err = r.Live.Get(ctx, name, o); apierrors.IsNotFound(err) {
		delete(m.written, id(o, name))
	}
	return err
}
