// summary keeps a ConfigMap <name>-summary for each Service, with the number of its ports and
// the team of its label. Each look at a Service is a request, so whoever reads the API
// server's log sees which events have led to one.
package main

import (
	"context"
	"flag"
	"maps"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	teamLabel = "team"
	managedBy = "app.kubernetes.io/managed-by" // says which ConfigMaps are ours
)

// relevant passes the events of a Service that can change its summary, and no others.
func relevant() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld.(*corev1.Service), e.ObjectNew.(*corev1.Service)
		return len(old.Spec.Ports) != len(now.Spec.Ports) || old.Labels[teamLabel] != now.Labels[teamLabel]
	}}
}

type reconciler struct {
	client.Client
	live client.Reader
}

// Reconcile brings the ConfigMap of one Service to what it should be.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	summary := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name + "-summary"}}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(summary), summary)
	isNew := apierrors.IsNotFound(err)
	switch {
	case err != nil && !isNew:
		return ctrl.Result{}, err
	case !isNew && summary.Labels[managedBy] != "summary":
		return ctrl.Result{}, nil // somebody else's ConfigMap of that name stays as it is
	}
	service := &corev1.Service{}
	err = r.live.Get(ctx, req.NamespacedName, service)
	switch {
	case apierrors.IsNotFound(err) && isNew:
		return ctrl.Result{}, nil
	case apierrors.IsNotFound(err):
		asRead := client.Preconditions{UID: &summary.UID, ResourceVersion: &summary.ResourceVersion}
		return ctrl.Result{}, client.IgnoreNotFound(r.Delete(ctx, summary, asRead))
	case err != nil:
		return ctrl.Result{}, err
	}
	data := map[string]string{"ports": strconv.Itoa(len(service.Spec.Ports)), "team": service.Labels[teamLabel]}
	if !isNew && maps.Equal(summary.Data, data) {
		return ctrl.Result{}, nil
	}
	summary.Data = data
	if isNew {
		summary.Labels = map[string]string{managedBy: "summary"}
		return ctrl.Result{}, r.Create(ctx, summary)
	}
	return ctrl.Result{}, r.Update(ctx, summary) // 409 Conflict if somebody has written it meanwhile
}

func main() {
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseDevMode(true)))
	if err := run(*namespace); err != nil {
		ctrl.Log.Error(err, "summary has ended")
		os.Exit(1)
	}
}

func run(namespace string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(mgr).
		For(&corev1.Service{}, builder.WithPredicates(relevant())).
		Named("summary").
		Complete(reconcile.Func((&reconciler{mgr.GetClient(), mgr.GetAPIReader()}).Reconcile))
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
