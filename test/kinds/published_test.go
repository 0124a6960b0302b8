package kinds

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/test/operators"
)

// unreachable is a registry that refuses connections: with the published ones, the answers would depend on this machine's network.
const unreachable = "127.0.0.1:1"

// testPublished creates, in a dry run, every example that Volcano and the training operator publish for their kinds, with the annotation
// and the registry of the images as the only changes. The file has the checksum of each example and what the API server answered, warnings
// included.
func testPublished(ctx context.Context, t *testing.T, w *world) {
	w.needs(ctx, t, operators.All...)
	answers, out := newAnswers(t, w), &strings.Builder{}
	for _, from := range []struct {
		operator *operators.Operator
		dir      string
		kind     string
	}{
		{operators.Volcano, "example", "batch.volcano.sh/v1alpha1 Job"},
		{operators.TrainingOperator, "examples", "kubeflow.org/v1 PyTorchJob"},
	} {
		for _, file := range examplesBelow(ctx, t, w, from.operator, from.dir) {
			text, err := from.operator.File(ctx, w.Source, file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := operators.Decode(text)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, o := range objects {
				if o.GetAPIVersion()+" "+o.GetKind() == from.kind {
					fmt.Fprintf(out, "%s %s %.12x %s\n%s\n", from.operator.Name, file, sha256.Sum256(text), o.GetName(), answers.admit(ctx, o))
				}
			}
		}
	}
	golden.File(t, "testdata/published.txt", out.String())
}

// examplesBelow returns the YAML files in a folder of the operator's module, in lexical order.
func examplesBelow(ctx context.Context, t *testing.T, w *world, o *operators.Operator, dir string) (files []string) {
	t.Helper()
	root, err := o.Dir(ctx, w.Source)
	if err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
		if file, _ := filepath.Rel(root, path); filepath.Ext(path) == ".yaml" {
			files = append(files, file)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// answers creates annotated objects in dry runs, and keeps the warnings of the newest answer.
type answers struct {
	client.Client
	warnings []string
}

func newAnswers(t *testing.T, w *world) *answers {
	t.Helper()
	ctrllog.SetLogger(logr.Discard()) // errors of clients are in their answers
	config, err := clientcmd.BuildConfigFromFlags("", w.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	a := &answers{}
	config.WarningHandler = a
	if a.Client, err = client.New(config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	return a
}

// HandleWarningHeader implements rest.WarningHandler.
func (a *answers) HandleWarningHeader(_ int, _, text string) { a.warnings = append(a.warnings, text) }

// admit returns what the API server answers when the object is created with the annotation.
func (a *answers) admit(ctx context.Context, o *unstructured.Unstructured) string {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationEnabled] = "true"
	o.SetAnnotations(annotations)
	o.SetNamespace(namespace)
	changePods(o.Object, func(spec map[string]any) {
		for _, c := range containers(spec) {
			c["image"] = unreachable + "/" + c["image"].(string)
		}
	})
	a.warnings = nil
	said := "created"
	if err := a.Create(ctx, o, client.DryRunAll); err != nil {
		said = "refused: " + err.Error()
	}
	for _, warning := range a.warnings {
		said += "\nwarning: " + warning
	}
	return "  " + strings.ReplaceAll(said, "\n", "\n  ")
}
