package main

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"holdfast.dev/holdfast/internal/configfile"
)

// TestEachFlagIsAField: a file may set every flag of the daemon, to its default; the flag of its own processes is none.
func TestEachFlagIsAField(t *testing.T) {
	f := command().Flags()
	text := "apiVersion: " + configfile.APIVersion + "\nkind: " + configKind + "\n"
	fields := configfile.Fields(f)
	for field, flag := range fields {
		switch list, _ := flag.Value.(pflag.SliceValue); {
		case list != nil:
			text += field + ": [\"" + strings.Join(list.GetSlice(), `", "`) + "\"]\n"
		case flag.Value.Type() == "string":
			text += field + ": \"" + flag.DefValue + "\"\n"
		default:
			text += field + ": " + flag.DefValue + "\n"
		}
	}
	if err := configfile.Set(f, configKind, []byte(text)); err != nil || len(fields) < 8 {
		t.Fatalf("%v, %d fields in\n%s", err, len(fields), text)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "config" && flag.Name != kmsgFlag && !flag.Changed {
			t.Errorf("no field sets --%s", flag.Name)
		}
	})
}

// TestChartHasEveryFlag: the schema of the chart's values lists each flag, and each as a field of the configuration file.
func TestChartHasEveryFlag(t *testing.T) {
	raw, err := os.ReadFile("../../charts/holdfast/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Properties           map[string]node
		AdditionalProperties any
	}
	var schema node
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	for field, f := range configfile.Fields(command().Flags()) {
		want["flags"], want["config"] = append(want["flags"], f.Name), append(want["config"], field)
	}
	for part, want := range want {
		values := schema.Properties["node"].Properties[part]
		have := slices.Sorted(maps.Keys(values.Properties))
		slices.Sort(want)
		if !slices.Equal(have, want) || values.AdditionalProperties != false {
			t.Errorf("the chart's schema has in %s\n%v, the daemon\n%v; others: %v", part, have, want, values.AdditionalProperties)
		}
	}
}
