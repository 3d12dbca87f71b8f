package loop

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Deadline is how long a request of a worker may take.
const Deadline = 30 * time.Second

// Once returns a client for the requests of workers: each is sent once, and has a
// Deadline. A typed client sends a request that was answered with Retry-After up to
// ten more times, with the worker asleep in between, and with what was true before.
// Sent once, it fails; the error says how long to wait (see RetryAfter), and the next
// try looks anew. The generated New functions make a typed client of it:
//
//	deployments := appsv1.New(loop.Once(clientset.AppsV1().RESTClient()))
//
// Informers do not use it: a watch lasts longer. A typed client's List and
// DeleteCollection take their deadline from the TimeoutSeconds of their options.
func Once(client rest.Interface) rest.Interface { return once{client} }

type once struct{ rest.Interface }

func (o once) Verb(verb string) *rest.Request           { return limited(o.Interface.Verb(verb)) }
func (o once) Post() *rest.Request                      { return limited(o.Interface.Post()) }
func (o once) Put() *rest.Request                       { return limited(o.Interface.Put()) }
func (o once) Patch(kind types.PatchType) *rest.Request { return limited(o.Interface.Patch(kind)) }
func (o once) Get() *rest.Request                       { return limited(o.Interface.Get()) }
func (o once) Delete() *rest.Request                    { return limited(o.Interface.Delete()) }

func limited(r *rest.Request) *rest.Request { return r.MaxRetries(0).Timeout(Deadline) }
