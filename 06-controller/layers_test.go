package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Each layer of tests sees bugs that the one before it does not. A layer that
// suddenly saw its bug would be no failure of the controller, but the README
// would no longer be true.

// The status goes to the main endpoint, which ignores it.
const (
	rightEndpoint = ".UpdateStatus(ctx, ice"
	wrongEndpoint = ".Update(ctx, ice"
)

func TestFunctionsAndFakesDoNotSeeTheWrongEndpoint(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs("icecream/controller")
	fatal.If(t, err)
	file := filepath.Join(dir, "controller.go")
	source, err := os.ReadFile(file)
	fatal.If(t, err)
	if strings.Count(string(source), rightEndpoint) != 1 {
		t.Fatalf("%s has not one %q", file, rightEndpoint)
	}
	buggy, overlay := filepath.Join(t.TempDir(), "controller.go"), filepath.Join(t.TempDir(), "overlay.json")
	fatal.If(t, os.WriteFile(buggy, []byte(strings.Replace(string(source), rightEndpoint, wrongEndpoint, 1)), 0o600))
	data, err := json.Marshal(map[string]map[string]string{"Replace": {file: buggy}})
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(overlay, data, 0o600))
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-overlay", overlay, ".")
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the tests of functions and with fakes have seen it: %v\n%s", err, output)
	}
}

func TestARealServerSeesTheWrongEndpoint(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t, testenv.Replace("controller/controller.go", rightEndpoint, wrongEndpoint))
	f.Start()
	f.create("vanilla", "cone", 0)
	if err := f.Hold(2*time.Second, func() error {
		ice, err := f.icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err == nil && ice.Status.ObservedGeneration != 0 {
			err = fmt.Errorf("status %+v", ice.Status)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if len(f.requests("update", "icecreams")) == 0 {
		t.Error("the controller has not tried to report")
	}
}

// Every pod has a command that its image does not have.
var wrongCommand = testenv.Replace("controller/desired.go", "WithImage(image)", `WithImage(image).WithCommand("/no-such-program")`)

func TestContainersSeeAWrongCommand(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t, wrongCommand)
	f.NeedsContainers()
	f.Start()
	f.create("vanilla", "cone", 1)
	f.until("vanilla", condition("Available", metav1.ConditionFalse, "Progressing"))
	if err := f.Hold(5*time.Second, func() error {
		ice, err := f.icecreams.Get(f.Context(), "vanilla", metav1.GetOptions{})
		if err == nil && isAvailable(ice) == nil {
			err = errors.New("a pod without a program is available")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestSimulatedNodesDoNotSeeAWrongCommand(t *testing.T) {
	t.Parallel()
	f := newIcecreamTest(t, wrongCommand)
	nodes, err := f.Client.CoreV1().Nodes().List(f.Context(), metav1.ListOptions{})
	fatal.If(t, err)
	for _, node := range nodes.Items {
		if node.Annotations["kwok.x-k8s.io/node"] == "" {
			t.Skipf("node %s runs containers; run it with CLUSTER=kwok", node.Name)
		}
	}
	f.Start()
	f.create("vanilla", "cone", 1)
	f.until("vanilla", isAvailable)
}

// The controller acts on caches that are behind. On a cluster where nothing goes
// wrong, with containers or without, it does all that it should.
func TestAPeacefulClusterDoesNotSeeAnOldCache(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	f := icecreamTestOf(t, e, icecreamGuards.Build(t, e, "catching up"))
	f.Command.Env = append(f.Command.Env, controllertest.WithoutEnv+"=catching up")
	f.Start()
	f.create("vanilla", "cone", 1)
	f.until("vanilla", isAvailable)
	f.patch("vanilla", `{"spec":{"deploymentName":"cup"}}`)
	f.until("vanilla", func(ice *v1alpha1.Icecream) error {
		if ice.Generation != 2 {
			return errors.New("the name has not changed")
		}
		return isAvailable(ice)
	})
	f.gone("cone")
}
