package coord_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

type talk struct {
	client     *coord.Client
	token      string
	directives chan protocol.Directive
	lost       chan error
	dismissed  atomic.Bool
	done       chan struct{}
}

func dial(t *testing.T, c *coordtest.Coordinator, change ...func(*coord.Options)) *talk {
	t.Helper()
	k := &talk{
		token:      filepath.Join(t.TempDir(), "token"),
		directives: make(chan protocol.Directive, 100),
		lost:       make(chan error, 1000),
		done:       make(chan struct{}),
	}
	write(t, k.token, "one")
	o := coord.Options{
		Target: c.Address(), CA: c.CA, TokenFile: k.token, Address: "10.0.0.7",
		Directed: func(d protocol.Directive) { k.directives <- d },
		Disconnected: func(err error) {
			select {
			case k.lost <- err:
			default:
			}
		},
		DetachedFromJob: func() { k.dismissed.Store(true) },
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if k.client, err = coord.New(o); err != nil {
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

func (k *talk) await(t *testing.T, generation int64) protocol.Directive {
	t.Helper()
	for {
		select {
		case d := <-k.directives:
			if d.Generation == generation {
				return d
			}
		case <-time.After(eventually.Timeout):
			t.Fatalf("no directive of generation %d", generation)
		}
	}
}

// TestReportsAndDirectivesArrive: reports and directives arrive unchanged, with the fields that the stream adds. Tests of package wire
// cover each field.
func TestReportsAndDirectivesArrive(t *testing.T) {
	c := coordtest.Start(t)
	k := dial(t, c)
	k.client.Update(protocol.Report{Incarnation: 2, Generation: 7, State: protocol.StateFailed})
	r := c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 7 })
	if r.Protocol != protocol.Version || r.Incarnation != 2 || r.Address != "10.0.0.7" || r.State != v1.State_STATE_FAILED || r.Sequence != 1 {
		t.Errorf("report %v", r)
	}
	c.Direct("one", &v1.Directive{Generation: 7, Order: v1.Order_ORDER_HALT, BarrierStep: 9})
	if got, want := k.await(t, 7), (protocol.Directive{Generation: 7, Order: protocol.OrderHalt, BarrierStep: 9}); !reflect.DeepEqual(
		got,
		want,
	) {
		t.Errorf("directive %+v, want %+v", got, want)
	}
}

// TestReportsAreCounted: a changed report has a higher number. A report that is sent again on another connection has the same number.
func TestReportsAreCounted(t *testing.T) {
	c := coordtest.Start(t)
	k := dial(t, c)
	k.client.Update(protocol.Report{Generation: 1})
	first := c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 1 }).GetSequence()
	k.client.Update(protocol.Report{Generation: 2})
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
	// A connection attempt that has read the old token may still be on its way, and would be accepted.
	eventually.Holds(t, "the new token is shown", func() (bool, any) { shown := c.Tokens(); return slices.Contains(shown, "two"), shown })
	c.Deny(codes.OK)
	k.client.Update(protocol.Report{Generation: 3})
	c.Await(t, "two", "came with the new token", func(r *v1.Report) bool { return r.Generation == 3 })
	for i := range int64(3) { // a coordinator that restarts repeatedly
		c.Stop()
		<-k.lost
		k.client.Update(protocol.Report{Generation: 10 + i})
		c.Again(t)
		c.Await(t, "two", "came again", func(r *v1.Report) bool { return r.Generation == uint64(10+i) })
		c.Direct("two", &v1.Directive{Generation: uint64(20 + i), Order: v1.Order_ORDER_WAIT})
		k.await(t, 20+i)
	}
}

// TestHearsThatItIsDismissed: DetachedFromJob is called for the refusal that says that the pod has left its job, and for no other.
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
		t.Error("the refusal of a pod whose request was cancelled says nothing")
	}
}

func TestFinishDeliversTheLastReport(t *testing.T) {
	c := coordtest.Start(t)
	k := dial(t, c)
	k.client.Update(protocol.Report{Generation: 1})
	c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 1 })
	c.Direct("one", &v1.Directive{Generation: 1, Order: v1.Order_ORDER_WAIT})
	k.await(t, 1)
	k.client.Update(protocol.Report{Generation: 2, Refused: "why"})
	k.client.Finish()
	<-k.done
	if r := c.Report("one"); r.Generation != 2 || r.Refused != "why" {
		t.Errorf("the last report is %v", r)
	}
}

