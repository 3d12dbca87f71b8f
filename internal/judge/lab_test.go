package judge

import (
	"errors"
	"strings"
	"testing"

	"github.com/k8s-go/workshop/internal/faultproxy"
)

// What starts by go run is built first, with the flags where go wants them.
func TestCompiling(t *testing.T) {
	t.Parallel()
	for controller, want := range map[string][3]string{
		"go run ./06-controller/icecream -namespace n":          {"build -buildvcs=false -o /b/06-controller-icecream/icecream ./06-controller/icecream", "/b/06-controller-icecream/icecream", "'/b/06-controller-icecream/icecream' -namespace n"},
		"go run -race -tags=x ./a/b":                            {"build -buildvcs=false -o /b/a-b/b -race -tags=x ./a/b", "/b/a-b/b", "'/b/a-b/b'"},
		"go run -C work ./06-controller/icecream -namespace n":  {"build -C work -buildvcs=false -o /b/work-06-controller-icecream/icecream ./06-controller/icecream", "/b/work-06-controller-icecream/icecream", "'/b/work-06-controller-icecream/icecream' -namespace n"},
		"go run k8s.io/sample-controller@v0.36.3 -kubeconfig x": {"install k8s.io/sample-controller@v0.36.3", "/b/k8sio-sample-controller-v0363/sample-controller", "'/b/k8sio-sample-controller-v0363/sample-controller' -kubeconfig x"},
		"go run -tags prod ./cmd -n x":                          {"build -buildvcs=false -o /b/cmd/cmd -tags prod ./cmd", "/b/cmd/cmd", "'/b/cmd/cmd' -n x"},
		"go run -ldflags '-s -w' ./cmd":                         {"", "", "go run -ldflags '-s -w' ./cmd"},
		"./mine -n x":                                           {"", "", "./mine -n x"},
	} {
		args, binary, command := compiling(controller, "/b")
		if got := [3]string{strings.Join(args, " "), binary, command}; got != want {
			t.Errorf("%s:\ngot  %q\nwant %q", controller, got, want)
		}
	}
}

// What is not one program is refused before anything is built.
func TestNotOneProgram(t *testing.T) {
	t.Parallel()
	for _, controller := range []string{"cd mine && go run .", "A=b cd mine; ./run", "go -C mine run .", "go run a.go b.go -namespace x"} {
		_, err := (&lab{}).build(t.Context(), "CONTROLLER", controller)
		if refused := (Unusable{}); !errors.As(err, &refused) || !strings.Contains(err.Error(), ": name ") {
			t.Errorf("%s: %v", controller, err)
		}
	}
}

// What programs of several languages say when their port is taken.
func TestPortTaken(t *testing.T) {
	for _, said := range []string{
		"listen tcp :8080: bind: address already in use",
		"Error: listen EADDRINUSE: address already in use :::8080",
		"OSError: [Errno 98] Address already in use",
		"java.net.BindException: Address already in use",
		"Web server failed to start. Port 8080 was already in use.",
	} {
		if !portTaken.MatchString(said) {
			t.Errorf("%q is not understood", said)
		}
	}
}

// A command may begin with variables, as the usual ones do that read WATCH_NAMESPACE.
func TestReplacing(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"./mine -n x":                             "exec ./mine -n x",
		"WATCH_NAMESPACE=judge-1 ./mine":          "WATCH_NAMESPACE=judge-1 exec ./mine",
		` A='b c' D="e f"g ./mine A=b`:            ` A='b c' D="e f"g exec ./mine A=b`,
		"'/with space/mine' -selector app=widget": "exec '/with space/mine' -selector app=widget",
	} {
		if got := replacing(command); got != want {
			t.Errorf("%s becomes %s, want %s", command, got, want)
		}
	}
}

// The answers to a controller's questions about rights and tokens are stored nowhere. Everything else is a write.
func TestIsWrite(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]bool{"authentication.k8s.io": false, "authorization.k8s.io": false, "auth.example.org": true, "apps": true} {
		if got := isWrite(faultproxy.Request{Verb: "create", Group: group, Resource: "things"}); got != want {
			t.Errorf("a create in the group %s is a write: %v, want %v", group, got, want)
		}
	}
}
