//go:build linux

// Package arena manages the shared memory of a pod's ranks: it creates and opens the arena files, seals steps that a
// rank has copied completely, and lists the sealed steps. Package ckptagent/format decides which record is written
// when. Package arena writes each record with one call, in the order that ckptagent/format returns.
package arena

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// Set is the arenas of one pod, by local rank.
type Set struct {
	arenas []*Arena
	// Announced is called with each copy that a rank has announced, before its checksum is computed; the Seal of early has none. The
	// callee must release it. nil: nothing is called. It must be set before the first Poll.
	Announced func(local int, early *Pinned)
}

// Arena is one rank's file.
type Arena struct {
	mu   sync.Mutex
	book *format.Book
	// file is read and written, not mapped: the kernel's OOM killer counts mapped pages against the process, and killing the agent would
	// free none of them.
	file *os.File
	// readers is the number of threads that compute one slot's checksum on free cores.
	readers int
}

// Progress is what a client reports in its page.
type Progress struct {
	Generation int64
	Attached   bool
	Restored   bool
	// Restoring: the client has begun to restore, has not finished, and has reported no step since.
	Restoring bool
	Step      int64
	// Span and Grouped are as in protocol.Rank.
	Span    int
	Grouped bool
	// Saves counts the outcomes of this process's saves.
	Saves protocol.Saves
	// Needed is the size of the state in bytes, if it did not fit; else 0.
	Needed uint64
	// Blocks is why saves are copied only inside save; 0: they overlap, or nothing could.
	Blocks format.Reason
}

// Open opens or creates the arena of each rank in dir. A new arena allocates all its memory, so that a lack of memory is an error here and
// not a signal in the training process later. An arena of another shape is re-created.
func Open(dir string, ranks int, slots uint32, stateBytes uint64, podUID string, now time.Time) (*Set, error) {
	s := &Set{}
	for local := range ranks {
		a, err := open(
			path(dir, local),
			format.Header{Slots: slots, LocalRank: uint32(local), StateBytes: stateBytes, CreatedAt: now.UnixNano(), PodUID: podUID},
		)
		if err != nil {
			s.Close()
			return nil, err
		}
		a.readers = readersOf(runtime.GOMAXPROCS(0), ranks)
		s.arenas = append(s.arenas, a)
	}
	return s, nil
}

func path(dir string, local int) string {
	return filepath.Join(dir, "rank-"+strconv.Itoa(local)+".arena")
}

// open opens the file of an earlier agent, if it is complete and of the requested size.
func open(file string, h format.Header) (*Arena, error) {
	if a, err := reopen(file, h); err == nil {
		return a, nil
	}
	part := file + ".new"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, fmt.Errorf("making an arena: %w", err)
	}
	size := int64(format.FileSize(h.StateBytes, h.Slots))
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		f.Close()
		os.Remove(part)
		return nil, fmt.Errorf("taking %d MiB of memory for the state of a rank: %w; give the volume and the container more memory, or set a smaller holdfast.dev/state-size", size>>20, err)
	}
	a := &Arena{file: f}
	var writes []format.Write
	a.book, writes = format.Create(h)
	a.carryOut(writes)
	if err := os.Rename(part, file); err != nil {
		a.file.Close()
		return nil, fmt.Errorf("making an arena: %w", err)
	}
	return a, nil
}

