package xray_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/xray"
)

func TestAControllerIsSeenFromInside(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.define()
	p := r.Start(r.command("exec " + r.Program("./06-controller/icecream") + " -namespace " + r.Namespace))
	own := func(f func(xray.Item) bool) func(xray.Item) bool {
		return func(i xray.Item) bool { return i.Program == "icecream" && i.PID == p.Pid() && f(i) }
	}
	r.Until("it begins to report", own(func(i xray.Item) bool { return i.Kind == "program" && i.What == "began" }))
	r.bash("kubectl apply -n " + r.Namespace + " -f 06-controller/objects/vanilla.yaml")
	key := r.Namespace + "/vanilla"
	step := func(step, what string) {
		t.Helper()
		r.Until(step+" "+what, own(func(i xray.Item) bool {
			return i.Kind == "step" && i.Step == step && i.Key == key && strings.HasPrefix(i.What, what) && i.Time != 0
		}))
	}
	step("event", "Icecream added")
	step("queued", "")
	step("phase", "read")
	step("phase", "own")
	step("write", "create")
	step("write", "status")
	step("phase", "done")
	write := r.Until("the reason of the write", own(func(i xray.Item) bool { return i.Step == "write" && i.What == "create" }))
	if write.Reason != "there was none" {
		t.Errorf("%+v", write)
	}
	r.Until("its caches hold what it made", own(func(i xray.Item) bool {
		held := map[string]int{}
		for _, c := range i.Caches {
			if c.ResourceVersion != "" && c.Behind == 0 {
				held[c.Resource] = c.Objects
			}
		}
		return i.Kind == "state" && held["icecreams"] == 1 && held["deployments"] == 1 && held["pods"] == 2 && i.Workers == 8 && i.Queue.Working == 0
	}))
	p.Kill()
	r.Until("it has ended", own(func(i xray.Item) bool { return i.Kind == "program" && i.What == "ended" }))
}

func TestAQueueIsSeenFromInside(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.Start(r.command("exec " + r.Program("./03-informer/first-loop") + " -namespace " + r.Namespace))
	own := func(f func(xray.Item) bool) func(xray.Item) bool {
		return func(i xray.Item) bool { return i.Program == "first-loop" && f(i) }
	}
	r.Until("two workers wait", own(func(i xray.Item) bool { return i.Queue != nil && i.Workers == 2 && i.Queue.Working == 0 }))
	// Its writes fail, so it backs off, longer each time.
	r.bash(fmt.Sprintf(`curl --silent --fail --unix-socket "$WORKSHOP_XRAY" -X POST 'http://xray/inject?fault=answer&code=500&verb=create&resource=configmaps&times=-1&namespace=%s&user-agent=first-loop*'`, r.Namespace))
	r.bash("kubectl create configmap a && kubectl label configmap a mirror=true")
	key := r.Namespace + "/a"
	r.Until("the event", own(func(i xray.Item) bool { return i.Step == "event" && i.Key == key && i.What == "ConfigMap updated" }))
	r.Until("it is queued", own(func(i xray.Item) bool { return i.Step == "queued" && i.Key == key }))
	r.Until("a worker has it", own(func(i xray.Item) bool { return i.Step == "phase" && i.Key == key && i.What == "work" }))
	r.Until("it backs off for a second", own(func(i xray.Item) bool {
		return i.Step == "backing off" && i.Key == key && i.Until-i.Time >= 1000
	}))
	r.Until("the state says so", own(func(i xray.Item) bool { return i.Kind == "state" && i.Queue != nil && i.Queue.BackingOff == 1 }))
	r.press("clear")
	r.Until("the copy is in the cache", own(func(i xray.Item) bool { return len(i.Caches) == 1 && i.Caches[0].Objects == 3 })) // a, a-copy, kube-root-ca.crt
}

