package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast.dev/holdfast/internal/configfile"
)

// TestEachFlagIsAField: a file may set every flag of the controller, to its default.
func TestEachFlagIsAField(t *testing.T) {
	f := command().Flags()
	text := "apiVersion: " + configfile.APIVersion + "\nkind: " + configKind + "\n"
	n := 0
	for field, flag := range configfile.Fields(f) {
		n++
		switch list, _ := flag.Value.(pflag.SliceValue); {
		case list != nil:
			text += field + ": [\"" + strings.Join(list.GetSlice(), `", "`) + "\"]\n"
		case flag.Value.Type() == "string":
			text += field + ": \"" + flag.DefValue + "\"\n"
		default:
			text += field + ": " + flag.DefValue + "\n"
		}
	}
	if n < 20 {
		t.Fatalf("%d fields, so this test reads the wrong flags", n)
	}
	if err := configfile.Set(f, configKind, []byte(text)); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "config" && flag.Name != "help" && flag.Name != "version" && !flag.Changed {
			t.Errorf("no field sets --%s", flag.Name)
		}
	})
}

// TestRequiredInAFile: what is required may be in the file alone, and an unknown field is refused by its name.
func TestRequiredInAFile(t *testing.T) {
	for fields, want := range map[string]string{
		"agentImage: x\n": "", "maxGangsPerNamespace: 3\n": `"agent-image"`, "agentImages: x\n": "agentImages: unknown field",
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte("apiVersion: "+configfile.APIVersion+"\nkind: "+configKind+"\n"+fields), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := command()
		cmd.SetArgs([]string{"--config", path})
		cmd.RunE = func(*cobra.Command, []string) error { return nil }
		if err := cmd.Execute(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", fields, err, want)
		}
	}
}
