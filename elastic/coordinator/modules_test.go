package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
)

func wants(d *coordinatorv1.Directive) bool { return d.GetWantModules() }

// comer is the agent of a pod that attaches later.
type comer struct {
	*agent
	token string
}

// three returns a house with a gang of three pods, of which one has not attached yet.
func three(t *testing.T) (*house, comer, []*agent) {
	pods := []Caller{pod("team-a", "train", 0, "a0"), pod("team-a", "train", 1, "a1"), pod("team-a", "train", 2, "a2"), pod("team-b", "train", 0, "b0")}
	h := open(t, leading())
	h.store.members[pods[0].Key], h.store.members[pods[3].Key] = 3, 1
	var a []*agent
	for _, p := range pods[:2] {
		a = append(a, h.dial(h.allow(p)))
	}
	token := h.allow(pods[2])
	return h, comer{h.dial(token), token}, a
}

// TestModulesReachAReplacedPod: the coordinator requests the modules from one agent of the gang, and sends them, once, to a pod that
// attaches later. Other gangs do not get them.
func TestModulesReachAReplacedPod(t *testing.T) {
	h, late, a := three(t)
	stranger := h.dial(h.allow(pod("team-b", "train", 0, "b0")))
	a[0].report.ModulesKnown = 3
	a[0].say()
	a[0].until("is asked for its modules", wants)
	a[1].report.ModulesKnown = 3 // the list is requested from one agent only
	a[1].say()
	a[0].report.Modules = []string{"torch", "torch.nn", "_x.y9"}
	a[0].say()
	a[0].until("is asked no more", func(d *coordinatorv1.Directive) bool { return !wants(d) })

	late.say()
	d := late.until("gets the modules", func(d *coordinatorv1.Directive) bool { return len(d.GetModules()) > 0 })
	if !slices.Equal(d.GetModules(), a[0].report.Modules) || wants(d) {
		t.Errorf("told %v", d)
	}
	stranger.say()
	if d := stranger.await(coordinatorv1.Order_ORDER_RUN, 1); len(d.GetModules()) > 0 || wants(d) {
		t.Errorf("another gang's agent is told %v", d)
	}
	for len(a[1].orders) > 0 {
		if d := <-a[1].orders; len(d.GetModules()) > 0 || wants(d) {
			t.Errorf("an agent that knows modules, and was not asked, is told %v", d)
		}
	}
}

// TestAnotherAgentIsAskedForModules: if the first agent disconnects, or sends an invalid list, the coordinator requests the list from
// another agent.
func TestAnotherAgentIsAskedForModules(t *testing.T) {
	_, again, a := three(t)
	for _, x := range a {
		x.report.ModulesKnown = 2
	}
	a[0].say()
	a[0].until("is asked", wants)
	a[1].say()
	a[0].report.Modules = []string{"os", "x; import evil"}
	a[0].say()
	a[0].until("is asked no more", func(d *coordinatorv1.Directive) bool { return !wants(d) })
	a[0].say()
	a[1].say()
	a[1].until("is asked instead", wants)
	if err := a[1].rpc.CloseSend(); err != nil {
		t.Fatal(err)
	}
	again.report.ModulesKnown = 5
	for asked := false; !asked; { // agents report every second, and the coordinator may not have noticed yet that the other agent is gone
		again.say()
		select {
		case d := <-again.orders:
			asked = wants(d)
		case err := <-again.ended:
			t.Fatalf("the stream ended before the agent was asked: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestListsOfModulesThatAreNotTaken(t *testing.T) {
	for what, tc := range map[string]struct {
		names []string
		want  string
	}{
		"good":       {[]string{"os", "torch._C._x", "Q7"}, ""},
		"too many":   {slices.Repeat([]string{"a"}, maxModules+1), "8193 names, 8192 at most"},
		"no name":    {[]string{"os", ""}, "is not a module name"},
		"two lines":  {[]string{"os\n"}, "is not a module name"},
		"other text": {[]string{"os.päth"}, "is not a module name"},
	} {
		err := checkModules(tc.names)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
}
