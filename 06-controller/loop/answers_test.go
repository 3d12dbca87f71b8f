package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func status(code int32, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: message}}
}

func TestAnswers(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	quota := apierrors.NewForbidden(pods, "p", errors.New("exceeded quota"))
	conflict, busy := apierrors.NewConflict(pods, "p", errors.New("changed")), apierrors.NewTooManyRequests("busy", 3)
	failed := status(http.StatusInternalServerError, "no")
	for _, tc := range []struct {
		name    string
		err     error
		stale   bool
		refused string
		wait    time.Duration
	}{
		{"nothing", nil, false, "", 0},
		{"a quota", quota, false, quota.ErrStatus.Message, 0},
		{"wrapped", fmt.Errorf("creating: %w", quota), false, quota.ErrStatus.Message, 0},
		{"a policy", status(http.StatusUnprocessableEntity, "too many"), false, "too many", 0},
		{"a webhook", status(http.StatusBadRequest, "denied"), false, "denied", 0},
		{"without a message", status(http.StatusRequestEntityTooLarge, ""), false, "413 Request Entity Too Large", 0},
		{"credentials", status(http.StatusUnauthorized, "who?"), false, "", 0},
		{"not found", apierrors.NewNotFound(pods, "p"), false, "", 0},
		{"a conflict", conflict, true, "", 0},
		{"busy", busy, false, "", 3 * time.Second},
		{"a fault", failed, false, "", 0},
		{"no answer", errors.New("connection reset"), false, "", 0},
		{"the cache", fmt.Errorf("looking: %w", ErrStale), true, "", 0},
		{"two that are stale", errors.Join(ErrStale, conflict), true, "", 0},
		{"a fault beside a stale cache", errors.Join(failed, ErrStale), false, "", 0},
		{"the same, wrapped", fmt.Errorf("marking: %w", errors.Join(ErrStale, failed)), false, "", 0},
		{"a quota, and no status", errors.Join(quota, errors.New("connection reset")), false, "", 0},
		{"a quota, and a status that was too late", errors.Join(quota, conflict), false, quota.ErrStatus.Message, 0},
		{"a long message", status(422, strings.Repeat("é", 1000)), false, strings.Repeat("é", 510) + "...", 0},
		{"two that are busy, wrapped", fmt.Errorf("marking: %w", errors.Join(busy, apierrors.NewTooManyRequests("busy", 9))), false, "", 9 * time.Second},
	} {
		if got := stale(tc.err); got != tc.stale {
			t.Errorf("%s: stale %t", tc.name, got)
		}
		if got := Refused(tc.err); got != tc.refused {
			t.Errorf("%s: refused %q", tc.name, got)
		}
		if got := RetryAfter(tc.err); got != tc.wait {
			t.Errorf("%s: to wait %s", tc.name, got)
		}
	}
	if terminating := (&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Details: &metav1.StatusDetails{
		Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}}}); Refused(terminating) == "" {
		t.Error("whoever wants to treat a namespace that is being deleted in another way has to ask before")
	}
}

// A 404 or a 409 is news of an object that has changed, and a refusal if it has not.
func TestConfirm(t *testing.T) {
	pods, quotas := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "resourcequotas"}
	missing, conflict := apierrors.NewNotFound(pods, "p"), apierrors.NewConflict(pods, "p", errors.New("denied"))
	of := func(uid types.UID, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: uid, ResourceVersion: version}}
	}
	for name, tc := range map[string]struct {
		answer    error
		was, live *corev1.Pod
		failed    error
		refused   bool
	}{
		"nothing":                      {nil, of("1", "5"), of("1", "5"), nil, false},
		"a conflict, though unchanged": {conflict, of("1", "5"), of("1", "5"), nil, true},
		"changed":                      {conflict, of("1", "5"), of("1", "6"), nil, false},
		"replaced":                     {missing, of("1", "5"), of("2", "5"), nil, false},
		"gone":                         {missing, of("1", "5"), of("", ""), missing, false},
		"not found, though there":      {missing, of("1", "5"), of("1", "5"), nil, true},
		"not made, and not there":      {conflict, of("", ""), of("", ""), missing, true},
		"nobody knows":                 {conflict, of("", ""), of("", ""), errors.New("connection reset"), false},
		"a full queue at the quota":    {apierrors.NewConflict(quotas, "q", errors.New("changed")), of("", ""), of("", ""), missing, false},
	} {
		err := Confirm(t.Context(), tc.answer, tc.was, func(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) { return tc.live, tc.failed })
		if got := Refused(err); (got != "") != tc.refused || tc.refused && got != tc.answer.Error() || !tc.refused && !errors.Is(err, tc.answer) {
			t.Errorf("%s: %v, refused: %q", name, err, got)
		}
	}
}

// One refusal is one alarm, however often it is tried again; another one is a new alarm.
func TestARefusalIsOneAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		catchesUp := errors.New("no error: the cache does not show the own write yet")
		answers := []error{status(422, "too many"), ErrStale, status(422, "too many"), catchesUp, status(422, "too many"), status(422, "too many"), status(422, "too dear"), nil, status(422, "too dear")}
		l := New("test", func(_ context.Context, _ cache.ObjectName) (time.Duration, error) {
			if len(answers) == 0 {
				return 0, nil
			}
			err := answers[0]
			answers = answers[1:]
			if errors.Is(err, catchesUp) {
				return time.Second, nil
			}
			return 0, err
		}, Options{})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		l.Add(a, "")
		time.Sleep(time.Hour)
		l.Add(a, "") // after the success
		time.Sleep(time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		var alarms []string
		for _, entry := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			if entry.Type == ktesting.LogError {
				alarms = append(alarms, entry.Err.Error())
			}
		}
		if got := strings.Join(alarms, ", "); got != "too many, too dear, too dear" || len(answers) > 0 {
			t.Errorf("alarms: %s; not tried: %v", got, answers)
		}
	})
}

func TestSameWords(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"no", "no", true},
		{"no, at 2026-11-30T12:00:01.5Z", "no, at 2026-11-30T12:00:02.25Z", true},
		{"denied after 3ms", "denied after 17ms", true},
		{"request 4b2d0c1e-0000-4000-8000-00000000000a was denied", "request 0c1e4b2d-0000-4000-8000-00000000000b was denied", true},
		{"used: pods=4, limited: pods=4", "used: pods=5, limited: pods=4", true},
		{"exceeded quota: q1", "exceeded quota: q2", false},
		{"exceeded quota: team-quota-1", "exceeded quota: team-quota-2", false},
		{"no", "never", false},
	} {
		if got := SameWords(tc.a, tc.b); got != tc.same {
			t.Errorf("SameWords(%q, %q) = %t", tc.a, tc.b, got)
		}
	}
}
