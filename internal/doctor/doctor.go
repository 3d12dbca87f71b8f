// Package doctor checks whether a machine can run the workshop, and says what
// to do where it cannot.
package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/mem"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/diskspace"
	"github.com/k8s-go/workshop/internal/offline"
	"github.com/k8s-go/workshop/internal/pinned"
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

// A Count is how many checks there were, and how many of them failed.
type Count struct{ Checks, Failed int }

// Examine runs every check but those of scripts/doctor.sh, which needs nothing
// compiled and runs first.
func Examine(ctx context.Context, ws workspace.Workspace) []Finding {
	return choose(ctx, ws).examine(ctx, ws)
}

// ExamineOffline runs every check, and looks for what a network would have to bring.
func ExamineOffline(ctx context.Context, ws workspace.Workspace) []Finding {
	c := choose(ctx, ws)
	return append(c.examine(ctx, ws), modules(ctx, ws), c.parts())
}

// A choice is the cluster that make up would start.
type choice struct {
	*cluster.Cluster // nil if CLUSTER names none
	why              string
	missing          []string // what is still to be built or pulled
	noContainers     bool     // pods do not run as real containers there
	err              error    // why it cannot be started here
}

func choose(ctx context.Context, ws workspace.Workspace) (c choice) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if c.Cluster, c.why, c.err = cluster.Select(ctx, ws, os.Getenv("CLUSTER")); c.err != nil {
		return c
	}
	if c.missing, c.err = c.Missing(ctx); c.err != nil { // no container engine answers, for example
		c.err = fmt.Errorf("%s: %w", c.Name(), c.err)
		return c
	}
	// An existing cluster to which nothing is connected yet cannot say.
	containers, err := c.Containers(ctx)
	c.noContainers = err == nil && !containers
	return c
}

func (c choice) examine(ctx context.Context, ws workspace.Workspace) []Finding {
	return []Finding{disk(ctx, ws, c.builds()), memory(c.builds()), c.kind()}
}

// builds reports whether something has still to be built or pulled.
func (c choice) builds() bool { return c.err != nil || len(c.missing) > 0 }

func (c choice) kind() Finding {
	if c.err != nil {
		return Finding{Check: "cluster", Detail: c.err.Error(), Fix: chooseAnother, Fatal: true}
	}
	f := Finding{Check: "cluster", Detail: fmt.Sprintf("%s: %s", c.Name(), strings.TrimSpace(c.why))}
	if c.noContainers {
		f.Fix = "fine for every step but the parts that need running containers, which say so; those need Docker"
	}
	return f
}

func (c choice) parts() Finding {
	switch {
	case c.err != nil:
		return Finding{Check: "parts", Detail: c.err.Error(), Fix: chooseAnother, Fatal: true}
	case len(c.missing) == 0:
		return Finding{Check: "parts", Detail: fmt.Sprintf("everything that CLUSTER=%s needs is here", c.Name())}
	}
	fix := unpack + fmt.Sprintf("with a network, make up CLUSTER=%s gets them", c.Name())
	if c.Name() == "kind" {
		fix += "; CLUSTER=kwok needs no image"
	}
	return Finding{Check: "parts", Detail: fmt.Sprintf("missing for CLUSTER=%s: %s", c.Name(), strings.Join(c.missing, ", ")), Fix: fix, Fatal: true}
}

const chooseAnother = "choose another cluster with CLUSTER="

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

// RequireTools says what programs are missing or too old before a command stumbles
// over them: one line for each, with the way out.
func RequireTools(ctx context.Context, ws workspace.Workspace) error {
	if _, err := exec.LookPath("bash"); err != nil {
		return errors.New("bash is not on PATH: apt-get install bash, brew install bash, or your system's way")
	}
	var lacks bytes.Buffer
	err := proc.Run(ctx, proc.Cmd{Path: "bash", Args: []string{filepath.Join(ws.Root, "scripts", "doctor.sh"), "lacks"}, Out: &lacks})
	if text := strings.TrimSpace(lacks.String()); text != "" {
		return errors.New(text)
	}
	return err
}

// Report prints the findings and returns an error if one of them is fatal, or one
// of those that scripts/doctor.sh has printed before.
func Report(out io.Writer, findings []Finding, before Count) error {
	fatal := before.Failed
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
		return fmt.Errorf("%d of %d checks failed: the workshop cannot run here until they are mended", fatal, before.Checks+len(findings))
	}
	return nil
}

// What was measured: building the control plane took 3.2 GB of build cache, 0.8 GB of
// modules and 0.5 GB of binaries, and 2 GB of memory while the API server is compiled.
// The workshop's own programs, which also a machine with a pack builds, took 1 GB.
const (
	needDisk   = 2 << 30
	needMemory = 2 << 30
)

// disk asks for the space of a first build, or of the lessons: most of it on the disk of Go's build cache.
func disk(ctx context.Context, ws workspace.Workspace, missing bool) Finding {
	free, err := diskspace.Free(ws.Root)
	if err != nil {
		return Finding{Check: "disk", Detail: err.Error(), Fix: "make the clone's folder readable", Fatal: true}
	}
	if there, err := diskspace.Free(pinned.BuildCache(ctx)); err == nil {
		free = min(free, there)
	}
	need, what := uint64(needDisk), "the lessons"
	if missing {
		need, what = pinned.ControlPlane.NeedsFree, "the first build"
	}
	f := Finding{Check: "disk", Detail: fmt.Sprintf("%.1f GiB free, %.1f needed for %s", diskspace.GiB(free), diskspace.GiB(need), what)}
	if free < need {
		f.Fix = "free some space before " + what
		f.Fatal = missing
	}
	return f
}

// memory asks for what compiling the API server takes. Where that is done, less is enough, if slow.
func memory(missing bool) Finding {
	m, err := mem.VirtualMemory()
	if err != nil {
		return Finding{Check: "memory", Detail: err.Error(), Fix: "check by hand that 2 GiB are free"}
	}
	f := Finding{Check: "memory", Detail: fmt.Sprintf("%.1f GiB available, %.1f needed", diskspace.GiB(m.Available), diskspace.GiB(needMemory))}
	if m.Available < needMemory {
		// On macOS, what the cache of files holds, and what can be compressed, does not count as available.
		f.Fix, f.Fatal = "close other programs", missing && (runtime.GOOS != "darwin" || m.Total < needMemory)
	}
	return f
}
