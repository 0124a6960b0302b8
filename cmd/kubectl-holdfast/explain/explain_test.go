package explain

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the expected texts")

// Each testdata/NAME.yaml is a Gang, NAME.txt what explain says of it.
func TestText(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no Gangs to explain: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g := &v1alpha1.Gang{}
			if err := yaml.UnmarshalStrict(b, g); err != nil {
				t.Fatal(err)
			}
			got := Of(g, time.Date(2026, 11, 20, 12, 10, 0, 0, time.UTC)).Text()
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
