package rejection

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/seeds"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func names(b *Tracker, now time.Time, nodes int) (all []string) {
	for _, a := range b.Excluded(now, nodes) {
		all = append(all, a.Namespace+"/"+a.Node)
	}
	return all
}

// One rejection may come from a race with another scheduler. Two rejections exclude the node.
func TestTwoRejectionsSetANodeAsideForAWhile(t *testing.T) {
	b, now := &Tracker{}, start
	if b.Reject("a", "ns", "OutOfcpu", now) || len(names(b, now, 10)) > 0 {
		t.Error("one rejection set the node aside")
	}
	now = now.Add(time.Minute)
	if !b.Reject("a", "ns", "UnexpectedAdmissionError", now) {
		t.Error("two did not")
	}
	excluded := b.Excluded(now, 10)
	if want := []Exclusion{{Node: "a", Namespace: "ns", Message: "UnexpectedAdmissionError", Times: 1, Until: now.Add(time.Minute)}}; !slices.Equal(excluded, want) {
		t.Errorf("%+v, want %+v", excluded, want)
	}
	if now = now.Add(time.Minute); len(names(b, now, 10)) > 0 {
		t.Error("it does not come back")
	}
	if !b.Reject("a", "ns", "OutOfcpu", now) { // on probation
		t.Error("one more did not set it aside again")
	}
	if excluded := b.Excluded(now, 10); len(excluded) != 1 || excluded[0].Until != now.Add(2*time.Minute) {
		t.Errorf("%+v", excluded)
	}
}

func TestRejectionsLongAgoDoNotCount(t *testing.T) {
	b := &Tracker{}
	b.Reject("a", "ns", "x", start)
	if b.Reject("a", "ns", "x", start.Add(window)) {
		t.Error("two rejections, long apart, set the node aside")
	}
}

func TestAStartClears(t *testing.T) {
	b, now := &Tracker{}, start
	b.Reject("a", "ns", "x", now)
	b.Reject("a", "ns", "x", now)
	if !b.NoteStarted("a", "ns", now) || len(names(b, now, 10)) > 0 {
		t.Error("a pod that started did not clear the node")
	}
	if b.Reject("a", "ns", "x", now) {
		t.Error("after it one rejection sets the node aside")
	}
	if b.NoteStarted("unknown", "ns", now) {
		t.Error("an unknown node was cleared")
	}
}

func TestThePauseDoublesUpToAnEnd(t *testing.T) {
	b, now := &Tracker{}, start
	b.Reject("a", "ns", "x", now)
	var pauses []time.Duration
	for range 8 {
		if !b.Reject("a", "ns", "x", now) {
			t.Fatal("not set aside")
		}
		excluded := b.Excluded(now, 10)
		pauses = append(pauses, excluded[0].Until.Sub(now))
		now = excluded[0].Until
	}
	if got := fmt.Sprint(pauses); got != "[1m0s 2m0s 4m0s 8m0s 16m0s 30m0s 30m0s 30m0s]" {
		t.Error(got)
	}
}

// If an image, a webhook or the API server is broken, every node seems to reject pods.
func TestNotAllNodesAtOnce(t *testing.T) {
	for _, namespaces := range [][]string{{"x"}, {"x", "y"}} {
		b := &Tracker{}
		for i := range 4 {
			for n := range 2 {
				b.Reject(fmt.Sprint("n", i), namespaces[n%len(namespaces)], "x", start)
			}
		}
		if excluded := b.Excluded(start, 15); len(excluded) > 0 {
			t.Errorf("4 of 15: %v", excluded)
		}
		if excluded := b.Excluded(start, 16); len(excluded) != 4 {
			t.Errorf("4 of 16: %v", excluded)
		}
	}
}

