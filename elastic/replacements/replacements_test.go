package replacements

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/internal/protocol"
)

var start = time.Unix(1_700_000_000, 0)

// gang returns a gang that runs generation 1. Each pod is named by its slot ("a" in slot 0).
func gang(names ...string) (*members.Members, *Replacements) {
	ms := members.New(len(names), members.Recorded{}, true)
	for i, name := range names {
		ms.Take(
			members.Slot(i),
			members.Pod{UID: name, Name: name},
			&protocol.Report{Generation: 1, State: protocol.StateRunning, Ranks: 1},
			1,
			start,
		)
	}
	return ms, New(ms, nil, nil, 0, nil)
}

func terminate(slot members.Slot, pod, cause string) Termination {
	return Termination{Slot: slot, Pod: pod, Name: pod, Node: "node-of-" + pod, Cause: cause}
}

func never(members.Slot) bool  { return false }
func always(members.Slot) bool { return true }

func pods(all []Termination) string {
	names := ""
	for _, d := range all {
		names += d.Pod
	}
	return names
}

// TestStages: a pod is fenced once its replacement is committed. The replacement is requested once. A released pod is not listed again.
func TestStages(t *testing.T) {
	_, rs := gang("a", "b", "c")
	level := []Termination{terminate(0, "a", "XidFatal"), terminate(1, "b", "XidFatal"), terminate(2, "c", PodDeleted)}
	if notes, changed := rs.SetPending(level, start); len(notes) != 3 || !changed || rs.Fenced("a") || pods(rs.ToReplace()) != "abc" {
		t.Fatalf("%v, %t, to replace %s", notes, changed, pods(rs.ToReplace()))
	}
	if notes, changed := rs.SetPending(level, start.Add(time.Second)); len(notes) != 0 || changed {
		t.Errorf("told again: %v, %t", notes, changed)
	}
	if all := rs.Commit(1); pods(all) != "a" || !rs.Fenced("a") || pods(rs.ToReplace()) != "bc" || rs.NoteReleased("b") {
		t.Errorf("committed are %s, fenced %t, left are %s", pods(all), rs.Fenced("a"), pods(rs.ToReplace()))
	}
	if all := rs.RequestCommitted(); pods(all) != "a" || len(rs.RequestCommitted()) > 0 {
		t.Errorf("asked for are %s", pods(all))
	}
	notes, _ := rs.SetPending(nil, start) // all nodes have healed
	if got := pods(rs.All()); got != "ac" || len(notes) != 1 || !strings.Contains(notes[0].Message, "pod b") {
		t.Errorf("listed are %s: a is committed, c is being deleted; %v", got, notes)
	}
	if !rs.NoteReleased("a") || rs.NoteReleased("a") || rs.Count() != 1 || !rs.Fenced("a") {
		t.Errorf("released: %d, fenced %t", rs.Count(), rs.Fenced("a"))
	}
	if rs.SetPending(level, start); pods(rs.All()) != "bc" {
		t.Errorf("listed are %s: a is out of its Job", pods(rs.All()))
	}
}

// TestANewCoordinatorAsksAgain: the next coordinator requests the recorded committed replacements again, and fences their pods from its
// start.
func TestANewCoordinatorAsksAgain(t *testing.T) {
	ms, _ := gang("a", "b")
	a, b := terminate(0, "a", "XidFatal"), terminate(1, "b", "XidFatal")
	rs := New(ms, []Termination{a, b}, nil, 4, []Replacement{{Termination: a}, {Termination: terminate(1, "old", "XidFatal"), ReleasedAt: start}})
	if all := rs.RequestCommitted(); pods(all) != "a" || !rs.Fenced("a") || rs.Fenced("b") || !rs.Released("old") || rs.Count() != 4 {
		t.Errorf("asked for are %s", pods(all))
	}
}

// TestOrphans: a pod in which no rank runs, because another pod holds its slot, is replaced at once, unless ranks were lost with it.
func TestOrphans(t *testing.T) {
	for name, tt := range map[string]struct {
		lost func(members.Slot) bool
		want string
	}{"no rank is lost": {never, "a"}, "its ranks are": {always, ""}} {
		ms, rs := gang("a", "b")
		rs.SetPending([]Termination{terminate(0, "a", "XidFatal"), terminate(1, "b", "XidFatal")}, start)
		ms.HandOver(0, members.Pod{UID: "heir"})
		ms.Take(0, members.Pod{UID: "heir"}, &protocol.Report{Ranks: 1}, 1, start)
		if all := rs.RequestOrphans(tt.lost); pods(all) != tt.want {
			t.Errorf("%s: asked for are %q, want %q", name, pods(all), tt.want)
		}
		if rs.For(0) != nil || rs.Of("a") == nil {
			t.Errorf("%s: the pod that holds the slot need not go, the other one must", name)
		}
	}
}

// TestPressing: the first pod that must be replaced ends the generation, unless its replacement is committed, it has left its launcher, or
// it no longer holds its slot.
func TestPressing(t *testing.T) {
	ms, rs := gang("a", "b")
	rs.SetPending([]Termination{terminate(0, "a", "XidFatal"), terminate(1, "b", "XidFatal")}, start)
	rs.Commit(1)
	if d := rs.Pressing(never); d == nil || d.Pod != "b" {
		t.Errorf("pressing is %+v", d)
	}
	ms.Leave(1)
	if d := rs.Pressing(never); d != nil {
		t.Errorf("pressing is %+v, of a gang that has left", d)
	}
}

