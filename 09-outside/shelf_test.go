package outside

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/k8s-go/workshop/09-outside/client"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// shelved starts shelf, and creates the ConfigMap fish for it.
func shelved(t *testing.T, pallets string) (*testenv.Env, *company, typedcorev1.ConfigMapInterface) {
	t.Helper()
	e := testenv.New(t)
	store := open(t, e)
	e.FreeAtEnd(corev1.SchemeGroupVersion.WithResource("configmaps"))
	e.Start(testenv.Command{Path: e.Program("./09-outside/shelf"), Args: []string{"-namespace", e.Namespace, "-store", store.address},
		Env: []string{"KUBECONFIG=" + e.Cluster().Kubeconfig()}})
	maps := e.Client.CoreV1().ConfigMaps(e.Namespace)
	_, err := maps.Create(e.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "fish", Labels: map[string]string{"shelf": ""}},
		Data: map[string]string{"pallets": pallets}}, metav1.CreateOptions{})
	fatal.If(t, err)
	return e, store, maps
}

// A ConfigMap that has the finalizer of shelf can be deleted, whatever has become of it.
func TestShelfLetsGo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pallets, patch string // how it begins, and what somebody does to it
		rented         bool
	}{
		"a size that the store refuses": {pallets: "0"},
		"without its label":             {"3", `{"metadata":{"labels":{"shelf":null}}}`, true},
		"without a size":                {"3", `{"data":{"pallets":null}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, store, maps := shelved(t, tc.pallets)
			e.Eventually(time.Minute, func(ctx context.Context) error {
				cm, err := maps.Get(ctx, "fish", metav1.GetOptions{})
				if err == nil && (len(cm.Finalizers) == 0 || tc.rented && cm.Annotations[roomAnnotation] == "") {
					err = fmt.Errorf("finalizers %q, annotations %v", cm.Finalizers, cm.Annotations)
				}
				return err
			})
			if tc.patch != "" {
				if _, err := maps.Patch(e.Context(), "fish", types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			fatal.If(t, maps.Delete(e.Context(), "fish", metav1.DeleteOptions{}))
			e.Eventually(time.Minute, func(ctx context.Context) error {
				if _, err := maps.Get(ctx, "fish", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return errors.Join(errors.New("it is still there"), err)
				}
				return nil
			})
			e.Eventually(time.Minute, func(context.Context) error {
				if rooms := store.rooms(); len(rooms) > 0 {
					return errors.New("there is " + listed(rooms))
				}
				return nil
			})
		})
	}
}

// A process that was killed has left a room closed, and now nobody can say how large it is to be.
func TestShelfOpensTheRoomOfAnUnreadableSize(t *testing.T) {
	t.Parallel()
	e, store, maps := shelved(t, "3")
	e.Eventually(time.Minute, func(context.Context) error {
		if len(store.rooms()) != 1 {
			return errors.New("there is " + listed(store.rooms()))
		}
		return nil
	})
	id := store.rooms()[0].Id
	state := func(want client.RoomState) func(context.Context) error {
		return func(context.Context) error {
			var room client.Room
			if store.call("GET", "/v1/rooms/"+id, nil, nil, &room); room.State != want {
				return fmt.Errorf("the room is %s", room.State)
			}
			return nil
		}
	}
	e.Eventually(time.Minute, state(client.Ready))
	if code := store.call("POST", "/v1/rooms/"+id+"/close", nil, nil, nil); code != http.StatusOK {
		t.Fatalf("closing it: %d", code)
	}
	fatal.If(t, state(client.Closed)(e.Context()))
	_, err := maps.Patch(e.Context(), "fish", types.MergePatchType, []byte(`{"data":{"pallets":"ten"}}`), metav1.PatchOptions{})
	fatal.If(t, err)
	e.Eventually(time.Minute, state(client.Ready))
}
