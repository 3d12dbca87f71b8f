// Package doctor checks whether a machine can run the workshop, and says what
// to do where it cannot.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/mem"
	"golang.org/x/mod/semver"

	"github.com/k8s-go/workshop/internal/build"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/offline"
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
	return append(Tools(ctx, ws), disk(ctx, ws), memory(), clusterKind(ctx, ws))
}

// ExamineOffline runs every check, and looks for what a network would have to bring.
func ExamineOffline(ctx context.Context, ws workspace.Workspace) []Finding {
	return append(Examine(ctx, ws), modules(ctx, ws), parts(ctx, ws))
}

// unpack is the next step where something is missing.
const unpack = "make unpack PACK=FILE installs what a trainer has made with make pack; "

func modules(ctx context.Context, ws workspace.Workspace) Finding {
	missing, err := offline.MissingModules(ctx, ws)
	f := Finding{Check: "modules", Fix: unpack + "with a network, go mod download gets them", Fatal: true}
	switch {
	case err != nil:
		f.Detail = err.Error()
		return f
	case len(missing) > 0:
		f.Detail = "not in Go's module cache: " + strings.Join(missing, ", ")
		return f
	}
	return Finding{Check: "modules", Detail: "all are in Go's module cache"}
}

func parts(ctx context.Context, ws workspace.Workspace) Finding {
	c, _, err := cluster.Select(ctx, ws, os.Getenv("CLUSTER"))
	if err != nil {
		return Finding{Check: "parts", Detail: err.Error(), Fix: "choose one with CLUSTER=", Fatal: true}
	}
	missing, err := c.Missing(ctx)
	f := Finding{Check: "parts", Detail: fmt.Sprintf("all that a %s cluster is made of is here", c.Name())}
	switch {
	case err != nil:
		f.Detail, f.Fix, f.Fatal = err.Error(), "choose another cluster with CLUSTER=", true
	case len(missing) > 0:
		f.Detail = fmt.Sprintf("missing for a %s cluster: %s", c.Name(), strings.Join(missing, ", "))
		f.Fix, f.Fatal = unpack+fmt.Sprintf("with a network, make up CLUSTER=%s gets them", c.Name()), true
		if c.Name() == "kind" {
			f.Fix += "; CLUSTER=kwok needs no image"
		}
	}
	return f
}

// tools are the programs that lessons and tests call, each with the oldest
// version that has what they need.
var tools = []struct{ name, why, oldest, because string }{
	{"bash", "scripts and lessons run in it", "4.4", "in older ones an empty array ends a script"},
	{"make", "it is how everything is started", "3.81", "the Makefile is not written for older ones"},
	{"git", "it fetches the workshop", "", ""},
	{"curl", "step 01 speaks HTTP with it", "7.76", "older ones have no --fail-with-body"},
	{"jq", "step 01 reads JSON with it", "1.6", "older ones are not tried"},
}

// Tools checks for the programs that lessons and tests call.
func Tools(ctx context.Context, ws workspace.Workspace) []Finding {
	findings := []Finding{goVersion(ctx, ws)}
	for _, t := range tools {
		findings = append(findings, tool(ctx, t.name, t.why, t.oldest, t.because))
	}
	return findings
}

// RequireTools says what is missing or too old before a command stumbles over
// it: one line for each tool, with the way out.
func RequireTools(ctx context.Context, ws workspace.Workspace) error {
	var errs []error
	for _, f := range Tools(ctx, ws) {
		if f.Fatal {
			errs = append(errs, fmt.Errorf("%s: %s; %s", f.Check, f.Detail, f.Fix))
		}
	}
	return errors.Join(errs...)
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

// version finds the version in the first line of what a tool says about itself:
// "GNU bash, version 5.2.15(1)-release", "curl 7.88.1 (...)", "jq-1.7.1".
var version = regexp.MustCompile(`\d+\.\d+(?:\.\d+)?`)

func tool(ctx context.Context, name, why, oldest, because string) Finding {
	f := Finding{Check: name}
	install := fmt.Sprintf("install a newer one first on PATH: apt-get install %s, brew install %s, or your system's way", name, name)
	path, err := exec.LookPath(name)
	if err != nil {
		f.Detail, f.Fix, f.Fatal = "not on PATH; "+why, strings.Replace(install, "a newer one first on PATH", "it", 1), true
		return f
	}
	f.Detail = path
	if oldest == "" {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	output, err := proc.Output(ctx, proc.Cmd{Path: path, Args: []string{"--version"}})
	line, _, _ := strings.Cut(output, "\n")
	found := version.FindString(line)
	switch {
	case err != nil:
		f.Detail, f.Fix, f.Fatal = err.Error(), install, true
	case found == "": // a version of its own making is no reason to stop
		f.Detail, f.Fix = fmt.Sprintf("%s does not tell its version", path), "make sure that it is "+oldest+" or newer"
	case semver.Compare("v"+found, "v"+oldest) < 0:
		f.Detail, f.Fix, f.Fatal = fmt.Sprintf("%s is version %s, at least %s needed: %s", path, found, oldest, because), install, true
	default:
		f.Detail = fmt.Sprintf("%s, version %s", path, found)
	}
	return f
}

// What was measured: building the control plane took 3.2 GB of build cache, 0.8 GB of
// modules and 0.5 GB of binaries, and 2 GB of memory while the API server is compiled.
// The workshop's own programs, which also a machine with a pack builds, took 1 GB.
const (
	needDisk   = 2 << 30
	needMemory = 2 << 30
)

// disk asks for what the cluster that make up would start still has to build or pull.
func disk(ctx context.Context, ws workspace.Workspace) Finding {
	free, err := diskspace.Free(ws.Root)
	if err != nil {
		return Finding{Check: "disk", Detail: err.Error(), Fix: "make the clone's folder readable", Fatal: true}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	missing := true
	if c, _, err := cluster.Select(ctx, ws, os.Getenv("CLUSTER")); err == nil {
		parts, err := c.Missing(ctx)
		missing = err != nil || len(parts) > 0
	}
	need, what := uint64(needDisk), "the lessons"
	if missing {
		need, what = build.ControlPlane.NeedsFree, "the first build"
	}
	f := Finding{Check: "disk", Detail: fmt.Sprintf("%.1f GiB free, %.1f needed for %s", diskspace.GiB(free), diskspace.GiB(need), what)}
	if free < need {
		f.Fix = "free some space before " + what
		f.Fatal = missing
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
