package kubebuilder

import (
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/pinned"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most tests wait for the server, not for a core
	testenv.Main(m)
}

const project = "10-kubebuilder/icecream"

func newTest(t testing.TB, e *testenv.Env, program string) *icecreamtest.Test {
	t.Helper()
	return icecreamtest.Of(t, e, program, "-health-probe-bind-address", "127.0.0.1:0")
}

// prepare prepares the controller of this step, which does not run yet.
func prepare(t *testing.T) *icecreamtest.Test {
	t.Helper()
	e := testenv.New(t)
	return newTest(t, e, e.Program("./"+project+"/cmd"))
}

// What step 06's controller has to pass.
func TestIcecream(t *testing.T) {
	t.Parallel()
	for name, test := range icecreamtest.Tests {
		t.Run(name, func(t *testing.T) { test(t, prepare) })
	}
	for name, claim := range icecreamtest.Claims {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := claim(prepare(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// What of this the controller of the tasks, too, has to pass.
func TestSimple(t *testing.T) {
	t.Parallel()
	for name, claim := range icecreamtest.ForTasks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			f := icecreamtest.Of(t, e, e.Program("./10-kubebuilder/programs/simple"))
			if err := claim(f, func() { f.Process = e.Start(f.Command) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// The program summary neither changes nor deletes a ConfigMap that somebody else has made, and deletes its own.
func TestSummaryLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	services, configMaps := e.Client.CoreV1().Services(e.Namespace), e.Client.CoreV1().ConfigMaps(e.Namespace)
	theirs, err := configMaps.Create(e.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "web-summary"}, Data: map[string]string{"ports": "many"}}, metav1.CreateOptions{})
	fatal.If(t, err)
	e.Start(testenv.Command{Path: e.Program("./10-kubebuilder/programs/summary"), Args: []string{"-namespace", e.Namespace}})
	// Its one worker takes the Services in their order.
	serve := func(name string) {
		t.Helper()
		_, err := services.Create(e.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		fatal.If(t, err)
	}
	summarized := func(name string) {
		t.Helper()
		e.Eventually(time.Minute, func(ctx context.Context) error {
			_, err := configMaps.Get(ctx, name+"-summary", metav1.GetOptions{})
			return err
		})
	}
	serve("web")
	serve("one")
	summarized("one")
	for _, name := range []string{"web", "one"} {
		fatal.If(t, services.Delete(e.Context(), name, metav1.DeleteOptions{}))
	}
	serve("two")
	summarized("two")
	if now, err := configMaps.Get(e.Context(), theirs.Name, metav1.GetOptions{}); err != nil || now.UID != theirs.UID || now.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("somebody else's ConfigMap: %v, %v", now, err)
	}
	if _, err := configMaps.Get(e.Context(), "one-summary", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its own, whose Service was deleted: %v", err)
	}
}

// Each patch in defaults takes one thing away that we have added to what the framework does by
// itself. A claim holds without the patch, which TestIcecream has shown of some, and not with it.
func TestDefaults(t *testing.T) {
	t.Parallel()
	freesTheWorkers := func(f *icecreamtest.Test) error {
		f.Start()
		return icecreamtest.FreesTheWorkers(f, 8, "patch")
	}
	cases := map[string]struct {
		claim func(f *icecreamtest.Test) error
		says  string
		shown bool // it holds without the patch, as another test shows
	}{
		"stale-reads":         {icecreamtest.LooksAtNoOldCache, "written again", icecreamtest.Claims["looks at no old cache"] != nil},
		"retry-after":         {icecreamtest.WaitsAsTold, "it came again after", false},
		"result-beside-error": {icecreamtest.WaitsAsTold, "it came again after", true},
		"sleeping-workers":    {freesTheWorkers, "a worker was asleep", false},
		"foreign":             {icecreamtest.NoticesAFreeName, "the name is free", false},
		"deletions":           {icecreamtest.MakesADeletedOneAgain, "was not made again", false},
		"conflict-as-error":   {icecreamtest.TriesAgainAfterAConflict, "logged as an error", icecreamtest.Claims["tries again after a conflict"] != nil},
	}
	patches, err := filepath.Glob("defaults/*.patch")
	fatal.If(t, err)
	for _, patch := range patches {
		if name := strings.TrimSuffix(filepath.Base(patch), ".patch"); cases[name].claim == nil {
			t.Errorf("%s is not tested", patch)
		}
	}
	for name, tc := range cases {
		if !tc.shown {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if err := tc.claim(prepare(t)); err != nil {
					t.Errorf("without the patch: %v", err)
				}
			})
		}
		t.Run(name+" patched", func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			err := tc.claim(newTest(t, e, patched(t, e, filepath.Join("defaults", name+".patch"))))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("with the patch: %v; want an error with %q", err, tc.says)
			}
		})
	}
}

// patched builds the controller with a patch, as Program does with other changes: once for all runs.
func patched(t *testing.T, e *testenv.Env, patch string) (program string) {
	t.Helper()
	root, dir := e.Workspace().Root, t.TempDir()
	before, after := os.DirFS(filepath.Join(root, project)), os.DirFS(filepath.Join(dir, project))
	fatal.If(t, os.CopyFS(filepath.Join(dir, project), before))
	// Without the ceiling, git would look for a repository around the copy.
	if _, err := proc.Output(e.Context(), proc.Cmd{Path: "git", Args: []string{"apply", filepath.Join(root, "10-kubebuilder", patch)}, Dir: dir,
		Env: workspace.Environ("GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir))}); err != nil {
		t.Fatalf("%s is out of date: %v", patch, err)
	}
	var changes []testenv.ProgramOption
	err := fs.WalkDir(before, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		old, err := fs.ReadFile(before, file)
		if err != nil {
			return err
		}
		now, err := fs.ReadFile(after, file)
		if err == nil && string(now) != string(old) {
			changes = append(changes, testenv.Replace("../"+file, string(old), string(now)))
		}
		return err
	})
	fatal.If(t, err)
	return e.Program("./"+project+"/cmd", changes...)
}

// A suite whose specs are all commented out, as kubebuilder makes them, must not pass. The lesson shows
// that ours pass, and that the other one does not without a spec.
func TestSuite(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	r := e.Run(testenv.Command{Path: e.Program("./"+project+"/internal/controller", testenv.Tests), Args: []string{"-ginkgo.no-color", "-ginkgo.focus=^no spec has this name$"}})
	if says := "Detected no specs ran and --fail-on-empty is set"; r.ExitCode == 0 || !strings.Contains(r.Stdout+r.Stderr, says) {
		t.Errorf("a suite without a spec: exit code %d; want %q\n%s%s", r.ExitCode, says, r.Stdout, r.Stderr)
	}
}

// The CRD that controller-gen makes of this project accepts the same objects as that of step 05, and
// has its label, by which a lesson that fails removes it.
func TestDefinition(t *testing.T) {
	t.Parallel()
	want, got := crdtest.Read(t, "../05-crd-go/config/crd/controller.nicoleh.io_icecreams.yaml"), crdtest.Read(t, "icecream/config/crd/bases/controller.nicoleh.io_icecreams.yaml")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("step 05 and this one (-05 +10):\n%s", diff)
	}
}

func TestREADME(t *testing.T) {
	ws, err := workspace.Find()
	fatal.If(t, err)
	// The section on envtest starts them; where the cluster is kind, nobody has built them yet.
	fatal.If(t, pinned.ControlPlane.Build(t.Context(), ws, t.Output(), "etcd", "kube-apiserver"))
	testenv.README(t)
}