func reopen(file string, h format.Header) (*Arena, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() != int64(format.FileSize(h.StateBytes, h.Slots)) {
		err = errors.New("of another size")
	}
	meta := make([]byte, format.MetaBytes)
	if err == nil {
		_, err = f.ReadAt(meta, 0)
	}
	a := &Arena{file: f}
	if err == nil {
		a.book, err = format.Open(meta)
	}
	if err == nil &&
		(a.book.Header.StateBytes != h.StateBytes || a.book.Header.Slots != h.Slots || a.book.Header.PodUID != h.PodUID ||
			a.book.Header.LocalRank != h.LocalRank) {
		err = errors.New("of another pod")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

// carryOut writes records in order. A write to allocated shared memory fails only through a bug; then the arena cannot be trusted, and
// carryOut panics. It does nothing once the launcher has returned and the file is closed, when storage may still release slots.
func (a *Arena) carryOut(writes []format.Write) {
	for _, w := range writes {
		if _, err := a.file.WriteAt(w.Bytes, w.Offset); errors.Is(err, os.ErrClosed) {
			return
		} else if err != nil {
			panic(fmt.Sprintf("writing a record of an arena at %d: %v", w.Offset, err))
		}
	}
}

// Close closes the files and does not remove them.
func (s *Set) Close() {
	for _, a := range s.arenas {
		a.file.Close()
	}
}

// Begin prepares all arenas for a generation of branch that restores a point; all processes of older ones must be gone.
func (s *Set) Begin(generation, branch int64, restore format.Point) {
	s.each(func(_ int, a *Arena) { a.carryOut(a.book.Begin(generation, branch, restore)) })
}

// Levels writes the gang's common step and reclaimBelow to all arenas.
func (s *Set) Levels(commonStep, reclaimBelow int64) {
	s.each(func(_ int, a *Arena) { a.carryOut(a.book.Levels(commonStep, reclaimBelow)) })
}

// SetDurable writes the newest durable step to all arenas.
func (s *Set) SetDurable(at format.Point) {
	s.each(func(_ int, a *Arena) { a.carryOut(a.book.SetDurable(at)) })
}

func (s *Set) each(do func(int, *Arena)) {
	for i, a := range s.arenas {
		a.mu.Lock()
		do(i, a)
		a.mu.Unlock()
	}
}

// Poll reads a rank's client page and seals the copy that it announces, if any. Poll returns the page's content and the sealed steps.
func (s *Set) Poll(local int, now time.Time) (p Progress, sealed []format.Point) {
	return s.poll(local, func(a *Arena) Progress { return a.seal(now, s.Announced) })
}

// Peek is Poll without sealing, so that it returns at once however big a slot is.
func (s *Set) Peek(local int) (p Progress, sealed []format.Point) {
	return s.poll(local, func(a *Arena) Progress {
		c, _ := a.client()
		return progressOf(c)
	})
}

func (s *Set) poll(local int, at func(*Arena) Progress) (p Progress, sealed []format.Point) {
	if local < 0 || local >= len(s.arenas) {
		return p, nil
	}
	a := s.arenas[local]
	p = at(a)
	a.mu.Lock()
	defer a.mu.Unlock()
	return p, a.book.Held()
}

// client reads the client's page; false: it has no complete record.
func (a *Arena) client() (format.Client, bool) {
	page := make([]byte, format.PageSize)
	if _, err := a.file.ReadAt(page, format.ClientOffset); err != nil {
		return format.Client{}, false
	}
	c, err := format.DecodeClient(page)
	if err != nil {
		return format.Client{}, false
	}
	return c, true
}

func progressOf(c format.Client) Progress {
	return Progress{
		Generation: c.Generation,
		Attached:   c.Attached,
		Restored:   c.Restored,
		Step:       max(c.Step, c.CopyStep),
		Restoring:  c.Restoring && c.Step == 0,
		Span:       int(c.Span),
		Grouped:    c.Grouped,
		Saves: protocol.Saves{
			Copied:     count(c.Saves),
			Overlapped: count(c.Overlapped),
			Dropped:    count(c.Dropped),
			Skipped:    count(c.Skipped),
			Refused:    count(c.Refused),
		},
		Needed: c.Needed,
		Blocks: c.Reason,
	}
}

// count limits a client's count to the range of reports.
func count(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// seal seals an announced copy. seal computes the checksum without the lock, so that nothing waits for a big slot: the client does not
// write to a copy after it announced it, and Seal ignores a copy whose grant has ended.
func (a *Arena) seal(now time.Time, announced func(local int, early *Pinned)) Progress {
	c, ok := a.client()
	if !ok {
		return Progress{}
	}
	a.mu.Lock()
	copied, ok := a.book.Announced(c)
	var early *Pinned
	if ok && announced != nil {
		if header, pinned := a.book.PinCopy(copied); pinned {
			early = &Pinned{a: a, slot: copied.Slot, Seal: header}
		}
	}
	a.mu.Unlock()
	if !ok {
		return progressOf(c)
	}
	if early != nil {
		announced(int(a.book.Header.LocalRank), early)
	}
	if crc, err := a.checksum(copied.Offset, copied.Length, idleTimeout); err == nil {
		a.mu.Lock()
		a.carryOut(a.book.Seal(copied, crc, now.UnixNano()))
		a.mu.Unlock()
	}
	return progressOf(c)
}

// Inventory seals complete copies, empties slots that a generation which never ran here gave up by restoring a point (generation 0: none),
// verifies every sealed slot, empties those that do not verify, and returns the steps of each rank. No client may run.
func (s *Set) Inventory(generation int64, restore format.Point, now time.Time) [][]format.Point {
	out := make([][]format.Point, len(s.arenas))
	var all sync.WaitGroup
	for i, a := range s.arenas {
		all.Go(func() {
			a.seal(now, nil)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.carryOut(a.book.Abandon(generation, restore))
			for slot, h := range a.book.Slot {
				if h.State != format.SlotSealed {
					continue
				}
				crc, err := a.checksum(format.DataOffset(uint32(slot), a.book.Header.StateBytes), h.Length, 0) // training waits
				if err != nil || crc != h.CRC {
					a.carryOut(a.book.Drop(uint32(slot)))
				}
			}
			out[i] = a.book.Held()
		})
	}
	all.Wait()
	return out
}

// Prune removes the arenas of ranks from the given number on.
func Prune(dir string, ranks int) {
	files, _ := filepath.Glob(filepath.Join(dir, "rank-*.arena*"))
	for _, f := range files {
		var local int
		if _, err := fmt.Sscanf(filepath.Base(f), "rank-%d.arena", &local); err != nil || local >= ranks {
			os.Remove(f)
		}
	}
}

// SetBarrier makes clients stay in the save of the first step at or above step; 0 releases them. SetBarrier must be repeated every second.
func (s *Set) SetBarrier(step int64) {
	s.each(func(_ int, a *Arena) { a.carryOut(a.book.SetBarrier(step)) })
}

// Len returns the number of ranks.
func (s *Set) Len() int { return len(s.arenas) }

// Sealed returns the steps that each rank holds.
func (s *Set) Sealed() [][]format.Point {
	out := make([][]format.Point, len(s.arenas))
	s.each(func(i int, a *Arena) { out[i] = a.book.Held() })
	return out
}
