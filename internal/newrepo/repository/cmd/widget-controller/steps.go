package main

import (
	"k8s.io/klog/v2"

	"example.org/widgets/internal/loop"
)

// A logObserver logs every step of the controller at level 4: which event has queued
// an object, how far the work on it has come, what was written, and how long it waits.
type logObserver struct{}

func (logObserver) Observe(s loop.Step) {
	if logger := klog.Background().V(4); logger.Enabled() {
		logger.Info("Step", "kind", string(s.Kind), "object", s.Key, "what", s.What, "reason", s.Reason, "until", s.Until)
	}
}
