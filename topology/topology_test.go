package topology

import (
	"cmp"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
)

func TestOrderIsByDomainThenName(t *testing.T) {
	tree := New([]Level{{"zone", "z"}, {"rack", "r"}},
		Node{Name: "c", Domain: []string{"z1", "r1"}},
		Node{Name: "a", Domain: []string{"z1", "r2"}},
		Node{Name: "d"},
		Node{Name: "b", Domain: []string{"z1", "r1"}},
	)
	tree.Set(Node{Name: "e", Domain: []string{"z1", "r1"}})
	tree.Set(Node{Name: "b", Domain: []string{"z0"}})
	tree.Remove("unknown")
	var got []string
	for i := range tree.All() {
		got = append(got, tree.Name(i))
		if at, ok := tree.Find(tree.Name(i)); !ok || at != i {
			t.Errorf("Find(%q) = %d, %v; want %d", tree.Name(i), at, ok, i)
		}
	}
	if want := []string{"d", "b", "c", "e", "a"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	for a, one := range slices.Collect(tree.All()) { // All yields the nodes in that order
		for b, other := range slices.Collect(tree.All()) {
			if got := tree.Compare(one, other); got != cmp.Compare(a, b) {
				t.Errorf("%s compared with %s: %d", tree.Name(one), tree.Name(other), got)
			}
		}
	}
}

func TestFindLevel(t *testing.T) {
	tree := New([]Level{{"zone", "z"}, {"rack", "r"}})
	for name, want := range map[string]int{"zone": 0, "z": 0, "rack": 1, "r": 1} {
		if got, ok := tree.FindLevel(name); !ok || got != want {
			t.Errorf("%s: level %d, %v; want %d", name, got, ok, want)
		}
	}
	if got, ok := tree.FindLevel("row"); ok {
		t.Errorf("a level that there is not: %d", got)
	}
}

func TestRoomAndLacks(t *testing.T) {
	tree := New(nil, Node{Name: "n", Free: Resources{"cpu": 4000, "gpu": 5, "gone": -3}})
	for _, tc := range []struct {
		r     Resources
		room  int
		lacks []string
	}{
		{nil, 9, nil},
		{Resources{"gpu": 0}, 9, nil},
		{Resources{"gone": 0}, 9, nil},
		{Resources{"gpu": -1}, 9, nil},
		{Resources{"gpu": 2}, 2, nil},
		{Resources{"gpu": 5}, 1, nil},
		{Resources{"gpu": 2, "cpu": 3000}, 1, nil},
		{Resources{"gpu": 8, "cpu": 5000}, 0, []string{"cpu", "gpu"}},
		{Resources{"other": 1}, 0, []string{"other"}},
		{Resources{"gone": 1}, 0, []string{"gone"}},
	} {
		if room := tree.Room(0, tc.r, 9); room != tc.room {
			t.Errorf("Room(%v) = %d, want %d", tc.r, room, tc.room)
		}
		if lacks := tree.Lacks(0, tc.r); !slices.Equal(lacks, tc.lacks) {
			t.Errorf("Lacks(%v) = %v, want %v", tc.r, lacks, tc.lacks)
		}
	}
}

// After any trials Undo reverts exactly these, and Take never makes a node negative.
func TestTryAndUndo(t *testing.T) {
	for seed := range seeds.All(t, int64(200)) {
		rng := rand.New(rand.NewSource(seed))
		var nodes []Node
		for i := range 1 + rng.Intn(5) {
			nodes = append(nodes, Node{Name: fmt.Sprint("n", i), Free: Resources{"gpu": int64(rng.Intn(9)), "cpu": int64(rng.Intn(9))}})
		}
		tree := New(nil, nodes...)
		before := counts(tree)
		mark := tree.Mark()
		tries(t, rng, tree, 3)
		tree.Undo(mark)
		if after := counts(tree); !reflect.DeepEqual(before, after) {
			t.Fatalf("seed %d: free counts %v, want %v as before", seed, after, before)
		}
	}
}

func tries(t *testing.T, rng *rand.Rand, tree *Tree, depth int) {
	t.Helper()
	for range rng.Intn(6) {
		i, r := rng.Intn(tree.Len()), Resources{"gpu": int64(rng.Intn(4)), "cpu": int64(rng.Intn(4))}
		fits := tree.Room(i, r, 1) == 1
		if took := tree.Take(i, r); took != fits {
			t.Fatalf("Take(%v) = %v where Room says %v", r, took, fits)
		}
		if tree.Free(i, "gpu") < 0 || tree.Free(i, "cpu") < 0 {
			t.Fatalf("node %s is below zero", tree.Name(i))
		}
		if depth > 0 && rng.Intn(3) == 0 {
			inner, before := tree.Mark(), counts(tree)
			tries(t, rng, tree, depth-1)
			tree.Undo(inner)
			if !reflect.DeepEqual(before, counts(tree)) {
				t.Fatal("an inner Undo did not return to its mark")
			}
		}
	}
}

func counts(tree *Tree) map[string]int64 {
	all := map[string]int64{}
	for i := range tree.Len() {
		for _, r := range []string{"gpu", "cpu"} {
			all[tree.Name(i)+"/"+r] = tree.Free(i, r)
		}
	}
	return all
}

// TestChangedWhileTakenPanics: changing a node during a trial panics, because Undo would change the wrong node, or release too much.
func TestChangedWhileTakenPanics(t *testing.T) {
	for name, change := range map[string]func(*Tree){
		"a new node":        func(tree *Tree) { tree.Set(Node{Name: "m"}) },
		"the node replaced": func(tree *Tree) { tree.Set(Node{Name: "n"}) },
		"the node removed":  func(tree *Tree) { tree.Remove("n") },
	} {
		t.Run(name, func(t *testing.T) {
			tree := New(nil, Node{Name: "n", Free: Resources{"gpu": 1}})
			tree.Take(0, Resources{"gpu": 1})
			defer func() {
				if recover() == nil {
					t.Error("it did not panic")
				}
			}()
			change(tree)
		})
	}
}

// TestAssume: an assumed pod counts as present: its devices, a tenant, the whole node, the larger promise of spares. Undo reverts all of
// it.
func TestAssume(t *testing.T) {
	type seen struct {
		free                     int64
		tenants, spares          int
		at                       string
		used, exclusive, claimed bool
	}
	tree := New(nil, Node{Name: "n", Free: Resources{"gpu": 8}, Spares: 2, SparesAt: "rack"}, Node{Name: "other"})
	look := func() seen {
		spares, at := tree.Promised(0)
		if tree.Used(0) == tree.Whole(Root) {
			t.Errorf("the node is used: %v, and all nodes are whole: %v", tree.Used(0), tree.Whole(Root))
		}
		return seen{tree.Free(0, "gpu"), tree.Tenants(0), spares, at, tree.Used(0), tree.Exclusive(0), tree.Claimed(Root)}
	}
	before := look()
	var marks []Mark
	var saw []seen
	for _, step := range []struct {
		usage Usage
		want  seen
	}{
		{Usage{Resources: Resources{"gpu": 1}}, seen{7, 0, 2, "rack", false, false, true}},
		{Usage{Resources: Resources{"gpu": -1}}, seen{7, 0, 2, "rack", false, false, true}},
		{Usage{Resources: Resources{"gpu": 1}, Tenant: true, Spares: 2, SparesAt: "zone"}, seen{6, 1, 2, "rack", true, false, true}},
		{Usage{Tenant: true, Exclusive: true, Spares: 3, SparesAt: "zone"}, seen{6, 2, 3, "zone", true, true, true}},
		{Usage{Resources: Resources{"gpu": 2}, Spares: 1, SparesAt: "rack"}, seen{4, 2, 3, "zone", true, true, true}},
	} {
		marks, saw = append(marks, tree.Mark()), append(saw, look())
		tree.Assume(0, step.usage)
		if got := look(); got != step.want {
			t.Errorf("%+v: %+v, want %+v", step.usage, got, step.want)
		}
	}
	for i := len(marks) - 1; i >= 0; i-- {
		if tree.Undo(marks[i]); look() != saw[i] {
			t.Errorf("undone to %d: %+v, want %+v", i, look(), saw[i])
		}
	}
	tree.Set(Node{Name: "n", Free: Resources{"gpu": 8}})
	tree.Assume(0, Usage{Spares: 1, SparesAt: "rack"})
	claimed := tree.Claimed(Root)
	if tree.Undo(0); !claimed || tree.Claimed(Root) {
		t.Errorf("claimed %v with spares promised, %v without; before all %+v", claimed, tree.Claimed(Root), before)
	}
}

// TestReplacedWhole: a resource that a node no longer has is not free on it.
func TestReplacedWhole(t *testing.T) {
	tree := New(nil, Node{Name: "n", Free: Resources{"gpu": 8}})
	tree.Set(Node{Name: "n", Free: Resources{"cpu": 1}})
	if gpus, cpus := tree.Free(0, "gpu"), tree.Free(0, "cpu"); gpus != 0 || cpus != 1 {
		t.Errorf("%d GPUs and %d of cpu are free", gpus, cpus)
	}
}

// TestNumbersAreUsedAgain: the numbers of removed nodes and domains are used again.
func TestNumbersAreUsedAgain(t *testing.T) {
	tree := New([]Level{{"zone", "z"}, {"rack", "r"}})
	for i := range 10 {
		name := fmt.Sprint(i)
		tree.Set(Node{Name: name, Domain: []string{"z" + name, "r" + name}})
		if at, _ := tree.Find(name); at != 0 || tree.Cap() != 1 || len(tree.domains) != 3 {
			t.Fatalf("node %d has number %d of %d, and %d domains are kept", i, at, tree.Cap(), len(tree.domains))
		}
		tree.Remove(name)
	}
	if tree.Len() != 0 || tree.Size(Root) != 0 {
		t.Errorf("%d nodes are left", tree.Len())
	}
}

// TestIndexFits: the scarcest of a shape's resources decides how many pods fit. None fits if a pod uses the whole node, or if the shape
// requires whole nodes and a pod is there.
func TestIndexFits(t *testing.T) {
	free := Resources{"gpu": 5, "cpu": 4}
	for _, tc := range []struct {
		node  Node
		shape Shape
		want  int32
	}{
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 2}}, 2},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 3}}, 1},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 5}}, 1},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 6}}, 0},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 1, "cpu": 1}}, 4},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 1, "cpu": 2}}, 2},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 1, "cpu": 3}}, 1},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 4, "cpu": 1}}, 1},
		{Node{Free: free, Tenants: 1}, Shape{Requests: Resources{"gpu": 1}}, 5},
		{Node{Free: free, Tenants: 1}, Shape{Requests: Resources{"gpu": 1}, Whole: true}, 0},
		{Node{Free: free}, Shape{Requests: Resources{"gpu": 1}, Whole: true}, 5},
		{Node{Free: free, Exclusive: true}, Shape{Requests: Resources{"gpu": 1}}, 0},
	} {
		tc.node.Name = "n"
		tree := New(nil, tc.node)
		if x := tree.Index(tc.shape); x.Room[0] != tc.want || x.Places[Root] != tc.want || x.Open[Root] != min(tc.want, 1) {
			t.Errorf("%+v on %+v: room %v, places %v, open %v; want %d", tc.shape, tc.node, x.Room, x.Places, x.Open, tc.want)
		}
	}
}

