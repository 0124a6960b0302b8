package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
)

// recomputed are fields of earlier versions that the API server may drop: they are made anew from the record, which has all of it.
var recomputed = []string{"status.goodput", "status.saved"}

// TestGangsOfEarlierVersionsStayWhole: the API server drops what the definition does not name before anybody reads it, and stores no part of
// a status of which another part is invalid.
func TestGangsOfEarlierVersionsStayWhole(t *testing.T) {
	var props apiextensions.JSONSchemaProps
	crd := find[apiextensionsv1.CustomResourceDefinition](t, "gangs.holdfast.dev")
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("../elastic/controller/testdata/stored/*.json")
	if len(files) == 0 {
		t.Fatal("no Gang of any version is kept")
	}
	for _, file := range files {
		var gang map[string]any
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &gang)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range pruning.PruneWithOptions(gang, structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
			if !slices.Contains(recomputed, path) {
				t.Errorf("%s: %s is dropped", file, path)
			}
		}
		for _, err := range validation.ValidateCustomResource(nil, gang, validator) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
