package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/fatal"
)

// deployments makes one Deployment for each stage annotation; "-" is none.
func deployments(stages ...string) []appsv1.Deployment {
	var ds []appsv1.Deployment
	for i, s := range stages {
		d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i+1)}}
		if s != "-" {
			d.Annotations = map[string]string{stageAnnotation: s}
		}
		ds = append(ds, d)
	}
	return ds
}

func TestSplit(t *testing.T) {
	none := func(n int) []appsv1.Deployment { return deployments(strings.Split(strings.Repeat("-", n), "")...) }
	for _, tc := range []struct {
		stages      string
		deployments []appsv1.Deployment
		want        string // names of each stage, or part of the error
	}{
		{"1,25%,100%", none(8), "[1 | 2 | 3 4 5 6 7 8]"},
		{"1,25%,100%", none(3), "[1 | 2 3]"}, // 25% is that one already
		{"1,25%,100%", none(1), "[1]"},
		{"1%,100%", none(3), "[1 | 2 3]"}, // rounded up
		{"34%,67%,100%", none(3), "[1 2 | 3]"},
		{" 1 , 100% ", none(2), "[1 | 2]"},
		{"5", none(3), "[1 2 3]"},
		{"1,2", none(3), "leaves 1 of 3 Deployments behind"},
		{"2,1,100%", none(3), "stage 1 means 1 of 3 Deployments, but 2 are updated"},
		{"annotation", deployments("2", "1", "10", "2"), "[2 | 1 4 | 3]"}, // 10 after 2: numbers, not text
		{"annotation", deployments("1", "-"), "web-2 has no annotation"},
		{"annotation", deployments("1", "first"), `web-2: annotation workshop.k8s-go.dev/stage is "first"`},
		{"annotation", deployments("0"), `is "0", not a number from 1`},
	} {
		t.Run(tc.stages, func(t *testing.T) {
			steps, err := parseStages(tc.stages)
			fatal.If(t, err)
			stages, err := split(tc.deployments, steps)
			got := fmt.Sprint(err)
			if err == nil {
				var texts []string
				for _, stage := range stages {
					var names []string
					for _, d := range stage {
						names = append(names, strings.TrimPrefix(d.Name, "web-"))
					}
					texts = append(texts, strings.Join(names, " "))
				}
				got = "[" + strings.Join(texts, " | ") + "]"
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("%d Deployments: %s, want %s", len(tc.deployments), got, tc.want)
			}
		})
	}
}

func TestParseStagesRefuses(t *testing.T) {
	for _, s := range []string{"", "0", "0%", "101%", "-1", "1,,100%", "half", "1.5", "50 %%", "annotation,1"} {
		if steps, err := parseStages(s); err == nil {
			t.Errorf("%q is taken for %v", s, steps)
		}
	}
}

func FuzzSplitLosesNone(f *testing.F) {
	f.Add("1,25%,100%", uint8(8))
	f.Fuzz(func(t *testing.T, text string, n uint8) {
		steps, err := parseStages(text)
		if err != nil || len(steps) == 0 {
			return
		}
		all := deployments(strings.Split(strings.Repeat("-", int(n)), "")...)
		stages, err := split(all, steps)
		if err != nil {
			return
		}
		var got []appsv1.Deployment
		for _, s := range stages {
			if len(s) == 0 {
				t.Errorf("%q of %d has an empty stage", text, n)
			}
			got = append(got, s...)
		}
		if len(got) != len(all) || len(all) > 0 && cmp.Diff(all, got) != "" {
			t.Errorf("%q of %d: %d Deployments in all stages", text, n, len(got))
		}
	})
}
