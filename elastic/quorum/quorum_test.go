package quorum

import (
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/seeds"
)

var now = time.Unix(1_700_000_000, 0)

// TestDecide: each row is a gang of four whose last slots are as listed.
func TestDecide(t *testing.T) {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	refused := Slot{Lacks: "waits for the agent of slot 3", Stage: Unplaced, Refusal: "no node"}
	absent := Slot{Lacks: "waits for the agent of slot 3"}
	starting := func(since time.Duration) Slot {
		return Slot{Lacks: "waits for the agent of slot 3", Stage: Starting, Since: ago(since)}
	}
	for name, c := range map[string]struct {
		last   []Slot
		change func(*View)
		want   int // pods; 0: it waits
		text   string
		until  time.Duration
	}{
		"all are ready":                     {last: []Slot{{}}, want: 4},
		"no node":                           {last: []Slot{refused}, want: 3, text: "goes on with 3 of 4 pods: no node for slot 3 (no node); another generation is taken to cost 3s"},
		"no minimum":                        {last: []Slot{refused}, change: func(v *View) { v.Min = 0 }, text: "waits for the agent"},
		"below the minimum":                 {last: []Slot{refused, refused, refused}, text: "too few pods are ready (min-pods is 2): "},
		"divided state":                     {last: []Slot{refused}, change: func(v *View) { v.Bound = "the state is divided" }, text: "cannot go on without it: the state is divided"},
		"nothing is known of it":            {last: []Slot{absent}, text: "goes on at 22:13:50 with the pods that are ready", until: 30 * time.Second},
		"for too long":                      {last: []Slot{absent}, change: func(v *View) { v.Since = ago(30 * time.Second) }, want: 3, text: "no pod in slot 3"},
		"a time of the job's":               {last: []Slot{absent}, change: func(v *View) { v.ShrinkAfter = time.Minute }, until: time.Minute},
		"it starts, and soon is ready":      {last: []Slot{starting(7 * time.Second)}, until: 3 * time.Second},
		"it has only begun to start":        {last: []Slot{starting(time.Second)}, want: 3, text: "only starting"},
		"so, without state in memory":       {last: []Slot{starting(time.Second)}, change: func(v *View) { v.Kept = false }, until: 9 * time.Second},
		"so, and restarts are cheap":        {last: []Slot{starting(7 * time.Second)}, change: func(v *View) { v.Cost = time.Second }, want: 3, text: "another generation costs 1s"},
		"it takes longer than others did":   {last: []Slot{starting(time.Minute)}, until: 30 * time.Second},
		"one is refused, the other one not": {last: []Slot{refused, absent}, until: 30 * time.Second},
	} {
		v := View{Limits: Limits{Min: 2}, Slots: append(make([]Slot, 4-len(c.last)), c.last...), Since: now, Kept: true, Start: 10 * time.Second}
		if c.change != nil {
			c.change(&v)
		}
		d := Decide(v, now)
		until := time.Duration(0)
		if !d.Until.IsZero() {
			until = d.Until.Sub(now)
		}
		if len(d.Form) != c.want || d.Waits() != (c.want == 0) || !strings.Contains(d.Why, c.text) || until != c.until {
			t.Errorf("%s: %+v, until %s", name, d, until)
		}
	}
}

