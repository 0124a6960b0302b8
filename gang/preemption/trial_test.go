package preemption

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/seeds"
)

// repelled returns a check by which the gang fits once all units of one of several sets are gone.
func repelled(sets ...[]int) Check {
	return func(gone []int) (bool, error) {
		return slices.ContainsFunc(sets, func(set []int) bool {
			return !slices.ContainsFunc(set, func(u int) bool { return !slices.Contains(gone, u) })
		}), nil
	}
}

func inTime() bool { return false }

// TestTryVictimsEndsInTime: if every unit must be preempted for room alone, no check runs, and each unit costs one visit of the nodes.
func TestTryVictimsEndsInTime(t *testing.T) {
	const nodes = 64
	w := cluster(nodes, 1)
	for i := range nodes {
		w.Units = append(w.Units, unit(fmt.Sprint("u", i), 0, 1, 1, w.Nodes[i].Name))
	}
	fine := func([]int) (bool, error) { return true, nil }
	looks := 0
	late := func() bool { looks++; return looks > 5 }
	if victims, verdict, err := TryVictims(w, wants(nodes, 1, gang.Topology{}), fine, 100, late); len(victims) > 0 || verdict != Unfinished ||
		err != nil {
		t.Errorf("%v leave, %v, %v", victims, verdict, err)
	}
	if looks > 6 {
		t.Errorf("it went on for %d looks after its time", looks-6)
	}
	if victims, verdict, _ := TryVictims(w, wants(nodes, 1, gang.Topology{}), fine, 100, inTime); len(victims) != nodes ||
		verdict != Suffices {
		t.Errorf("with time: %d leave, %v", len(victims), verdict)
	}
}

func TestTryVictims(t *testing.T) {
	units := []Unit{unit("dear", 5, 9, 1, "n0"), unit("cheap", 0, 1, 1, "n0"), unit("worker", 0, 7, 1, "n1"), unit("idle", 0, 2, 1, "n2")}
	terminating := slices.Clone(units)
	terminating[1].Terminating = true
	budgeted := slices.Clone(units)
	budgeted[1].Budgets = map[int]int{0: 1}
	fine := func([]int) (bool, error) { return true, nil }
	broken := func([]int) (bool, error) { return true, errors.New("broken") }
	for name, c := range map[string]struct {
		units []Unit
		check Check
		size  int
		most  int
		want  string
	}{
		"who keeps it away leaves":                 {check: repelled([]int{1}), want: "[1] Suffices"},
		"two who do so together":                   {check: repelled([]int{1, 3}), want: "[1 3] Suffices"},
		"the cheaper of two ways":                  {check: repelled([]int{0}, []int{2}), want: "[2] Suffices"},
		"two cheap ones rather than a dear one":    {check: repelled([]int{0}, []int{1, 3}), want: "[1 3] Suffices"},
		"who terminates costs nothing":             {units: terminating, check: fine, want: "[] Suffices"},
		"nothing helps":                            {check: repelled(), want: "[] Futile"},
		"a budget keeps the only one":              {units: budgeted, check: repelled([]int{1}), want: "[1] Protected"},
		"a budget keeps one, another may leave":    {units: budgeted, check: repelled([]int{0}, []int{1}), want: "[0] Suffices"},
		"room lacks as well":                       {check: repelled([]int{1}), size: 4, want: "[1 2 3] Suffices"},
		"no more than so many checks":              {check: repelled([]int{1}), most: 2, want: "[] Unfinished"},
		"what breaks ends it":                      {check: broken, want: "[] Unfinished broken"},
		"all of them, where each is in the way":    {check: repelled([]int{0, 1, 2, 3}), want: "[0 1 2 3] Suffices"},
		"a check of counts alone, no one to leave": {check: fine, want: "[] Suffices"},
	} {
		w := cluster(4, 4)
		if w.Units = c.units; w.Units == nil {
			w.Units = units
		}
		w.Allowed = []int{0}
		if c.most == 0 {
			c.most = 100
		}
		g := wants(max(1, c.size), 4, gang.Topology{})
		if c.size == 0 {
			g = wants(1, 1, gang.Topology{})
		}
		if c.size == 4 {
			w.Nodes[0].Free[gpu]++ // beside the unit dear there is room for four
		}
		victims, verdict, err := TryVictims(w, g, c.check, c.most, inTime)
		got := fmt.Sprint(append([]int{}, victims...), " ", []string{"Unfinished", "Suffices", "Futile", "Protected"}[verdict])
		if err != nil {
			got += " " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Rules NobodyForNothing and BudgetsKept of docs/designs/priority.md: in random clusters the victims are those of a search that checks one
// unit after the other. Few victims need few checks.
func TestTryVictimsAsksFew(t *testing.T) {
	for seed := range seeds.All(t, int64(300)) {
		r := rand.New(rand.NewSource(seed))
		w := cluster(4, 100)
		for u := range 1 + r.Intn(60) {
			w.Units = append(w.Units, unit(fmt.Sprint("u", u), int32(r.Intn(3)), int64(r.Intn(5)), 1, fmt.Sprint("n", r.Intn(4))))
		}
		var sets [][]int
		for range 1 + r.Intn(3) {
			sets = append(sets, r.Perm(len(w.Units))[:1+r.Intn(min(3, len(w.Units)))])
		}
		check, asked := repelled(sets...), 0
		got, verdict, err := TryVictims(
			w,
			wants(1, 1, gang.Topology{}),
			func(gone []int) (bool, error) { asked++; return check(gone) },
			1000,
			inTime,
		)
		s := &search{w: &w}
		order := make([]int, len(w.Units))
		for u := range order {
			order[u] = u
		}
		slices.SortStableFunc(order, s.dearer)
		gone := slices.Clone(order)
		for _, u := range order {
			without := slices.DeleteFunc(slices.Clone(gone), func(x int) bool { return x == u })
			if fits, _ := check(without); fits {
				gone = without
			}
		}
		slices.Sort(gone)
		if verdict != Suffices || err != nil || !slices.Equal(got, gone) || asked > 4+14*len(gone) {
			t.Fatalf("seed %d: %v (verdict %d, %v) after %d checks, want %v", seed, got, verdict, err, asked, gone)
		}
	}
}
