package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/xray"
)

// shrinkWithin is how long it may take to make a failing case smaller.
const shrinkWithin = 3 * time.Minute

// A Recording is a failing case in a file that the X-ray plays.
type Recording struct {
	xray.Recording
	Judge Replay `json:"judge"`
}

// A Replay is what is needed to play a case again.
type Replay struct {
	Controller string         `json:"controller"`
	Contract   string         `json:"contract"`
	Level      int            `json:"level"`
	Seed       uint64         `json:"seed"`
	Case       string         `json:"case"`
	Tracks     map[string]int `json:"tracks"` // of the contract, with so many of their steps
	Faults     crash.Window   `json:"faults"` // of the case, those that strike
	Diagnosis  string         `json:"diagnosis"`
}

// replay takes what to judge from a recording.
func (o *Options) replay() error {
	data, err := os.ReadFile(o.Replay)
	if err != nil {
		return unusable("REPLAY: %w", err)
	}
	var r Recording
	if err := json.Unmarshal(data, &r); err != nil || r.Judge.Case == "" {
		return errors.Join(unusable("REPLAY=%s is no recording of the judge: make judge SHRINK=1 writes one", o.Replay), err)
	}
	o.Controller, o.Name, o.Level, o.Seed, o.tracks, o.window = r.Judge.Controller, r.Judge.Contract, r.Judge.Level, r.Judge.Seed, r.Judge.Tracks, r.Judge.Faults
	o.Only = "^" + regexp.QuoteMeta(r.Judge.Case) + "$"
	o.Contract, err = FindContract(o.Workspace, o.Name)
	if err != nil {
		return Unusable{err}
	}
	return nil
}

// reduced is the contract with only these tracks, and so many of their steps.
func (c *Contract) reduced(tracks map[string]int) *Contract {
	small := *c
	small.Scenario = nil
	for _, t := range c.Scenario {
		if n := min(tracks[t.Name], len(t.Steps)); n > 0 {
			small.Scenario = append(small.Scenario, Track{t.Name, t.Steps[:n]})
		}
	}
	return &small
}

func sum(tracks map[string]int) (n int) {
	for _, steps := range tracks {
		n += steps
	}
	return n
}

// shrink leaves out of a failing case's scenario, and of its faults, what is not needed for it to
// fail in the same way, and records what is left. It returns the file.
func (l *lab) shrink(ctx context.Context, r Result, out io.Writer) (file string, err error) {
	began := time.Now()
	whole := map[string]int{}
	for _, t := range l.contract.Scenario {
		whole[t.Name] = len(t.Steps)
	}
	smallest, best, faults := maps.Clone(whole), r, crash.Window{}
	fmt.Fprintf(out, "Making the case smaller: %s\n", r.Case)
	try := func(tracks map[string]int, window crash.Window, record bool) bool {
		if ctx.Err() != nil || !record && time.Since(began) > shrinkWithin {
			return false
		}
		again, ok := l.once(ctx, r, tracks, window, record)
		if ok && !record {
			fmt.Fprintf(out, "  %d of %d steps%s: it still fails\n", sum(tracks), sum(whole), ofFaults(window))
		}
		if ok || record {
			smallest, best, faults = tracks, again, window
		}
		return ok
	}
	steps := func(tracks map[string]int) bool { return try(tracks, faults, false) }
	if r.failure != nil && r.scene.Case.Name == r.Case {
		// Most often one track is enough: the one of the object that it is about.
		for _, t := range l.contract.Scenario {
			if t.about(r.failure) && steps(map[string]int{t.Name: whole[t.Name]}) {
				break
			}
		}
		for _, name := range slices.Sorted(maps.Keys(smallest)) {
			if fewer := maps.Clone(smallest); len(fewer) > 1 {
				delete(fewer, name)
				steps(fewer)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(smallest)) {
			for smallest[name] > 1 {
				fewer := maps.Clone(smallest)
				fewer[name]--
				if !steps(fewer) {
					break
				}
			}
		}
		// Of the faults, half is left out as long as it goes on failing: rather the earlier ones, so that what
		// is left strikes as late as possible.
		if best.scene != nil {
			for w := (crash.Window{To: best.scene.Chances()}); w.To-w.From > 1; {
				middle := (w.From + w.To) / 2
				later, earlier := crash.Window{From: middle, To: w.To}, crash.Window{From: w.From, To: middle}
				if w = later; !try(smallest, later, false) {
					if w = earlier; !try(smallest, earlier, false) {
						break
					}
				}
			}
		}
	}
	if !try(smallest, faults, true) {
		fmt.Fprintln(out, "  it did not fail again: what is recorded is the last run all the same")
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	dir := l.ws.Path("judge", "recordings")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	recording := Recording{Judge: Replay{Controller: l.asked.Controller, Contract: l.asked.Name, Level: max(1, r.Level), Seed: r.Seed, Case: r.Case, Tracks: smallest, Faults: faults, Diagnosis: cmp.Or(best.Diagnosis, r.Diagnosis)}}
	recording.Version, recording.Items = 1, []xray.Item{}
	if best.scene != nil && best.scene.hub != nil {
		recording.Recording = best.scene.hub.Recording()
	}
	data, err := json.Marshal(recording)
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, fmt.Sprintf("%s-%s-%d.json", l.contract.Name, strings.Join(strings.FieldsFunc(r.Case, func(r rune) bool { return r == ' ' || r == ',' || r == '/' }), "-"), r.Seed))
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return "", err
	}
	if here, err := os.Getwd(); err == nil {
		if short, err := filepath.Rel(here, file); err == nil {
			file = short
		}
	}
	fmt.Fprintf(out, "  recorded in %s, with %d of %d steps%s: open it in the X-ray of make web, or play it again: make judge REPLAY='%s'\n", file, sum(smallest), sum(whole), ofFaults(faults), file)
	return file, nil
}

// ofFaults names the faults in a window that leaves some out.
func ofFaults(w crash.Window) string {
	switch {
	case w.To == 0:
		return ""
	case w.To-w.From == 1:
		return fmt.Sprintf(", fault %d alone", w.To)
	}
	return fmt.Sprintf(", faults %d to %d alone", w.From+1, w.To)
}

// about says whether a track is about the object that a failure is about.
func (t Track) about(f *failure) bool {
	var names []string
	for _, e := range slices.Concat(f.diff.extra, f.diff.missing, changedEntries(f.diff)) {
		names = append(names, e.Name)
	}
	return slices.ContainsFunc(t.Steps, func(s Step) bool {
		return f.step != nil && s.where == f.step.where || s.Object.GetName() != "" && slices.Contains(names, s.Object.GetName())
	})
}

// once plays a case again with only some tracks and faults, and says whether it fails in the same way.
func (l *lab) once(ctx context.Context, r Result, tracks map[string]int, window crash.Window, record bool) (Result, bool) {
	small := *l
	small.contract, small.record, small.window = l.contract.reduced(tracks), record, window
	same := func(again Result) bool {
		return again.Verdict == failed && again.failure != nil && r.failure != nil && again.failure.kind == r.failure.kind
	}
	first := small.play(ctx, workCases(small.contract)[0], r.Seed, nil)
	if r.Case == undisturbed || first.Verdict != passed {
		return first, r.Case == undisturbed && same(first)
	}
	for _, c := range small.cases(first.scene, r.Case, r.Level) {
		if c.Name == r.Case {
			again := small.play(ctx, c, r.Seed, &first)
			return again, same(again)
		}
	}
	return first, false // with so little to do, there is no such case
}
