package format

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// The tests of this file check the crash table of docs/formats/checkpoint.md. They end agent, client or both before, within and after every
// write. Then the survivors continue, recover and train on. After each crash two things must hold: a step that reads as sealed is complete,
// and the newest step that all ranks held sealed is still held by all.

const crashStateBytes = 600

// actor is one process. After its death its writes do not reach memory.
type actor struct {
	name string
	dead bool
}

// cut is the write at which an actor dies, and how much of that write reaches memory.
type cut struct {
	victims []string // names of actors; all die together
	write   int      // counted over the writes of the victims
	bytes   func(n int) int
	seen    int
}

func (c *cut) hits(name string) bool {
	if c == nil || !slices.Contains(c.victims, name) {
		return false
	}
	c.seen++
	return c.seen == c.write
}

type crashRank struct {
	w     *crashWorld
	rank  int
	mem   []byte
	agent actor
	book  *Book

	client    actor
	seq       uint64
	announced Client
	step      int64 // newest step trained
}

type crashWorld struct {
	t          *testing.T
	cut        *cut
	generation int64
	ranks      []*crashRank
	// commonStep is the newest step that all ranks ever held sealed at one time.
	commonStep   int64
	reclaimBelow int64
	// history has the events, for the message of a failure.
	history []string
	// broken is a rule that the test breaks, to show that the walk detects that.
	broken rule
}

// rule is one of the rules on which the crash table relies.
type rule string

const (
	none           rule = ""
	headersFirst   rule = "a slot's header says that it is written before the control record names it"
	commonIsKept   rule = "the slot of the newest common step is not granted"
	dataFirst      rule = "a client announces a copy once all of it is there"
	checksumsCount rule = "what is sealed has the checksum of what is there"
)

func newCrashWorld(t *testing.T, ranks int, c *cut) *crashWorld {
	w := &crashWorld{t: t, cut: c, generation: 1}
	for i := range ranks {
		r := &crashRank{w: w, rank: i, mem: make([]byte, FileSize(crashStateBytes, Slots))}
		r.agent.name, r.client.name = fmt.Sprintf("agent%d", i), fmt.Sprintf("client%d", i)
		w.ranks = append(w.ranks, r)
		var ws []Write
		r.book, ws = Create(Header{LocalRank: uint32(i), StateBytes: crashStateBytes, PodUID: "pod"})
		for _, x := range ws { // the file is not in use yet: after a crash here the next agent creates a new one
			copy(r.mem[x.Offset:], x.Bytes)
		}
		r.carryOut(r.book.Begin(w.generation, 0, Point{}))
	}
	return w
}

func (w *crashWorld) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// store is the only way to write memory. Crashes happen here.
func (r *crashRank) store(a *actor, off int64, b []byte) {
	if a.dead {
		return
	}
	if c := r.w.cut; c.hits(a.name) {
		n := c.bytes(len(b))
		copy(r.mem[off:], b[:n])
		r.w.note("%s dies at write %d after %d of %d bytes at %d", a.name, c.write, n, len(b), off)
		for _, x := range r.w.ranks {
			for _, v := range []*actor{&x.agent, &x.client} {
				v.dead = v.dead || slices.Contains(c.victims, v.name)
			}
		}
		return
	}
	copy(r.mem[off:], b)
}

func (r *crashRank) carryOut(ws []Write) {
	if r.w.broken == headersFirst {
		slices.Reverse(ws)
	}
	for _, x := range ws {
		r.store(&r.agent, x.Offset, x.Bytes)
	}
}

// pattern returns the state of a rank at a step of a generation. Each byte depends on all three.
func pattern(rank int, generation, step int64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(int64(i)*7 + step*31 + generation*101 + int64(rank)*13)
	}
	le.PutUint64(b, uint64(step))
	le.PutUint64(b[8:], uint64(generation))
	return b
}

// save does what the client does: copy, then announce. Without a grant it skips the save.
func (r *crashRank) save() {
	if r.client.dead {
		return
	}
	r.step++
	c, err := DecodeControl(r.mem[ControlOffset : ControlOffset+PageSize])
	if err != nil || c.Generation != r.w.generation || c.Slot == NoSlot || c.Grant <= r.announced.Grant {
		r.w.note("client%d skips step %d", r.rank, r.step)
		return
	}
	length := crashStateBytes - int(r.step%5)
	data := pattern(r.rank, r.w.generation, r.step, length)
	write := func() {
		at := DataOffset(c.Slot, crashStateBytes)
		for i := 0; i < len(data); i += 200 {
			r.store(&r.client, at+int64(i), data[i:min(i+200, len(data))])
		}
	}
	if r.w.broken != dataFirst {
		write()
	}
	r.seq++
	r.announced = Client{
		Seq: r.seq, Generation: r.w.generation, Attached: true, PID: 1,
		Slot: c.Slot, Grant: c.Grant, CopyStep: r.step, Length: uint64(length), Step: r.step,
	}
	r.store(&r.client, recordOffset(ClientOffset, r.seq), r.announced.Encode())
	if r.w.broken == dataFirst {
		write()
	}
	r.w.note("client%d saved step %d in slot %d", r.rank, r.step, c.Slot)
}

