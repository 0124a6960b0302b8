// Package golden compares the output of tests with files beside the tests. A test fails if its output differs from its
// file. With the flag -update the test rewrites its file, so that reviewers see the change as a diff.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite what tests expect; read the difference")

// Scripts runs the scripts that match, each in a subtest of its name. Each line of a script is a command. The function that begin returns
// carries it out and writes its results to out, in lines that begin with two spaces. Blank lines and lines that begin with "#" are
// comments.
func Scripts(t *testing.T, match string, begin func(t *testing.T, out *strings.Builder) (command func(line string))) {
	t.Helper()
	Each(t, match, func(t *testing.T, file, script string) {
		out := &strings.Builder{}
		command := begin(t, out)
		for line := range strings.Lines(script) {
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, "  ") {
				continue
			}
			out.WriteString(line + "\n")
			if line != "" && !strings.HasPrefix(line, "#") {
				command(line)
			}
		}
		File(t, file, out.String())
	})
}

// Each calls test with the files that match, at least one, each in a subtest of its name.
func Each(t *testing.T, match string, test func(t *testing.T, file, text string)) {
	t.Helper()
	files, err := filepath.Glob(match)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files match %s: %v", match, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			test(t, file, string(text))
		})
	}
}

// Beside returns the file of the same name with another extension: the expected output for the input in file.
func Beside(file, ext string) string { return strings.TrimSuffix(file, filepath.Ext(file)) + ext }

// File fails the test unless a file has the content got.
func File(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: line %d is another one (run with -update to read the difference); got\n%s", file, differs(got, string(want)), got)
	}
}

// differs returns the first line, from 1, in which two texts differ.
func differs(a, b string) int {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range x {
		if i >= len(y) || x[i] != y[i] {
			return i + 1
		}
	}
	return len(x) + 1
}
