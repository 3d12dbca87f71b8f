package incluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A copy of the clone makes a repository, and is moved away. The repository then
// generates and tests on its own.
func TestNew(t *testing.T) {
	e := testenv.New(t)
	ws := e.Workspace()
	temp, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	clone, dir := filepath.Join(temp, "clone"), filepath.Join(temp, "emergency exits")
	for _, part := range []string{"go.mod", "LICENSE", "internal/newrepo", "internal/image", "06-controller/loop", "07-in-cluster/policy-controller"} {
		fatal.If(t, copyPart(filepath.Join(ws.Root, part), filepath.Join(clone, part)))
	}
	program := e.Program("./cmd/workshop")
	run(t, e, clone, workspace.Environ(), program, "new", "GROUP=doors.example.net", "KIND=EmergencyExit", "DIR="+dir, "MODULE=zoo.example.com/exits")
	fatal.If(t, os.Rename(clone, clone+".moved"))

	before := readFiles(t, dir)
	run(t, e, dir, environ(ws, filepath.Join(temp, "bin"), "KUBECONFIG="+e.Cluster().Kubeconfig()), "make", "generate", "test")
	after := readFiles(t, dir)
	for name, text := range after {
		if before[name] != text {
			t.Errorf("make generate has changed %s:\n%s", name, text)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			t.Errorf("%s is gone", name)
		}
	}
	if unformatted := run(t, e, dir, nil, "gofmt", "-l", "."); unformatted != "" {
		t.Errorf("gofmt would change %s", unformatted)
	}

	// It leaves nothing in somebody's cluster.
	definitions := e.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Get(e.Context(), "emergencyexits.doors.example.net", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the definition of the new repository: %v", err)
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		namespaces, err := e.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range namespaces.Items {
			if strings.HasPrefix(n.Name, "emergencyexit-") {
				return fmt.Errorf("namespace %s is still there", n.Name)
			}
		}
		return nil
	})
}

// Its image and its manifests work in a cluster as its README says.
// scripts/test-new.sh also has it make a kind cluster of its own.
func TestNewAsPods(t *testing.T) {
	e := testenv.New(t)
	e.NeedsImages()
	ws, c := e.Workspace(), e.Cluster()
	temp := t.TempDir()
	dir, bin := filepath.Join(temp, "widgets"), filepath.Join(temp, "bin")
	run(t, e, ws.Root, workspace.Environ(), e.Program("./cmd/workshop"), "new", "GROUP=stable.example.org", "KIND=Widget", "DIR="+dir)
	fatal.If(t, errors.Join(os.Mkdir(bin, 0o755), os.Symlink(ws.Bin("kubectl"), filepath.Join(bin, "kubectl"))))
	env := environ(ws, bin, "KUBECONFIG="+c.Kubeconfig(), "E2E_CONTROLLER=deployed")
	run(t, e, dir, env, "make", "image")
	e.LoadImages(filepath.Join(dir, "bin", "image.tar"))
	t.Cleanup(func() { run(t, e, dir, env, "make", "undeploy") })
	run(t, e, dir, env, "make", "deploy")
	run(t, e, dir, env, "go", "test", "-count=1", "./e2e")
}

// environ is that of somebody who has no clone. The folder bin is on their PATH.
func environ(ws workspace.Workspace, bin string, extra ...string) []string {
	path := []string{bin}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if !strings.HasPrefix(dir, ws.Root) {
			path = append(path, dir)
		}
	}
	env := workspace.Without(workspace.Environ(), "PATH", "KUBECONFIG", "KUBECACHEDIR", "KUBERC", "CLUSTER")
	return append(env, append(extra, "PATH="+strings.Join(path, string(filepath.ListSeparator)))...)
}

// run runs a command to its end, and returns what it has printed.
func run(t *testing.T, e *testenv.Env, dir string, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), 20*time.Minute) // where nothing is compiled, go test also vets all of client-go
	defer cancel()
	var output proc.Buffer
	if err := proc.Run(ctx, proc.Cmd{Path: name, Args: args, Dir: dir, Env: env, Out: &output, Err: &output, Grace: time.Minute}); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, output.String())
	}
	return output.String()
}

// copyPart copies a file or a folder, with its links as links.
func copyPart(from, to string) error {
	if info, err := os.Stat(from); err != nil {
		return err
	} else if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o644))
}

// readFiles reads all files of a repository but what make has built.
func readFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	fatal.If(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if err == nil && entry.Name() == "bin" {
				return fs.SkipDir
			}
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	}))
	return files
}
