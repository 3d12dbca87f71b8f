package curl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// An update that changes nothing is not stored: the version stays, and no watch
// hears of it.
func TestEqualUpdateIsNotStored(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	cm := createConfigMap(t, e, "same")
	w, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Watch(e.Context(), metav1.ListOptions{
		ResourceVersion: cm.ResourceVersion, FieldSelector: "metadata.name=same",
	})
	fatal.If(t, err)
	defer w.Stop()
	same, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Update(e.Context(), cm, metav1.UpdateOptions{})
	fatal.If(t, err)
	if same.ResourceVersion != cm.ResourceVersion {
		t.Errorf("an equal update moved the version from %s to %s", cm.ResourceVersion, same.ResourceVersion)
	}
	same.Data = map[string]string{"a": "1"}
	if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Update(e.Context(), same, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := <-w.ResultChan(); event.Object.(*corev1.ConfigMap).Data["a"] != "1" {
		t.Errorf("the first event is %s %v, want the change", event.Type, event.Object)
	}
}

// Whether an update may leave out the resourceVersion depends on the resource.
func TestSomeResourcesDemandTheVersion(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	cm := createConfigMap(t, e, "unconditional")
	cm.ResourceVersion, cm.Data = "", map[string]string{"a": "1"}
	if _, err := e.Client.CoreV1().ConfigMaps(e.Namespace).Update(e.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a ConfigMap: %v", err)
	}
	leases := e.Client.CoordinationV1().Leases(e.Namespace)
	lease, err := leases.Create(e.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "conditional"}}, metav1.CreateOptions{})
	fatal.If(t, err)
	lease.ResourceVersion = ""
	if _, err = leases.Update(e.Context(), lease, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must be specified for an update") {
		t.Errorf("a Lease: %v, want 422, must be specified for an update", err)
	}
}

// Without credentials, the server takes you for system:anonymous, and answers
// 403; credentials that it does not accept get 401.
func TestForbiddenIsIdentifiedUnauthorizedIsNot(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	list := func(token string) error {
		config := rest.AnonymousClientConfig(e.Config)
		config.BearerToken = token
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		_, err = client.CoreV1().ConfigMaps(e.Namespace).List(e.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(""); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "system:anonymous"`) {
		t.Errorf("without credentials: %v, want 403 for system:anonymous", err)
	}
	if err := list("wrong"); !apierrors.IsUnauthorized(err) {
		t.Errorf("with a wrong token: %v, want 401", err)
	}
}

// A new object of the owner's name is not the owner: the garbage collector looks at
// the uid.
func TestOwnerIsMeantByItsUID(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	configMaps := e.Client.CoreV1().ConfigMaps(e.Namespace)
	owner := createConfigMap(t, e, "owner")
	reference := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid}}
	}
	for name, uid := range map[string]types.UID{"kept": owner.UID, "collected": "00000000-0000-0000-0000-000000000000"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: reference(uid)}}
		if _, err := configMaps.Create(e.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := configMaps.Get(ctx, "collected", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the ConfigMap whose owner has another uid is still there (%v)", err)
	})
	configMap(t, e, "kept")
}

// Nobody takes a deletion back, and each finalizer keeps the object, whoever goes first.
func TestDeletionIsNotTakenBack(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	configMaps := e.Client.CoreV1().ConfigMaps(e.Namespace)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/a", "example.com/b"}}}
	if _, err := configMaps.Create(e.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, configMaps.Delete(e.Context(), "held", metav1.DeleteOptions{}))
	for _, body := range []string{`{"metadata":{"deletionTimestamp":null}}`, `{"metadata":{"finalizers":["example.com/a"]}}`} {
		got, err := configMaps.Patch(e.Context(), "held", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		fatal.If(t, err)
		if got.DeletionTimestamp == nil {
			t.Errorf("%s has taken the deletion back", body)
		}
	}
	configMap(t, e, "held")
	if _, err := configMaps.Patch(e.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := configMaps.Get(e.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without finalizers: %v, want 404", err)
	}
}

// The scheduler writes a pod's node through the subresource binding, and no field
// manager owns it.
func TestSchedulerIsNoFieldManager(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	e.Eventually(time.Minute, func(ctx context.Context) error { // without it, no pod is accepted
		_, err := e.Client.CoreV1().ServiceAccounts(e.Namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	pods := e.Client.CoreV1().Pods(e.Namespace)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "scheduled"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "workshop/pause:1", ImagePullPolicy: corev1.PullNever}}}}
	if _, err := pods.Create(e.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		var err error
		if pod, err = pods.Get(ctx, "scheduled", metav1.GetOptions{}); err == nil && pod.Spec.NodeName == "" {
			err = errors.New("the pod has no node")
		}
		return err
	})
	for _, f := range pod.ManagedFields {
		if strings.Contains(f.FieldsV1.GetRawString(), "f:nodeName") {
			t.Errorf("%s owns nodeName", f.Manager)
		}
	}
}
