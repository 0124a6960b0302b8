package coordinator

import (
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestLooksAreBounded: a look's texts are printable and short, its memory counts, and looks that no agent sends are refused.
func TestLooksAreBounded(t *testing.T) {
	long := strings.Repeat("\x1b[2J", protocol.MaxLookText)
	r := protocol.Report{Protocol: protocol.Version, Ranks: 2, Looks: []protocol.Look{{
		Native: long,
		Frames: []protocol.Frame{{Function: long, File: long}},
		Groups: []protocol.GroupLook{{
			Name:  long,
			Ranks: []protocol.RankRange{{Count: 8, Step: 1}},
			Open:  &protocol.Operation{Name: long, Sizes: long},
			Last:  &protocol.Operation{Name: long, Sizes: long},
		}},
	}}}
	if err := check(&r, "pod", nil); err != nil {
		t.Fatal(err)
	}
	clean(&r)
	l := &r.Looks[0]
	g := &l.Groups[0]
	texts := []string{l.Native, l.Frames[0].Function, l.Frames[0].File, g.Name, g.Open.Name, g.Open.Sizes, g.Last.Name, g.Last.Sizes}
	for i, text := range texts {
		if len(text) > protocol.MaxLookText || strings.Contains(text, "\x1b") || text == "" {
			t.Errorf("text %d has %d bytes: %q", i, len(text), text)
		}
	}
	with := sizeOf(&r)
	if withoutTexts(&r); with-sizeOf(&r) < int64(len(texts)*100+lookBytes+groupBytes) {
		t.Errorf("%d bytes with the look, %d without", with, sizeOf(&r))
	}
	for name, bad := range map[string]protocol.Report{
		"a negative number":     {Look: -1},
		"a number that is huge": {Look: protocol.MaxGeneration + 1},
		"an unknown rank":       {Ranks: 1, Looks: []protocol.Look{{Local: 1}}},
		"a rank twice":          {Ranks: 2, Looks: []protocol.Look{{Local: 1}, {Local: 1}}},
	} {
		bad.Protocol = protocol.Version
		if check(&bad, "pod", nil) == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}
