//go:build ignore

// Command models-schema prints the generated OpenAPI models of step 05 as an
// OpenAPI v2 document, which is the form in which applyconfiguration-gen reads
// them. With it the generated code knows which lists merge and by which key.
//
// update-codegen.sh runs it between making the models and deleting them again:
// nothing else needs their thousands of lines. Hence the build tag.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/openapi"
)

func main() {
	definitions := spec.Definitions{}
	for name, definition := range openapi.GetOpenAPIDefinitions(func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + restFriendly(name))
	}) {
		definitions[restFriendly(name)] = definition.Schema
	}
	document := spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "workshop", Version: "unversioned"}},
		Definitions: definitions,
	}}
	if err := json.NewEncoder(os.Stdout).Encode(&document); err != nil {
		fmt.Fprintln(os.Stderr, "error: printing the models:", err)
		os.Exit(1)
	}
}

// restFriendly returns the form of a type's name in which applyconfiguration-gen
// looks for it: com.github.k8s-go instead of github.com/k8s-go. The types of
// Kubernetes have that form already.
func restFriendly(name string) string {
	if !strings.Contains(name, "/") {
		return name
	}
	return util.ToRESTFriendlyName(name)
}
