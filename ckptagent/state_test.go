package ckptagent

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// TestStoredStateIsReadAndWrittenAsEver: testdata/stored.json has every field that an agent has ever stored, under its present name. An
// updated agent reads the state that the previous version stored. A new field is added to the file; no field in it is changed.
func TestStoredStateIsReadAndWrittenAsEver(t *testing.T) {
	want, err := os.ReadFile("testdata/stored.json")
	if err != nil {
		t.Fatal(err)
	}
	var d Durable
	dec := json.NewDecoder(bytes.NewReader(want))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if got = append(got, '\n'); !bytes.Equal(got, want) {
		t.Errorf("written as\n%s", got)
	}
}

// TestUrgent: a report with a new note or module is sent at once. A changed text or a further step does not make a report urgent.
func TestUrgent(t *testing.T) {
	old := protocol.Report{Notes: []string{"a"}, Modules: []string{"m"}, Rank: []protocol.Rank{{Step: 3}}}
	for name, tt := range map[string]struct {
		change func(*protocol.Report)
		want   bool
	}{
		"nothing":            {func(*protocol.Report) {}, false},
		"other words":        {func(r *protocol.Report) { r.Notes, r.Modules = []string{"b"}, []string{"n"} }, false},
		"a step":             {func(r *protocol.Report) { r.Rank = []protocol.Rank{{Step: 4}} }, false},
		"a save":             {func(r *protocol.Report) { r.Rank = []protocol.Rank{{Step: 3, Saves: &protocol.Saves{Copied: 1}}} }, false},
		"a note more":        {func(r *protocol.Report) { r.Notes = []string{"a", "b"} }, true},
		"a module more":      {func(r *protocol.Report) { r.Modules = []string{"m", "n"} }, true},
		"one rank more":      {func(r *protocol.Report) { r.Rank = append(r.Rank, protocol.Rank{}) }, true},
		"another generation": {func(r *protocol.Report) { r.Generation++ }, true},
	} {
		now := old
		if tt.change(&now); Urgent(now, old) != tt.want {
			t.Errorf("%s: urgent %v, want %v", name, !tt.want, tt.want)
		}
	}
}

// TestSavesAreThoseOfTheRun: the counts of saves are those in a rank's arena. For the process of the next run they are unknown until it
// reports.
func TestSavesAreThoseOfTheRun(t *testing.T) {
	s := New()
	s.Known, s.Clean, s.Ranks, s.Run, s.Rank = true, false, 1, protocol.Run{Number: 2}, []Rank{{}}
	now := time.Unix(1_700_000_000, 0)
	for _, generation := range []int64{2, 1, 3} {
		s, _ = Step(s, Saved{Generation: generation, Saves: protocol.Saves{Copied: uint32(generation)}}, now)
	}
	if c := s.Report().Rank[0].Saves; c == nil || *c != (protocol.Saves{Copied: 2}) {
		t.Errorf("reported are %+v", c)
	}
	s, _ = Step(s, Resumed{SameContainer: true}, now)
	s.Clean, s.Inventoried, s.Attached = true, true, true
	s, _ = Step(
		s,
		Directed{protocol.Directive{Generation: 3, Order: protocol.OrderRun, Run: protocol.Run{Number: 3, Nodes: 1, WorldSize: 1}}},
		now,
	)
	if r := s.Report(); r.Generation != 3 || r.Rank[0].Saves != nil {
		t.Errorf("of generation %d are reported %+v", r.Generation, r.Rank[0].Saves)
	}
}

// TestServes: an agent serves one launcher at a time, and serves the same one again after an earlier agent died.
func TestServes(t *testing.T) {
	for name, tt := range map[string]struct {
		launcher, id string
		returned     bool
		want         bool
	}{
		"the first":                      {"", "a", false, true},
		"the same again":                 {"a", "a", false, true},
		"another beside it":              {"a", "b", false, false},
		"another after it":               {"a", "b", true, true},
		"the same, which has its answer": {"a", "a", true, true},
	} {
		s := State{Durable: Durable{Launcher: tt.launcher}}
		if tt.returned {
			s.Returned = &Returned{}
		}
		if got, why := s.Serves(tt.id); got != tt.want || got != (why == "") {
			t.Errorf("%s: served %v (%q), want %v", name, got, why, tt.want)
		}
	}
}

