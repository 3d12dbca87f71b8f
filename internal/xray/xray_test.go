package xray_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/xray"
	"github.com/k8s-go/workshop/internal/xray/xraytest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const patience = 60 * time.Second

// A room has one viewer.
type room struct {
	*xraytest.Room
	t    testing.TB
	url  string
	view *view
}

func enter(t testing.TB) *room {
	t.Helper()
	r := &room{Room: xraytest.Enter(t, testenv.New(t)), t: t}
	server := httptest.NewServer(r.Hub.Handler())
	t.Cleanup(server.Close)
	r.url = server.URL
	r.view = look(t, r.url)
	return r
}

// A frame is what the page gets in one message.
type frame struct {
	Now    int64
	Missed int
	Open   []xray.Item
	Items  []xray.Item
}

// A view keeps what a page would get.
type view struct {
	t    testing.TB
	conn *websocket.Conn

	mu     sync.Mutex
	frames []frame
	items  []xray.Item
	came   chan struct{}
	took   func(frame) // called for each frame, if not nil
}

func look(t testing.TB, url string) *view {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), url+"/ws", nil)
	fatal.If(t, err)
	conn.SetReadLimit(16 << 20)
	v := &view{t: t, conn: conn, came: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			_, data, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			var f frame
			if err := json.Unmarshal(data, &f); err != nil {
				t.Errorf("a frame: %v", err)
				return
			}
			v.mu.Lock()
			v.frames = append(v.frames, f)
			v.items = append(v.items, f.Items...)
			took := v.took
			v.mu.Unlock()
			if took != nil {
				took(f)
			}
			select {
			case v.came <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.CloseNow()
		<-ended
	})
	return v
}

// bash runs a script whose kubectl and programs go through the proxy.
func (r *room) bash(script string) testenv.Result {
	r.t.Helper()
	result := r.Run(r.command(script))
	if result.ExitCode != 0 {
		r.t.Fatalf("%s: exit code %d\n%s%s", script, result.ExitCode, result.Stdout, result.Stderr)
	}
	return result
}

func (r *room) command(script string) testenv.Command {
	return testenv.Command{Path: "/bin/bash", Args: []string{"-c", script}, Timeout: 5 * time.Minute, Env: r.Environ()}
}

// curl is a command that asks for something in the namespace, through the proxy.
func (r *room) curl(path string) string {
	return fmt.Sprintf(`curl --silent --insecure --noproxy '*' --max-time 60 --header "Authorization: Bearer %s" '%s/api/v1/namespaces/%s/%s'`,
		r.Proxy.Config().BearerToken, r.Proxy.URL(), r.Namespace, path)
}

// watch has kubectl watch ConfigMaps until the test ends, and waits until its watch is open.
func (r *room) watch() *testenv.Process {
	r.t.Helper()
	before := r.Proxy.Open(faultproxy.Watches)
	p := r.Start(r.command("exec kubectl get configmaps --watch"))
	r.Eventually(patience, func(context.Context) error {
		if r.Proxy.Open(faultproxy.Watches) <= before {
			return fmt.Errorf("kubectl does not watch yet")
		}
		return nil
	})
	return p
}