// TestIndexesAreKeptApart has more shapes than are stored, each used again and again in turn, and the same numbers for another resource.
func TestIndexesAreKeptApart(t *testing.T) {
	tree := New(nil, Node{Name: "n", Free: Resources{"gpu": 64, "cpu": 32}})
	for range 3 {
		for amount := int64(1); amount <= keptIndexes+3; amount++ {
			for resource, free := range map[string]int64{"gpu": 64, "cpu": 32} {
				s := Shape{Requests: Resources{resource: amount}}
				if got, again := tree.Index(s).Places[Root], tree.Index(s).Places[Root]; int64(got) != free/amount || again != got {
					t.Fatalf("%d of %s: %d places, then %d; want %d", amount, resource, got, again, free/amount)
				}
			}
		}
	}
}

// TestIndexesOfAlikeShapes: shapes that differ in an amount, or in Whole, have separate indexes.
func TestIndexesOfAlikeShapes(t *testing.T) {
	const most = int64(1) << 48
	tree := New(nil, Node{Name: "n", Free: Resources{"memory": most}, Tenants: 1})
	for amount := most; amount >= most/maxRoom; amount /= 2 {
		s := Shape{Requests: Resources{"memory": amount}}
		if got := tree.Index(s).Room[0]; int64(got) != most/amount {
			t.Errorf("%d of %d: room for %d, want %d", amount, most, got, most/amount)
		}
		if s.Whole = true; tree.Index(s).Room[0] != 0 {
			t.Errorf("%d of %d: room for one that wants the node alone, beside a tenant", amount, most)
		}
	}
	for _, amount := range []int64{1, 1 << 8, 1 << 16, 1 << 24, 1 << 32, 1 << 40, most} {
		if got := tree.Index(Shape{Requests: Resources{"memory": amount}}).Room[0]; int64(got) != min(most/amount, maxRoom) {
			t.Errorf("%d of %d: room for %d", amount, most, got)
		}
	}
}