// TestTheNextAuthorityIsTrusted: an agent that received the next authority continues when that authority signs, and so does the next agent
// of the pod. An agent that did not receive it cannot connect.
func TestTheNextAuthorityIsTrusted(t *testing.T) {
	c := coordtest.Start(t)
	promote := c.Announce(t)
	c.Lead("one")
	kept := filepath.Join(t.TempDir(), "authorities.pem")
	k := dial(t, c, func(o *coord.Options) { o.AuthoritiesFile = kept })
	k.client.Update(protocol.Report{Generation: 0, State: protocol.StateIdle})
	if d := <-k.directives; d.Authorities != "" {
		t.Error("whom to trust is said to the agent's core")
	}
	c.Stop()
	<-k.lost
	promote()
	c.Again(t)
	idle := func(r *v1.Report) bool { return r.State == v1.State_STATE_IDLE }
	c.Await(t, "one", "came again", idle)

	c.Forget("one")
	next := dial(t, c, func(o *coord.Options) { o.AuthoritiesFile = kept })
	next.client.Update(protocol.Report{State: protocol.StateIdle})
	c.Await(t, "one", "came from another agent", idle)

	stranger := dial(t, c)
	write(t, stranger.token, "stranger")
	stranger.client.Update(protocol.Report{State: protocol.StateIdle})
	if err := <-stranger.lost; !strings.Contains(err.Error(), "certificate") || c.Report("stranger") != nil {
		t.Errorf("one that received nothing is served: %v", err)
	}
}

// TestAuthoritiesThatCouldNotBeKept: authorities that could not be stored are stored when the coordinator sends them again.
func TestAuthoritiesThatCouldNotBeKept(t *testing.T) {
	c := coordtest.Start(t)
	folder := filepath.Join(t.TempDir(), "full")
	kept := filepath.Join(folder, "authorities.pem")
	k := dial(t, c, func(o *coord.Options) { o.AuthoritiesFile = kept })
	k.client.Update(protocol.Report{Generation: 1})
	c.Direct("one", &v1.Directive{Generation: 1, Authorities: c.CA})
	k.await(t, 1)
	if err := <-k.lost; !strings.Contains(err.Error(), "keeping the certificate authorities") {
		t.Error(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Direct("one", &v1.Directive{Generation: 2, Authorities: c.CA})
	k.await(t, 2)
	if got, err := os.ReadFile(kept); err != nil || string(got) != c.CA {
		t.Errorf("kept %q: %v", got, err)
	}
}

// TestAuthoritiesThatAreNotTakenOver: no message of the coordinator removes the authorities of the pod's template.
func TestAuthoritiesThatAreNotTakenOver(t *testing.T) {
	c := coordtest.Start(t)
	kept := filepath.Join(t.TempDir(), "authorities.pem")
	write(t, kept, "damaged")
	k := dial(t, c, func(o *coord.Options) { o.AuthoritiesFile = kept })
	k.client.Update(protocol.Report{Generation: 1})
	for i, said := range []string{"no certificate", strings.Repeat(c.CA, 1+protocol.MaxAuthorities/len(c.CA))} {
		c.Direct("one", &v1.Directive{Generation: uint64(i + 1), Authorities: said})
		k.await(t, int64(i+1))
		if err := <-k.lost; !strings.Contains(err.Error(), "authorities") {
			t.Error(err)
		}
	}
	c.Stop()
	<-k.lost
	c.Forget("one")
	c.Again(t)
	c.Await(t, "one", "came again", func(r *v1.Report) bool { return r.Generation == 1 })
}

// TestAddressesAreDialedWhereTheNameLeadsNowhere: the name does not resolve, as in a pod on its node's network. The first address belongs
// to a deleted Service. Any server must have a certificate for the name.
func TestAddressesAreDialedWhereTheNameLeadsNowhere(t *testing.T) {
	c := coordtest.Start(t)
	_, port, err := net.SplitHostPort(c.Address())
	if err != nil {
		t.Fatal(err)
	}
	addresses := []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}
	k := dial(t, c, func(o *coord.Options) { o.Target, o.Addresses = net.JoinHostPort(coordtest.Name, port), addresses })
	k.client.Update(protocol.Report{Generation: 1})
	c.Await(t, "one", "came", func(r *v1.Report) bool { return r.Generation == 1 })
	for _, of := range []string{coordtest.Name, "127.0.0.2"} {
		if err := <-k.lost; !strings.Contains(err.Error(), of) {
			t.Errorf("%v, want one of %s", err, of)
		}
	}
	other := dial(t, c, func(o *coord.Options) { o.Target, o.Addresses = net.JoinHostPort("other.invalid", port), addresses[1:] })
	other.client.Update(protocol.Report{Generation: 2})
	<-other.lost
	if err := <-other.lost; !strings.Contains(err.Error(), "certificate is valid for "+coordtest.Name+", not other.invalid") {
		t.Error(err)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, o := range []coord.Options{{Target: "no-port", CA: "x"}, {Target: "a:1", CA: "not PEM"}} {
		if _, err := coord.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
