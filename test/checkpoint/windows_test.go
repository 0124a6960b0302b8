//go:build linux

package checkpoint

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"holdfast.dev/holdfast/ckptagent/format"
)

// hunt reads the arenas of all ranks, and storage, without the agents.
type hunt struct {
	*crashes
	arenas []*arenaFile
}

type arenaFile struct {
	*os.File
	pod  *pod
	rank int
	meta []byte
}

func (c *crashes) hunt() *hunt {
	c.t.Helper()
	h := &hunt{crashes: c}
	for i, p := range c.pods {
		for local := range c.perPod {
			f, err := os.Open(filepath.Join(p.Root, "memory", fmt.Sprintf("rank-%d.arena", local)))
			if err != nil {
				c.t.Fatal(err)
			}
			h.arenas = append(h.arenas, &arenaFile{File: f, pod: p, rank: i*c.perPod + local, meta: make([]byte, format.MetaBytes)})
		}
	}
	return h
}

func (h *hunt) close() {
	for _, a := range h.arenas {
		a.Close()
	}
}

// read returns the records of agent and client; false: one of them is being written.
func (a *arenaFile) read() (*format.Book, format.Client, bool) {
	if _, err := a.ReadAt(a.meta, 0); err != nil {
		return nil, format.Client{}, false
	}
	book, err := format.Open(a.meta)
	if err != nil {
		return nil, format.Client{}, false
	}
	client, err := format.DecodeClient(a.meta[format.ClientOffset : format.ClientOffset+format.PageSize])
	return book, client, err == nil
}

// looks is the number of places of a slot that are read to find the step of its data.
const looks = 8

// half reports whether a slot that is granted and not announced has a part of the next step. The state of a step repeats one block. No slot
// has a part of the next step from earlier: an older generation got no further than the step that all ranks now hold.
func (a *arenaFile) half(state int) (format.Client, bool) {
	book, client, ok := a.read()
	open := format.NoSlot
	if ok {
		open = book.Control.Slot
	}
	if open == format.NoSlot || client.Generation != book.Control.Generation || client.Grant >= book.Control.Grant {
		return client, false
	}
	same, ok := a.blocks(format.DataOffset(open, book.Header.StateBytes), state, client.Step+1)
	return client, ok && same > 0 && same < looks
}

// blocks counts the samples of a slot's data that have a block of that step. All samples are within the weights, wherever in the first page
// the weights begin.
func (a *arenaFile) blocks(data int64, state int, step int64) (same int, ok bool) {
	want := sha256.Sum256(fmt.Appendf(nil, "%d/%d", a.rank, step))
	var block [sha256.Size]byte
	for i := range looks {
		at := data + format.PageSize + int64(i)*int64((state-2*format.PageSize)/(looks-1)/len(block)*len(block))
		if _, err := a.ReadAt(block[:], at); err != nil {
			return 0, false
		}
		if block == want {
			same++
		}
	}
	return same, true
}

// copying finds a trainer that is copying its state.
func (h *hunt) copying() (prey, bool) {
	for _, a := range h.arenas {
		if seen, ok := a.half(h.state); ok {
			return prey{pid: int(seen.PID), pod: a.pod, still: func() bool {
				now, ok := a.half(h.state)
				return ok && now.PID == seen.PID
			}}, true
		}
	}
	return prey{}, false
}

// sealing finds an agent that has not sealed an announced copy. The announcement was there before the agent was stopped. The rank is
// stopped, too, so that it completes no further copy.
func (h *hunt) sealing() (prey, bool) {
	announced := func(a *arenaFile) (c format.Copy, pid int, is bool) {
		book, client, ok := a.read()
		if ok {
			c, is = book.Announced(client)
		}
		return c, int(client.PID), is
	}
	for _, a := range h.arenas {
		seen, rank, ok := announced(a)
		if !ok {
			continue
		}
		pid, ok := a.pod.LookForAgent()
		return prey{pid: pid, rank: rank, pod: a.pod, still: func() bool {
			now, _, ok := announced(a)
			return ok && now == seen
		}}, ok
	}
	return prey{}, false
}

// restoring finds a trainer of a new generation that has not restored its state yet.
func (h *hunt) restoring() (prey, bool) {
	attached := func(a *arenaFile) (format.Client, bool) {
		_, client, ok := a.read()
		return client, ok && client.Generation > int64(h.generation) && client.Attached && !client.Restored
	}
	for _, a := range h.arenas {
		if seen, ok := attached(a); ok {
			return prey{pid: int(seen.PID), pod: a.pod, generation: uint64(seen.Generation), still: func() bool {
				now, ok := attached(a)
				return ok && now.PID == seen.PID
			}}, true
		}
	}
	return prey{}, false
}

// persisting finds an agent that is writing a rank file.
func (h *hunt) persisting() (prey, bool) {
	for _, name := range h.stored() {
		kind, _ := format.ParseFileName(filepath.Base(name))
		if kind != format.FilePart || !strings.Contains(name, ".rank-") {
			continue
		}
		for _, p := range h.pods {
			if pid, ok := p.writes(name); ok {
				return prey{pid: pid, pod: p, still: func() bool { return exists(name) }}, true
			}
		}
	}
	return prey{}, false
}

// completing finds the agent that writes manifests, while a manifest is incomplete, or complete and not recorded.
func (h *hunt) completing() (prey, bool) {
	first := h.pods[0]
	for _, name := range h.stored() {
		kind, step := format.ParseFileName(filepath.Base(name))
		unrecorded := func() bool {
			durable, _ := h.d.Durable()
			return exists(name) && uint64(step) > durable
		}
		switch {
		case kind == format.FileManifest && unrecorded():
			pid, ok := first.LookForAgent()
			return prey{pid: pid, pod: first, still: unrecorded}, ok
		case kind == format.FilePart && strings.Contains(name, ".manifest."):
			if pid, ok := first.writes(name); ok {
				return prey{pid: pid, pod: first, still: func() bool { return exists(name) }}, true
			}
		}
	}
	return prey{}, false
}

// writes returns the pid of the pod's agent, if the agent's name is in that of the unfinished file.
func (p *pod) writes(part string) (pid int, ok bool) {
	if !strings.Contains(part, "."+p.Env["HOLDFAST_POD_UID"]+"-") {
		return 0, false
	}
	return p.LookForAgent()
}

// stored lists the files in storage, without those that an earlier kill may have left.
func (c *crashes) stored() (names []string) {
	all, err := filepath.Glob(filepath.Join(c.mount, "gang-uid", "gen-*", "step-*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range all {
		if !c.stale[name] {
			names = append(names, name)
		}
	}
	return names
}

// noteLeft records which files are in storage after a kill: no later agent wrote these.
func (c *crashes) noteLeft() {
	for _, name := range c.stored() {
		c.stale[name] = true
	}
}
