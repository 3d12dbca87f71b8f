package judge

import (
	"strings"
	"testing"
)

// What starts by go run is built first, with the flags where go wants them.
func TestCompiling(t *testing.T) {
	t.Parallel()
	for controller, want := range map[string][3]string{
		"go run ./06-controller/icecream -namespace n":          {"build -buildvcs=false -o /b/06-controller-icecream/icecream ./06-controller/icecream", "/b/06-controller-icecream/icecream", "'/b/06-controller-icecream/icecream' -namespace n"},
		"go run -race -tags=x ./a/b":                            {"build -buildvcs=false -o /b/a-b/b -race -tags=x ./a/b", "/b/a-b/b", "'/b/a-b/b'"},
		"go run -C work ./06-controller/icecream -namespace n":  {"build -C work -buildvcs=false -o /b/work-06-controller-icecream/icecream ./06-controller/icecream", "/b/work-06-controller-icecream/icecream", "'/b/work-06-controller-icecream/icecream' -namespace n"},
		"go run k8s.io/sample-controller@v0.36.3 -kubeconfig x": {"install k8s.io/sample-controller@v0.36.3", "/b/k8sio-sample-controller-v0363/sample-controller", "'/b/k8sio-sample-controller-v0363/sample-controller' -kubeconfig x"},
		"./mine -n x": {"", "", "./mine -n x"},
	} {
		args, binary, command := compiling(controller, "/b")
		if got := [3]string{strings.Join(args, " "), binary, command}; got != want {
			t.Errorf("%s:\ngot  %q\nwant %q", controller, got, want)
		}
	}
}
