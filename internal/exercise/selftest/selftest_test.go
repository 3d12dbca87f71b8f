// Package selftest does what a learner does, with the commands of the Makefile, in
// a copy of the clone.
package selftest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/exercise"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/testfile"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A learner has a copy of the clone, at a path with a space.
type learner struct {
	*testenv.Env
	t          *testing.T
	ws         workspace.Workspace
	path       string // of the workshop's own program
	kubeconfig string // reaches the cluster of the tests
}

func newLearner(t *testing.T) *learner {
	t.Helper()
	ours, err := workspace.Find()
	fatal.If(t, err)
	l := &learner{Env: testenv.New(t), t: t}
	l.ws.Root = l.Folder("a clone")
	l.kubeconfig = l.Proxy().Kubeconfig
	testfile.CopyClone(t, ours.Root, l.ws.Root)
	fatal.If(t, os.MkdirAll(l.ws.Path(), 0o755))
	if err := os.Symlink(ours.Bin(""), l.ws.Bin("")); err != nil { // or kubectl would be built again
		t.Fatal(err)
	}
	l.path = l.ws.Path("workshop")
	fatal.If(t, testenv.GoBuild(l.Context(), l.ws.Root, "./cmd/workshop", l.path, ""))
	return l
}

// start starts a command of the Makefile, for the cluster of the tests.
func (l *learner) start(args ...string) *proc.Process {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), 5*time.Minute)
	l.t.Cleanup(cancel)
	p, err := proc.Start(ctx, proc.Cmd{Path: l.path, Args: args, Dir: l.ws.Root, Grace: 10 * time.Second,
		Env: append(workspace.Without(workspace.Environ(), "CLUSTER", "KUBECONFIG"), "CLUSTER=existing", "KUBECONFIG="+l.kubeconfig)})
	fatal.If(l.t, err)
	return p
}

// run runs a command, and fails the test unless it ends with the exit code and has
// said each of want.
func (l *learner) run(exitCode int, command string, want ...string) string {
	l.t.Helper()
	p := l.start(strings.Fields(command)...)
	_ = p.Wait() // the exit code says it
	output := p.Stdout() + p.Stderr()
	if p.ExitCode() != exitCode {
		l.t.Fatalf("%s: exit code %d, want %d:\n%s", command, p.ExitCode(), exitCode, output)
	}
	for _, text := range want {
		if !strings.Contains(output, text) {
			l.t.Errorf("%s: want %q in\n%s", command, text, output)
		}
	}
	return output
}

// edit changes one of the learner's files.
func (l *learner) edit(name, old, new string) {
	l.t.Helper()
	path := filepath.Join(l.ws.Root, name)
	data, err := os.ReadFile(path)
	fatal.If(l.t, err)
	if !strings.Contains(string(data), old) {
		l.t.Fatalf("%s does not hold %q", name, old)
	}
	fatal.If(l.t, os.WriteFile(path, []byte(strings.ReplaceAll(string(data), old, new)), 0o755))
}

// solve puts our solution into the learner's copy of a task.
func (l *learner) solve(name string) exercise.Task {
	l.t.Helper()
	tasks, err := exercise.All(l.ws)
	fatal.If(l.t, err)
	for _, task := range tasks {
		if task.Name != name {
			continue
		}
		files, err := task.Solution()
		fatal.If(l.t, err)
		for file, data := range files {
			fatal.If(l.t, os.WriteFile(filepath.Join(l.ws.Root, task.Shown(file)), data, 0o755))
		}
		return task
	}
	l.t.Fatalf("there is no task %s", name)
	return exercise.Task{}
}