// TestStruckSizes: no generation has a struck size; of pods that are ready those with the newest steps take part.
func TestStruckSizes(t *testing.T) {
	strikes := func(pods ...int) (all []Struck) {
		for _, n := range pods {
			all = append(all, Struck{Pods: n, Generation: 7, Text: "ValueError: x"})
		}
		return all
	}
	lost := func(steps ...int64) View {
		v := View{Limits: Limits{Min: 1}, Slots: []Slot{{Lacks: "waits", Stage: Unplaced, Refusal: "none"}}, Since: now}
		for _, step := range steps {
			v.Slots = append(v.Slots, Slot{Newest: step})
		}
		return v
	}
	for name, c := range map[string]struct {
		v      View
		struck []Struck
		want   []int
		text   string
	}{
		"nothing is struck":     {lost(5, 5, 6), nil, []int{1, 2, 3}, "goes on with 3 of 4 pods: no node for slot 0 (none); another"},
		"another size":          {lost(5, 5, 6), strikes(1, 2), []int{1, 2, 3}, "goes on with 3 of 4 pods"},
		"the next smaller size": {lost(4, 5, 6), strikes(3), []int{2, 3}, "1 ready left out, because the script does not start with 3 of 4 pods (generation 7: ValueError: x)"},
		"the newest step":       {lost(4, 6, 5), strikes(3, 2), []int{2}, "2 ready left out"},
		"no size":               {lost(4, 5, 6), strikes(1, 2, 3), nil, "waits; the script does not start with 3 of 4 pods (generation 7: ValueError: x)"},
		"too many were struck":  {lost(0, 0, 0), strikes(9, 10, 11, 12, 13, 14, 15, 16), nil, "waits; is not tried with fewer pods than all: the script does not start with 8 other"},
		"all are ready":         {View{Limits: Limits{Min: 1}, Slots: make([]Slot, 2)}, strikes(1, 2), []int{0, 1}, ""},
	} {
		c.v.Struck = c.struck
		if d := Decide(c.v, now); !slices.Equal(d.Form, c.want) || !strings.Contains(d.Why, c.text) || c.text == "" && d.Why != "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestBlocks: with a unit, generations consist of whole blocks of slots, those with the newest steps. Ready pods of other blocks are idle.
func TestBlocks(t *testing.T) {
	lost := Slot{Lacks: "waits for slot", Stage: Unplaced, Refusal: "none"}
	eight := func(least int, gone ...int) View {
		v := View{Limits: Limits{Min: least, Unit: 2}, Slots: make([]Slot, 8), Since: now}
		for _, i := range gone {
			v.Slots[i] = lost
		}
		return v
	}
	newer := eight(2, 7)
	newer.Slots[2].Newest, newer.Slots[4].Newest, newer.Slots[5].Newest = 9, 9, 8
	newer.Struck = []Struck{{Pods: 6, Generation: 3, Text: "x"}}
	starting := eight(2, 7)
	starting.Slots[7] = Slot{Lacks: "waits for slot 7", Stage: Starting, Since: now.Add(-9 * time.Second)}
	starting.Start = 10 * time.Second
	useless := eight(2, 6, 7)
	useless.Slots[7], useless.Start = starting.Slots[7], starting.Start
	for name, c := range map[string]struct {
		v    View
		want []int
		text string
	}{
		"all":                           {eight(2), []int{0, 1, 2, 3, 4, 5, 6, 7}, ""},
		"one is lost":                   {eight(2, 6), []int{0, 1, 2, 3, 4, 5}, "goes on with 6 of 8 pods: no node for slot 6 (none), 1 waits with its block of 2; another generation"},
		"two of one block":              {eight(2, 2, 3), []int{0, 1, 4, 5, 6, 7}, "goes on with 6 of 8 pods: no node for slot 2 (none), no node for slot 3 (none); another"},
		"two of two blocks":             {eight(2, 1, 4), []int{2, 3, 6, 7}, "2 wait with their blocks of 2"},
		"too few blocks":                {eight(4, 0, 2, 4), nil, "too few pods of whole blocks of 2 are ready (min-pods is 4): waits for slot"},
		"no whole block":                {eight(2, 0, 2, 4, 6), nil, "too few pods of whole blocks of 2 are ready (min-pods is 2)"},
		"the blocks of the newest step": {newer, []int{4, 5, 2, 3}, "no node for slot 7 (none), 1 waits with its block of 2, 2 ready left out, because the script does not start with 6 of 8 pods"},
		"its pod is soon there":         {starting, nil, "waits for slot 7; goes on at"},
		"but not the other one's node":  {useless, []int{0, 1, 2, 3, 4, 5}, "no node for slot 6 (none)"},
	} {
		slices.Sort(c.want)
		if d := Decide(c.v, now); !slices.Equal(d.Form, c.want) || !strings.Contains(d.Why, c.text) || c.text == "" && d.Why != "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestNeverBelowTheMinimum: a generation has at least the minimum, and pods that are ready alone; a wait that time ends does end then.
func TestNeverBelowTheMinimum(t *testing.T) {
	formed, waited := 0, 0
	for seed := range seeds.All(t, int64(20_000)) {
		rng := rand.New(rand.NewSource(seed))
		some := func() time.Duration { return time.Duration(rng.Intn(60)) * time.Second }
		v := View{
			Limits: Limits{Min: 1 + rng.Intn(4)}, Slots: make([]Slot, 1+rng.Intn(6)),
			Since: now.Add(-some()), Cost: some() / 10, Start: some(), Kept: rng.Intn(2) == 0,
		}
		if unit := 1 + rng.Intn(3); unit > 1 {
			v.Unit, v.Min, v.Slots = unit, unit*v.Min, make([]Slot, unit*len(v.Slots))
		}
		for i := range v.Slots {
			if rng.Intn(3) == 0 {
				v.Slots[i] = Slot{Lacks: "waits", Stage: Stage(rng.Intn(3)), Since: now.Add(-some())}
			}
		}
		d := Decide(v, now)
		if d.Waits() {
			waited++
			if !d.Until.IsZero() && (!d.Until.After(now) || slices.Equal(Decide(v, d.Until).Form, nil) && Decide(v, d.Until).Until.Equal(d.Until)) {
				t.Errorf("seed %d: waits until %s, and then again", seed, d.Until.Sub(now))
			}
			continue
		}
		formed++
		unready := slices.ContainsFunc(d.Form, func(i int) bool { return v.Slots[i].Lacks != "" })
		if whole := v.Blocks(len(v.Slots), func(i int) bool { return slices.Contains(d.Form, i) }); !slices.Equal(whole, d.Form) {
			t.Errorf("seed %d: divides a block of %d: %v", seed, v.Unit, d.Form)
		}
		if whole := len(d.Form) == len(v.Slots); unready || !whole && len(d.Form) < v.Min || (d.Why == "") != whole {
			t.Errorf("seed %d: %+v of %+v", seed, d, v)
		}
	}
	if formed < 1000 || waited < 1000 {
		t.Errorf("%d generations and %d waits show too little", formed, waited)
	}
}
