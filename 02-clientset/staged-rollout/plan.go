package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

const (
	// stageAnnotation on a Deployment holds the number of its stage, from 1.
	stageAnnotation = "workshop.k8s-go.dev/stage"
	// byAnnotation is the value of -stages that asks for it.
	byAnnotation = "annotation"
)

// A step says how many Deployments have the new image after a stage: a number
// of them, or a share in percent.
type step struct {
	n       int
	percent bool
}

// of returns the number that the step means for total Deployments. A share is
// rounded up: 1% of 3 must be one, or the stage would prove nothing.
func (s step) of(total int) int {
	if s.percent {
		return (total*s.n + 99) / 100
	}
	return min(s.n, total)
}

func (s step) String() string {
	if s.percent {
		return fmt.Sprintf("%d%%", s.n)
	}
	return strconv.Itoa(s.n)
}

// parseStages reads "1,25%,100%". It returns no step for byAnnotation.
func parseStages(s string) ([]step, error) {
	if s == byAnnotation {
		return nil, nil
	}
	var steps []step
	for part := range strings.SplitSeq(s, ",") {
		number, percent := strings.CutSuffix(strings.TrimSpace(part), "%")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || percent && n > 100 {
			return nil, fmt.Errorf("%q is neither a number from 1 nor a share from 1%% to 100%%", part)
		}
		steps = append(steps, step{n, percent})
	}
	return steps, nil
}

// split puts Deployments, in their order, into stages; no stage is empty.
// Without steps, each Deployment's annotation says where it belongs.
func split(deployments []appsv1.Deployment, steps []step) ([][]appsv1.Deployment, error) {
	if len(steps) == 0 {
		return splitByAnnotation(deployments)
	}
	var stages [][]appsv1.Deployment
	done := 0
	for _, s := range steps {
		n := s.of(len(deployments))
		if n < done {
			return nil, fmt.Errorf("stage %s means %d of %d Deployments, but %d are updated by then", s, n, len(deployments), done)
		}
		if n > done {
			stages = append(stages, deployments[done:n])
		}
		done = n
	}
	if done < len(deployments) {
		return nil, fmt.Errorf("the last stage leaves %d of %d Deployments behind; end with 100%%", len(deployments)-done, len(deployments))
	}
	return stages, nil
}

func splitByAnnotation(deployments []appsv1.Deployment) ([][]appsv1.Deployment, error) {
	byNumber := map[int][]appsv1.Deployment{}
	var errs []error
	for _, d := range deployments {
		value, ok := d.Annotations[stageAnnotation]
		n, err := strconv.Atoi(value)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s has no annotation %s; set it, or give -stages", d.Name, stageAnnotation))
		case err != nil || n < 1:
			errs = append(errs, fmt.Errorf("%s: annotation %s is %q, not a number from 1", d.Name, stageAnnotation, value))
		default:
			byNumber[n] = append(byNumber[n], d)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	var stages [][]appsv1.Deployment
	for _, n := range slices.Sorted(maps.Keys(byNumber)) {
		stages = append(stages, byNumber[n])
	}
	return stages, nil
}