// A program in a pod cannot reach the page's socket. It listens, and the learner
// forwards its port and connects the two.
func TestAProgramThatListensIsSeenFromInside(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.define()
	p := r.Start(r.command("unset WORKSHOP_XRAY; exec " + r.Program("./07-in-cluster/policy-controller") +
		" -namespace " + r.Namespace + " -lease-namespace " + r.Namespace + " -xray-listen 127.0.0.1:0"))
	listening := regexp.MustCompile(`for="xray" address="(\S+)"`)
	r.Eventually(patience, func(context.Context) error {
		if !listening.MatchString(p.Stderr()) {
			return fmt.Errorf("it does not listen:\n%s", p.Stderr())
		}
		return nil
	})
	r.Start(r.command(`curl --silent --no-buffer --noproxy '*' http://` + listening.FindStringSubmatch(p.Stderr())[1] +
		`/ | curl --silent --unix-socket "$WORKSHOP_XRAY" --request POST --upload-file - 'http://xray/report?program=in-a-pod&pid=1'`))
	own := func(f func(xray.Item) bool) func(xray.Item) bool {
		return func(i xray.Item) bool { return i.Program == "in-a-pod" && f(i) }
	}
	// Of the steps before somebody reads only the newest are sent.
	r.Until("it is read", own(func(i xray.Item) bool { return i.Kind == "state" }))
	r.bash("kubectl apply -n " + r.Namespace + " -f 06-controller/objects/vanilla.yaml")
	r.Until("a write and its reason", own(func(i xray.Item) bool {
		return i.Step == "write" && i.What == "create" && i.Key == r.Namespace+"/vanilla" && i.Reason == "there was none"
	}))
	r.Until("the caches and workers of both controllers", own(func(i xray.Item) bool { return len(i.Caches) == 6 && i.Workers == 16 }))
}

// The cache is behind by what a fault holds back, and says so.
func TestACacheIsBehind(t *testing.T) {
	t.Parallel()
	r := enter(t)
	r.informs()
	r.press("delay?program=shared-informer")
	r.bash("kubectl create configmap late; kubectl create configmap later")
	r.Until("the cache has caught up", func(i xray.Item) bool {
		return i.Program == "shared-informer" && len(i.Caches) == 1 && i.Caches[0].Resource == "configmaps" && i.Caches[0].Objects == 2 && i.Caches[0].Behind == 0
	})
	_, items := r.Recording()
	if count(items, func(i xray.Item) bool {
		return i.Program == "shared-informer" && len(i.Caches) == 1 && i.Caches[0].Behind > 0
	}) == 0 {
		t.Error("the cache was never behind")
	}
}

func TestTheSocketRefusesWhatIsNoReport(t *testing.T) {
	t.Parallel()
	r := enter(t)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	}}}
	for query, body := range map[string]string{
		"":                    "",
		"?pid=1":              "",
		"?program=a":          "",
		"?program=a&pid=":     "",
		"?program=bad&pid=1":  "{\"kind\":\"step\",\"key\":\"kept\"}\n{]\n",
		"?program=long&pid=1": `{"kind":"step","key":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		resp, err := client.Post("http://xray/report"+query, "", strings.NewReader(body))
		fatal.If(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", query, resp.Status)
		}
	}
	// A program says nothing about the wire, nor in another one's name.
	resp, err := client.Post("http://xray/report?program=liar&pid=1", "", strings.NewReader(
		`{"kind":"event","object":"forged"}`+"\n"+`{"kind":"step","program":"kubectl","pid":2,"key":"own","reason":"`+strings.Repeat("y", 5000)+`"}`))
	fatal.If(t, err)
	_ = resp.Body.Close()
	own := r.Until("its step", func(i xray.Item) bool { return i.Key == "own" })
	if own.Program != "liar" || own.PID != 1 || len(own.Reason) > 400 {
		t.Errorf("%+v", own)
	}
	r.Until("what came before the bad line", func(i xray.Item) bool { return i.Key == "kept" })
	if text, _ := r.Recording(); strings.Contains(text, "forged") {
		t.Error("a program has forged an event")
	}
}