// TestTimesOfATermination: a termination keeps its first times, however often it is received. The deadline of a suspended Job's pods is
// known only once they are deleted. A suspension and a replacement are listed separately.
func TestTimesOfATermination(t *testing.T) {
	_, rs := gang("a")
	for i, tell := range []struct {
		cause    string
		deadline time.Duration // 0: none is named
		want     time.Duration
	}{
		{JobSuspended, 0, terminationTime},
		{JobSuspended, 100 * time.Second, 100 * time.Second},
		{JobSuspended, 0, 100 * time.Second},
		{JobSuspended, 90 * time.Second, 90 * time.Second},
		{PodDeleted, 120 * time.Second, 120 * time.Second},
		{PodDeleted, 200 * time.Second, 120 * time.Second},
		{"GPUFellOff", 0, 120 * time.Second},
		{JobSuspended, 300 * time.Second, 300 * time.Second},
		{"GPUFellOff", 0, 8*time.Second + terminationTime},
	} {
		d, now := terminate(0, "a", tell.cause), start.Add(time.Duration(i)*time.Second)
		if tell.deadline > 0 {
			d.Deadline = start.Add(tell.deadline)
		}
		if tell.cause == JobSuspended {
			rs.Suspend([]Termination{d}, now)
		} else {
			rs.SetPending([]Termination{d}, now)
		}
		if all := rs.All(); len(all) != 1 || all[0].Cause != tell.cause || rs.Suspended(0) != (tell.cause == JobSuspended) {
			t.Fatalf("%d: listed are %+v", i, all)
		}
		if got := rs.All()[0].Deadline.Sub(start); got != tell.want {
			t.Errorf("%d: %s has time until %s, want %s", i, tell.cause, got, tell.want)
		}
	}
}

// TestNoPodIsWaitedForLongerThanItTrains: the agent of a terminating pod trains until it needs the rest of its grace period. The
// coordinator waits no longer than that.
func TestNoPodIsWaitedForLongerThanItTrains(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{
		0:                 24 * time.Second,
		2 * time.Second:   0,
		5 * time.Second:   2 * time.Second,
		10 * time.Second:  7 * time.Second,
		15 * time.Second:  12 * time.Second,
		100 * time.Second: 80 * time.Second,
	} {
		ms, rs := gang("a")
		ms.Take(0, members.Pod{UID: "a"}, &protocol.Report{Terminating: true, Grace: grace}, 0, start)
		if got := rs.Deadline(Termination{Pod: "a", Deadline: start.Add(time.Hour)}).Sub(start); got != want {
			t.Errorf("grace %s: waited for %s, want %s", grace, got, want)
		}
	}
}

// TestWatch: a pod that does not halt is given up after stuckTime. An unreachable pod is given up once the API server has reported for
// UnreachableTime that it runs. If more than half of a gang is unreachable, that time is PartitionTime.
func TestWatch(t *testing.T) {
	for name, tt := range map[string]struct {
		unreachable, stuck int
		cause              string
		after              time.Duration
	}{
		"one of three is unreachable":  {1, 0, AgentUnreachable, UnreachableTime},
		"two of three are unreachable": {2, 0, AgentUnreachable, PartitionTime},
		"one of three is stuck":        {0, 1, HaltTimeout, stuckTime},
		"two of three are stuck":       {0, 2, HaltTimeout, PartitionTime},
	} {
		names := []string{"a", "b", "c"}
		ms, rs := gang(names...)
		w, now := NewWatch(ms, rs, 1, start), start
		for i, name := range names {
			if i >= tt.unreachable+tt.stuck {
				ms.Take(members.Slot(i), members.Pod{UID: name}, &protocol.Report{Generation: 1, State: protocol.StateHalted}, 1, start)
			} else if i < tt.unreachable {
				ms.Detach(members.Slot(i), name)
			}
		}
		for rs.None() && now.Sub(start) < time.Hour {
			now = now.Add(time.Second)
			for _, slot := range w.TrackUnreachable(now) {
				w.Holder(slot, ms.At(slot).Pod(), true, now)
			}
			w.TrackStuck(now)
		}
		if got := now.Sub(start); got < tt.after || got > tt.after+LookupEvery || !w.AllHalted(now) {
			t.Errorf("%s: given up after %s, want %s", name, got, tt.after)
		}
		if d := rs.Of("a"); d == nil || d.Cause != tt.cause || !rs.Fenced("a") || !d.OwnVerdict() {
			t.Errorf("%s: given up as %+v", name, d)
		}
	}
}

// TestShorten: of terminations that the coordinator will receive again only the first ones are stored, of those that it decided itself
// more, and of committed ones all.
func TestShorten(t *testing.T) {
	var all []Termination
	for i := range 3000 {
		d := terminate(members.Slot(i), string(rune('a'+i%26)), []string{"XidFatal", HaltTimeout, PodDeleted}[i%3])
		d.Message = "why"
		all = append(all, d)
	}
	count := func(list []Termination, cause string) int {
		return len(slices.DeleteFunc(slices.Clone(list), func(d Termination) bool { return d.Cause != cause }))
	}
	kept, suspended := Shorten(all, all, func(pod string) bool { return false })
	if own, others := count(kept, HaltTimeout), len(kept)-count(kept, HaltTimeout); own != 1000 || others != MaxListed || len(suspended) != 0 {
		t.Errorf("%d that were given up, %d others and %d suspended are stored", own, others, len(suspended))
	}
	if kept, _ := Shorten(all, nil, func(pod string) bool { return true }); len(kept) != len(all) {
		t.Errorf("%d of %d committed are stored", len(kept), len(all))
	}
}
