package operators

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"holdfast.dev/holdfast/test/harness"
)

// Decode reads the objects of a YAML file.
func Decode(text []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		u := &unstructured.Unstructured{}
		err := docs.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("object %d: %w", len(out), err)
		}
		if len(u.Object) > 0 { // a document may hold comments alone
			out = append(out, u)
		}
	}
}

// apply writes objects in their order.
func apply(ctx context.Context, c *harness.Cluster, objects []*unstructured.Unstructured) error {
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	_, err = c.KubectlIn(ctx, string(text), "apply", "--server-side", "-f", "-")
	return err
}
