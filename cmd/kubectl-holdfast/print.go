package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is the output format: text for users, or json and yaml for programs.
type output struct {
	format string
	// texts are the formats for users; the first is the default.
	texts []string
}

// outputFlag adds -o to a command that has the given formats for users besides json and yaml.
func outputFlag(cmd *cobra.Command, texts ...string) *output {
	o := &output{texts: texts}
	cmd.Flags().StringVarP(&o.format, "output", "o", texts[0], "one of "+o.known())
	return o
}

func (o *output) known() string {
	return strings.Join(append(slices.Clone(o.texts), "json", "yaml"), ", ")
}

// check refuses an unknown format before the cluster is queried.
func (o *output) check() error {
	if o.format != "json" && o.format != "yaml" && !slices.Contains(o.texts, o.format) {
		return fmt.Errorf("unknown output format %q: use one of %s", o.format, o.known())
	}
	return nil
}

// print writes value, or the result of text.
func (o *output) print(w io.Writer, value any, text func(format string) string) error {
	switch o.format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	case "yaml":
		b, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("writing yaml: %w", err)
		}
		_, err = w.Write(b)
		return err
	}
	_, err := io.WriteString(w, text(o.format))
	return err
}
