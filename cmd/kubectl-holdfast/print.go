package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"
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
	return strings.Join(append(slices.Clone(o.texts), "json", "yaml", "jsonpath=…"), ", ")
}

// nameFormat is the format that prints names, as kubectl writes them, for other commands.
const nameFormat = "name"

// lines joins texts, one a line.
func lines(texts []string) string {
	all := ""
	for _, t := range texts {
		all += t + "\n"
	}
	return all
}

// jsonPath is the format that prints a part of a value.
const jsonPath = "jsonpath="

// path parses the expression of -o jsonpath=…; nil: another format.
func (o *output) path() (*jsonpath.JSONPath, error) {
	text, ok := strings.CutPrefix(o.format, jsonPath)
	if !ok {
		return nil, nil
	}
	if !strings.Contains(text, "{") { // kubectl takes .status.step as well
		text = "{" + text + "}"
	}
	p := jsonpath.New("output").AllowMissingKeys(true)
	if err := p.Parse(text); err != nil {
		return nil, fmt.Errorf("-o %s: %w", o.format, err)
	}
	return p, nil
}

// check refuses an unknown format before the cluster is queried.
func (o *output) check() error {
	if p, err := o.path(); p != nil || err != nil {
		return err
	}
	if o.format != "json" && o.format != "yaml" && !slices.Contains(o.texts, o.format) {
		return fmt.Errorf("unknown output format %q: use one of %s", o.format, o.known())
	}
	return nil
}

// print writes value, or the result of text.
func (o *output) print(w io.Writer, value any, text func(format string) string) error {
	if p, err := o.path(); err != nil {
		return err
	} else if p != nil {
		return part(w, p, value)
	}
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

// part prints a part of a value, by the names that it has as JSON.
func part(w io.Writer, p *jsonpath.JSONPath, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(b, &plain); err != nil {
		return err
	}
	if err := p.Execute(w, plain); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n")
	return err
}

// watchEvery is how often -w reads.
const watchEvery = 2 * time.Second

func watchFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("watch", "w", false, "print again whenever it changes, until Ctrl-C")
}

// shown is what a command read: values of the same version say the same.
type shown struct {
	value   any
	version string
	text    func(format string) string
}

// follow prints what read returns; with watch also each later version of it.
func (o *output) follow(ctx context.Context, w io.Writer, watch bool, read func(context.Context) (shown, error)) error {
	for last := ""; ; {
		once, cancel := context.WithTimeout(ctx, timeout)
		s, err := read(once)
		cancel()
		if err != nil {
			return err
		}
		if s.version != last || !watch {
			if last != "" && slices.Contains(o.texts, o.format) {
				fmt.Fprintln(w)
			}
			last = s.version
			if err := o.print(w, s.value, s.text); err != nil {
				return err
			}
		}
		if !watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}
