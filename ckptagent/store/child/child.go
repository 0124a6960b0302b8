//go:build linux

// Package child accesses the file system of storage in a separate process. A thread that waits for a network file
// system may be unkillable. The process of such a thread does not end and keeps its sockets open, and its parent is not
// notified. The calling process has no such thread: a call may wait for storage, but the caller can end, be killed and
// be replaced at any time.
package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/background"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
)

const (
	// laneBytes is the size of one read or write, lanes the most calls at a time.
	laneBytes = 2 << 20
	lanes     = 8
	// spareLane is one more lane, for reads while all others are taken: full storage may block writes for long, and steps can still be read
	// from it.
	spareLane = lanes
	allLanes  = lanes + 1
	// sharedFD is the child's descriptor of the memory shared with its parent.
	sharedFD = 3
	// endWait bounds the wait for the child's end.
	endWait = time.Second
)

// request is one call of store.FS or of a file.
type request struct {
	ID      uint64 `json:"id"`
	Op      string `json:"op"`
	Name    string `json:"name,omitempty"`
	NewName string `json:"newName,omitempty"`
	At      int64  `json:"at,omitempty"`
	To      int64  `json:"to,omitempty"`
	Handle  uint64 `json:"handle,omitempty"`
	Lane    int    `json:"lane,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
	Hurry   bool   `json:"hurry,omitempty"`
}

// response answers the request of that ID.
type response struct {
	ID     uint64   `json:"id"`
	Handle uint64   `json:"handle,omitempty"`
	Bytes  int      `json:"bytes,omitempty"`
	Sum    uint32   `json:"sum,omitempty"`
	Names  []string `json:"names,omitempty"`
	End    bool     `json:"end,omitempty"` // of the file
	Failed *failure `json:"failed,omitempty"`
}

// failure is an error as text, for which errors.Is answers as in the process where it occurred.
type failure struct {
	Op    string        `json:"op,omitempty"`
	Path  string        `json:"path,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Text  string        `json:"text,omitempty"`
}

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	_ = errors.As(err, &f.Errno)
	var at *fs.PathError
	if errors.As(err, &at) {
		f.Op, f.Path = at.Op, at.Path
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		f.Op, f.Path = link.Op, link.New
	}
	return f
}

func (f *failure) err() error {
	switch {
	case f == nil:
		return nil
	case f.Errno != 0:
		return &fs.PathError{Op: f.Op, Path: f.Path, Err: f.Errno}
	}
	return errors.New(f.Text)
}

// FS implements store.FS by a child process, which is started when needed and restarted after its end. Its methods may be called
// concurrently.
type FS struct {
	command func() *exec.Cmd

	mu  sync.Mutex
	now *process
}

// New returns an FS whose child command starts; that process calls Serve. FS sets the command's standard input, output and files.
func New(command func() *exec.Cmd) *FS { return &FS{command: command} }

// process is one child.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	memory *os.File // shared; not mapped here: the OOM killer counts mapped memory against the agent
	free   chan int // unused lanes
	spare  chan int // holds spareLane while it is unused
	ended  chan struct{}

	mu      sync.Mutex // guards all below, and in
	last    uint64
	waiting map[uint64]waiting
	why     error // of its end
}

type waiting struct {
	since  time.Time
	answer chan<- response
}

// present returns the running child, or starts one.
func (f *FS) present() (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now != nil && !f.now.gone() {
		return f.now, nil
	}
	p, err := start(f.command())
	if err != nil {
		return nil, fmt.Errorf("starting the process that reaches storage: %w", err)
	}
	f.now = p
	return p, nil
}

func start(cmd *exec.Cmd) (*process, error) {
	const name = "holdfast-storage"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd: cmd, memory: os.NewFile(uintptr(fd), "shared memory"), free: make(chan int, lanes), spare: make(chan int, 1), ended: make(chan struct{}),
		waiting: map[uint64]waiting{},
	}
	for lane := range allLanes {
		p.letGo(lane)
	}
	cmd.Dir, cmd.ExtraFiles = "/", []*os.File{p.memory}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out io.ReadCloser
	if err = p.memory.Truncate(allLanes * laneBytes); err == nil {
		out, err = cmd.StdoutPipe()
	}
	if err == nil {
		p.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = background.Lowest(cmd.Start)
	}
	if err != nil {
		p.memory.Close()
		return nil, err
	}
	go p.hear(out)
	return p, nil
}

