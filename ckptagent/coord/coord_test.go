package coord_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/coord"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

type talk struct {
	client     *coord.Client
	token      string
	directives chan ckptagent.Directive
	lost       chan error
	dismissed  atomic.Bool
	done       chan struct{}
}

func dial(t *testing.T, c *coordtest.Coordinator) *talk {
	t.Helper()
	k := &talk{token: filepath.Join(t.TempDir(), "token"), directives: make(chan ckptagent.Directive, 100), lost: make(chan error, 1000), done: make(chan struct{})}
	write(t, k.token, "one")
	var err error
	k.client, err = coord.New(coord.Options{
		Target: c.Address(), CA: c.CA, TokenFile: k.token, Address: "10.0.0.7",
		Directed: func(d ckptagent.Directive) { k.directives <- d },
		Lost: func(err error) {
			select {
			case k.lost <- err:
			default:
			}
		},
		Dismissed: func() { k.dismissed.Store(true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(k.done)
		k.client.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-k.done })
	return k
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (k *talk) await(t *testing.T, generation uint64) ckptagent.Directive {
	t.Helper()
	for {
		select {
		case d := <-k.directives:
			if d.Generation == generation {
				return d
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("no directive of generation %d within 2 minutes", generation)
		}
	}
}

func TestReportsAndDirectivesKeepTheirMeaning(t *testing.T) {
	c := coordtest.Start(t)
	k := dial(t, c)
	at := time.Unix(100, 5)
	k.client.Update(ckptagent.Report{
		Incarnation: 2, Ranks: 2, Port: 4000, Generation: 7, State: ckptagent.Failed, StateBytes: 9, Notes: []string{"n"}, Refused: "r", Leaving: true,
		Timeline: ckptagent.Timeline{Detected: at}, Storage: true, Grace: 30 * time.Second, CopyTook: 1500 * time.Millisecond,
		Manifested: ckptagent.Mark{Step: 3, Generation: 6}, FetchFailed: ckptagent.Mark{Step: 2, Generation: 5}, Hold: 8,
		Rank: []ckptagent.Rank{
			{PID: 5, Step: 3, Sealed: []uint64{2, 3}, StandbyReady: true, Copied: ckptagent.Copy{Mark: ckptagent.Mark{Step: 3, Generation: 7}, Length: 10, Checksum: 11}},
			{FromStandby: true, Exit: &ckptagent.Exit{Code: 137, Signal: 9, At: at, Traceback: "tb"}},
		},
	})
	r := c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 7 })
	if r.Protocol != 2 || r.Incarnation != 2 || r.Ranks != 2 || r.Address != "10.0.0.7" || r.Port != 4000 || r.State != v1.State_STATE_FAILED || r.StateBytes != 9 ||
		r.Notes[0] != "n" || r.Refused != "r" || !r.Leaving || r.Timeline.Detected != at.UnixNano() || r.Timeline.Started != 0 {
		t.Errorf("report %v", r)
	}
	if a, b := r.Rank[0], r.Rank[1]; a.Pid != 5 || a.Step != 3 || len(a.Sealed) != 2 || !a.StandbyReady || a.Exit != nil || b.LocalRank != 1 || !b.FromStandby ||
		b.Exit.Code != 137 || b.Exit.Signal != 9 || b.Exit.At != at.UnixNano() || b.Exit.Traceback != "tb" {
		t.Errorf("ranks %v", r.Rank)
	}
	if !r.Storage || r.GraceSeconds != 30 || r.CopyMs != 1500 || r.Manifested.GetStep() != 3 || r.Manifested.GetGeneration() != 6 || r.FetchFailed.GetStep() != 2 || r.Hold != 8 {
		t.Errorf("storage in report %v", r)
	}
	if c := r.Rank[0].Copied; c.GetMark().GetGeneration() != 7 || c.GetLength() != 10 || c.GetChecksum() != 11 || r.Rank[1].Copied != nil {
		t.Errorf("copies in report %v", r.Rank)
	}
	since2 := &v1.Directive{Protocol: 2, Generation: 7, Order: v1.Order_ORDER_WAIT, Hold: 9, Copy: &v1.Mark{Step: 8, Generation: 7}, Fetch: &v1.Mark{Step: 6, Generation: 5},
		Manifest: &v1.Manifest{Mark: &v1.Mark{Step: 4, Generation: 3}, Rank: []*v1.ManifestRank{{Length: 1, Checksum: 2}}, Recorded: []*v1.Mark{{Step: 2, Generation: 1}}}}
	c.Direct("one", since2)
	mark := ckptagent.Mark{Step: 4, Generation: 3}
	all := ckptagent.Directive{Generation: 7, Order: ckptagent.OrderWait, Hold: 9, Copy: ckptagent.Mark{Step: 8, Generation: 7}, Fetch: ckptagent.Mark{Step: 6, Generation: 5},
		Manifest: ckptagent.Manifest{Mark: mark, Ranks: []ckptagent.Copy{{Mark: mark, Length: 1, Checksum: 2}}, Recorded: []ckptagent.Mark{{Step: 2, Generation: 1}}}}
	if got := k.await(t, 7); !reflect.DeepEqual(got, all) {
		t.Errorf("directive %+v, want %+v", got, all)
	}
	c.Direct("one", &v1.Directive{Protocol: 1, Generation: 6, Order: v1.Order_ORDER_WAIT, Hold: 9, Copy: since2.Copy, Fetch: since2.Fetch, Manifest: since2.Manifest})
	if got, none := k.await(t, 6), (ckptagent.Directive{Generation: 6, Order: ckptagent.OrderWait}); !reflect.DeepEqual(got, none) {
		t.Errorf("a coordinator of version 1 brought %+v", got)
	}
	c.Direct("one", &v1.Directive{Generation: 8, Order: v1.Order_ORDER_RUN, Common: 3, Frontier: 2, ExitCode: 4, Reason: "why", Run: &v1.Generation{
		Number: 8, WorldSize: 4, BaseRank: 2, NodeRank: 1, Nodes: 2, MasterAddr: "m", MasterPort: 5, RestoreStep: 3, RestartCount: 6,
	}})
	want := ckptagent.Directive{Generation: 8, Order: ckptagent.OrderRun, Common: 3, Frontier: 2, ExitCode: 4, Reason: "why", Run: ckptagent.Run{
		Number: 8, WorldSize: 4, BaseRank: 2, NodeRank: 1, Nodes: 2, MasterAddr: "m", MasterPort: 5, RestoreStep: 3, RestartCount: 6,
	}}
	if got := k.await(t, 8); !reflect.DeepEqual(got, want) {
		t.Errorf("directive %+v, want %+v", got, want)
	}
}

// TestReportsAreCounted: what is new has a higher number, and what is sent again on another connection has the one that it had.
func TestReportsAreCounted(t *testing.T) {
	c := coordtest.Start(t)
	k := dial(t, c)
	k.client.Update(ckptagent.Report{Generation: 1})
	first := c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 1 }).GetSequence()
	k.client.Update(ckptagent.Report{Generation: 2})
	second := c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 2 }).GetSequence()
	c.Forget("one")
	c.Stop()
	<-k.lost
	c.Again(t)
	again := c.Await(t, "one", "came again", func(r *v1.Report) bool { return r.Generation == 2 }).GetSequence()
	if first == 0 || second <= first || again != second {
		t.Errorf("reports are numbered %d, %d and, sent again, %d", first, second, again)
	}
}