func TestLearner(t *testing.T) {
	t.Parallel()
	l := newLearner(t)
	// What the learner has in the cluster, by the names that the lesson uses.
	if _, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Create(l.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counter", Annotations: map[string]string{"count": "mine"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	l.run(1, "check N=1", "not begun: make exercise N=1 TASK=counter")
	l.run(2, "check N=99", "there is no step")
	l.run(2, "check N=1 TASK=none", "TASK=patch", "TASK=counter")
	l.run(1, "hint N=1", "make exercise N=1 TASK=patch")
	l.run(0, "exercise N=1", "1.1 patch", "1.3 counter", "Write it in work/01-curl/counter/counter.sh")
	l.run(0, "exercise N=1", "stays as it is", "make reset N=1 TASK=counter")
	l.run(0, "exercise N=1 TASK=counter", "Go on in work/01-curl/counter/counter.sh", "stays as it is")
	l.run(2, "check N=1", "this could not be checked", "run make up first")
	l.run(0, "up", "existing is ready")

	l.run(1, "check N=1", "1.1 patch    task 1.1 is not done yet", "1.2 follow   task 1.2 is not done yet",
		"work/01-curl/patch/patch.sh:", "make hint N=1 TASK=patch")
	// One that is open does not hide that others have passed.
	for _, name := range []string{"patch", "unlabel", "select", "page", "fold", "provoke"} {
		l.solve(name)
	}
	counter := l.solve("counter")
	output := l.run(1, "check N=1", "1.1 patch    passed", "1.2 follow   task 1.2 is not done yet", "1.3 counter  passed")
	if strings.Count(output, "make hint") != 1 {
		t.Errorf("one task is explained, the first that is not done:\n%s", output)
	}
	l.run(0, "check N=1 TASK=3")

	l.run(0, "hint N=1", "Hint 1 of 4 for task 1.2")
	l.run(0, "hint N=1", "Hint 2 of 4")
	l.run(1, "solution N=1", "task 1.2 has not passed yet")
	l.run(0, "solution N=1 FORCE=1", "-  echo \"task 1.2 is not done yet\" >&2", "+  LC_ALL=C comm -13")
	l.run(0, "solution TASK=1.3", "Yours is ours")

	// A mistake, its line, and what was expected.
	l.edit("work/01-curl/counter/counter.sh", "jq '.metadata", "jq 'del(.metadata.resourceVersion) | .metadata")
	l.run(1, "check TASK=1.3", "1.3 counter  not right yet: lost update", "work/01-curl/counter/counter.sh:15: lost update: ",
		"expected  labels map[theirs:kept], annotations map[count:3 theirs:kept]", "held      labels map[], annotations map[count:3]", "make hint N=1 TASK=counter")
	var progress struct {
		Tasks []struct {
			Task, State, Mistake string
			Checks, Hints        int
		}
	}
	fatal.If(t, json.Unmarshal([]byte(l.run(0, "progress JSON=1")), &progress))
	for i, want := range []string{"1.1 passed, 0 hints", "1.2 begun, 2 hints", "1.3 passed, 0 hints lost update"} {
		p := progress.Tasks[i]
		if got := strings.TrimSpace(fmt.Sprintf("%s %s, %d hints %s", p.Task, p.State, p.Hints, p.Mistake)); got != want {
			t.Errorf("progress: %s, want %s", got, want)
		}
	}

	// Nothing is lost: neither by a reset nor by a change of ours.
	l.run(0, "reset N=1 TASK=counter", "work/.aside/01-curl/counter-", "takes them back")
	l.edit("01-curl/counter.sh", "set -euo pipefail", "set -euo pipefail # changed")
	l.run(1, "check N=1 TASK=counter", "the workshop has changed counter.sh of task 1.3; make reset N=1 TASK=counter")
	fatal.If(t, os.Chmod(filepath.Join(l.ws.Root, counter.Shown("counter.sh")), 0o644))
	l.run(1, "check N=1 TASK=counter", "work/01-curl/counter/counter.sh cannot be run: chmod +x")
	fatal.If(t, os.Remove(filepath.Join(l.ws.Root, counter.Shown("counter.sh"))))
	l.run(1, "check N=1 TASK=counter", "work/01-curl/counter/counter.sh is not there", "make reset N=1 TASK=counter")

	// Several tasks write one program, and our solution answers all of them.
	l.run(0, "exercise N=6 TASK=wiring")
	wiring := l.solve("wiring")
	now := time.Now()
	fatal.If(t, wiring.SetState(l.ws, exercise.State{Passed: &now}))
	l.run(1, "solution N=6 TASK=wiring", "task 6.2 has not passed yet: make exercise N=6 TASK=create goes on")
	l.run(1, "reset N=6 TASK=create", "is the program of 6 tasks, of which wiring passed with it")
	l.run(0, "reset N=6 TASK=create FORCE=1", "work/.aside/06-controller/icecream-")

	cm, err := l.Client.CoreV1().ConfigMaps(l.Namespace).Get(l.Context(), "counter", metav1.GetOptions{})
	if err != nil || cm.Annotations["count"] != "mine" {
		t.Errorf("the learner's own object: %v, %v", cm, err)
	}
}

// The compiler speaks of the learner's file, and each save is checked.
func TestLearnerOfGo(t *testing.T) {
	t.Parallel()
	l := newLearner(t)
	l.run(0, "up")
	l.run(0, "exercise N=2 TASK=retry")
	const file = "work/02-clientset/retry/main.go"
	l.edit(file, `panic("task 2.2`, `undefined("task 2.2`)
	l.run(1, "check N=2 TASK=retry", "2.2 retry  does not compile", file+":", "undefined: undefined")

	watch := l.start("watch", "N=2")
	saw := func(text string) {
		t.Helper()
		l.Eventually(2*time.Minute, func(context.Context) error {
			if output := watch.Stdout(); !strings.Contains(output, text) {
				return fmt.Errorf("want %q in\n%s%s", text, output, watch.Stderr())
			}
			return nil
		})
	}
	saw("Save a file in work/02-clientset/retry")
	l.edit(file, `undefined("task 2.2`, `panic("task 2.2`)
	saw("task 2.2 is not done yet")
	l.solve("retry")
	saw("2.2 retry  passed")
	// What is left is not begun, and watch says so and ends.
	saw("make exercise N=2 TASK=first-client")
	if err := watch.Wait(); err != nil {
		t.Errorf("watch: %v", err)
	}

	l.run(0, "exercise N=2 TASK=pages")
	watch = l.start("watch", "N=2", "TASK=pages")
	saw("Save a file in work/02-clientset/pages")
	fatal.If(t, watch.Signal(os.Interrupt))
	if err := watch.Wait(); err != nil {
		t.Errorf("watch after an interrupt: %v", err)
	}
}
