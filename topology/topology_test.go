package topology

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
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
		{Resources{"gpu": 2}, 2, nil},
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

// Property: whatever was tried, Undo gives back exactly that, and Take never goes below zero.
func TestTryAndUndo(t *testing.T) {
	for seed := range int64(200) {
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

func TestSetWhileTakenPanics(t *testing.T) {
	tree := New(nil, Node{Name: "n", Free: Resources{"gpu": 1}})
	tree.Take(0, Resources{"gpu": 1})
	defer func() {
		if recover() == nil {
			t.Error("Set while something is taken did not panic: Undo would give back to the wrong node")
		}
	}()
	tree.Set(Node{Name: "m"})
}