// TestIndexesAreKept: the shapes used last are not counted again, in whatever order their resources are listed.
func TestIndexesAreKept(t *testing.T) {
	tree := New(nil, Node{Name: "n", Free: Resources{"gpu": 64, "cpu": 64}})
	ask := func(gpus int) *Index {
		return tree.Index(Shape{Requests: Resources{"gpu": int64(1 + gpus), "cpu": 1, "memory": 1}})
	}
	kept := map[int]*Index{}
	for i := range keptIndexes {
		kept[i] = ask(i)
	}
	for range 10 { // the first shape is used again before another one
		if again := ask(0); again != kept[0] {
			t.Fatal("a shape that was kept was counted anew")
		}
	}
	ask(keptIndexes)
	for i := range keptIndexes {
		if i != 1 && ask(i) != kept[i] {
			t.Errorf("shape %d was counted anew", i)
		}
	}
	if ask(1) == kept[1] {
		t.Error("more shapes are kept than may be")
	}
}

// TestDomains: the domains of a level are listed in order, nodes without the level's label apart from them, with their names.
func TestDomains(t *testing.T) {
	tree := New(
		[]Level{{"zone", "z"}, {"rack", "r"}},
		Node{
			Name:   "c",
			Domain: []string{"b", "1"},
		},
		Node{Name: "a", Domain: []string{"a", "2"}},
		Node{Name: "b", Domain: []string{"a", ""}, Exclusive: true},
		Node{Name: "d", Domain: []string{"", ""}},
	)
	paths := func(domains []int) (all []string) {
		for _, d := range domains {
			all = append(all, fmt.Sprint(tree.Path(d), tree.Size(d), tree.Named(d), tree.Claimed(d)))
		}
		return all
	}
	for name, tc := range map[string]struct{ got, want []string }{
		"root":          {paths(tree.Domains(-1)), []string{"4 true true"}},
		"zones":         {paths(tree.Domains(0)), []string{"a2 true true", "b1 true false"}},
		"racks":         {paths(tree.Domains(1)), []string{"a/21 true false", "b/11 true false"}},
		"without zones": {paths(tree.Unnamed(0)), []string{"1 false false"}},
		"without racks": {paths(tree.Unnamed(1)), []string{"1 false false", "a1 false true"}},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: %q, want %q", name, tc.got, tc.want)
		}
	}
}
