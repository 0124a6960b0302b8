package main

import (
	"strings"
	"testing"
)

// TestWrongWords: for wrong arguments the usage of the right command is printed.
func TestWrongWords(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"status x", "takes flags only: remove x"},
		{"node cut", "write: holdfast-dev node cut NODE"},
		{"node log n1", "write: holdfast-dev node log NODE TEXT"},
		{"image load", "write: holdfast-dev image load ARCHIVE"},
		{"up --nosuch", "see holdfast-dev up --help"},
		{"status --name nosuch", "there is no cluster nosuch"},
		{"status", ""},
		{"--version", ""},
	} {
		root := rootCommand(&where{})
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append(strings.Fields(c.line), "--dir", t.TempDir()))
		err := root.ExecuteContext(t.Context())
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.line, err, c.want)
		}
		if err == nil && out.Len() == 0 {
			t.Errorf("%s says nothing", c.line)
		}
	}
}