// TestGentle: ranks of a terminating pod have the rest of the grace period to end, or less if other pods wait for them.
func TestGentle(t *testing.T) {
	const grace = 60 * time.Second
	now := time.Unix(1_700_000_000, 0)
	all := grace - protocol.ShutdownMargin(grace)/2
	terminating := State{
		Durable:  Durable{Rank: []Rank{{Sealed: protocoltest.FirstBranch(1)}}},
		Volatile: Volatile{Grace: grace, Storage: true},
	}
	terminating.TerminatingAt = now.Add(-10 * time.Second)
	for name, c := range map[string]struct {
		change func(*State)
		want   time.Duration
	}{
		"no time is set":                   {func(s *State) { s.TerminatingAt = time.Time{} }, all},
		"ten seconds are gone":             {func(*State) {}, all - 10*time.Second},
		"all are gone":                     {func(s *State) { s.TerminatingAt = now.Add(-grace) }, 0},
		"all are gone for a whole command": {func(s *State) { s.TerminatingAt, s.Whole = now.Add(-grace), true }, 0},
		"the gang halts":                   {func(s *State) { s.Want.Order = protocol.OrderHalt }, haltGentle},
		"a whole command halts":            {func(s *State) { s.Want.Order, s.Whole = protocol.OrderHalt, true }, all - 10*time.Second},
		"no coordinator for too long":      {func(s *State) { s.DisconnectedSince = now.Add(-copyTimeout) }, haltGentle},
		"no coordinator for a while":       {func(s *State) { s.DisconnectedSince = now.Add(time.Second - copyTimeout) }, all - 10*time.Second},
		"no coordinator, and no storage":   {func(s *State) { s.DisconnectedSince, s.Storage = now.Add(-copyTimeout), false }, all - 10*time.Second},
	} {
		s := terminating
		if c.change(&s); s.gentle(now) != c.want {
			t.Errorf("%s: %s, not %s", name, s.gentle(now), c.want)
		}
	}
}

// TestAdoptable: a command becomes the rank of its pod after it has run for a minimal time, unless a condition excludes that.
func TestAdoptable(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	command := State{Durable: Durable{Clean: true, Command: Command{PID: 1, Timeout: time.Second, BeganAt: now.Add(-time.Second)}}}
	for name, c := range map[string]struct {
		change func(*State)
		want   bool
	}{
		"long enough":             {func(*State) {}, true},
		"at once":                 {func(s *State) { s.Command.Timeout, s.Command.BeganAt = 0, now }, true},
		"not long enough":         {func(s *State) { s.Command.BeganAt = now.Add(-time.Millisecond) }, false},
		"no command":              {func(s *State) { s.Command.PID = 0 }, false},
		"never":                   {func(s *State) { s.Command.Timeout = -1 }, false},
		"already":                 {func(s *State) { s.Whole = true }, false},
		"a launcher":              {func(s *State) { s.Launcher = "1" }, false},
		"a launcher was refused":  {func(s *State) { s.Refused = "no" }, false},
		"the pod ends":            {func(s *State) { s.Terminating = true }, false},
		"a launcher has returned": {func(s *State) { s.Returned = &Returned{} }, false},
		"processes are left":      {func(s *State) { s.Clean = false }, false},
		"processes are ended":     {func(s *State) { s.Ending = true }, false},
		"processes are counted":   {func(s *State) { s.Counting = true }, false},
		"it failed":               {func(s *State) { s.Command.Exit, s.Command.BeganAt = &protocol.Exit{Code: 1}, now }, true},
		"it ended well":           {func(s *State) { s.Command.Exit = &protocol.Exit{} }, false},
	} {
		s := command
		if c.change(&s); s.adoptable(now) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

// TestTerminationCode: the exit code of a whole command is returned, unless the command was killed.
func TestTerminationCode(t *testing.T) {
	exit := func(code, signal int) *protocol.Exit { return &protocol.Exit{Code: code, Signal: signal} }
	for name, c := range map[string]struct {
		state State
		want  int
	}{
		"ranks of a launcher": {State{Durable: Durable{Rank: []Rank{{Exit: exit(3, 0)}}}}, 143},
		"nothing has run":     {State{Durable: Durable{Whole: true}}, 143},
		"it runs":             {State{Durable: Durable{Whole: true, Rank: []Rank{{}}}}, 143},
		"its first run":       {State{Durable: Durable{Whole: true, Rank: []Rank{{Exit: exit(3, 0)}}, Command: Command{Exit: exit(4, 0)}}}, 4},
		"a later run":         {State{Durable: Durable{Whole: true, Run: protocol.Run{Number: 2}, Rank: []Rank{{Exit: exit(3, 0)}}, Command: Command{Exit: exit(4, 0)}}}, 3},
		"it was killed":       {State{Durable: Durable{Whole: true, Run: protocol.Run{Number: 2}, Rank: []Rank{{Exit: exit(137, sigkill)}}}}, 143},
	} {
		c.state.Signal = 15
		if got := c.state.terminationCode(); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

// TestMatchesSizes: a launcher may ask for all pods of a gang that goes on with fewer.
func TestMatchesSizes(t *testing.T) {
	sizes := map[protocol.Run]bool{{Nodes: 4}: true, {Nodes: 3, Slots: 4}: true, {Nodes: 3}: false, {Nodes: 3, Slots: 5}: false}
	for run, want := range sizes {
		if ok, why := (State{Durable: Durable{Run: run}}).Matches(Launched{Nodes: 4, NodesFlag: "--nnodes"}); ok != want {
			t.Errorf("4 pods in %+v: %t, %s", run, ok, why)
		}
	}
}
