// Package e2e tests the controller on a real cluster, that of KUBECONFIG. make test
// sets the variables, and starts a kind cluster if there is none.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"example.org/widgets/api/v1alpha1"
	"example.org/widgets/internal/client"
	"example.org/widgets/internal/controller"
)

const (
	definition = "../config/crd/stable.example.org_widgets.yaml"
	patience   = time.Minute
)

// running ends at an interrupt. The tests fail then, and clean up like after any failure.
var running context.Context

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	running = ctx
	code := m.Run()
	stop()
	os.Exit(code)
}

// A cluster is what the tests know of the one that they run on.
type cluster struct {
	*testing.T
	config    *rest.Config
	core      kubernetes.Interface
	own       *client.Client
	namespace string // of this test alone
}

func connect(t *testing.T) *cluster {
	t.Helper()
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("KUBECONFIG names no cluster; make test starts one")
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		t.Fatalf("reading the kubeconfig: %v", err)
	}
	config.QPS = -1 // polling is not slowed down
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, config: config, core: core, own: own}
	c.define()
	namespace, err := core.CoreV1().Namespaces().Create(running, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "widget-test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating the namespace of the test: %v", err)
	}
	c.namespace = namespace.Name
	t.Cleanup(func() {
		if err := core.CoreV1().Namespaces().Delete(context.Background(), c.namespace, metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting the namespace of the test: %v", err)
		}
	})
	return c
}

// define installs the definition, and removes it afterwards if it was not there before.
func (c *cluster) define() {
	c.Helper()
	text, err := os.ReadFile(definition)
	if err != nil {
		c.Fatal(err)
	}
	var crd unstructured.Unstructured
	if err := yaml.UnmarshalStrict(text, &crd.Object); err != nil {
		c.Fatalf("reading %s: %v", definition, err)
	}
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		c.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err = definitions.Get(running, crd.GetName(), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		c.Fatalf("looking for the definition: %v", err)
	}
	if _, err := definitions.Apply(running, crd.GetName(), &crd, metav1.ApplyOptions{FieldManager: "e2e", Force: true}); err != nil {
		c.Fatalf("installing the definition: %v", err)
	}
	if missing {
		c.Cleanup(func() {
			if err := definitions.Delete(context.Background(), crd.GetName(), metav1.DeleteOptions{}); err != nil {
				c.Errorf("deleting the definition: %v", err)
			}
			c.eventually(context.Background(), "the definition is gone", func(ctx context.Context) error {
				if _, err := definitions.Get(ctx, crd.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is still there: %v", err)
				}
				return nil
			})
		})
	}
	c.eventually(running, "the definition is served", func(ctx context.Context) error {
		_, err := c.own.Widgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// control starts the controller as a process, unless it runs as a pod already. The
// returned function stops it.
func (c *cluster) control() (stop func()) {
	c.Helper()
	if os.Getenv("E2E_CONTROLLER") == "deployed" {
		return func() {}
	}
	binary := filepath.Join(c.TempDir(), controller.Manager)
	if output, err := exec.CommandContext(running, "go", "build", "-o", binary, "../cmd/"+controller.Manager).CombinedOutput(); err != nil {
		c.Fatalf("building the controller: %v\n%s", err, output)
	}
	process := exec.Command(binary, "-namespace", c.namespace, "-lease-namespace", c.namespace)
	log, err := os.Create(filepath.Join(c.TempDir(), "log"))
	if err != nil {
		c.Fatal(err)
	}
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if process.ProcessState == nil {
			_ = process.Process.Kill()
			_ = process.Wait()
		}
		_ = log.Close()
		if c.Failed() {
			text, _ := os.ReadFile(log.Name())
			c.Logf("the controller's log:\n%s", text)
		}
	})
	return func() {
		c.Helper()
		if err := process.Process.Signal(syscall.SIGTERM); err != nil {
			c.Fatal(err)
		}
		if err := process.Wait(); err != nil {
			c.Errorf("the controller's end: %v", err)
		}
		lease, err := c.core.CoordinationV1().Leases(c.namespace).Get(running, controller.Manager, metav1.GetOptions{})
		if err != nil {
			c.Fatal(err)
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != "" {
			c.Errorf("the lease was not released: %+v", lease.Spec)
		}
	}
}

// eventually polls until f returns nil.
func (c *cluster) eventually(ctx context.Context, what string, f func(ctx context.Context) error) {
	c.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := f(ctx)
		if ctx.Err() == nil { // else it only says that the time is over
			last = err
		}
		return err == nil, nil
	}); err != nil {
		c.Fatalf("%s: %v after %s: %v", what, err, patience, last)
	}
}

// holds waits until the ConfigMap holds a text, and the status says so.
func (c *cluster) holds(name, text string) {
	c.Helper()
	c.eventually(running, fmt.Sprintf("ConfigMap %s holds %q", name, text), func(ctx context.Context) error {
		configMap, err := c.core.CoreV1().ConfigMaps(c.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if configMap.Data[controller.TextKey] != text {
			return fmt.Errorf("it holds %q", configMap.Data)
		}
		return c.reports(ctx, name, metav1.ConditionTrue, v1alpha1.ReasonWritten)
	})
}

// reports returns nil if the status is about the newest spec and has this condition.
func (c *cluster) reports(ctx context.Context, name string, status metav1.ConditionStatus, reason string) error {
	o, err := c.own.Widgets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if o.Status.ObservedGeneration != o.Generation || ready == nil || ready.Status != status || ready.Reason != reason {
		return fmt.Errorf("generation %d has the status %+v", o.Generation, o.Status)
	}
	return nil
}

func TestController(t *testing.T) {
	c := connect(t)
	stop := c.control()
	ctx := running
	widgets, configMaps := c.own.Widgets(c.namespace), c.core.CoreV1().ConfigMaps(c.namespace)
	create := func(name, text string) error {
		_, err := widgets.Create(ctx, &v1alpha1.Widget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.WidgetSpec{Text: text}}, metav1.CreateOptions{})
		return err
	}

	if err := create("empty", ""); !apierrors.IsInvalid(err) {
		t.Errorf("an empty text: %v", err)
	}
	if err := create("a", "hello"); err != nil {
		t.Fatal(err)
	}
	c.holds("a", "hello")

	t.Log("the text changes")
	o, err := widgets.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Spec.Text = "goodbye"
	if _, err := widgets.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.holds("a", "goodbye")

	t.Log("somebody deletes the ConfigMap")
	if err := configMaps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.holds("a", "goodbye")

	t.Log("somebody else owns the ConfigMap")
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{controller.TextKey: "mine"}}
	if _, err := configMaps.Create(ctx, foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("b", "yours"); err != nil {
		t.Fatal(err)
	}
	c.eventually(ctx, "the status says that the name is taken", func(ctx context.Context) error {
		return c.reports(ctx, "b", metav1.ConditionFalse, v1alpha1.ReasonNotOwned)
	})
	if now, err := configMaps.Get(ctx, "b", metav1.GetOptions{}); err != nil || now.Data[controller.TextKey] != "mine" {
		t.Errorf("the ConfigMap of somebody else is %+v, %v", now, err)
	}

	t.Log("the owner is deleted")
	if err := widgets.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(ctx, "the ConfigMap is deleted with its owner", func(ctx context.Context) error {
		if _, err := configMaps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v", err)
		}
		return nil
	})
	stop()
}
