package controller

import (
	"testing"
	"time"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

func TestCountsOfABurstShareAStatus(t *testing.T) {
	counts := func(failed int32) v1alpha1.Statistics {
		return v1alpha1.Statistics{Pods: v1alpha1.PodStatistics{Failed: failed}}
	}
	type look struct {
		after  time.Duration // since the look before
		failed int32
		left   time.Duration // zero or less: written
	}
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"the first change is written at once", []look{{0, 1, 0}}},
		{"changes far apart are written at once", []look{{0, 1, 0}, {calm, 2, 0}, {calm, 3, 0}}},
		{"changes close together wait for the last one", []look{{0, 1, 0}, {calm / 5, 2, calm}, {calm / 5, 3, calm}, {calm / 2, 3, calm / 2}, {calm / 2, 3, 0}}},
		{"changes without an end are written now and then", []look{
			{0, 1, 0}, {busy / 10, 2, calm}, {busy / 10, 3, calm}, {busy / 10, 4, calm}, {busy / 10, 5, calm}, {busy / 10, 6, calm},
			{busy / 10, 7, calm}, {busy / 10, 8, calm}, {busy / 10, 9, calm}, {busy / 10, 10, busy / 10}, {busy / 10, 11, 0}, {busy / 10, 12, calm}}},
	} {
		m, now := &memory{}, noon
		for i, l := range c.looks {
			now = now.Add(l.after)
			if left := m.settles(counts(l.failed), now); max(left, 0) != l.left {
				t.Errorf("%s: at look %d %s are left, want %s", c.name, i, left, l.left)
			}
		}
	}
}