// Exclusions are recorded together with decisions, so their order must always be the same.
func TestExcludedAreInOrder(t *testing.T) {
	b := &Tracker{}
	for _, node := range []string{"n3", "n1", "n2"} {
		for _, namespace := range []string{"y", "x"} {
			b.Reject(node, namespace, "x", start)
			b.NoteStarted(node, everybody, start) // a pod of this namespace started, so the exclusion for all ends
			b.Reject(node, namespace, "x", start)
		}
	}
	want := []string{"x/n1", "y/n1", "x/n2", "y/n2", "x/n3", "y/n3"}
	for range 20 { // a map has another order each time
		if got := names(b, start, 100); !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

// A user who can create pods only in one namespace cannot exclude a node for other namespaces.
func TestOneNamespaceSetsNothingAsideForOthers(t *testing.T) {
	b, now := &Tracker{}, start
	for range 50 {
		b.Reject("a", "hostile", "UnexpectedAdmissionError", now)
		for _, a := range b.Excluded(now, 10) {
			if a.Namespace != "hostile" {
				t.Fatalf("%+v at %v", a, now)
			}
		}
		now = now.Add(time.Minute)
	}
	if !b.Reject("a", "other", "UnexpectedAdmissionError", now) || !slices.Contains(names(b, now, 10), "/a") {
		t.Errorf("pods of two namespaces were rejected: %v", b.Excluded(now, 10))
	}
	if !b.NoteStarted("a", "other", now) || slices.Contains(names(b, now, 10), "/a") {
		t.Errorf("after a start the node is still set aside for all: %v", b.Excluded(now, 10))
	}
	// After an exclusion for all, one further rejection is not enough: two namespaces must reject again.
	b.Reject("a", "other", "x", now)
	b.Reject("a", "hostile", "x", now)
	now = now.Add(window)
	for range 20 {
		b.Reject("a", "hostile", "x", now)
		if slices.Contains(names(b, now, 10), "/a") {
			t.Fatalf("set aside for all by one namespace at %v", now)
		}
		now = now.Add(time.Minute)
	}
	if n := len(b.entries); n > 3 {
		t.Errorf("%d entries of one node and two namespaces", n)
	}
}

// Rules that hold in random histories: no node is excluded for longer than longestPause. Each exclusion ends without an event. A node that
// has started a namespace's pod since its last rejection is not excluded for that namespace. For no namespace more nodes are excluded than
// the share allows.
func TestBookKeepsItsPromises(t *testing.T) {
	for seed := range seeds.All(t, int64(300)) {
		rng := rand.New(rand.NewSource(seed))
		b, now, nodes := &Tracker{}, start, 3+rng.Intn(20)
		clean := map[string]bool{}
		for range 200 {
			node, namespace := fmt.Sprint("n", rng.Intn(nodes)), fmt.Sprint("ns", rng.Intn(2))
			switch rng.Intn(3) {
			case 0:
				b.NoteStarted(node, namespace, now)
				clean[namespace+"/"+node], clean["/"+node] = true, true
			default:
				b.Reject(node, namespace, "x", now)
				clean[namespace+"/"+node], clean["/"+node] = false, false
			}
			lacks := map[string]int{}
			for _, a := range b.Excluded(now, nodes) {
				lacks[a.Namespace]++
				if clean[a.Namespace+"/"+a.Node] || a.Until.Sub(now) > longestPause || !a.Until.After(now) {
					t.Fatalf("seed %d: %+v at %v, started since: %v", seed, a, now, clean[a.Namespace+"/"+a.Node])
				}
			}
			for namespace, n := range lacks {
				if namespace != everybody {
					n += lacks[everybody]
				}
				if n > max(alwaysExcludable, nodes/excludableShare) {
					t.Fatalf("seed %d: %d of %d set aside for %q", seed, n, nodes, namespace)
				}
			}
			if left := b.Excluded(now.Add(longestPause), nodes); len(left) > 0 {
				t.Fatalf("seed %d: %v does not come back", seed, left)
			}
			now = now.Add(time.Duration(rng.Intn(120)) * time.Second)
		}
	}
}

// TestWhatIsKeptIsBounded: of the rejections of one node only those that count are stored. Of nodes that are gone, or that rejected no pod
// recently, none is stored.
func TestWhatIsKeptIsBounded(t *testing.T) {
	b := &Tracker{}
	for range 100 {
		b.Reject("a", "ns", "x", start)
		b.Reject("a", "other", "x", start)
	}
	for at, e := range b.entries {
		if len(e.recent) > strikes {
			t.Errorf("%v keeps %d rejections", at, len(e.recent))
		}
	}
	b.Reject("b", "ns", "x", start.Add(forgetAfter-1))
	if len(b.entries) != 5 {
		t.Errorf("%d entries, want those of a (two namespaces and everybody's) and b (one and everybody's)", len(b.entries))
	}
	b.Reject("b", "ns", "x", start.Add(forgetAfter))
	if len(b.entries) != 2 {
		t.Errorf("%d entries, want those of b alone: a has been quiet for %s", len(b.entries), forgetAfter)
	}
	b.Forget("a")
	if len(b.entries) != 2 {
		t.Errorf("%d entries after another node was forgotten", len(b.entries))
	}
	if b.Forget("b"); len(b.entries) != 0 {
		t.Errorf("%d entries of nodes that are no more", len(b.entries))
	}
}

// TestANodeIsListedOnce: a node that is excluded for all is not also listed for a namespace.
func TestANodeIsListedOnce(t *testing.T) {
	b := &Tracker{}
	for range 2 {
		b.Reject("a", "ns", "x", start)
		b.Reject("a", "other", "x", start)
		b.Reject("b", "ns", "x", start)
	}
	if got, want := names(b, start, 100), []string{"/a", "ns/b"}; !slices.Equal(got, want) {
		t.Errorf("%q are excluded, want %q", got, want)
	}
}
