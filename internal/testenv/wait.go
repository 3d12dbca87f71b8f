package testenv

import (
	"time"

	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/wait"
	"sigs.k8s.io/e2e-framework/klient/wait/conditions"
)

// Conditions are e2e-framework's, for WaitFor.
func (e *Env) Conditions() *conditions.Condition { return conditions.New(e.suite.resources) }

// Exists is the condition that an object is there.
func (e *Env) Exists(object k8s.Object) apiwait.ConditionWithContextFunc {
	return e.Conditions().ResourceMatch(object, func(k8s.Object) bool { return true })
}

// WaitFor looks ten times a second whether a condition of e2e-framework is met, for
// at most timeout. Such a condition gives no reason, so the objects that it is about
// are shown when it fails. What can say why belongs into Eventually.
func (e *Env) WaitFor(timeout time.Duration, condition apiwait.ConditionWithContextFunc, about ...k8s.Object) {
	e.t.Helper()
	e.own()
	if err := wait.For(condition, wait.WithContext(e.suite.ctx), wait.WithTimeout(timeout), wait.WithInterval(100*time.Millisecond), wait.WithImmediate()); err != nil {
		e.ShowOnFailure(about...)
		e.t.Fatalf("the condition was not met within %s: %v", timeout, err)
	}
}
