package launch

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// fill sets the values, in the order of their names so that the first refusal is always the same.
func (s *Spec) fill(values map[string]value) *Refusal {
	s.Ranks, s.Role, s.RunID, s.ShutdownTimeout = 1, "default", "none", DefaultShutdownTimeout
	for _, name := range slices.Sorted(maps.Keys(values)) {
		f, _ := byLong(name, true)
		val := values[name]
		if !known(val.v) {
			s.setLater(name)
			continue
		}
		if f.boolean {
			n, err := strconv.Atoi(strings.TrimSpace(val.v))
			if err != nil {
				return refuse(val.as, "is not a number", "write 1 or 0")
			}
			if n == 0 {
				continue
			}
		}
		if f.handling == refused {
			if !f.boolean && f.passes(val.v) {
				continue
			}
			return refuse(val.as, "is not honoured under holdfast", f.remedy)
		}
		if r := s.set(name, val); r != nil {
			return r
		}
		if f.handling == superseded {
			s.Superseded = append(s.Superseded, val.as)
		}
	}
	return nil
}

// set sets one option that is honoured or superseded.
func (s *Spec) set(name string, val value) *Refusal {
	switch name {
	case "nproc-per-node":
		return s.setRanks(val)
	case "nnodes":
		return s.setNodes(val)
	case "standalone": // read after nnodes: a rendezvous on localhost has one node in any case
		s.Nodes, s.MinNodes, s.NodesFlag = 1, 0, val.as
	case "role":
		s.Role = val.v
	case "rdzv-id":
		s.RunID = val.v
	case "module":
		s.Module = true
	case "no-python":
		s.NoPython = true
	case "virtual-local-rank":
		s.VirtualLocalRank = true
	case "run-path":
		s.runPath = true
	case "log-dir", "redirects", "tee", "log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters":
		return s.Logs.set(name, val)
	case "max-restarts":
		n, r := number(val, 0)
		n = min(n, protocol.MaxRestarts) // the limit is never reached
		s.MaxRestarts, s.MaxRestartsSaid = n, true
		return r
	case "shutdown-timeout":
		n, r := number(val, 0)
		s.ShutdownTimeout = time.Duration(n) * time.Second
		return r
	case "start-method":
		if v := val.v; v != "spawn" && v != "fork" && v != "forkserver" {
			return refuse(val.as, "is not a start method", "use spawn, fork or forkserver")
		}
	case "node-rank":
		_, r := number(val, 0)
		return r
	case "master-port":
		_, r := number(val, 0)
		return r
	case "rdzv-conf":
		return checkPairs(val)
	case "monitor-interval":
		if _, err := strconv.ParseFloat(val.v, 64); err != nil {
			return refuse(val.as, "is not a number", "give seconds")
		}
	}
	return nil
}

func (s *Spec) setRanks(val value) *Refusal {
	switch val.v {
	case "auto", "gpu", "cpu", "xpu", "npu", "hpu":
		s.Ranks, s.RanksFrom = RanksAuto, val.v
		return nil
	}
	n, err := strconv.Atoi(val.v)
	if err != nil || n < 1 {
		return refuse(val.as, "is not a number of processes that holdfast can count", "give a number from 1 on, or auto, gpu, xpu, npu, hpu or cpu")
	}
	s.Ranks = n
	return tooMany(val.as, n)
}

// tooMany refuses more ranks than the limit per pod.
func tooMany(as string, ranks int) *Refusal {
	if ranks <= protocol.MaxRanks {
		return nil
	}
	return refuse(as, fmt.Sprintf("requests %d processes on one pod", ranks), fmt.Sprintf("give at most %d, and use more pods", protocol.MaxRanks))
}

func (s *Spec) setNodes(val value) *Refusal {
	low, high, isRange := strings.Cut(val.v, ":")
	lo, err := strconv.Atoi(low)
	hi := lo
	if err == nil && isRange {
		hi, err = strconv.Atoi(high)
	}
	if err != nil || lo < 1 || hi < lo {
		return refuse(val.as, "is not a number of nodes", "give the number of pods of the job")
	}
	s.Nodes, s.MinNodes, s.NodesFlag = hi, least(lo, hi), val.as
	return nil
}

// least is Spec.MinNodes of a range.
func least(lo, hi int) int {
	if lo == hi {
		return 0
	}
	return lo
}

// checkPairs refuses a value that is not a list of key=value separated by commas.
func checkPairs(val value) *Refusal {
	if strings.TrimSpace(val.v) == "" {
		return nil
	}
	for pair := range strings.SplitSeq(val.v, ",") {
		key, v, _ := strings.Cut(pair, "=")
		if strings.TrimSpace(key) == "" || strings.TrimSpace(v) == "" {
			return refuse(val.as, "is not a list of keys with values", "write key=value, with commas between several")
		}
	}
	return nil
}

func number(val value, least int) (int, *Refusal) {
	n, err := strconv.Atoi(strings.TrimSpace(val.v))
	if err != nil || n < least {
		return 0, refuse(val.as, "is not a whole number", fmt.Sprintf("give a number from %d on", least))
	}
	return n, nil
}
