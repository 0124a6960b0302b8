//go:build linux

package arena

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

const stateBytes = 10000

var now = time.Unix(1000, 0)

func mustOpen(t *testing.T, dir string, size uint64, uid string) *Set {
	t.Helper()
	return mustOpenOf(t, dir, format.Slots, size, uid)
}

func mustOpenOf(t *testing.T, dir string, slots uint32, size uint64, uid string) *Set {
	t.Helper()
	s, err := Open(dir, 2, slots, size, uid, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// client copies as the Python client does: it writes data under the open grant, then the announcement.
type client struct {
	t    *testing.T
	file *os.File
	page format.Client
}

func attach(t *testing.T, dir, name string) *client {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &client{t: t, file: f}
}

func (c *client) control() format.Control {
	page := make([]byte, format.PageSize)
	if _, err := c.file.ReadAt(page, format.ControlOffset); err != nil {
		c.t.Fatal(err)
	}
	control, err := format.DecodeControl(page)
	if err != nil {
		c.t.Fatal(err)
	}
	return control
}

// save copies one step; false: no slot was granted.
func (c *client) save(step int64) bool {
	control := c.control()
	if control.Slot == format.NoSlot || control.Grant == c.page.Grant {
		return false
	}
	data := []byte{byte(step), 1, 2, 3}
	if _, err := c.file.WriteAt(data, format.DataOffset(control.Slot, stateBytes)); err != nil {
		c.t.Fatal(err)
	}
	c.page.Seq++
	c.page.Generation, c.page.Slot, c.page.Grant = control.Generation, control.Slot, control.Grant
	c.page.CopyStep, c.page.Length, c.page.Step = step, 4, step
	at := int64(format.ClientOffset)
	if c.page.Seq%2 == 1 {
		at += format.PageSize / 2
	}
	if _, err := c.file.WriteAt(c.page.Encode(), at); err != nil {
		c.t.Fatal(err)
	}
	return true
}

func sealed(t *testing.T, s *Set, local int, want ...int64) {
	t.Helper()
	if _, held := s.Poll(local, now); !slices.Equal(protocol.Steps(held), want) {
		t.Errorf("rank %d holds %v, want %v", local, held, want)
	}
}

func TestSealsWhatIsAnnouncedAndNeverTheCommonStep(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	c := attach(t, dir, "rank-0.arena")
	if c.save(1) {
		t.Fatal("a slot is granted before a generation began")
	}
	s.Begin(1, 0, format.Point{})
	for step := int64(1); step <= 3; step++ {
		if !c.save(step) {
			t.Fatalf("no slot for step %d", step)
		}
		p, _ := s.Poll(0, now)
		if p.Step != step || p.Generation != 1 {
			t.Errorf("progress %+v", p)
		}
	}
	sealed(t, s, 0, 1, 2, 3)
	if c.save(4) {
		t.Fatal("a slot is granted though nothing is common yet")
	}
	s.Levels(2, 2) // no rank needs step 1 any more; all ranks hold step 2
	if !c.save(4) {
		t.Fatal("no slot after the levels rose")
	}
	sealed(t, s, 0, 2, 3, 4)
	s.Levels(2, 3)
	if c.save(5) {
		t.Fatal("the common step's slot was granted")
	}
}

// TestSavesOfAClient: Poll returns the counts in the client's page, limited to the range of a report.
func TestSavesOfAClient(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	c := attach(t, dir, "rank-0.arena")
	s.Begin(1, 0, format.Point{})
	c.page.Saves, c.page.Overlapped, c.page.Dropped, c.page.Skipped, c.page.Refused = 1, 2, 3, 4, 1<<40
	c.save(1)
	if p, _ := s.Poll(0, now); p.Saves != (protocol.Saves{Copied: 1, Overlapped: 2, Dropped: 3, Skipped: 4, Refused: math.MaxUint32}) {
		t.Errorf("reported are %+v", p.Saves)
	}
}

func TestAnotherAgentGoesOn(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	c := attach(t, dir, "rank-0.arena")
	s.Begin(1, 0, format.Point{})
	c.save(1)
	// The agent dies before it has sealed the step. The next agent finds the announcement.
	again := mustOpen(t, dir, stateBytes, "uid")
	again.Begin(1, 0, format.Point{})
	sealed(t, again, 0, 1)
	if !c.save(2) {
		t.Fatal("no slot from the next agent")
	}
	if got := again.Inventory(0, format.Point{}, now); !reflect.DeepEqual(numbers(got), [][]int64{{1, 2}, nil}) {
		t.Errorf("inventory %v", got)
	}
}

// TestDurableRisesWithinAGeneration: the next agent continues with the durable step in the arena. The next generation starts without one.
func TestDurableRisesWithinAGeneration(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "pod")
	s.Begin(1, 0, format.Point{})
	clients := []*client{attach(t, dir, "rank-0.arena"), attach(t, dir, "rank-1.arena")}
	want := func(step int64) {
		t.Helper()
		for i, c := range clients {
			if got := c.control(); got.DurableStep != step || got.Slot == format.NoSlot {
				t.Errorf("rank %d reads %+v, want durable step %d and a grant", i, got, step)
			}
		}
	}
	want(0)
	s.SetDurable(format.Point{Step: 5})
	want(5)
	before := clients[0].control().Seq
	s.SetDurable(format.Point{Step: 4})
	s.SetDurable(format.Point{Step: 5})
	if got := clients[0].control().Seq; got != before {
		t.Errorf("nothing rose and the record was written again: %d, was %d", got, before)
	}
	s.Close()
	s = mustOpen(t, dir, stateBytes, "pod")
	want(5)
	s.SetDurable(format.Point{Step: 6})
	want(6)
	s.Begin(2, 0, format.Point{Step: 5})
	want(0)
}

// TestTwoSlots: an arena of two slots has memory for two steps. It holds the common step and the next one, and grants no third slot.
func TestTwoSlots(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenOf(t, dir, format.MinSlots, stateBytes, "uid")
	s.Begin(1, 0, format.Point{})
	c := attach(t, dir, "rank-0.arena")
	if st, err := c.file.Stat(); err != nil || st.Size() != int64(format.FileSize(stateBytes, 2)) {
		t.Errorf("the file is of %d bytes: %v", st.Size(), err)
	}
	for step := int64(1); step <= 2; step++ {
		if !c.save(step) {
			t.Fatalf("no slot for step %d", step)
		}
		s.Poll(0, now)
	}
	s = mustOpenOf(t, dir, format.MinSlots, stateBytes, "uid") // the next agent opens the arena
	s.Levels(1, 1)
	if c.save(3) {
		t.Fatal("the common step's slot was granted")
	}
	s.Levels(2, 2)
	if !c.save(3) {
		t.Fatal("no slot though the step before is common")
	}
	sealed(t, s, 0, 2, 3)
}

func TestInventoryDropsWhatDoesNotVerify(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	c := attach(t, dir, "rank-0.arena")
	s.Begin(1, 0, format.Point{})
	c.save(1)
	sealed(t, s, 0, 1)
	slot := c.page.Slot
	c.save(2)
	if got := s.Inventory(0, format.Point{}, now); !reflect.DeepEqual(numbers(got), [][]int64{{1, 2}, nil}) {
		t.Fatalf("inventory %v", got)
	}
	if _, err := c.file.WriteAt([]byte{99}, format.DataOffset(slot, stateBytes)+2); err != nil { // one byte of step 1
		t.Fatal(err)
	}
	if got := s.Inventory(0, format.Point{}, now); !reflect.DeepEqual(numbers(got), [][]int64{{2}, nil}) {
		t.Errorf("inventory %v holds a step whose bytes have changed", got)
	}
	s.Begin(2, 0, format.Point{Step: 1}) // the gang restores step 1 and gives up all newer steps
	if got := s.Inventory(0, format.Point{}, now); !reflect.DeepEqual(numbers(got), [][]int64{nil, nil}) {
		t.Errorf("inventory %v", got)
	}
}

// TestInventoryDropsWhatIsGivenUp: a generation may have run only on other pods. Then the inventory drops the steps above its restore
// point. A generation that ran here dropped these steps when it began, and what it sealed stays.
func TestInventoryDropsWhatIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	c := attach(t, dir, "rank-0.arena")
	s.Begin(3, 0, format.Point{})
	for step := int64(1); step <= 3; step++ {
		c.save(step)
		s.Poll(0, now)
	}
	if got := s.Inventory(3, format.Point{Step: 1}, now); !reflect.DeepEqual(numbers(got), [][]int64{{1, 2, 3}, nil}) {
		t.Errorf("generation 3 ran here, and its steps are gone: %v", got)
	}
	if got := s.Inventory(4, format.Point{Step: 2}, now); !reflect.DeepEqual(numbers(got), [][]int64{{1, 2}, nil}) {
		t.Errorf("generation 4 restored step 2 elsewhere: %v", got)
	}
	if got := mustOpen(t, dir, stateBytes, "uid").Inventory(0, format.Point{}, now); !reflect.DeepEqual(numbers(got), [][]int64{{1, 2}, nil}) {
		t.Errorf("the next agent finds %v", got)
	}
}

