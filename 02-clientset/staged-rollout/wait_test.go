package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLook(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC))
	timedOut := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
		Reason: "ProgressDeadlineExceeded", Message: "has timed out", LastUpdateTime: at}
	later := timedOut
	later.LastUpdateTime = metav1.NewTime(at.Add(time.Second))
	refused := appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "quota is full"}

	for name, tc := range map[string]struct {
		image                           string
		observed                        int64
		replicas, total, updated, avail int32
		conditions                      []appsv1.DeploymentCondition
		before                          *appsv1.DeploymentCondition
		done                            bool
		text, err                       string
	}{
		"done":                     {image: "web:2", observed: 5, replicas: 3, total: 3, updated: 3, avail: 3, done: true, text: "3 of 3 updated, 3 available"},
		"scaled to zero":           {image: "web:2", observed: 5, done: true, text: "0 of 0 updated, 0 available"},
		"numbers of the old spec":  {image: "web:2", observed: 4, replicas: 3, total: 3, updated: 3, avail: 3, text: "not yet seen by the controller"},
		"old pods still there":     {image: "web:2", observed: 5, replicas: 3, total: 4, updated: 3, avail: 3, text: "3 of 3 updated, 3 available, 1 old"},
		"not ready":                {image: "web:2", observed: 5, replicas: 3, total: 3, updated: 3, avail: 2, text: "3 of 3 updated, 2 available"},
		"refused pods are no end":  {image: "web:2", observed: 5, replicas: 1, total: 1, avail: 1, conditions: []appsv1.DeploymentCondition{refused}, text: "quota is full"},
		"timed out":                {image: "web:2", observed: 5, replicas: 1, conditions: []appsv1.DeploymentCondition{timedOut}, err: "has timed out"},
		"timed out before us":      {image: "web:2", observed: 5, replicas: 1, conditions: []appsv1.DeploymentCondition{timedOut}, before: &timedOut, text: "0 of 1"},
		"timed out again":          {image: "web:2", observed: 5, replicas: 1, conditions: []appsv1.DeploymentCondition{later}, before: &timedOut, err: "has timed out"},
		"no ReplicaSet, not seen":  {image: "web:2", observed: 4, replicas: 1, conditions: []appsv1.DeploymentCondition{later}, err: "has timed out"},
		"the image of someone":     {image: "web:9", observed: 5, err: "somebody else has set the image of web to web:9"},
		"available, stale failure": {image: "web:2", observed: 5, replicas: 1, total: 1, updated: 1, avail: 1, conditions: []appsv1.DeploymentCondition{later}, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := web(tc.image, "")
			d.Generation, d.Spec.Replicas = 5, &tc.replicas
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: tc.observed, Replicas: tc.total, UpdatedReplicas: tc.updated,
				AvailableReplicas: tc.avail, Conditions: tc.conditions}
			g := &goal{container: "web", image: "web:2", before: tc.before}
			err := g.look(d)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || g.done != tc.done || !strings.Contains(g.text, tc.text) {
				t.Errorf("done %v, text %q, error %v; want %v, %q", g.done, g.text, err, tc.done, tc.text)
			}
		})
	}
}

// client-go itself repeats what it may, so that a whole cluster test rarely
// gets to see a request without an answer.
func TestRetriable(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{goneError("web"), false}, // about a Deployment, not about a request
		{requestError{errors.New("connection refused")}, true},
		{requestError{apierrors.NewServiceUnavailable("starting")}, true},
		{requestError{apierrors.NewTooManyRequests("slow down", 1)}, true},
		{fmt.Errorf("listing: %w", requestError{apierrors.NewInternalError(errors.New("etcd"))}), true},
		{requestError{apierrors.NewForbidden(appsv1.Resource("deployments"), "", nil)}, false},
		{requestError{apierrors.NewUnauthorized("expired")}, false},
	} {
		if got := retriable(tc.err); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, got, tc.want)
		}
	}
}
