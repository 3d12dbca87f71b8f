package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrStale says that the cache is known to be behind. The key comes back as after
// any error, but nobody is alarmed. A conflict (409) counts as the same.
var ErrStale = errors.New("the cache is behind")

// ErrBehind says that nothing was tried, because the cache does not show this process's
// own last write yet, see Writes.Behind. The key comes back after the returned duration, or
// with that write's event. It is no failure; and no success, which would end the back-off
// after failures.
var ErrBehind = fmt.Errorf("%w: it does not show the last write", ErrStale)

// RetryAfter is the longest wait that the server has asked for in one of the
// joined errors. Of those, apierrors.SuggestsClientDelay alone sees only one.
func RetryAfter(err error) time.Duration {
	var longest time.Duration
	for _, e := range parts(err) {
		seconds, _ := apierrors.SuggestsClientDelay(e)
		longest = max(longest, time.Duration(seconds)*time.Second)
	}
	return longest
}

// maxSaid is how many bytes of a server's message are kept. Whoever writes a webhook decides on its length.
const maxSaid = 1024

// varying is what differs from one answer of a webhook to the next without a meaning: times, durations, and the
// numbers of requests, as decimal, hexadecimal or a UUID. A digit within a word, or after its dash, is a part of a name.
var varying = regexp.MustCompile(`(^|[^\w-])(?:\d[\w.:+-]*|[0-9a-f]{8}[0-9a-f-]*)`)

// SameWords reports whether two messages of the API server say the same, but for times and numbers. A
// status that took over each of them would change with each try.
func SameWords(a, b string) bool {
	return varying.ReplaceAllString(a, "$1#") == varying.ReplaceAllString(b, "$1#")
}

// Refused returns what the server said if the same request will meet the same
// answer again, until somebody changes something: a quota, a webhook, a policy, a
// right that is missing. It is empty for every other error. A controller puts it
// into the status of the object, and returns the error: the loop tries again later
// and later, or with the next event, and raises one alarm for one refusal.
func Refused(err error) string {
	said := ""
	for _, e := range parts(err) {
		if stale(e) {
			continue // such as the status that should have reported the refusal
		}
		var status apierrors.APIStatus
		if !errors.As(e, &status) {
			return ""
		}
		s := status.Status()
		switch code := int(s.Code); {
		case code < 400, code >= 500:
			return ""
		case code == http.StatusUnauthorized: // nobody could write a status, either
			return ""
		case code == http.StatusNotFound, code == http.StatusGone, code == http.StatusTooManyRequests:
			return ""
		case said == "" && s.Message == "":
			said = fmt.Sprintf("%d %s", code, http.StatusText(code))
		case said == "":
			said = s.Message
		}
	}
	return Cut(said, maxSaid)
}

// Confirm reads the object of which the answer to a request says that it is gone (404) or has changed (409). A webhook
// refuses with any code that it likes: if the object is as it was, or still missing, a 422 takes the answer's place, because
// a 403 may also mean that a right is missing.
func Confirm[T metav1.Object](ctx context.Context, answer error, was metav1.Object, get func(context.Context, string, metav1.GetOptions) (T, error)) error {
	var status *apierrors.StatusError
	if !apierrors.IsNotFound(answer) && !apierrors.IsConflict(answer) || !errors.As(answer, &status) {
		return answer
	}
	s := status.ErrStatus
	if s.Details != nil && s.Details.Kind == "resourcequotas" {
		return answer // many creations at the same time count in one quota
	}
	live, failed := get(ctx, was.GetName(), metav1.GetOptions{})
	if failed != nil && !apierrors.IsNotFound(failed) || live.GetUID() != was.GetUID() || live.GetResourceVersion() != was.GetResourceVersion() {
		return answer
	}
	s.Code, s.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	return &apierrors.StatusError{ErrStatus: s}
}

// Cut shortens a text to so many bytes. One that was cut ends with "...".
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("...")], "") + "..."
}

func stale(err error) bool {
	for _, e := range parts(err) {
		if !apierrors.IsConflict(e) && !errors.Is(e, ErrStale) {
			return false // one of them deserves an alarm
		}
	}
	return err != nil
}

// parts returns the errors that were joined to one.
func parts(err error) []error {
	switch e := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		var all []error
		for _, part := range e.Unwrap() {
			all = append(all, parts(part)...)
		}
		return all
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return parts(inner)
		}
	}
	return []error{err}
}