func TestAttachesAgainWithTheTokenOfTheDay(t *testing.T) {
	c := coordtest.Start(t)
	c.Deny(codes.Unauthenticated)
	k := dial(t, c)
	<-k.lost
	write(t, k.token, "two")
	c.Deny(codes.OK)
	k.client.Update(ckptagent.Report{Generation: 3})
	c.Await(t, "two", "came with the new token", func(r *v1.Report) bool { return r.Generation == 3 })
	for i := range uint64(3) { // a coordinator that comes and goes
		c.Stop()
		<-k.lost
		k.client.Update(ckptagent.Report{Generation: 10 + i})
		c.Again(t)
		c.Await(t, "two", "came again", func(r *v1.Report) bool { return r.Generation == 10+i })
		c.Direct("two", &v1.Directive{Generation: 20 + i, Order: v1.Order_ORDER_WAIT})
		k.await(t, 20+i)
	}
}

// TestHearsThatItIsDismissed: of that refusal, and of no other.
func TestHearsThatItIsDismissed(t *testing.T) {
	c := coordtest.Start(t)
	c.Deny(codes.PermissionDenied)
	k := dial(t, c)
	<-k.lost
	if k.dismissed.Load() {
		t.Error("a refused token passes for it")
	}
	c.Deny(codes.NotFound)
	for err := range k.lost {
		if status.Code(err) == codes.NotFound {
			break
		}
	}
	if !k.dismissed.Load() {
		t.Error("the refusal of a pod that nobody waits for any more says nothing")
	}
}

func TestFinishDeliversTheLastReport(t *testing.T) {
	c := coordtest.Start(t)
	k := dial(t, c)
	k.client.Update(ckptagent.Report{Generation: 1})
	c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 1 })
	c.Direct("one", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_WAIT})
	k.await(t, 1)
	k.client.Update(ckptagent.Report{Generation: 2, Refused: "why"})
	k.client.Finish()
	<-k.done
	if r := c.Report("one"); r.Generation != 2 || r.Refused != "why" {
		t.Errorf("the last report is %v", r)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, o := range []coord.Options{{Target: "no-port", CA: "x"}, {Target: "a:1", CA: "not PEM"}} {
		if _, err := coord.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
