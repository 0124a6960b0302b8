//go:build linux

package proc

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// TestASourceIsReadOutOfOrder: messages on the two sockets of a source are handled in either order.
func TestASourceIsReadOutOfOrder(t *testing.T) {
	for name, waitsFirst := range map[string]bool{"waits first": true, "imported first": false} {
		t.Run(name, func(t *testing.T) {
			s := bare(t, "exec sleep 1000")
			s.serving = servesRank
			s.look(time.Now())
			b := s.slots[0]
			src := b.source
			says := []func(){
				func() {
					s.onSourceMessage(src, warmLine{Warm: true, Alone: "a module starts a thread", Memory: 1 << 20})
				},
				func() { s.onStandbyMessage(b, readyLine{Ready: true, PID: src.process.PID, Learned: 1}) },
			}
			if waitsFirst {
				slices.Reverse(says)
			}
			for _, say := range says {
				say()
			}
			if src.state != sourceAlone || b.state != standbyReady || s.sourceTook != 1<<20 {
				t.Errorf("source %d, standby %d, it took %d bytes", src.state, b.state, s.sourceTook)
			}
			rank, _, ok := s.Take(s.run, 0)
			if !ok || rank.PID != src.process.PID || src.state != sourceTaken {
				t.Fatalf("took %v, source %d", rank, src.state)
			}
			for _, say := range says {
				say()
			}
			if s.ends(src, time.Now()); src.state != sourceTaken || !rank.Alive() {
				t.Errorf("source %d of a rank that runs", src.state)
			}
			rank.Kill()
		})
	}
}

// ends makes a source end for no known reason.
func (s *Standbys) ends(src *source, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard(src, unfitDied, warmLine{}, now)
}

// TestASourceThatWaitsItselfIsReplaced: a source that is itself the standby does not read its socket any more. If ranks import more
// modules, it is replaced and receives no message.
func TestASourceThatWaitsItselfIsReplaced(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	s.serving = servesRank
	now := time.Now()
	s.look(now)
	src := s.slots[0].source
	s.onSourceMessage(src, warmLine{Warm: true, Alone: "a module starts a thread"})
	s.SetModules([]string{"torch", "numpy"}, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renew(now); src.state != sourceEnded || s.slots[0] != nil {
		t.Errorf("source %d, slot %v", src.state, s.slots[0])
	}
}

// TestHistoriesOfStandbys: whatever sources and standbys send, and whenever they die, three rules hold. Each rank's slot has a living
// source, a process waits exactly if the standby's state says so, and no source imports while a generation starts or ends.
func TestHistoriesOfStandbys(t *testing.T) {
	for seed := range seeds.All(t, uint64(20)) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := bare(t, "exec sleep 1000")
		now := time.Now()
		modules := []string{"torch"}
		for range 60 {
			now = now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
			event := historyOf(s, r, now, &modules)
			for local, b := range s.slots {
				if b == nil {
					continue
				}
				if b.waits() != (b.rank != Process{}) || !b.source.lives() || b.local != local {
					t.Fatalf("seed %d, after %s: rank %d has standby %d of source %d, process %v", seed, event, local, b.state, b.source.state, b.rank)
				}
				if event == "looks" && s.awaited == nil && s.pace == paceHeld && b.source.imports() && !b.source.ration.stopped {
					t.Fatalf("seed %d: a source imports while it may not", seed)
				}
			}
			if s.supply == supplyOff {
				break
			}
		}
		s.Close()
		if left := s.sources(); len(left) != 0 || s.supply != supplyOff {
			t.Fatalf("seed %d: sources %v after the end", seed, left)
		}
	}
}

// historyOf plays one random event and returns its name.
func historyOf(s *Standbys, r *rand.Rand, now time.Time, modules *[]string) string {
	sources := s.sources()
	if len(sources) == 0 || r.IntN(3) == 0 {
		s.look(now)
		return "looks"
	}
	src := sources[r.IntN(len(sources))]
	b := src.standbys[r.IntN(len(src.standbys))]
	switch r.IntN(12) {
	case 0:
		s.onSourceMessage(src, warmLine{Half: true})
		return "half"
	case 1, 2, 3:
		s.onSourceMessage(src, warmLine{Warm: true, Memory: 1 << 20})
		return "warm"
	case 4:
		s.onSourceMessage(src, warmLine{Warm: true, Alone: "a module starts a thread"})
		return "alone"
	case 5:
		s.onSourceMessage(src, warmLine{Warm: true, Without: []string{"m" + string(rune('a'+r.IntN(26)))}, Why: "why"})
		return "without"
	case 6, 7:
		s.onStandbyMessage(b, readyLine{Ready: true, PID: src.process.PID, Learned: src.begun})
		return "waits"
	case 8:
		s.ends(src, now)
		return "died"
	case 9:
		*modules = append(*modules, "more")
		s.SetModules(*modules, 0)
		return "more"
	case 10:
		s.SetWarm(r.IntN(2) == 0, protocol.Run{Number: int64(r.IntN(2)), WorldSize: 2, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: 4000})
		return "warmed"
	default:
		if rank, _, ok := s.Take(s.run, b.local); ok {
			rank.Kill()
		}
		return "taken"
	}
}
