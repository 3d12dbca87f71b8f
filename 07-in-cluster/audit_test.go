package incluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/cluster"
)

// An auditLog is what a cluster's API server writes down from some moment on.
type auditLog struct {
	path string
	from int64
}

func openAuditLog(c *cluster.Cluster) (auditLog, error) {
	path := c.AuditLog()
	if path == "" {
		return auditLog{}, fmt.Errorf("the %s cluster keeps no audit log, because an older version of the workshop made it: run make down, and try again", c.Name())
	}
	info, err := os.Stat(path)
	if err != nil {
		return auditLog{}, err
	}
	return auditLog{path, info.Size()}, nil
}

// A write is a request of a pod of the controller to change something.
type write struct {
	pod            string // that the token is bound to
	resource, name string
	accepted       bool
	version        uint64 // of the object; 0 if the answer holds none, such as to an eviction
	received, done time.Time
	holder         string // of the lease
	evicted        *metav1.Time
}

// read returns the writes, without those that any replica may send: client-go sends
// Events in the background, also when the lease has been released, and a standby asks
// for reviews and tries to take the lease.
func (l auditLog) read() ([]write, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(l.from, io.SeekStart); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	var writes []write
	for line := range bytes.Lines(data) {
		// A killed API server may have left half a line, and the next one goes on behind it.
		line = line[max(0, bytes.LastIndex(line, []byte(`{"kind":"Event","apiVersion":"audit`))):]
		var r struct {
			User                                     struct{ Extra map[string][]string }
			ObjectRef                                struct{ Resource, Subresource, Name string }
			RequestURI                               string
			RequestReceivedTimestamp, StageTimestamp metav1.MicroTime
			ResponseStatus                           struct{ Code int }
			ResponseObject                           json.RawMessage
		}
		if err := json.Unmarshal(line, &r); err != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				continue // it is being written
			}
			return nil, fmt.Errorf("reading the audit log: %w: %.200s", err, line)
		}
		resource := strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
		accepted := r.ResponseStatus.Code < 300 && !strings.Contains(r.RequestURI, "dryRun=")
		if slices.Contains([]string{"events", "tokenreviews", "subjectaccessreviews"}, resource) || resource == "leases" && !accepted {
			continue
		}
		w := write{resource: resource, name: r.ObjectRef.Name, accepted: accepted, received: r.RequestReceivedTimestamp.Time, done: r.StageTimestamp.Time}
		if pod := r.User.Extra["authentication.kubernetes.io/pod-name"]; len(pod) == 1 {
			w.pod = pod[0]
		}
		if accepted {
			if err := w.readAnswer(r.ResponseObject); err != nil {
				return nil, fmt.Errorf("the answer to %s: %w", w, err)
			}
		}
		writes = append(writes, w)
	}
	return writes, nil
}