// sealPending does what the agent does when it reads the client page.
func (r *crashRank) sealPending() {
	if r.agent.dead {
		return
	}
	c, err := DecodeClient(r.mem[ClientOffset : ClientOffset+PageSize])
	if err != nil {
		return
	}
	if cp, ok := r.book.Announced(c); ok {
		crc := Checksum(r.mem[cp.Offset : cp.Offset+int64(cp.Length)])
		if r.w.broken == checksumsCount {
			crc = 0
		}
		r.carryOut(r.book.Seal(cp, crc, 1))
		r.w.note("agent%d seals step %d in slot %d", r.rank, cp.Step, cp.Slot)
	}
}

// sync does what the coordinator does: it computes the levels from the inventories of living agents, and sends them back.
func (w *crashWorld) sync() {
	var inventories [][]int64
	for _, r := range w.ranks {
		if r.agent.dead {
			return // no newer step becomes common while an agent is down
		}
		inventories = append(inventories, r.book.Sealed())
	}
	commonStep, reclaimBelow := levelsOf(inventories)
	w.commonStep, w.reclaimBelow = max(w.commonStep, commonStep), max(w.reclaimBelow, reclaimBelow)
	w.note("common %d reclaim below %d", w.commonStep, w.reclaimBelow)
	for _, r := range w.ranks {
		if w.broken == commonIsKept {
			r.book.Control.CommonStep = 0
			r.carryOut(r.book.Levels(0, w.reclaimBelow+1))
			continue
		}
		r.carryOut(r.book.Levels(w.commonStep, w.reclaimBelow))
	}
}

// restartAgents opens every book from memory, as a new agent does.
func (w *crashWorld) restartAgents() {
	for _, r := range w.ranks {
		if !r.agent.dead {
			continue
		}
		r.agent.dead = false
		book, err := Open(r.mem[:MetaBytes])
		if err != nil {
			w.fatal("reopen arena of rank %d: %v", r.rank, err)
		}
		r.book = book
		w.note("agent%d is back", r.rank)
		r.carryOut(book.Publish())
	}
}

// recover ends the generation, and starts the next one from the newest common step.
func (w *crashWorld) recover() {
	for _, r := range w.ranks {
		r.client.dead = true
	}
	w.restartAgents()
	var inventories [][]int64
	for _, r := range w.ranks {
		r.sealPending()
		if r.agent.dead {
			w.restartAgents()
			r.sealPending()
		}
		inventories = append(inventories, r.book.Sealed())
	}
	restore, _ := levelsOf(inventories)
	w.note("inventories %v, restore %d", inventories, restore)
	if restore < w.commonStep {
		w.fatal("restore point %d, but %d was held by all ranks", restore, w.commonStep)
	}
	w.commonStep, w.reclaimBelow = restore, restore
	w.generation++
	for _, r := range w.ranks {
		r.carryOut(r.book.Begin(w.generation, 0, Point{Step: restore}))
		if r.agent.dead {
			w.restartAgents()
			r.carryOut(r.book.Begin(w.generation, 0, Point{Step: restore}))
		}
		r.client.dead = false
		r.announced = Client{}
		if cl, err := DecodeClient(r.mem[ClientOffset : ClientOffset+PageSize]); err == nil {
			r.seq = cl.Seq // a client continues from the numbers that it finds
		}
		r.step = restore
	}
	w.check()
}

// check reads memory without knowing the history: each sealed step is complete, and the common step is there.
func (w *crashWorld) check() {
	for _, r := range w.ranks {
		book, err := Open(r.mem[:MetaBytes])
		if err != nil {
			w.fatal("rank %d: %v", r.rank, err)
		}
		for i, s := range book.Slot {
			if s.State != SlotSealed {
				continue
			}
			at := DataOffset(uint32(i), crashStateBytes)
			data := r.mem[at : at+int64(s.Length)]
			if Checksum(data) != s.CRC {
				w.fatal("rank %d slot %d: sealed step %d does not verify", r.rank, i, s.Step)
			}
			if want := pattern(r.rank, int64(le.Uint64(data[8:])), s.Step, len(data)); !bytes.Equal(data, want) {
				w.fatal("rank %d slot %d: sealed step %d is not the state of one step", r.rank, i, s.Step)
			}
		}
		if _, ok := book.Find(w.commonStep); w.commonStep > 0 && !ok {
			w.fatal("rank %d no longer holds step %d, which all ranks held; it holds %v", r.rank, w.commonStep, book.Sealed())
		}
	}
}

