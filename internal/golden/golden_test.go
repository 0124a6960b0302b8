package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScripts: earlier results in a script are not commands. Comments stay. The present results are written in place of the earlier ones.
func TestScripts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "one.txt")
	const before = "# for people\n\nsay a\n  an old answer\nsay b\n"
	if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	was := *update
	defer func() { *update = was }()
	*update = true
	Scripts(t, file, func(_ *testing.T, out *strings.Builder) func(string) {
		n := 0
		return func(line string) {
			n++
			out.WriteString("  " + strings.Repeat("!", n) + strings.TrimPrefix(line, "say") + "\n")
		}
	})
	got, err := os.ReadFile(file)
	if want := "# for people\n\nsay a\n  ! a\nsay b\n  !! b\n"; err != nil || string(got) != want {
		t.Errorf("%v, the file is now\n%s", err, got)
	}
}

func TestDiffers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"a\nb", "a\nc", 2}, {"a", "a\nb", 2}, {"a\nb", "a", 2}, {"x", "y", 1}} {
		if got := differs(c.a, c.b); got != c.want {
			t.Errorf("%q and %q differ in line %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
