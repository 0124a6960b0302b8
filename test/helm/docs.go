package helm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// docs returns a table of the chart's values: name, default and comment.
func docs() (string, error) {
	raw, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		return "", err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	err = rows(&b, "", doc.Content[0])
	return b.String(), err
}

// rows writes a row for each leaf: an empty map is one.
func rows(b *strings.Builder, prefix string, m *yaml.Node) error {
	var errs []error
	for i := 0; i < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		name := prefix + key.Value
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			errs = append(errs, rows(b, name+".", value))
			continue
		}
		comment := strings.Join(strings.Fields(strings.ReplaceAll(key.HeadComment, "#", "")), " ")
		if comment == "" {
			errs = append(errs, fmt.Errorf("value %s has no comment: say above it what it means", name))
		}
		literal := value.Value
		switch {
		case value.Kind == yaml.SequenceNode:
			literal = "[]"
		case value.Kind == yaml.MappingNode:
			literal = "{}"
		case literal == "":
			literal = `""`
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, literal, strings.ReplaceAll(comment, "|", `\|`))
	}
	return errors.Join(errs...)
}
