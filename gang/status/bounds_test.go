package status

import (
	"fmt"
	"strings"
	"testing"
)

// TestNotesAreBounded: the notes have a bounded size, however many pods have notes and however long these are.
func TestNotesAreBounded(t *testing.T) {
	var all []string
	for i := range 5000 {
		all = append(all, fmt.Sprint(i, " ", strings.Repeat("ä", 1000)))
	}
	got, size := notesOf(all), 0
	for _, n := range got {
		size += len(n)
	}
	if len(got) != keptNotes || size > keptNotes*(noteBytes+3) ||
		got[keptNotes-1] != fmt.Sprintf("%d more notes", 5000-keptNotes+1) ||
		strings.Contains(got[0], "\ufffd") {
		t.Errorf("%d notes of %d bytes, the last one %q", len(got), size, got[len(got)-1])
	}
	if few := notesOf([]string{"a", "b"}); len(few) != 2 || few[1] != "b" {
		t.Errorf("of two notes are left %q", few)
	}
}

func TestNamesAreBounded(t *testing.T) {
	all := make([]string, 5000)
	for i := range all {
		all[i] = fmt.Sprintf("node-%0120d", i)
	}
	if got := Names(all); len(got) < 900 || len(strings.Join(got, `","`)) > nameBytes {
		t.Errorf("%d names of %d bytes are listed", len(got), len(strings.Join(got, `","`)))
	}
	if few := Names(all[:3]); len(few) != 3 {
		t.Errorf("of three names are listed %q", few)
	}
}
