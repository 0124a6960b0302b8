package members

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// elasticOf returns a gang with a minimum, from the reports of its pods.
func elasticOf(reports ...protocol.Report) *Members { return inBlocksOf(1, reports...) }

// inBlocksOf is elasticOf for a gang that goes on with whole blocks of slots.
func inBlocksOf(unit int, reports ...protocol.Report) *Members {
	ms := New(len(reports), Recorded{}, true)
	ms.SetElastic(unit)
	for slot, r := range reports {
		take(ms, Slot(slot), podAt(fmt.Sprint("pod", slot), 0), r, noneFenced)
	}
	return ms
}

// holding returns the report of a pod whose ranks hold steps of a state that is divided over span ranks.
func holding(ranks, span int, steps ...int64) protocol.Report {
	r := protocol.Report{Ranks: ranks}
	for local := range ranks {
		r.Rank = append(r.Rank, protocol.Rank{Local: local, Span: span, Grouped: true, Sealed: protocoltest.FirstBranch(steps...)})
	}
	return r
}

// TestDivided: a pod holds the whole state if its ranks are a multiple of those over which the state is divided.
func TestDivided(t *testing.T) {
	for name, c := range map[string]struct {
		pods []protocol.Report
		want string
	}{
		"each rank holds all of it (DDP)":          {[]protocol.Report{holding(3, 1, 5), holding(3, 1, 5)}, ""},
		"each pod holds it once (HSDP)":            {[]protocol.Report{holding(2, 2, 5), holding(2, 2, 5)}, ""},
		"each pod holds it twice":                  {[]protocol.Report{holding(4, 2, 5), holding(4, 2, 5)}, ""},
		"a new pod says nothing":                   {[]protocol.Report{holding(2, 2, 5), holding(2, 0)}, ""},
		"none holds a step":                        {[]protocol.Report{holding(2, 0), holding(2, 0)}, ""},
		"two pods hold it together":                {[]protocol.Report{holding(1, 2, 5), holding(1, 2, 5)}, "the state is divided over 2 ranks, and pod pod0 of slot 0 has 1: one pod does not hold all of it"},
		"a pod is no multiple":                     {[]protocol.Report{holding(2, 2, 5), holding(3, 2, 5)}, "the state is divided over 2 ranks, and pod pod1 of slot 1 has 3: one pod does not hold all of it"},
		"a new pod is no multiple":                 {[]protocol.Report{holding(4, 4, 5), holding(2, 0)}, "the state is divided over 4 ranks, and pod pod1 of slot 1 has 2: one pod does not hold all of it"},
		"the largest counts":                       {[]protocol.Report{holding(2, 1, 5), holding(2, 4, 5)}, "the state is divided over 4 ranks, and pod pod0 of slot 0 has 2: one pod does not hold all of it"},
		"over all ranks (FSDP2, ZeRO-1)":           {[]protocol.Report{holding(2, protocol.SpanAll, 5), holding(2, protocol.SpanAll, 5)}, "the state is divided over all ranks"},
		"over all ranks, which are those of a pod": {[]protocol.Report{holding(2, protocol.SpanAll, 5), holding(2, 0)}, "the state is divided over all ranks"},
		"a client that does not say":               {[]protocol.Report{holding(2, 2, 5), holding(2, 0, 5)}, "the client in pod pod1 of slot 1 does not say whether each rank holds the whole state"},
	} {
		if got := elasticOf(c.pods...).Divided(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTogether: the pods of a block may hold the whole state together. It is kept as long as some pod at each place in such a group holds
// its part.
func TestTogether(t *testing.T) {
	one := holding(1, 2, 5)
	for name, c := range map[string]struct {
		unit  int
		pods  []protocol.Report
		group int
		want  string
	}{
		"two pods hold it":              {2, []protocol.Report{one, one, one, one}, 2, ""},
		"two of a block of four do":     {4, []protocol.Report{one, one, one, one}, 2, ""},
		"four do, and blocks have two":  {2, []protocol.Report{holding(1, 4, 5), one, one, one}, 0, "the state is divided over 4 ranks, and 2 pods (holdfast.dev/pods-unit) do not hold all of it: pod pod0 of slot 0 has 1"},
		"blocks of three":               {3, []protocol.Report{one, one, one}, 0, "the state is divided over 2 ranks, and 3 pods (holdfast.dev/pods-unit) do not hold all of it"},
		"pods differ":                   {2, []protocol.Report{one, holding(2, 2, 5), one, one}, 0, "do not hold all of it: pod pod0 of slot 0 has 1"},
		"a new pod says nothing yet":    {2, []protocol.Report{one, {}, one, one}, 2, ""},
		"each pod holds it":             {2, []protocol.Report{holding(2, 2, 5), holding(4, 2, 5)}, 1, ""},
		"no unit":                       {1, []protocol.Report{one, one, one, one}, 0, `pod pod0 of slot 0 has 1: one pod does not hold all of it; holdfast.dev/pods-unit: "2" keeps pods together that do`},
		"over all ranks, whatever unit": {2, []protocol.Report{holding(1, protocol.SpanAll, 5), one}, 0, "the state is divided over all ranks"},
	} {
		group, why := inBlocksOf(c.unit, c.pods...).together()
		if group != c.group || !strings.Contains(why, c.want) || c.want == "" && why != "" {
			t.Errorf("%s: %d, %q", name, group, why)
		}
	}
	ms := inBlocksOf(2, one, one, one, one)
	for _, c := range []struct {
		leave []Slot
		kept  bool
	}{{nil, true}, {[]Slot{0}, true}, {[]Slot{0, 1}, true}, {[]Slot{0, 3}, true}, {[]Slot{0, 2}, false}, {[]Slot{1, 2, 3}, false}} {
		if kept := ms.Keeps(func(slot Slot) bool { return slices.Contains(c.leave, slot) }); kept != c.kept {
			t.Errorf("without %v: kept is %v", c.leave, kept)
		}
	}
	lost := func(slots ...Slot) []restore.Pod {
		return ms.Pods(nil, func(slot Slot) bool { return slices.Contains(slots, slot) })
	}
	if pods := lost(1, 2); !pods[1].Given || !pods[2].Given || pods[0].Given {
		t.Errorf("parts are left in different blocks: %+v", pods)
	}
	if pods := lost(1, 3); pods[1].Given || pods[3].Given {
		t.Errorf("no pod holds the second part: %+v", pods)
	}
}

// TestDonor: the first of the ranks that give a state is that of the lowest pod whose ranks all hold the step to restore.
func TestDonor(t *testing.T) {
	torn := holding(2, 2, 5)
	torn.Rank[1].Sealed = nil
	later := holding(2, 2)
	for i := range later.Rank {
		later.Rank[i].Sealed = []protocol.Point{{Branch: 1, Step: 5}}
	}
	at := protocol.Point{Step: 5}
	for name, c := range map[string]struct {
		pods []protocol.Report
		from protocol.Point
		want int
	}{
		"all hold it":                       {[]protocol.Report{holding(2, 2, 5), holding(2, 2, 5)}, at, 0},
		"the first is new":                  {[]protocol.Report{holding(2, 0), holding(2, 2, 5), holding(2, 2, 5)}, at, 3},
		"the last is new":                   {[]protocol.Report{holding(2, 2, 5), holding(2, 2, 5), holding(2, 0)}, at, 1},
		"the first lacks a part":            {[]protocol.Report{torn, holding(2, 2, 5)}, at, 3},
		"the first holds another branch":    {[]protocol.Report{later, holding(2, 2, 5)}, at, 3},
		"the others hold the branch before": {[]protocol.Report{holding(2, 2, 5), later}, protocol.Point{Branch: 1, Step: 5}, 3},
		"nothing is restored":               {[]protocol.Report{holding(2, 2, 5), holding(2, 0)}, protocol.Point{}, 0},
		"divided over all ranks":            {[]protocol.Report{holding(2, protocol.SpanAll, 5), holding(2, 0)}, at, 0},
	} {
		if got := elasticOf(c.pods...).LayOut(c.from).Donor; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	line := restore.Line{}.Begin(1, 4)
	if pods := elasticOf(holding(2, 2, 5), later).Pods(line, NoneLost); !pods[0].Given || pods[1].Given {
		t.Errorf("step 5 was given up with its branch: given are %v and %v", pods[0].Given, pods[1].Given)
	}
}