// hear passes on responses until the child has ended.
func (p *process) hear(out io.Reader) {
	for answers := json.NewDecoder(out); ; {
		var r response
		if err := answers.Decode(&r); err != nil {
			break
		}
		p.mu.Lock()
		w, ok := p.waiting[r.ID]
		delete(p.waiting, r.ID)
		p.mu.Unlock()
		if ok {
			w.answer <- r
		}
	}
	p.in.Close()
	p.memory.Close()
	_ = p.cmd.Process.Kill() // its output has ended
	p.mu.Lock()
	p.why = errors.New("the process that reaches storage has ended")
	all := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for id, w := range all {
		w.answer <- response{ID: id, Failed: failureOf(p.why)}
	}
	_ = p.cmd.Wait() // returns when storage releases the child
	close(p.ended)
}

// laneToRead waits for any lane, including the spare one.
func (p *process) laneToRead() int {
	select {
	case lane := <-p.free:
		return lane
	default:
	}
	select {
	case lane := <-p.free:
		return lane
	case lane := <-p.spare:
		return lane
	}
}

func (p *process) letGo(lane int) {
	if lane == spareLane {
		p.spare <- lane
		return
	}
	p.free <- lane
}

func (p *process) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why != nil
}

// ask sends a request; the channel delivers its response.
func (p *process) ask(r request) (<-chan response, error) {
	answer := make(chan response, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil {
		return nil, p.why
	}
	p.last++
	r.ID = p.last
	raw, err := json.Marshal(r)
	if err == nil {
		_, err = p.in.Write(append(raw, '\n')) // never blocks: the child always reads
	}
	if err != nil {
		return nil, fmt.Errorf("asking the process that reaches storage: %w", err)
	}
	p.waiting[r.ID] = waiting{time.Now(), answer}
	return answer, nil
}

// call sends a request and waits for its response.
func (p *process) call(r request) (response, error) {
	answer, err := p.ask(r)
	if err != nil {
		return response{}, err
	}
	got := <-answer
	return got, got.Failed.err()
}

// Unanswered returns when the oldest call without a response was sent; zero: there is none.
func (f *FS) Unanswered() (since time.Time) {
	f.mu.Lock()
	p := f.now
	f.mu.Unlock()
	if p == nil {
		return since
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.waiting {
		if since.IsZero() || w.since.Before(since) {
			since = w.since
		}
	}
	return since
}

// Close ends the child. A child that is blocked in storage is left behind, and ends when storage releases it.
func (f *FS) Close() {
	f.mu.Lock()
	p := f.now
	f.mu.Unlock()
	if p == nil {
		return
	}
	p.in.Close()
	select {
	case <-p.ended:
	case <-time.After(endWait):
	}
}

func (f *FS) do(r request) (response, *process, error) {
	p, err := f.present()
	if err != nil {
		return response{}, nil, err
	}
	got, err := p.call(r)
	return got, p, err
}

// MkdirAll implements store.FS.
func (f *FS) MkdirAll(dir string) error {
	_, _, err := f.do(request{Op: opMkdirAll, Name: dir})
	return err
}

// Create implements store.FS.
func (f *FS) Create(name string) (store.File, error) {
	got, p, err := f.do(request{Op: opCreate, Name: name})
	if err != nil {
		return nil, err
	}
	return &file{p: p, handle: got.Handle}, nil
}

// Open implements store.FS.
func (f *FS) Open(name string, at int64) (io.ReadCloser, error) {
	got, p, err := f.do(request{Op: opOpen, Name: name, At: at})
	if err != nil {
		return nil, err
	}
	return &file{p: p, handle: got.Handle}, nil
}

// Rename implements store.FS.
func (f *FS) Rename(from, to string) error {
	_, _, err := f.do(request{Op: opRename, Name: from, NewName: to})
	return err
}

// Remove implements store.FS.
func (f *FS) Remove(name string) error {
	_, _, err := f.do(request{Op: opRemove, Name: name})
	return err
}

// List implements store.FS.
func (f *FS) List(dir string) ([]string, error) {
	got, _, err := f.do(request{Op: opList, Name: dir})
	return got.Names, err
}

// SyncDir implements store.FS.
func (f *FS) SyncDir(dir string) error {
	_, _, err := f.do(request{Op: opSyncDir, Name: dir})
	return err
}

const (
	// depth is the most writes of one file at a time: while storage takes one, the child reads and checksums the next.
	depth = 2
	// idleTimeout is how long one part of a copy may take on a thread that uses only free cores.
	idleTimeout = time.Second
)

// file is a file that the child has open. Its methods must not be called concurrently.
type file struct {
	p      *process
	handle uint64
	under  []writing // the writes under way, oldest first
	failed error     // of a write
	hurry  bool      // the rest of a copy does not wait for free cores
}

// writing is a write whose bytes are in a lane.
type writing struct {
	answer <-chan response
	lane   int
	since  time.Time
	done   func(response) // called after its success
}

// WriteAt writes b, one lane per call to the child. WriteAt returns while the last writes are under way; their errors come from the next
// call, Sync or Close at the latest. So the caller reads and checksums while the child waits for storage.
func (f *file) WriteAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		part, lane := b[n:min(len(b), n+laneBytes)], f.takeLane()
		_, err := f.p.memory.WriteAt(part, int64(lane)*laneBytes)
		if err == nil {
			err = f.begin(request{Op: opWrite, To: at + int64(n), Lane: lane, Bytes: len(part)}, func(response) {})
		}
		if err != nil {
			f.p.letGo(lane)
			f.failed = err
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// CopyFrom implements store.Copier: the child reads and checksums what it writes, on free cores. If a part waits for them too long, the
// next ones are copied at its own low priority.
func (f *file) CopyFrom(ctx context.Context, from string, at, n, to int64) (sum uint32, err error) {
	for done := int64(0); done < n && err == nil; {
		part := min(n-done, laneBytes)
		r := request{Op: opCopy, Name: from, At: at + done, To: to + done, Lane: f.takeLane(), Bytes: int(part)}
		if r.Hurry, err = f.hurry, ctx.Err(); err == nil {
			err = f.begin(r, func(got response) { sum = format.JoinChecksums(sum, got.Sum, uint64(part)) })
		}
		if err != nil {
			f.p.letGo(r.Lane)
		}
		done += part
	}
	if settled := f.settle(0); err == nil {
		err = settled
	}
	return sum, err
}

// begin asks the child for a write from a lane, unless an earlier one has failed.
func (f *file) begin(r request, done func(response)) error {
	if f.failed != nil {
		return f.failed
	}
	r.Handle = f.handle
	answer, err := f.p.ask(r)
	if err == nil {
		f.under = append(f.under, writing{answer, r.Lane, time.Now(), done})
	}
	return err
}

// takeLane waits for a lane without holding all of this file's own: other files may be blocked. Errors of writes are kept for begin.
func (f *file) takeLane() int {
	_ = f.settle(depth - 1)
	select {
	case lane := <-f.p.free:
		return lane
	default:
		_ = f.settle(0)
		return <-f.p.free
	}
}

// settle waits until at most some writes are under way, and returns the first error of all writes.
func (f *file) settle(most int) error {
	for len(f.under) > most {
		w := f.under[0]
		got := <-w.answer
		f.p.letGo(w.lane)
		f.under, f.hurry = f.under[1:], f.hurry || time.Since(w.since) > idleTimeout
		if err := got.Failed.err(); err == nil {
			w.done(got)
		} else if f.failed == nil {
			f.failed = err
		}
	}
	return f.failed
}

func (f *file) Read(b []byte) (int, error) {
	lane := f.p.laneToRead()
	defer f.p.letGo(lane)
	got, err := f.p.call(request{Op: opRead, Handle: f.handle, Lane: lane, Bytes: min(len(b), laneBytes)})
	if err != nil {
		return 0, err
	}
	n, err := f.p.memory.ReadAt(b[:min(got.Bytes, len(b))], int64(lane)*laneBytes)
	if err == nil && got.End {
		err = io.EOF
	}
	return n, err
}

func (f *file) Sync() error {
	if err := f.settle(0); err != nil {
		return err
	}
	_, err := f.p.call(request{Op: opSync, Handle: f.handle})
	return err
}

func (f *file) Close() error {
	failed := f.settle(0)
	_, err := f.p.call(request{Op: opClose, Handle: f.handle})
	return errors.Join(failed, err)
}