func TestOpenMakesAnewWhatIsOfNoUse(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	c := attach(t, dir, "rank-0.arena")
	s.Begin(1, 0, format.Point{})
	c.save(1)
	sealed(t, s, 0, 1)
	for name, open := range map[string]func() *Set{
		"another size": func() *Set { return mustOpen(t, dir, stateBytes*2, "uid") },
		"fewer slots":  func() *Set { return mustOpenOf(t, dir, format.MinSlots, stateBytes, "uid") },
		"another pod":  func() *Set { return mustOpen(t, dir, stateBytes, "other") },
		"a torn header": func() *Set {
			if err := os.WriteFile(filepath.Join(dir, "rank-0.arena"), make([]byte, format.FileSize(stateBytes, format.Slots)), 0o600); err != nil {
				t.Fatal(err)
			}
			return mustOpen(t, dir, stateBytes, "uid")
		},
	} {
		if _, got := open().Poll(0, now); len(got) > 0 {
			t.Errorf("%s: %v is taken over", name, got)
		}
	}
	mustOpen(t, dir, stateBytes, "uid") // whichever case was the last
	st, err := os.Stat(filepath.Join(dir, "rank-1.arena"))
	if err != nil || st.Size() != int64(format.FileSize(stateBytes, format.Slots)) {
		t.Errorf("%v %v", st, err)
	}
	Prune(dir, 1)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if !reflect.DeepEqual(left, []string{filepath.Join(dir, "rank-0.arena")}) {
		t.Errorf("left %v", left)
	}
}

