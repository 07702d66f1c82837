// Command pod-template-schema prints the structural OpenAPI schema of Kubernetes' core/v1 PodTemplateSpec as one line of
// JSON without descriptions. The Kubernetes version is that of k8s.io/api in go.mod. Used by tools/generate-crd.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
	_ "k8s.io/api/core/v1" // the package that is read: the import keeps its version in go.mod
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

type withoutDescriptions struct{}

func (v withoutDescriptions) Visit(schema *apiextensions.JSONSchemaProps) crd.SchemaVisitor {
	if schema != nil {
		schema.Description = ""
	}
	return v
}

func run() error {
	roots, err := loader.LoadRoots("k8s.io/api/core/v1")
	if err != nil {
		return err
	}
	registry := &markers.Registry{}
	if err := crdmarkers.Register(registry); err != nil {
		return err
	}
	parser := &crd.Parser{
		Collector:                  &markers.Collector{Registry: registry},
		Checker:                    &loader.TypeChecker{},
		AllowDangerousTypes:        true, // core/v1 has none, but its floats in other types must not stop us
		GenerateEmbeddedObjectMeta: true, // labels and annotations of the template are typed
	}
	crd.AddKnownTypes(parser)
	kind := crd.TypeIdent{Package: roots[0], Name: "PodTemplateSpec"}
	parser.NeedFlattenedSchemaFor(kind)
	if loader.PrintErrors(roots, packages.TypeError) { // type errors come from files that are not loaded
		return fmt.Errorf("k8s.io/api/core/v1 could not be read")
	}
	schema := parser.FlattenedSchemata[kind]
	crd.EditSchema(&schema, withoutDescriptions{})
	return json.NewEncoder(os.Stdout).Encode(schema)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pod-template-schema:", err)
		os.Exit(1)
	}
}
