package ras

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// process is a process of the gang as NCCL names it.
type process struct {
	host string
	pid  int64
}

func (p process) known() bool { return p.pid > 0 }

// member is one rank of a communicator. answered: it is one of "ranks", so launched counts.
type member struct {
	rank int64
	process
	fault    protocol.Fault
	answered bool
	launched int64
}

// reader reads an answer.
type reader struct {
	*scanner
	world int
	// ranks are the global ranks of processes; found are faults of global ranks, elsewhere those of processes in other communicators.
	ranks     map[process]int
	found     map[int]protocol.Fault
	elsewhere map[process]protocol.Fault
	members   []member // of the communicator that is being read
}

// read reads an answer about a gang of that many ranks, whose rank 0 is the process pid: in a network namespace of several pods, that of
// another gang may answer. More faults than a look has room for say nothing about single ranks.
func read(from *bufio.Reader, world, pid int) ([]protocol.RankFault, error) {
	r := reader{
		scanner:   &scanner{from: from},
		world:     world,
		ranks:     map[process]int{},
		found:     map[int]protocol.Fault{},
		elsewhere: map[process]protocol.Fault{},
	}
	err := r.object(func(name string) error {
		if name == "communicators" {
			return r.list(r.communicator)
		}
		return r.skip()
	})
	if err != nil {
		return nil, fmt.Errorf("reading the answer of NCCL's RAS: %w", err)
	}
	for p, f := range r.elsewhere {
		if rank, known := r.ranks[p]; known {
			note(r.found, rank, f)
		}
	}
	if len(r.found) > 0 && !r.isRank0(int64(pid)) {
		return nil, fmt.Errorf("the answer of NCCL's RAS is of another gang: its rank 0 is not process %d", pid)
	}
	if len(r.found) > protocol.MaxLookFaults {
		return nil, nil
	}
	var out []protocol.RankFault
	for _, rank := range slices.Sorted(maps.Keys(r.found)) {
		out = append(out, protocol.RankFault{Rank: rank, Fault: r.found[rank]})
	}
	return out, nil
}

// isRank0 reports whether the process of rank 0 has that number.
func (r *reader) isRank0(pid int64) bool {
	for p, rank := range r.ranks {
		if rank == 0 && p.pid == pid {
			return true
		}
	}
	return false
}

// note notes a fault, unless a graver one is known.
func note[K comparable](of map[K]protocol.Fault, key K, f protocol.Fault) {
	if known := of[key]; known == protocol.FaultNone || f < known {
		of[key] = f
	}
}

// communicator reads a communicator.
func (r *reader) communicator() error {
	size := int64(0)
	r.members = r.members[:0]
	err := r.object(func(name string) (err error) {
		switch name {
		case "size":
			size, err = r.number()
		case "ranks":
			err = r.list(func() error { return r.member(true) })
		case "missing_ranks":
			err = r.list(func() error { return r.member(false) })
		default:
			err = r.skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if size < 1 || size > int64(r.world) {
		return fmt.Errorf("a communicator of %d ranks in a gang of %d", size, r.world)
	}
	slices.SortFunc(r.members, func(a, b member) int { return cmp.Compare(a.rank, b.rank) })
	for i, m := range r.members {
		if m.rank < 0 || m.rank >= size || i > 0 && m.rank == r.members[i-1].rank {
			return fmt.Errorf("rank %d of a communicator of %d ranks, or twice", m.rank, size)
		}
	}
	r.compare(size)
	return r.keep(size)
}

// member reads one rank of a communicator.
func (r *reader) member(answered bool) error {
	m := member{rank: -1, answered: answered}
	err := r.object(func(name string) (err error) {
		switch name {
		case "rank":
			m.rank, err = r.number()
		case "host":
			m.host, err = r.text()
		case "pid":
			m.pid, err = r.number()
		case "status":
			err = r.object(func(name string) error { return r.status(&m, name) })
		case "collective_counts":
			err = r.object(func(name string) error { return r.count(&m, name) })
		default:
			err = r.skip()
		}
		return err
	})
	if err == nil && len(r.members) == r.world {
		err = errors.New("a communicator with more ranks than the gang")
	}
	r.members = append(r.members, m)
	return err
}

// Values of ncclResult_t (src/nccl.h.in) that are no fault of the rank that has them: another process failed, or it is under way.
const ncclSuccess, ncclRemoteError, ncclInProgress = 0, 6, 7

// status reads one field of a rank's status.
func (r *reader) status(m *member, name string) error {
	switch name {
	case "init_state", "async_error":
		code, err := r.number()
		if code != ncclSuccess && code != ncclRemoteError && code != ncclInProgress {
			m.fault = protocol.FaultError
		}
		return err
	case "unresponsive", "considered_dead":
		yes, err := r.truth()
		if yes {
			m.fault = protocol.FaultSilent
		}
		return err
	}
	return r.skip()
}

// collectives are the operations that every rank of a communicator launches.
var collectives = []string{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}

// count reads how many of one operation a rank has launched.
func (r *reader) count(m *member, name string) error {
	if !slices.Contains(collectives, name) {
		return r.skip()
	}
	n, err := r.number()
	m.launched += n
	return err
}

// compare finds the ranks that have launched fewer operations than most.
func (r *reader) compare(size int64) {
	by := map[int64]int64{}
	for _, m := range r.members {
		if m.answered {
			by[m.launched]++
		}
	}
	for most, n := range by {
		if 2*n <= size {
			continue
		}
		for i := range r.members {
			if m := &r.members[i]; m.answered && m.fault == protocol.FaultNone && m.launched < most {
				m.fault = protocol.FaultBehind
			}
		}
	}
}

// keep keeps what a communicator shows: of one of all ranks, also which processes they are.
func (r *reader) keep(size int64) error {
	whole := size == int64(r.world)
	for _, m := range r.members {
		rank := int(m.rank)
		if whole && m.known() {
			if known, again := r.ranks[m.process]; again && known != rank {
				return fmt.Errorf("process %d of %s is rank %d and %d", m.pid, m.host, known, rank)
			}
			if len(r.ranks) > r.world {
				return errors.New("more processes than ranks")
			}
			r.ranks[m.process] = rank
		}
		switch {
		case m.fault == protocol.FaultNone:
		case whole:
			note(r.found, rank, m.fault)
		default:
			if len(r.elsewhere) > r.world {
				return errors.New("more processes than ranks")
			}
			note(r.elsewhere, m.process, m.fault)
		}
	}
	return nil
}