func (w *write) readAnswer(data []byte) error {
	if w.resource == "pods/eviction" {
		return nil
	}
	var object struct {
		Metadata struct{ ResourceVersion string }
		Spec     struct{ HolderIdentity string }
		Status   struct{ LastEvictionTime *metav1.Time }
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	w.holder = object.Spec.HolderIdentity
	if w.resource == "healthcheckpolicies/status" {
		w.evicted = object.Status.LastEvictionTime
	}
	var err error
	w.version, err = strconv.ParseUint(object.Metadata.ResourceVersion, 10, 64)
	return err
}

func (w write) String() string {
	return fmt.Sprintf("%s: %s wrote %s %s (accepted: %v)", w.done.Format("15:04:05.000"), w.pod, w.resource, w.name, w.accepted)
}

// A term is the time of one leader.
type term struct {
	write        // that took the lease
	last   write // to the lease, before that
	writes int   // to other objects
}

// before reports whether the term had begun when a write came, or when it was carried
// out. All objects of a cluster are in one etcd, so their versions are in one order. A
// write that changes nothing is answered with an older version.
func (t term) before(w write) bool {
	return t.version < w.version || t.received.Before(w.received)
}

// judgeTerms returns the terms in their order. An error is a write of one pod in the
// term of another one. Even one that was refused: only luck or a precondition did that.
func judgeTerms(writes []write) (terms []term, err error) {
	var leases []write
	for _, w := range writes {
		if w.resource == "leases" {
			leases = append(leases, w)
		}
	}
	slices.SortFunc(leases, func(a, b write) int { return int(a.version) - int(b.version) })
	var last write
	for _, w := range leases {
		if w.holder != "" && w.holder != last.holder {
			terms = append(terms, term{write: w, last: last})
		}
		last = w
	}
	var errs []error
	for _, w := range writes {
		var now *term
		for i := range terms {
			if terms[i].before(w) || terms[i].version == w.version {
				now = &terms[i]
			}
		}
		switch {
		case now == nil:
			errs = append(errs, fmt.Errorf("%s, and nobody led", w))
		case now.pod != w.pod:
			errs = append(errs, fmt.Errorf("%s, but %s led since %s", w, now.pod, now.done.Format("15:04:05.000")))
		case w.resource != "leases":
			now.writes++
		}
	}
	return terms, errors.Join(errs...)
}

// judgeEvictions looks for a pod that was evicted twice, for an eviction that no write
// of a new lastEvictionTime has announced, and for two of these too close together.
func judgeEvictions(writes []write) (evictions int, err error) {
	var errs []error
	var grant *write
	used, evicted := true, map[string]bool{}
	for _, w := range writes {
		switch {
		case w.evicted != nil && (grant == nil || !w.evicted.Equal(grant.evicted)):
			if grant != nil && w.evicted.Sub(grant.evicted.Time) < minInterval {
				errs = append(errs, fmt.Errorf("%s: lastEvictionTime %s follows %s too closely", w, w.evicted, grant.evicted))
			}
			grant, used = &w, false
		case w.resource == "pods/eviction" && w.accepted:
			evictions++
			if evicted[w.name] {
				errs = append(errs, fmt.Errorf("%s, for the second time", w))
			}
			evicted[w.name] = true
			if used {
				errs = append(errs, fmt.Errorf("%s, but no new lastEvictionTime was written before", w))
			}
			used = true
		}
	}
	return evictions, errors.Join(errs...)
}

func TestJudges(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var now time.Time
	var version uint64
	at := func(pod, resource string) write {
		now, version = now.Add(time.Second), version+1
		return write{pod: pod, resource: resource, accepted: true, version: version, received: now.Add(-time.Millisecond), done: now}
	}
	lease := func(pod, holder string) write {
		w := at(pod, "leases")
		w.holder = holder
		return w
	}
	mark := func(pod string) write { return at(pod, "pods") }
	grant := func(pod string) write {
		w := at(pod, "healthcheckpolicies/status")
		w.evicted = &metav1.Time{Time: w.done}
		return w
	}
	eviction := func(pod, victim string) write {
		w := at(pod, "pods/eviction")
		w.name, w.version = victim, 0
		return w
	}
	later := func(d time.Duration, f func() write) write {
		now = now.Add(d)
		return f()
	}
	for name, tc := range map[string]struct {
		play func() []write
		want string // empty if nothing is wrong
	}{
		"one after the other": {func() []write {
			return []write{lease("a", "a_1"), mark("a"), lease("a", "a_1"), mark("a"), lease("a", ""), lease("b", "b_1"), mark("b"), lease("a", "a_2"), mark("a")}
		}, ""},
		"a late mark":     {func() []write { return []write{lease("a", "a_1"), mark("a"), lease("b", "b_1"), mark("a")} }, "a wrote pods"},
		"a late eviction": {func() []write { return []write{lease("a", "a_1"), lease("b", "b_1"), grant("b"), eviction("a", "x")} }, "a wrote pods/eviction"},
		"a late mark that was refused": {func() []write {
			writes := []write{lease("a", "a_1"), mark("a"), lease("b", "b_1"), mark("a")}
			writes[3].version, writes[3].accepted = 0, false
			return writes
		}, "a wrote pods"},
		"a mark that was carried out late": {func() []write {
			writes := []write{lease("a", "a_1"), mark("a"), lease("b", "b_1"), mark("a")}
			writes[3].received = writes[1].received
			return writes
		}, "a wrote pods"},
		"a mark that changes nothing": {func() []write {
			writes := []write{lease("a", "a_1"), mark("a"), lease("b", "b_1"), mark("b")}
			writes[3].version = writes[1].version
			return writes
		}, ""},
		"a late release": {func() []write { return []write{lease("a", "a_1"), lease("b", "b_1"), lease("a", "")} }, "a wrote leases"},
		"nobody led":     {func() []write { return []write{mark("a")} }, "nobody led"},
		"evictions": {func() []write {
			return []write{lease("a", "a_1"), grant("a"), eviction("a", "x"), later(minInterval, func() write { return grant("a") }), eviction("a", "y")}
		}, ""},
		"one pod twice": {func() []write {
			return []write{lease("a", "a_1"), grant("a"), eviction("a", "x"), later(minInterval, func() write { return grant("a") }), eviction("a", "x")}
		}, "second time"},
		"two for one grant": {func() []write { return []write{lease("a", "a_1"), grant("a"), eviction("a", "x"), eviction("a", "y")} }, "no new lastEvictionTime"},
		"grants too close":  {func() []write { return []write{lease("a", "a_1"), grant("a"), grant("a")} }, "too closely"},
	} {
		t.Run(name, func(t *testing.T) {
			now, version = start, 0
			writes := tc.play()
			_, terms := judgeTerms(writes)
			_, evictions := judgeEvictions(writes)
			if err := errors.Join(terms, evictions); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
