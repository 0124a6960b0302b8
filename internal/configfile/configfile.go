// Package configfile sets a program's flags from a configuration file. Each field of the file is a flag, with the flag's
// name in camel case: the two cannot differ. A flag on the command line takes precedence over the file.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	goyaml "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// APIVersion is the version of all configuration files.
const APIVersion = "config.holdfast.dev/v1alpha1"

// flagName is the flag that names the file.
const flagName = "config"

// Flag adds the flag --config for files of a kind. The returned function reads the file, if the flag names one, once the
// command line is parsed.
func Flag(f *pflag.FlagSet, kind string) (load func() error) {
	path := f.String(flagName, "", "file with kind "+kind+" of "+APIVersion+": each flag is a field, in camel case; flags of the command line take precedence")
	return func() error {
		if *path == "" {
			return nil
		}
		text, err := os.ReadFile(*path)
		if err != nil {
			return fmt.Errorf("reading --%s: %w", flagName, err)
		}
		if err := Set(f, kind, text); err != nil {
			return fmt.Errorf("--%s %s: %w", flagName, *path, err)
		}
		return nil
	}
}

// Fields returns the flags that a file may set, by field.
func Fields(f *pflag.FlagSet) map[string]*pflag.Flag {
	fields := map[string]*pflag.Flag{}
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && flag.Name != flagName && flag.Name != "help" && flag.Name != "version" {
			fields[camel(flag.Name)] = flag
		}
	})
	return fields
}

// camel returns a flag's name as a field: maxGangs for max-gangs.
func camel(flag string) string {
	words := strings.Split(flag, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// Set sets flags from a file's text, but those that the command line has set. All fields are checked before any flag
// is set.
func Set(f *pflag.FlagSet, kind string, text []byte) error {
	file := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return fmt.Errorf("reading YAML: %w", err)
	}
	if err := one(text); err != nil {
		return err
	}
	for field, want := range map[string]string{"apiVersion": APIVersion, "kind": kind} {
		if file[field] != want {
			return fmt.Errorf("%s: must be %s", field, want)
		}
		delete(file, field)
	}
	fields, values := Fields(f), map[string][]string{}
	for _, field := range slices.Sorted(maps.Keys(file)) {
		flag, ok := fields[field]
		if !ok {
			return fmt.Errorf("%s: unknown field: use %s", field, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		words, err := words(flag.Value.Type(), file[field])
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		values[field] = words
	}
	for _, field := range slices.Sorted(maps.Keys(values)) {
		if flag := fields[field]; !flag.Changed {
			if err := assign(f, flag, values[field]); err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
		}
	}
	return nil
}

// one refuses a second document of a file, which UnmarshalStrict does not read.
func one(text []byte) error {
	documents := goyaml.NewDecoder(bytes.NewReader(text))
	for range 2 {
		if err := documents.Decode(&goyaml.Node{}); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return errors.New("has a second YAML document, after ---: write all fields in one")
}

// assign sets a flag. The elements of a list are not parsed, so that they may have commas.
func assign(f *pflag.FlagSet, flag *pflag.Flag, words []string) error {
	list, ok := flag.Value.(pflag.SliceValue)
	if !ok {
		return f.Set(flag.Name, words[0])
	}
	if err := list.Replace(words); err != nil {
		return err
	}
	flag.Changed = true
	return nil
}

// words returns a field's value as texts for a flag of a type.
func words(kind string, value any) ([]string, error) {
	switch v := value.(type) {
	case bool:
		if kind == "bool" {
			return []string{strconv.FormatBool(v)}, nil
		}
	case float64:
		if kind == "int" && v == float64(int64(v)) {
			return []string{strconv.FormatInt(int64(v), 10)}, nil
		}
	case string:
		_, err := time.ParseDuration(v)
		if kind == "string" || kind == "duration" && err == nil {
			return []string{v}, nil
		}
	case []any:
		texts := []string{}
		for _, element := range v {
			text, ok := element.(string)
			if !ok {
				return nil, fmt.Errorf("has element %v: write each as a text in quotes", element)
			}
			texts = append(texts, text)
		}
		if kind == "stringSlice" {
			return texts, nil
		}
	}
	want, ok := map[string]string{"bool": "true or false", "int": "a whole number", "string": "a text", "duration": "a time, such as 5s",
		"stringSlice": "a list of texts"}[kind]
	if !ok {
		return nil, fmt.Errorf("cannot be set in a file (type %s): use the flag", kind)
	}
	return nil, fmt.Errorf("is %v: must be %s", value, want)
}
