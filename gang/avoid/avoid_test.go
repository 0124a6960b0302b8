package avoid

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func names(b *Book, now time.Time, nodes int) (all []string) {
	aside, _ := b.Set(now, nodes)
	for _, a := range aside {
		all = append(all, a.Node)
	}
	return all
}

// One rejection may be a race with another scheduler. Two are the node.
func TestTwoRejectionsSetANodeAsideForAWhile(t *testing.T) {
	b, now := &Book{}, start
	if b.Reject("a", "OutOfcpu", now) || len(names(b, now, 10)) > 0 {
		t.Error("one rejection set the node aside")
	}
	now = now.Add(time.Minute)
	if !b.Reject("a", "UnexpectedAdmissionError", now) {
		t.Error("two did not")
	}
	aside, none := b.Set(now, 10)
	if want := []Aside{{Node: "a", Said: "UnexpectedAdmissionError", Times: 1, Until: now.Add(time.Minute)}}; none || !slices.Equal(aside, want) {
		t.Errorf("%+v, want %+v", aside, want)
	}
	if now = now.Add(time.Minute); len(names(b, now, 10)) > 0 {
		t.Error("it does not come back")
	}
	if !b.Reject("a", "OutOfcpu", now) { // on probation
		t.Error("one more did not set it aside again")
	}
	if aside, _ := b.Set(now, 10); len(aside) != 1 || aside[0].Until != now.Add(2*time.Minute) {
		t.Errorf("%+v", aside)
	}
}

func TestRejectionsLongAgoDoNotCount(t *testing.T) {
	b := &Book{}
	b.Reject("a", "x", start)
	if b.Reject("a", "x", start.Add(window)) {
		t.Error("two rejections, long apart, set the node aside")
	}
}

func TestAStartClears(t *testing.T) {
	b, now := &Book{}, start
	b.Reject("a", "x", now)
	b.Reject("a", "x", now)
	if !b.Start("a", now) || len(names(b, now, 10)) > 0 {
		t.Error("a pod that started did not clear the node")
	}
	if b.Reject("a", "x", now) {
		t.Error("after it one rejection sets the node aside")
	}
	if b.Start("unknown", now) {
		t.Error("an unknown node was cleared")
	}
}

func TestThePauseDoublesUpToAnEnd(t *testing.T) {
	b, now := &Book{}, start
	b.Reject("a", "x", now)
	var pauses []time.Duration
	for range 8 {
		if !b.Reject("a", "x", now) {
			t.Fatal("not set aside")
		}
		aside, _ := b.Set(now, 10)
		pauses = append(pauses, aside[0].Until.Sub(now))
		now = aside[0].Until
	}
	if got := fmt.Sprint(pauses); got != "[1m0s 2m0s 4m0s 8m0s 16m0s 30m0s 30m0s 30m0s]" {
		t.Error(got)
	}
}

// Where an image, a webhook or the API server is broken, every node seems to reject.
func TestNotAllNodesAtOnce(t *testing.T) {
	b := &Book{}
	for i := range 4 {
		for range 2 {
			b.Reject(fmt.Sprint("n", i), "x", start)
		}
	}
	if aside, none := b.Set(start, 15); len(aside) > 0 || !none {
		t.Errorf("4 of 15: %v %v", aside, none)
	}
	if aside, none := b.Set(start, 16); len(aside) != 4 || none {
		t.Errorf("4 of 16: %v %v", aside, none)
	}
}

// Invariants over random histories: nobody is set aside for longer than longest, everybody comes back without any
// event, a node that started a pod since its last rejection is not set aside, and no more are than the share allows.
func TestBookKeepsItsPromises(t *testing.T) {
	for seed := range int64(300) {
		rng := rand.New(rand.NewSource(seed))
		b, now, nodes := &Book{}, start, 3+rng.Intn(20)
		clean := map[string]bool{}
		for range 200 {
			node := fmt.Sprint("n", rng.Intn(nodes))
			switch rng.Intn(3) {
			case 0:
				b.Start(node, now)
				clean[node] = true
			default:
				b.Reject(node, "x", now)
				clean[node] = false
			}
			aside, _ := b.Set(now, nodes)
			if len(aside) > max(few, nodes/share) {
				t.Fatalf("seed %d: %d of %d set aside", seed, len(aside), nodes)
			}
			for _, a := range aside {
				if clean[a.Node] || a.Until.Sub(now) > longest || !a.Until.After(now) {
					t.Fatalf("seed %d: %+v at %v, started since: %v", seed, a, now, clean[a.Node])
				}
			}
			if left, _ := b.Set(now.Add(longest), nodes); len(left) > 0 {
				t.Fatalf("seed %d: %v does not come back", seed, left)
			}
			now = now.Add(time.Duration(rng.Intn(120)) * time.Second)
		}
	}
}
