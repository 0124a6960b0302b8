package plugin

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// TestDocumentedArguments: the example in the package comment of api/scheduling/v1alpha1 is valid.
func TestDocumentedArguments(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../api/scheduling/v1alpha1/args.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	example := ""
	for line := range strings.Lines(file.Doc.Text()) {
		if code, ok := strings.CutPrefix(line, "\t"); ok {
			example += code
		}
	}
	var config struct {
		Profiles []struct {
			PluginConfig []struct{ Args runtime.RawExtension }
		}
	}
	if err := yaml.Unmarshal([]byte(example), &config); err != nil || len(config.Profiles) != 1 || len(config.Profiles[0].PluginConfig) != 1 {
		t.Fatalf("%v in\n%s", err, example)
	}
	if args, err := readArgs(&runtime.Unknown{Raw: config.Profiles[0].PluginConfig[0].Args.Raw}); err != nil ||
		args.InitialPlacementTimeout.Duration != 2*time.Minute {
		t.Errorf("%+v, %v in\n%s", args, err, example)
	}
}

func TestArguments(t *testing.T) {
	const head = `{"apiVersion":"scheduling.holdfast.dev/v1alpha1","kind":"HoldfastArgs"`
	for _, c := range []struct{ name, raw, problem string }{
		{"none", "", ""},
		{"empty", head + "}", ""},
		{"set", head + `,"initialPlacementTimeout":"2m","eventTimeout":"0s"}`, ""},
		{"too short", head + `,"planTimeout":"1ms"}`, `args.planTimeout: Invalid value: "1ms": must be from 1s to 24h0m0s`},
		{"below zero", head + `,"eventTimeout":"-1s"}`, "args.eventTimeout"},
		{"levels", head + `,"topologyLevels":[{"name":"row","nodeLabel":"example.com/row"},{"name":"rack","nodeLabel":"example.com/rack"}],"attendantNamespaces":["monitoring"]}`, ""},
		{"level without a label", head + `,"topologyLevels":[{"name":"row"}]}`, "args.topologyLevels[0].nodeLabel: Invalid value"},
		{"level twice", head + `,"topologyLevels":[{"name":"row","nodeLabel":"a"},{"name":"row","nodeLabel":"b"}]}`, `args.topologyLevels[1].name: Duplicate value: "row"`},
		{"namespace that is no name", head + `,"attendantNamespaces":["a b"]}`, "args.attendantNamespaces[0]"},
		{"no binding", head + `,"parallelBindings":0}`, "args.parallelBindings"},
		{"unknown", head + `,"patience":"1s"}`, `unknown field "patience"`},
		{"no kind", `{"initialPlacementTimeout":"2m"}`, `set "scheduling.holdfast.dev/v1alpha1" and "HoldfastArgs"`},
		{"another version", strings.Replace(head, "v1alpha1", "v9", 1) + "}", "v9"},
		{"no duration", head + `,"initialPlacementTimeout":5}`, "HoldfastArgs.initialPlacementTimeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args, err := readArgs(&runtime.Unknown{Raw: []byte(c.raw)})
			switch {
			case c.problem == "" && err != nil:
				t.Fatal(err)
			case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem) || !strings.Contains(err.Error(), "plugin Holdfast")):
				t.Fatalf("%v, want %q", err, c.problem)
			case c.name == "set" &&
				(args.InitialPlacementTimeout.Duration != 2*time.Minute || args.EventTimeout.Duration != 0 ||
					args.PlanTimeout.Duration != 30*time.Second):
				t.Errorf("%+v", args)
			}
		})
	}
	if args, err := readArgs(nil); err != nil || args.EventTimeout.Duration != 30*time.Second {
		t.Errorf("%+v, %v", args, err)
	}
}