// noticed is the panic value of a walk that detects a broken rule.
type noticed string

func (w *crashWorld) fatal(format string, args ...any) {
	w.t.Helper()
	if w.broken != none {
		panic(noticed(fmt.Sprintf(format, args...)))
	}
	for _, h := range w.history {
		w.t.Log(h)
	}
	w.t.Fatalf(format, args...)
}

// scripts are sequences of events. "s0": rank 0 saves. "a0": the agent of rank 0 reads the client page. "c": the coordinator computes
// levels. "r": dead agents restart. "!": recovery.
var crashScripts = map[string]string{
	"in step":       "s0 a0 s1 a1 c s0 a0 s1 a1 c s0 a0 s1 a1 c s0 a0 s1 a1 c",
	"one runs far":  "s0 a0 s0 a0 s0 a0 s0 a0 s1 a1 c s0 a0 s1 a1 c s1 a1 c s0 a0 c",
	"agent lags":    "s0 s0 s1 s1 a0 a1 c s0 s1 s0 a0 c a1 c s0 s1 a0 a1 c",
	"agent is back": "s0 a0 s1 a1 c s0 a0 s1 a1 r c s0 r a0 s1 a1 c s0 a0 s1 a1 c",
	"recovers":      "s0 a0 s1 a1 c s0 a0 s1 s0 a0 ! s0 a0 s1 a1 c s0 a0 s1 a1 c s0 s1 a0 a1",
}

func (w *crashWorld) play(script string) {
	for _, event := range bytes.Fields([]byte(script)) {
		switch event[0] {
		case 's':
			w.ranks[event[1]-'0'].save()
		case 'a':
			w.ranks[event[1]-'0'].sealPending()
		case 'c':
			w.sync()
		case 'r':
			w.restartAgents()
		case '!':
			w.recover()
		}
		w.check()
	}
}

func TestCrashTable(t *testing.T) {
	cuts := walk(t, none)
	if cuts < 1000 {
		t.Fatalf("only %d cuts were made: the table is not walked", cuts)
	}
	t.Logf("%d cuts", cuts)
}

// walk plays every script with a crash at every write, and returns the number of crashes.
func walk(t *testing.T, broken rule) (cuts int) {
	t.Helper()
	victims := [][]string{
		{"agent0"}, {"agent1"}, {"client0"}, {"client1"},
		{"agent0", "client0"}, {"agent0", "agent1"}, {"agent0", "client0", "agent1", "client1"},
	}
	amounts := map[string]func(int) int{
		"nothing":  func(int) int { return 0 },
		"a little": func(n int) int { return min(20, n) },
		"half":     func(n int) int { return n / 2 },
		"nearly":   func(n int) int { return n - 1 },
		"all":      func(n int) int { return n },
	}
	for name, script := range crashScripts {
		for _, who := range victims {
			for amount, bytes := range amounts {
				for write := 1; ; write++ {
					c := &cut{victims: who, write: write, bytes: bytes}
					w := newCrashWorld(t, 2, c)
					w.broken = broken
					w.note("script %q, victims %v, %s of write %d", name, who, amount, write)
					w.play(script)
					hit := c.seen >= write
					w.recover()
					w.play("s0 a0 s1 a1 c s0 a0 s1 a1 c s0 a0 s1 a1 c")
					if w.commonStep < 3 {
						w.fatal("after recovery three steps were saved by all, common is %d", w.commonStep)
					}
					if !hit {
						break
					}
					cuts++
				}
			}
		}
	}
	return cuts
}

// TestCrashWithinRecovery ends agents while they recover from the death of all clients.
func TestCrashWithinRecovery(t *testing.T) {
	for write := 1; ; write++ {
		c := &cut{victims: []string{"agent0"}, write: write, bytes: func(n int) int { return n / 2 }}
		w := newCrashWorld(t, 2, nil)
		w.play("s0 a0 s1 a1 c s0 a0 s1 a1 c s0 a0 s0 s1")
		w.cut = c
		w.recover()
		w.play("s0 a0 s1 a1 c s0 a0 s1 a1 c")
		if w.commonStep < 3 {
			w.fatal("common is %d", w.commonStep)
		}
		if c.seen < write {
			return
		}
	}
}

// TestCrashTableCanFail breaks one rule at a time, and checks that the walk detects it.
func TestCrashTableCanFail(t *testing.T) {
	for _, broken := range []rule{headersFirst, commonIsKept, dataFirst, checksumsCount} {
		t.Run(string(broken), func(t *testing.T) {
			defer func() {
				why, ok := recover().(noticed)
				if !ok {
					t.Fatal("the walk noticed nothing: it cannot fail, or the rule is needless")
				}
				t.Log(why)
			}()
			walk(t, broken)
		})
	}
}
