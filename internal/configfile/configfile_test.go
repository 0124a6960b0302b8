package configfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

const head = "apiVersion: config.holdfast.dev/v1alpha1\nkind: ControllerConfiguration\n"

type options struct {
	address string
	most    int
	only    bool
	wait    time.Duration
	names   []string
}

func flags(o *options) *pflag.FlagSet {
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.StringVar(&o.address, "metrics-address", ":1", "")
	f.IntVar(&o.most, "max-gangs", 1, "")
	f.BoolVar(&o.only, "observe-only", false, "")
	f.DurationVar(&o.wait, "nodes-lease-silent", time.Second, "")
	f.StringSliceVar(&o.names, "device-resource", []string{"a"}, "")
	f.Int("secret", 0, "")
	if err := f.MarkHidden("secret"); err != nil {
		panic(err)
	}
	return f
}

// TestFile: a file sets each type of flag; a flag on the command line wins, and what is in neither keeps its default.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := "# a comment\n---\n" + head + "maxGangs: 7\nobserveOnly: true\nnodesLeaseSilent: 20s\ndeviceResource: [\"x,y\", z]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want options
	}{
		{nil, options{":1", 1, false, time.Second, []string{"a"}}},
		{[]string{"--config", path}, options{":1", 7, true, 20 * time.Second, []string{"x,y", "z"}}},
		{[]string{"--max-gangs=2", "--config", path, "--observe-only=false", "--device-resource=b"}, options{":1", 2, false, 20 * time.Second, []string{"b"}}},
	} {
		o := options{}
		f := flags(&o)
		load := Flag(f, "ControllerConfiguration")
		if err := f.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := load(); err != nil {
			t.Fatal(err)
		}
		if strings.Join(o.names, " ") != strings.Join(c.want.names, " ") || o.address != c.want.address || o.most != c.want.most ||
			o.only != c.want.only || o.wait != c.want.wait {
			t.Errorf("%v: %+v, want %+v", c.args, o, c.want)
		}
	}
}

// TestWrongFiles: an error names the field and the remedy, and no flag is set.
func TestWrongFiles(t *testing.T) {
	for text, want := range map[string]string{
		"kind: ControllerConfiguration":                                     "apiVersion: must be config.holdfast.dev/v1alpha1",
		"apiVersion: config.holdfast.dev/v1alpha1\nkind: NodeConfiguration": "kind: must be ControllerConfiguration",
		head + "maxGangs: 3\nmaxGang: 4":                                    "maxGang: unknown field: use deviceResource, maxGangs, metricsAddress, nodesLeaseSilent, observeOnly",
		head + "max-gangs: 4":                                               "max-gangs: unknown field",
		head + "maxGangs: 3\nsecret: 4":                                     "secret: unknown field",
		head + "config: x":                                                  "config: unknown field",
		head + "maxGangs: 3\nobserveOnly: \"true\"":                         "observeOnly: is true: must be true or false",
		head + "maxGangs: 1.5":                                              "maxGangs: is 1.5: must be a whole number",
		head + "maxGangs: 3\nnodesLeaseSilent: 20":                          "nodesLeaseSilent: is 20: must be a time",
		head + "maxGangs: 3\ndeviceResource: x":                             "deviceResource: is x: must be a list",
		head + "maxGangs: 3\ndeviceResource: [1]":                           "deviceResource: has element 1",
		head + "maxGangs: 3\nmaxGangs: 4":                                   "maxGangs",
		head + "maxGangs: 3\nnodesLeaseSilent: soon":                        "nodesLeaseSilent: is soon: must be a time, such as 5s",
		head + "maxGangs: 3\n---\nobserveOnly: true":                        "has a second YAML document",
	} {
		o := options{}
		if err := Set(flags(&o), "ControllerConfiguration", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
		if o.most != 1 {
			t.Errorf("%s: maxGangs is %d", text, o.most)
		}
	}
	f := flags(&options{})
	load := Flag(f, "ControllerConfiguration")
	if err := f.Parse([]string{"--config=/none/config.yaml"}); err != nil {
		t.Fatal(err)
	}
	if err := load(); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Error(err)
	}
}