func (r *room) press(button string) string {
	r.t.Helper()
	resp, err := http.Post(r.url+"/faults/"+button, "", nil)
	fatal.If(r.t, err)
	defer resp.Body.Close()
	var answer struct{ Message string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK || answer.Message == "" {
		r.t.Fatalf("%s: %s %v", button, resp.Status, err)
	}
	return answer.Message
}

func TestEachVerbIsSeen(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.bash(`set -e
kubectl create configmap a --from-literal=v=1
kubectl get configmap a
kubectl get configmaps
kubectl patch configmap a --patch '{"data":{"v":"2"}}'
kubectl get configmap a -o yaml | sed 's/v: "2"/v: "3"/' | kubectl replace -f -
kubectl delete configmap a --wait=false
kubectl delete --raw "/api/v1/namespaces/$(kubectl config view --minify -o jsonpath={..namespace})/configmaps?labelSelector=none"
kubectl get configmap a && exit 1
true`)
	for verb, code := range map[string]int{"create": 201, "list": 200, "patch": 200, "update": 200, "delete": 200, "deletecollection": 200, "get": 404} {
		var begun xray.Item
		ended := r.Until(verb+" ends", func(i xray.Item) bool {
			return i.Kind == "ended" && i.Verb == verb && i.Resource == "configmaps" && i.Code == code
		})
		begun = r.Until(verb+" begins", func(i xray.Item) bool { return i.Kind == "begun" && i.ID == ended.ID })
		for _, i := range []xray.Item{begun, ended} {
			if i.Program != "kubectl" || i.Namespace != r.Namespace || i.Time == 0 || i.Took > 0 != (i.Kind == "ended") {
				t.Errorf("%+v", i)
			}
		}
		if begun.PID != ended.PID { // 0 if kubectl had ended before anybody could look
			t.Errorf("process %d and then %d", begun.PID, ended.PID)
		}
	}
}

func TestCurlIsKnownByItsNameAndProcess(t *testing.T) {
	t.Parallel()
	r := enter(t)
	// A slow answer gives time to look for the process, which curl's is otherwise hardly there for.
	p := r.Start(r.command("exec " + r.curl("pods?watch=1")))
	begun := r.Until("curl's watch", func(i xray.Item) bool { return i.Kind == "begun" && i.Program == "curl" && i.Verb == "watch" })
	if runtime.GOOS == "linux" && begun.PID != p.Pid() {
		t.Errorf("process %d, want %d", begun.PID, p.Pid())
	}
	second := look(t, r.url) // opened later, it still learns what is open
	second.mu.Lock()
	for deadline := time.After(patience); len(second.frames) == 0; {
		second.mu.Unlock()
		select {
		case <-second.came:
		case <-deadline:
			t.Fatal("no first frame")
		}
		second.mu.Lock()
	}
	open := second.frames[0].Open
	second.mu.Unlock()
	if !slices.ContainsFunc(open, func(w xray.Item) bool { return w.ID == begun.ID && w.Program == "curl" && w.Resource == "pods" }) {
		t.Errorf("open: %+v", open)
	}
}

func TestEventsOfAWatchAreSeen(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.watch()
	r.bash(`set -e; kubectl create configmap seen; kubectl label configmap seen a=b; kubectl delete configmap seen`)
	last := ""
	for _, kind := range []string{"ADDED", "MODIFIED", "DELETED"} {
		event := r.Until(kind, func(i xray.Item) bool {
			return i.Kind == "event" && i.Type == kind && i.Object == "seen" && i.Program == "kubectl" && i.Resource == "configmaps"
		})
		if event.ResourceVersion == "" || event.ResourceVersion == last || event.Namespace != r.Namespace {
			t.Errorf("%+v after version %s", event, last)
		}
		last = event.ResourceVersion
	}
}

func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	r := enter(t)
	const plain, encoded = "open-sesame-4711", "b3Blbi1zZXNhbWUtNDcxMQ=="
	r.Start(r.command("exec kubectl get secrets --watch -o yaml"))
	r.Until("the watch", func(i xray.Item) bool { return i.Kind == "begun" && i.Verb == "watch" && i.Resource == "secrets" })
	r.bash(`set -e
kubectl create secret generic treasure --from-literal=word=` + plain + `
kubectl get secret treasure -o yaml | grep --quiet ` + encoded + `
kubectl get secrets -o yaml >/dev/null
kubectl patch secret treasure --patch '{"stringData":{"word":"` + plain + `2"}}'
kubectl delete secret treasure`)
	r.Until("the Secret's deletion", func(i xray.Item) bool { return i.Type == "DELETED" && i.Object == "treasure" })
	text, items := r.Recording()
	for _, word := range []string{plain, encoded[:20]} {
		if strings.Contains(text, word) {
			t.Errorf("%s is in the recording", word)
		}
	}
	if !strings.Contains(text, "treasure") || len(items) < 10 {
		t.Errorf("the recording lacks the Secret's name: %d items", len(items))
	}
}
