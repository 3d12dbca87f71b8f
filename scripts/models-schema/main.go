// Command models-schema prints the generated OpenAPI models of step 05 as an
// OpenAPI v2 document, which is the form in which applyconfiguration-gen reads
// them. With it the generated code knows which lists merge and by which key.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/openapi"
)

func main() {
	// applyconfiguration-gen looks for the Go names in their REST form,
	// com.github.k8s-go instead of github.com/k8s-go.
	definitions := spec.Definitions{}
	for name, definition := range openapi.GetOpenAPIDefinitions(func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + util.ToRESTFriendlyName(name))
	}) {
		definitions[util.ToRESTFriendlyName(name)] = definition.Schema
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
