//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"holdfast.dev/holdfast/ckptagent/proc"
)

// TestAnAgentTellsNoModulesThatNoneHasImported: if the previous agent only received a list of modules, the agent does not report it.
// Standbys import the modules of that list.
func TestAnAgentTellsNoModulesThatNoneHasImported(t *testing.T) {
	for _, proven := range []bool{false, true} {
		a := &Agent{standbys: proc.NewStandbys(nil, func(int, bool) {})}
		a.c.Root = proc.Root(t.TempDir())
		known, mark := a.c.Root.KnownModulesFile(), a.c.Root.ProvenModulesFile()
		if err := os.MkdirAll(filepath.Dir(known), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(known, []byte(`{"modules":["os","wave"]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if proven {
			if err := os.WriteFile(mark, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a.loadModules()
		want := []string{"os", "wave"}
		if !slices.Equal(a.modules, want) {
			t.Errorf("recalls %v", a.modules)
		}
		if !proven {
			want = nil
		}
		if got := a.standbys.Known(); !slices.Equal(got, want) {
			t.Errorf("proven %v: tells %v", proven, got)
		}
	}
}
