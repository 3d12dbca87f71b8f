package crdgo

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/04-crd-yaml/exercises"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
	"github.com/k8s-go/workshop/internal/workspace"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"types": checkTypes})
}

var generator struct {
	once   sync.Once
	binary string
	err    error
}

// controllerGen builds the generator, which is no part of the root's module.
func controllerGen(c *check.C) string {
	c.T.Helper()
	generator.once.Do(func() {
		ws, err := workspace.Find()
		c.Must(err)
		generator.binary = ws.Path("codegen", "controller-gen")
		generator.err = proc.Run(c.Context(), proc.Cmd{Path: "go", Dir: filepath.Join(ws.Root, "scripts", "codegen"), Env: workspace.Environ(),
			Args: []string{"build", "-o", generator.binary, "sigs.k8s.io/controller-tools/cmd/controller-gen"}})
	})
	c.Must(generator.err)
	return generator.binary
}

// zero prints what a client sends that sets nothing.
const zero = `package main

import (
	"encoding/json"
	"os"

	types "github.com/k8s-go/workshop/work/05-crd-go/types"
)

func main() {
	if err := json.NewEncoder(os.Stdout).Encode(types.ResourcesPolicy{}); err != nil {
		panic(err)
	}
}
`

// checkTypes generates a definition from the types and asks of it what step 04 asks
// of one in YAML. Then it looks at what a Go client sends.
func checkTypes(c *check.C) {
	program := c.ProgramOf("zero", zero) // compiles the types, which controller-gen would say less well
	p, err := proc.Start(c.Context(), proc.Cmd{Path: controllerGen(c), Args: []string{"crd", "paths=.", "output:stdout"}, Dir: filepath.Dir(c.Path("types.go")), Env: workspace.Environ()})
	c.Must(err)
	if err := p.Wait(); err != nil {
		c.Fail("controller-gen makes a definition of the types", p.Stdout()+p.Stderr())
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(p.Stdout()), crd); err != nil {
		c.Fail("one definition", err.Error())
	}

	misses, of := exercises.ResourcesPolicy.Misses(c, crd)
	for _, m := range misses {
		held := fmt.Sprintf("%s\n%d of %d requirements are met", m.Problem, of-len(misses), of)
		switch {
		case m.Requirement == exercises.Taken && strings.Contains(m.Problem, "undefined field"):
			c.Mistake("rule on the wrong type", m.Requirement, held)
		case strings.Contains(m.Problem, `unknown field "spec.`):
			c.Mistake("json tag differs", m.Requirement, held)
		case strings.Contains(m.Problem, "was refused") && strings.Contains(m.Problem, ": Required value"):
			c.Mistake("no optional", m.Requirement, held)
		case m.Requirement == "what is left out has its default" && crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["action"].Default == nil:
			c.Mistake("no default", m.Requirement, held)
		}
		c.Fail(m.Requirement, held)
	}

	var sent struct {
		Spec struct {
			Action *string `json:"action"`
			Labels struct {
				Pods *string `json:"pods"`
			} `json:"labels"`
		} `json:"spec"`
	}
	r := c.Run(testenv.Command{Path: program})
	c.Must(json.Unmarshal([]byte(r.Stdout), &sent))
	if sent.Spec.Action != nil || sent.Spec.Labels.Pods != nil {
		c.Mistake("no omitempty", `a ResourcesPolicy in which nothing is set is sent without action and labels.pods`, strings.TrimSpace(r.Stdout))
	}
}
