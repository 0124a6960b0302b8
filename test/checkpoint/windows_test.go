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

// hunt reads the arenas of all ranks, and storage, as a stranger would.
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

// read is what agent and client say; false while one of them is writing it.
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

// looks are how many places of a slot are read to see whose step they are of.
const looks = 8

// half says whether a granted slot, of which nothing is announced, holds the next step in part. The state of a step is one block
// again and again, and no slot can have a part of the next step from before: an older generation came no further than that which all
// ranks hold since.
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

// blocks counts the looks at a slot's data that see a block of that step, all within the weights, wherever in the first page they start.
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

// copying is a trainer that copies its state.
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

// sealing is an agent that has not sealed what a client has announced. The announcement was there before the agent stood still, and is
// the same one; who has announced it stands still, too, and what is not copied by then never will be.
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

// restoring is a trainer of a new generation that has not restored its state.
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

// persisting is an agent that writes the file of a rank.
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

// completing is the agent that writes manifests: one is not whole, or is whole and not recorded.
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

// writes is the pid of the pod's agent if a part is named as its.
func (p *pod) writes(part string) (pid int, ok bool) {
	if !strings.Contains(part, "."+p.Env["HOLDFAST_POD_UID"]+"-") {
		return 0, false
	}
	return p.LookForAgent()
}

// stored names what lies in the folders of storage, but for what earlier kills may have left.
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

// noteLeft remembers what lies in storage after a kill: what is there now is no sign of what a later agent does.
func (c *crashes) noteLeft() {
	for _, name := range c.stored() {
		c.stale[name] = true
	}
}
