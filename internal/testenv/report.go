package testenv

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/yaml"
)

// ShowOnFailure names objects that are fetched anew and printed if the test
// fails. Each needs its type and name; the namespace may be empty for the test's own.
func (e *Env) ShowOnFailure(objects ...k8s.Object) {
	e.t.Helper()
	e.own()
	e.watch = append(e.watch, objects...)
}

// report prints what helps to see why the test failed. The namespace's events
// are printed once: a failed subtest makes its parent fail too.
func (e *Env) report(ctx context.Context) {
	var b strings.Builder
	fmt.Fprintf(&b, "--- namespace %s on %s\n", e.Namespace, e.suite.cluster.Name())
	if !e.reported.Swap(true) {
		e.reportEvents(ctx, &b)
	}
	for _, o := range e.watch {
		namespace := o.GetNamespace()
		if namespace == "" {
			namespace = e.Namespace
		}
		if err := e.suite.resources.Get(ctx, o.GetName(), namespace, o); err != nil {
			fmt.Fprintf(&b, "%T %s: %v\n", o, o.GetName(), err)
			continue
		}
		o.SetManagedFields(nil)
		text, err := yaml.Marshal(o)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "--- %T %s\n%s", o, o.GetName(), text)
	}
	e.t.Log(b.String())
}

func (e *Env) reportEvents(ctx context.Context, b *strings.Builder) {
	events, err := e.Client.CoreV1().Events(e.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(b, "its events cannot be read: %v\n", err)
		return
	}
	for _, ev := range events.Items {
		fmt.Fprintf(b, "event %s %s/%s %s: %s\n", ev.Type, ev.InvolvedObject.Kind, ev.InvolvedObject.Name, ev.Reason, ev.Message)
	}
	if len(events.Items) == 0 {
		fmt.Fprintln(b, "no events")
	}
}
