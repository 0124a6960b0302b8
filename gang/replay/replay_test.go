package replay

import (
	"bytes"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/topology"
)

const gpu = "nvidia.com/gpu"

// record is a decision about a random gang on random nodes, as the scheduler's plugin would keep it.
func record(r *rand.Rand, delicate bool) Record {
	rec := Record{Version: Version, At: time.Unix(1, 0).UTC(), Name: "ns/g", Levels: []topology.Level{{Name: "rack", Key: "rack"}}}
	for i := range 4 + r.Intn(8) {
		rec.Nodes = append(rec.Nodes, topology.Node{Name: fmt.Sprintf("n%02d", i), Domain: []string{fmt.Sprint("r", i%3)}, Free: topology.Resources{gpu: int64(r.Intn(9)), "pods": 10}})
	}
	rec.Taken = append(rec.Taken, topology.Assumed{Node: "n00", Usage: topology.Usage{Resources: topology.Resources{gpu: 1}, Tenant: true, Exclusive: r.Intn(4) == 0}})
	g := gang.Gang{Size: 1 + r.Intn(6), Roles: []gang.Role{{Requests: topology.Resources{gpu: 4, "pods": 1}, Out: map[string]gang.Cause{"n01": {Kind: gang.Cordoned}}}}}
	for i := range g.Size {
		g.Members = append(g.Members, gang.Member{Slot: i, Name: fmt.Sprint("g-", i)})
	}
	if delicate {
		g.Agree = func(_ int, node string, assignments []gang.Assignment) (gang.Cause, bool) {
			for _, s := range assignments {
				if s.Node == node {
					return gang.Cause{Kind: gang.Refused, Name: "InterPodAffinity"}, false
				}
			}
			return gang.Cause{}, true
		}
	}
	rec.Gang = Of(g)
	rec.Listen(&g)
	tree := topology.New(rec.Levels, rec.Nodes...)
	for _, t := range rec.Taken {
		i, _ := tree.Find(t.Node)
		tree.Assume(i, t.Usage)
	}
	rec.Answer = AnswerOf(gang.Place(tree, g))
	return rec
}

// A decision that went through a file comes out the same.
func TestTheSameAnswer(t *testing.T) {
	answers := map[bool]int{}
	for seed := range seeds.All(t, int64(400)) {
		want := record(rand.New(rand.NewSource(seed)), seed%2 == 1)
		var file bytes.Buffer
		if err := want.Write(&file); err != nil {
			t.Fatal(err)
		}
		have, err := Read(&file)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Run(have)
		if err != nil {
			t.Fatal(err)
		}
		if d := want.Answer.Differences(again); len(d) > 0 {
			t.Fatalf("record %d: %s", seed, strings.Join(d, "\n"))
		}
		answers[again.Placed]++
	}
	if !seeds.One() && (answers[true] < 40 || answers[false] < 40) {
		t.Errorf("answers were %v: this test sees one kind only", answers)
	}
}

func TestAChangedRecordIsSeen(t *testing.T) {
	placed := 0
	for seed := range seeds.All(t, int64(40)) {
		rec := record(rand.New(rand.NewSource(seed)), false)
		if !rec.Answer.Placed {
			continue
		}
		placed++
		rec.Nodes = rec.Nodes[:0:0]
		rec.Taken = nil
		again, err := Run(rec)
		if err != nil {
			t.Fatal(err)
		}
		if len(rec.Answer.Differences(again)) == 0 {
			t.Fatal("the same answer without any node")
		}
	}
	if placed == 0 && !seeds.One() {
		t.Error("no gang was placed: this test saw nothing")
	}
}

func TestBadRecords(t *testing.T) {
	if _, err := Read(strings.NewReader(`{"version":1,"colour":"blue"}`)); err == nil {
		t.Error("an unknown field is taken")
	}
	if _, err := Run(Record{Version: 9}); err == nil || !strings.Contains(err.Error(), "version 9") {
		t.Error(err)
	}
	if _, err := Run(Record{Version: Version, Taken: []topology.Assumed{{Node: "x"}}}); err == nil || !strings.Contains(err.Error(), "node x") {
		t.Error(err)
	}
}

// A large gang with a rule among its members takes room by its answers alone, not by who stood there at each of them.
func TestALargeGangWithRulesTakesLittleRoom(t *testing.T) {
	rec := Record{Version: Version, Name: "ns/g", Levels: []topology.Level{{Name: "rack", Key: "rack"}}}
	for i := range 600 {
		rec.Nodes = append(rec.Nodes, topology.Node{Name: fmt.Sprintf("n%03d", i), Domain: []string{fmt.Sprint("r", i/20)}, Free: topology.Resources{gpu: 8}})
	}
	g := gang.Gang{Size: 300, Roles: []gang.Role{{Requests: topology.Resources{gpu: 1}}}, Agree: func(_ int, node string, assignments []gang.Assignment) (gang.Cause, bool) {
		for _, s := range assignments {
			if s.Node == node {
				return gang.Cause{Kind: gang.Refused, Name: "InterPodAffinity"}, false
			}
		}
		return gang.Cause{}, true
	}}
	for i := range g.Size {
		g.Members = append(g.Members, gang.Member{Slot: i, Name: fmt.Sprint("g-", i)})
	}
	rec.Gang = Of(g)
	rec.Listen(&g)
	rec.Answer = AnswerOf(gang.Place(topology.New(rec.Levels, rec.Nodes...), g))
	var file bytes.Buffer
	if err := rec.Write(&file); err != nil {
		t.Fatal(err)
	}
	if per := file.Len() / (len(rec.Agreed) + len(rec.Nodes) + g.Size); per > 200 || rec.Full() || !rec.Answer.Placed {
		t.Errorf("%d answers, placed %v, %d bytes for each", len(rec.Agreed), rec.Answer.Placed, per)
	}
	again, err := Run(rec)
	if err != nil || len(rec.Answer.Differences(again)) > 0 {
		t.Errorf("%v, %v", err, rec.Answer.Differences(again))
	}
}

// Beyond the limit nobody is asked any more, and the record says so.
func TestARecordEndsSomewhere(t *testing.T) {
	mostAgreed = 5
	defer func() { mostAgreed = maxAgreed }()
	rec, asked := Record{}, 0
	g := gang.Gang{Members: make([]gang.Member, 2), Agree: func(int, string, []gang.Assignment) (gang.Cause, bool) { asked++; return gang.Cause{}, true }}
	rec.Listen(&g)
	for i := range 20 {
		g.Agree(0, fmt.Sprint("n", i), nil)
	}
	if !rec.Full() || asked != 5 {
		t.Errorf("asked %d times, full: %v", asked, rec.Full())
	}
}

// A field that gang.Gang gets must be recorded, too.
func TestNothingOfAGangIsLeftOut(t *testing.T) {
	whole, kept := reflect.TypeFor[gang.Gang](), reflect.TypeFor[Gang]()
	for i := range whole.NumField() {
		f := whole.Field(i)
		if f.Name == "Agree" {
			continue
		}
		if k, ok := kept.FieldByName(f.Name); !ok || k.Type != f.Type {
			t.Errorf("field %s of gang.Gang is not recorded", f.Name)
		}
	}
}
