// Package doctor checks whether a machine can run the workshop, and says what
// to do where it cannot.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/mem"
	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/workspace"
)

// A Finding is the result of one check.
type Finding struct {
	Check  string
	Detail string // what was found
	Fix    string // what to do about it; empty if nothing is wrong
	Fatal  bool   // a step cannot run because of it
}

// Examine runs every check.
func Examine(ctx context.Context, ws workspace.Workspace) []Finding {
	return append(Tools(ctx, ws), disk(ws), memory(), clusterKind(ctx, ws))
}

// Tools checks for the programs that lessons and tests call.
func Tools(ctx context.Context, ws workspace.Workspace) []Finding {
	findings := []Finding{goVersion(ctx, ws)}
	for _, tool := range []struct{ name, why string }{
		{"bash", "scripts and lessons run in it"},
		{"make", "it is how everything is started"},
		{"git", "it fetches the workshop"},
		{"curl", "step 01 speaks HTTP with it"},
		{"jq", "step 01 reads JSON with it"},
	} {
		findings = append(findings, onPath(tool.name, tool.why))
	}
	return findings
}

// Report prints the findings and returns an error if one of them is fatal.
func Report(out io.Writer, findings []Finding) error {
	fatal := 0
	for _, f := range findings {
		mark := "ok  "
		if f.Fatal {
			mark, fatal = "FAIL", fatal+1
		} else if f.Fix != "" {
			mark = "note"
		}
		fmt.Fprintf(out, "%s  %-8s %s\n", mark, f.Check, f.Detail)
		if f.Fix != "" {
			fmt.Fprintf(out, "      %-8s -> %s\n", "", f.Fix)
		}
	}
	if fatal > 0 {
		return fmt.Errorf("%d of %d checks failed: the workshop cannot run here until they are mended", fatal, len(findings))
	}
	return nil
}

var goToken = regexp.MustCompile(`go(\d+\.\d+(?:\.\d+)?)`)

func goVersion(ctx context.Context, ws workspace.Workspace) Finding {
	f := Finding{Check: "go"}
	need, err := ws.GoVersion()
	if err != nil {
		return Finding{Check: "go", Detail: err.Error(), Fix: "restore go.mod: git checkout go.mod", Fatal: true}
	}
	output, err := proc.Output(ctx, proc.Cmd{Path: "go", Args: []string{"version"}})
	m := goToken.FindStringSubmatch(output)
	if err != nil || m == nil {
		f.Detail, f.Fatal = "no working go on PATH", true
	} else {
		f.Detail = "version " + m[1] + ", at least " + need + " needed"
		f.Fatal = semver.Compare("v"+m[1], "v"+need) < 0
	}
	if f.Fatal {
		f.Fix = "install Go " + need + " or newer: https://go.dev/dl"
	}
	return f
}

func onPath(name, why string) Finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return Finding{Check: name, Detail: "not on PATH; " + why, Fatal: true,
			Fix: fmt.Sprintf("apt-get install %s, brew install %s, or your system's way", name, name)}
	}
	return Finding{Check: name, Detail: path}
}

// What the first build and one cluster took when measured: 3.2 GB of build
// cache, 0.8 GB of modules, 0.5 GB of binaries; 0.6 GB of memory in use, and
// 2 GB while the API server is compiled.
const (
	needDisk   = 5 << 30
	needMemory = 2 << 30
)

func disk(ws workspace.Workspace) Finding {
	free, err := diskspace.Free(ws.Root)
	if err != nil {
		return Finding{Check: "disk", Detail: err.Error(), Fix: "make the clone's folder readable", Fatal: true}
	}
	f := Finding{Check: "disk", Detail: fmt.Sprintf("%.1f GiB free, %.1f needed for the first build", diskspace.GiB(free), diskspace.GiB(needDisk))}
	if free < needDisk {
		_, notBuilt := os.Stat(ws.Bin("kube-apiserver"))
		f.Fix = "free some space before the first build"
		f.Fatal = notBuilt != nil
	}
	return f
}

func memory() Finding {
	m, err := mem.VirtualMemory()
	if err != nil {
		return Finding{Check: "memory", Detail: err.Error(), Fix: "check by hand that 2 GiB are free"}
	}
	f := Finding{Check: "memory", Detail: fmt.Sprintf("%.1f GiB available, %.1f needed", diskspace.GiB(m.Available), diskspace.GiB(needMemory))}
	if m.Available < needMemory {
		f.Fix, f.Fatal = "close other programs", true
	}
	return f
}

func clusterKind(ctx context.Context, ws workspace.Workspace) Finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, why, err := cluster.Select(ctx, ws, os.Getenv("CLUSTER"))
	if err != nil {
		return Finding{Check: "cluster", Detail: err.Error(), Fix: "choose one with CLUSTER=", Fatal: true}
	}
	f := Finding{Check: "cluster", Detail: fmt.Sprintf("%s: %s", c.Name(), strings.TrimSpace(why))}
	// An existing cluster to which nothing is connected yet cannot say.
	if containers, err := c.Containers(ctx); err == nil && !containers {
		f.Fix = "fine for every step but the parts that need running containers, which say so; those need Docker"
	}
	return f
}
