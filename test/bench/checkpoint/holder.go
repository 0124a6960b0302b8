//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/python"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/ckptagent/store/child"
	"holdfast.dev/holdfast/internal/protocol"
)

// holder does an agent's work for one pod, with the agent's own arenas and store: it grants, seals and copies to storage. It also takes the
// coordinator's decision: a step is common when every rank has it sealed.
type holder struct {
	set        *arena.Set
	store      *store.Store
	files      *child.FS
	dir        string
	generation int64
	sockets    []*net.UnixConn
	polls      sync.WaitGroup

	// notNamed is why stock torch could not read a step in place.
	notNamed atomic.Pointer[error]

	mu     sync.Mutex
	newest []int64 // newest sealed step of each rank
	// expects: each save will be copied to storage, so its file is written while its slot is sealed, as an agent does when a copy is due.
	expects bool
	drafts  map[int]*store.Draft
}

// newHolder lets the interpreter write the index for stock torch with the client in a folder, as an agent does.
func newHolder(interpreter, client, dir, storage string, ranks int, slots uint32, bytes int64) (*holder, error) {
	set, err := arena.Open(dir, ranks, slots, uint64(bytes), "bench", time.Now())
	if err != nil {
		return nil, err
	}
	files := child.New(storageProcess)
	folder := filepath.Join(storage, "holdfast")
	h := &holder{
		set: set, files: files, store: store.New(files, folder, "bench"), dir: dir, newest: make([]int64, ranks), drafts: map[int]*store.Draft{},
	}
	set.Announced = h.draft
	index := func(m format.Manifest, files string) (io.ReadCloser, error) {
		return child.Index(exec.Command(interpreter, python.IndexArgs(client, files, len(m.Ranks))...))
	}
	h.store.IndexBy(index, func(_ protocol.Mark, why error) { h.notNamed.Store(&why) })
	h.begin(0)
	for local := range ranks {
		socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: h.socket(local), Net: "unixgram"})
		if err != nil {
			h.close()
			return nil, err
		}
		h.sockets = append(h.sockets, socket)
		h.polls.Go(func() { h.poll(local, socket) })
	}
	return h, nil
}

// storageProcess runs the child that accesses storage, as an agent's does.
func storageProcess() *exec.Cmd { return exec.Command("/proc/self/exe", "storage") }

func (h *holder) socket(local int) string {
	return filepath.Join(h.dir, "agent-"+strconv.Itoa(local)+".sock")
}

// begin starts a generation; the processes of the previous one must be gone.
func (h *holder) begin(restore int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.generation++
	for i := range h.newest {
		h.newest[i] = restore
	}
	h.set.Begin(h.generation, 0, format.Point{Step: restore})
}

// environment is the environment of a rank's process.
func (h *holder) environment(local int, restore int64) []string {
	return []string{
		"HOLDFAST_ARENA=" + filepath.Join(h.dir, "rank-"+strconv.Itoa(local)+".arena"), "HOLDFAST_SOCKET=" + h.socket(local),
		"HOLDFAST_LOCAL_RANK=" + strconv.Itoa(local), "HOLDFAST_GENERATION=" + strconv.FormatInt(h.generation, 10),
		"HOLDFAST_RESTORE_STEP=" + strconv.FormatInt(restore, 10),
	}
}

// poll seals each step when its rank announces it.
func (h *holder) poll(local int, socket *net.UnixConn) {
	buffer := make([]byte, 64<<10)
	for {
		if _, err := socket.Read(buffer); err != nil {
			return // closed
		}
		_, sealed := h.set.Poll(local, time.Now())
		if len(sealed) == 0 {
			continue
		}
		h.mu.Lock()
		h.newest[local] = sealed[len(sealed)-1].Step
		common := slices.Min(h.newest)
		h.mu.Unlock()
		h.set.Levels(common, common)
	}
}

// expect sets whether saves will be copied to storage.
func (h *holder) expect(copies bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expects = copies
}

// draft begins to write a copy before it is sealed. persist completes it.
func (h *holder) draft(local int, early *arena.Pinned) {
	defer early.Release() // persist pins the slot again before the next save
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.expects {
		h.drafts[local] = h.store.Draft(context.Background(), h.file(local, early.Seal), early.Data())
	}
}

func (h *holder) file(local int, seal format.Slot) format.RankFile {
	return format.RankFile{
		Rank: uint32(local), WorldSize: uint32(h.set.Len()), Step: seal.Step, Generation: h.generation, Length: seal.Length, Checksum: seal.CRC,
	}
}

// sealed is the newest sealed step of a rank.
func (h *holder) sealed(local int) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest[local]
}

// persist copies a step of all ranks to storage, with its manifest, and removes older ones. persist returns when the step was complete
// there, by the clock that workers use.
func (h *holder) persist(ctx context.Context, step int64) (at int64, err error) {
	ranks := h.set.Len()
	manifest := format.Manifest{Step: step, Generation: h.generation, Ranks: make([]format.ManifestRank, ranks)}
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for local := range ranks {
		all.Go(func() {
			pinned, ok, _ := h.set.Pin(local, step)
			if !ok {
				errs[local] = fmt.Errorf("rank %d does not hold step %d", local, step)
				return
			}
			defer pinned.Release()
			f := h.file(local, pinned.Seal)
			manifest.Ranks[local] = format.ManifestRank{Length: f.Length, Checksum: f.Checksum}
			h.mu.Lock()
			early := h.drafts[local]
			delete(h.drafts, local)
			h.mu.Unlock()
			if early != nil && early.Matches(f) {
				errs[local] = early.Commit(f)
			} else {
				errs[local] = h.store.Put(ctx, f, pinned.Data())
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	if err := h.store.PutManifest(manifest); err != nil {
		return 0, err
	}
	if why := h.notNamed.Load(); why != nil {
		return 0, fmt.Errorf("step %d cannot be read in place: %w", step, *why)
	}
	h.set.SetDurable(format.Point{Step: step})
	at = monotonic()
	return at, h.store.Prune(protocol.Mark{Step: step, Generation: h.generation})
}

func (h *holder) close() {
	for _, s := range h.sockets {
		s.Close()
	}
	h.polls.Wait()
	h.files.Close()
	h.set.Close()
}

// monotonic is the clock shared by all processes of this machine, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // Linux always has this clock
	}
	return ts.Nano()
}
