package anylanguage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/icecreamtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

// BenchmarkLanguages measures what the lesson's table says, with simple of step 06, in Go, as
// the baseline of the same run: the median of the times from an Icecream to its Deployment (ms-, and
// x- as the ratio), the memory of the process and of those that it has started, after 20 Icecreams
// (MiB-; Linux only), and the requests within ten seconds in which nothing happens (at-rest-).
func BenchmarkLanguages(b *testing.B) {
	const count = 20
	baseline := 0.0
	for _, name := range []string{"Go", "Go hardened", "controller-runtime", "bash", "Python", "Node.js", "hook jq"} {
		var took []time.Duration
		f := benched(b, name)
		f.Command.Env = slices.DeleteFunc(f.Command.Env, func(v string) bool { return strings.HasPrefix(v, "KUBE_CACHE_MUTATION_DETECTOR") })
		start(f)
		for i := range count {
			begun := time.Now()
			f.Create(fmt.Sprint("ice-", i), fmt.Sprint("ice-", i), 0)
			for f.Proxy.Count(creates) <= i {
				time.Sleep(time.Millisecond)
			}
			took = append(took, time.Since(begun))
			f.Until(fmt.Sprint("ice-", i), icecreamtest.IsAvailable) // so that each change finds it at rest
		}
		all := faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Resource != "" }}
		time.Sleep(2 * time.Second)
		before := f.Proxy.Count(all)
		time.Sleep(10 * time.Second)
		slices.Sort(took)
		ms := float64(took[count/2].Microseconds()) / 1000
		unit := strings.ReplaceAll(name, " ", "-")
		b.ReportMetric(ms, "ms-"+unit)
		if name == "Go" {
			baseline = ms
		} else {
			b.ReportMetric(ms/baseline, "x-"+unit)
		}
		b.ReportMetric(float64(memory(b.Context(), f.Process.Pid()))/(1<<20), "MiB-"+unit)
		b.ReportMetric(float64(f.Proxy.Count(all)-before), "at-rest-"+unit)
		f.Stop()
	}
}

// benched prepares a controller of this step, or one of steps 06 and 10 for comparison.
func benched(b *testing.B, name string) *icecreamtest.Test {
	if c, ok := controllers[name]; ok {
		return c.prepare(b, false)
	}
	e := testenv.New(b)
	var program string
	switch name {
	case "Go":
		program = e.Program("./06-controller/simple")
	case "Go hardened":
		program = e.Program("./06-controller/icecream")
	default:
		program = filepath.Join(b.TempDir(), "simple")
		build := exec.CommandContext(b.Context(), "go", "build", "-C", "../10-kubebuilder/programs", "-buildvcs=false", "-o", program, "./simple")
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
	f := icecreamtest.Of(b, e, program)
	f.Command.Args = []string{"-namespace", f.Namespace}
	f.Command.Env = append(f.Command.Env, "KUBECONFIG="+f.Proxy.Kubeconfig)
	return f
}

// memory is the resident memory of a process and of those that it has started, in bytes.
func memory(ctx context.Context, pid int) (sum int64) {
	if ctx.Err() != nil {
		return 0
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name, in brackets, may hold spaces; see proc(5) for the fields after it.
		_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
		fields := bytes.Fields(rest)
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(string(fields[1]))
		pages, _ := strconv.ParseInt(string(fields[21]), 10, 64)
		if child == pid {
			sum += pages * int64(os.Getpagesize())
		} else if parent == pid {
			sum += memory(ctx, child)
		}
	}
	return sum
}