func TestOpenWithoutRoomIsAnError(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "nowhere"), 1, format.Slots, stateBytes, "uid", now); err == nil {
		t.Error("arenas in a folder that is not there")
	}
	if _, err := Open(t.TempDir(), 1, format.Slots, 1<<60, "uid", now); err == nil {
		t.Error("an arena of an exbibyte")
	}
}

// TestChecksumsLeaveTheAgentSmall: when memory is short the kernel kills the process that has the most of it mapped. So sealing, verifying
// and copying a state must not leave the state mapped in the agent.
func TestChecksumsLeaveTheAgentSmall(t *testing.T) {
	const size = 64 << 20
	dir := t.TempDir()
	s := mustOpen(t, dir, size, "uid")
	s.Begin(1, 0, format.Point{})
	c := attach(t, dir, "rank-0.arena")
	before := mapped(t)
	control := c.control()
	c.page = format.Client{
		Seq:        1,
		Generation: control.Generation,
		Slot:       control.Slot,
		Grant:      control.Grant,
		CopyStep:   1,
		Step:       1,
		Length:     size,
	}
	if _, err := c.file.WriteAt(c.page.Encode(), format.ClientOffset+format.PageSize/2); err != nil {
		t.Fatal(err)
	}
	sealed(t, s, 0, 1)
	if got := s.Inventory(1, format.Point{}, now); !reflect.DeepEqual(numbers(got)[0], []int64{1}) {
		t.Errorf("%v is sealed", got)
	}
	p, ok, _ := s.Pin(0, 1)
	if !ok {
		t.Fatal("the step cannot be pinned")
	}
	sum := format.NewChecksum()
	if n, err := io.Copy(sum, p.Data()); err != nil || n != size || sum.Sum32() != p.Seal.CRC {
		t.Errorf("%d bytes, checksum %08x, sealed as %08x: %v", n, sum.Sum32(), p.Seal.CRC, err)
	}
	if grown := mapped(t) - before; grown > size/8 {
		t.Errorf("the agent has %d MiB more mapped than before", grown>>20)
	}
}

// mapped returns how many bytes of files this process has mapped and touched.
func mapped(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for line := range strings.Lines(string(status)) {
		var kib int
		for _, key := range []string{"RssFile:", "RssShmem:"} {
			if _, err := fmt.Sscanf(line, key+" %d kB", &kib); err == nil {
				sum += kib << 10
			}
		}
	}
	return sum
}

// TestAFileThatBecameShorter: a copy that cannot be read is not sealed. A sealed slot that cannot be read is dropped. No process is killed.
func TestAFileThatBecameShorter(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, stateBytes, "uid")
	s.Begin(1, 0, format.Point{})
	c := attach(t, dir, "rank-0.arena")
	c.save(1)
	sealed(t, s, 0, 1)
	c.save(2)
	if err := c.file.Truncate(format.MetaBytes); err != nil {
		t.Fatal(err)
	}
	sealed(t, s, 0, 1)
	if got := s.Inventory(1, format.Point{}, now); len(got[0]) != 0 {
		t.Errorf("%v is still sealed", got)
	}
}

func numbers(held [][]format.Point) (out [][]int64) {
	for _, points := range held {
		out = append(out, protocol.Steps(points))
	}
	return out
}
