package ras

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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

// Own is the process of rank 0, and all addresses of its pod.
type Own struct {
	PID       int
	Addresses []netip.Addr
}

// is reports whether NCCL's name of a process is that of rank 0: NCCL names a host by one address of it, with a zone if it is link-local.
func (o Own) is(p process) bool {
	at, err := netip.ParseAddr(p.host)
	return err == nil && p.pid == int64(o.PID) && slices.Contains(o.Addresses, at.Unmap().WithZone(""))
}

// read reads an answer about a gang of that many ranks with that rank 0: what listens on the port may belong to another gang. More faults
// than a look has room for say nothing about single ranks.
func read(from *bufio.Reader, world int, own Own) ([]protocol.RankFault, error) {
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
	if len(r.found) > 0 && !r.isOf(own) {
		return nil, fmt.Errorf("the answer of NCCL's RAS is of another gang: its rank 0 is not process %d of this pod", own.PID)
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

// isOf reports whether rank 0, in each communicator of all ranks, is that process.
func (r *reader) isOf(own Own) bool {
	found := false
	for p, rank := range r.ranks {
		if rank == 0 && !own.is(p) {
			return false
		}
		found = found || rank == 0
	}
	return found
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
	named := map[process]bool{}
	for _, m := range r.members {
		if m.known() && named[m.process] {
			return fmt.Errorf("process %d of %s is two ranks of a communicator", m.pid, m.host)
		}
		named[m.process] = true
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
