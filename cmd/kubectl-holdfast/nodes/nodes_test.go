package nodes

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

var now = time.Date(2026, 11, 20, 12, 10, 0, 0, time.UTC)

// read parses a text of Nodes, Leases and Gangs; a document of kind Note is an object that could not be read.
func read(t *testing.T, text string) Input {
	t.Helper()
	in := Input{}
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return in
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind struct{ Kind, Text string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "Node":
			in.Nodes = append(in.Nodes, decode[corev1.Node](t, doc))
		case "Lease":
			in.Leases = append(in.Leases, decode[coordinationv1.Lease](t, doc))
		case "Gang":
			in.Gangs = append(in.Gangs, decode[v1alpha1.Gang](t, doc))
		case "Note":
			in.Notes = append(in.Notes, kind.Text)
		default:
			t.Fatalf("kind %q", kind.Kind)
		}
	}
}

func decode[T any](t *testing.T, doc []byte) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict(doc, &v); err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	return v
}

// TestText: each testdata/NAME.yaml has objects; NAME.txt has their table, and below it the one with --all and wide.
func TestText(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, file, text string) {
		r := Of(read(t, text), now)
		golden.File(t, golden.Beside(file, ".txt"),
			"$ nodes\n"+r.Text(false, false)+"\n$ nodes --all\n"+r.Text(true, false)+"\n$ nodes -o wide\n"+r.Text(false, true))
	})
}
