package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestLooksAreBounded: a look's texts are printable and short, its memory counts, and looks that no agent sends are refused.
func TestLooksAreBounded(t *testing.T) {
	long := strings.Repeat("\x1b[2J", protocol.MaxLookText)
	r := protocol.Report{Protocol: protocol.Version, Ranks: 2, Looks: []protocol.Look{{
		Native: long,
		Phase:  &protocol.Phase{Name: long[:protocol.MaxPhaseName], Left: time.Second, Of: time.Minute},
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
	texts := []string{
		l.Phase.Name, l.Native, l.Frames[0].Function, l.Frames[0].File,
		g.Name, g.Open.Name, g.Open.Sizes, g.Last.Name, g.Last.Sizes,
	}
	for i, text := range texts {
		if len(text) > protocol.MaxLookText || strings.Contains(text, "\x1b") || text == "" {
			t.Errorf("text %d has %d bytes: %q", i, len(text), text)
		}
	}
	with := sizeOf(&r)
	if withoutTexts(&r); with-sizeOf(&r) < int64(len(texts)*100+lookBytes+groupBytes) {
		t.Errorf("%d bytes with the look, %d without", with, sizeOf(&r))
	}
	in := func(p protocol.Phase) protocol.Report {
		return protocol.Report{Ranks: 1, Looks: []protocol.Look{{Phase: &p}}}
	}
	for name, bad := range map[string]protocol.Report{
		"a negative number":     {Look: -1},
		"a number that is huge": {Look: protocol.MaxGeneration + 1},
		"an unknown rank":       {Ranks: 1, Looks: []protocol.Look{{Local: 1}}},
		"a rank twice":          {Ranks: 2, Looks: []protocol.Look{{Local: 1}, {Local: 1}}},
		"a phase's name":        in(protocol.Phase{Name: long[:protocol.MaxPhaseName+1], Left: 1, Of: 1}),
		"a phase without name":  in(protocol.Phase{Left: 1, Of: 1}),
		"a lease that is over":  in(protocol.Phase{Name: "x", Of: 1}),
		"a lease that is long":  in(protocol.Phase{Name: "x", Left: 1, Of: protocol.MaxPhase + 1}),
		"more than the lease":   in(protocol.Phase{Name: "x", Left: 2, Of: 1}),
	} {
		bad.Protocol = protocol.Version
		if check(&bad, "pod", nil) == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}

// TestMemoryForLooksIsBounded: a namespace has a share of the memory for looks, and all share the whole. What does not fit is refused until
// others are dropped, while reports without looks are not.
func TestMemoryForLooksIsBounded(t *testing.T) {
	var k keptReports
	most := kept{keptTexts, keptLooksOfNamespace}
	const one = keptLooksOfNamespace
	for i, want := range []bool{true, true, true, true, false} {
		if got := k.grow(strings.Repeat("n", i), kept{one, one}, most); got != want {
			t.Errorf("looks of namespace %d are kept: %t", i, got)
		}
		if k.grow(strings.Repeat("n", i), kept{1, 1}, most) {
			t.Error("a namespace has more than its share")
		}
	}
	without := k.grow("other", kept{all: one}, most)
	if !without || !k.grow("", kept{-one, -one}, kept{}) || !k.grow("nnnn", kept{one, one}, most) {
		t.Errorf("%d bytes of looks, of namespaces %v", k.looks, k.of)
	}
}

// TestLooksOfSmallPodsAreKept: what others use takes nothing from a pod whose looks need no more than its own memory.
func TestLooksOfSmallPodsAreKept(t *testing.T) {
	s := quietServer(t, newMemory(), logr.Discard())
	for i := range keptLooks / keptLooksOfNamespace {
		if !s.kept.grow(strings.Repeat("n", i+1), kept{keptLooksOfNamespace, keptLooksOfNamespace}, kept{keptTexts, keptLooksOfNamespace}) {
			t.Fatalf("namespace %d has no share", i)
		}
	}
	g := newGang(s, Key{Namespace: "team-a", Name: "train"})
	g.state = elastic.New(1, 0, elastic.Record{Generation: 1, Phase: elastic.Running})
	r := protocol.Report{Generation: 1, Look: 7, Ranks: 8}
	for i := range 8 {
		frames := slices.Repeat([]protocol.Frame{{Function: strings.Repeat("f", 40), File: strings.Repeat("f", 40)}}, protocol.MaxLookFrames)
		r.Looks = append(r.Looks, protocol.Look{Local: i, Frames: frames, Groups: make([]protocol.GroupLook, 4)})
	}
	most := kept{keptTexts, keptLooksOfNamespace}
	if looks := 4 * sizeOfLooks(r.Looks); looks > keptLooksOfPod || looks < keptLooksOfPod/3 {
		t.Fatalf("four looks at 8 ranks have %d bytes", looks)
	}
	if !g.countKept(0, &r, most) {
		t.Error("looks at a small pod are dropped")
	}
	r.Looks = slices.Repeat(r.Looks, 8)
	if g.countKept(0, &r, most) {
		t.Error("looks use more than all memory for looks")
	}
}

// TestForgedLooksAreDropped: looks that were not asked for, or of a gang that makes steps, use no memory.
func TestForgedLooksAreDropped(t *testing.T) {
	s := quietServer(t, newMemory(), logr.Discard())
	g := newGang(s, Key{Namespace: "team-a", Name: "train"})
	g.state = elastic.New(1, 0, elastic.Record{Generation: 1, Phase: elastic.Running})
	r := protocol.Report{Generation: 1, Look: 7, Ranks: 1, Looks: []protocol.Look{{Native: strings.Repeat("x", 100)}}}
	if err := g.keep(0, &r); err != nil || r.Looks != nil || s.kept.looks != 0 {
		t.Errorf("%v, %d bytes of looks", err, s.kept.looks)
	}
}
