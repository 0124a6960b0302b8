//go:build linux

package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/background"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
)

const (
	opMkdirAll = "mkdir"
	opCreate   = "create"
	opOpen     = "open"
	opRename   = "rename"
	opRemove   = "remove"
	opList     = "list"
	opSyncDir  = "syncdir"
	opWrite    = "write"
	opRead     = "read"
	opCopy     = "copy"
	opSync     = "sync"
	opClose    = "close"
)

// server is the child's side.
type server struct {
	fs     store.FS
	shared []byte

	out sync.Mutex
	to  *json.Encoder

	mu    sync.Mutex
	last  uint64
	files map[uint64]io.Closer
}

// Serve is the child's main loop: it carries out requests from in, each in its own goroutine, and writes responses to out, until in ends.
// It does not wait for calls under way; its caller exits.
func Serve(under store.FS, in io.Reader, out io.Writer) error {
	shared, err := unix.Mmap(sharedFD, 0, allLanes*laneBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping the memory that is shared with the agent: %w", err)
	}
	unix.CloseOnExec(sharedFD)
	s := &server{fs: under, shared: shared, to: json.NewEncoder(out), files: map[uint64]io.Closer{}}
	for asked := json.NewDecoder(in); ; {
		var r request
		if err := asked.Decode(&r); errors.Is(err, io.EOF) || errors.Is(err, fs.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the agent's request: %w", err)
		}
		go func() {
			got, err := s.do(r)
			got.ID, got.Failed = r.ID, failureOf(err)
			s.out.Lock()
			defer s.out.Unlock()
			_ = s.to.Encode(got) // the read loop notices if the agent is gone
		}()
	}
}

func (s *server) do(r request) (got response, err error) {
	switch r.Op {
	case opMkdirAll:
		return got, s.fs.MkdirAll(r.Name)
	case opRename:
		return got, s.fs.Rename(r.Name, r.NewName)
	case opRemove:
		return got, s.fs.Remove(r.Name)
	case opSyncDir:
		return got, s.fs.SyncDir(r.Name)
	case opList:
		got.Names, err = s.fs.List(r.Name)
		return got, err
	case opCreate:
		f, err := s.fs.Create(r.Name)
		return s.keep(f, err)
	case opOpen:
		f, err := s.fs.Open(r.Name, r.At)
		return s.keep(f, err)
	}
	return s.withFile(r)
}

// fill copies a part of an arena into a lane.
func fill(lane []byte, r request) (sum uint32, err error) {
	f, err := os.Open(r.Name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for at := 0; at < len(lane); { // in parts that still are in the core's cache for the checksum
		part := lane[at:min(len(lane), at+256<<10)]
		if _, err := f.ReadAt(part, r.At+int64(at)); err != nil {
			return 0, fmt.Errorf("reading the state in memory: %w", err)
		}
		sum, at = format.AddChecksum(sum, part), at+len(part)
	}
	return sum, nil
}

// lane returns the shared memory of a request.
func (s *server) lane(r request) ([]byte, error) {
	if r.Bytes < 0 || r.Bytes > laneBytes || r.Lane < 0 || r.Lane >= allLanes {
		return nil, fmt.Errorf("%s of %d bytes in lane %d", r.Op, r.Bytes, r.Lane)
	}
	return s.shared[r.Lane*laneBytes:][:r.Bytes], nil
}

// keep stores an open file under a number.
func (s *server) keep(f io.Closer, err error) (response, error) {
	if err != nil {
		return response{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.files[s.last] = f
	return response{Handle: s.last}, nil
}

func (s *server) withFile(r request) (got response, err error) {
	s.mu.Lock()
	f := s.files[r.Handle]
	if r.Op == opClose {
		delete(s.files, r.Handle)
	}
	s.mu.Unlock()
	lane, err := s.lane(r)
	if err != nil {
		return got, err
	}
	writing, _ := f.(store.File)
	reading, _ := f.(io.Reader)
	switch {
	case r.Op == opClose && f != nil:
		return got, f.Close()
	case r.Op == opCopy && writing != nil:
		on := background.Idle
		if r.Hurry {
			on = func(do func() error) error { return do() }
		}
		err = on(func() (err error) {
			if got.Sum, err = fill(lane, r); err == nil {
				_, err = writing.WriteAt(lane, r.To)
			}
			return err
		})
		return got, err
	case r.Op == opWrite && writing != nil:
		got.Bytes, err = writing.WriteAt(lane, r.To)
		return got, err
	case r.Op == opSync && writing != nil:
		return got, writing.Sync()
	case r.Op == opRead && reading != nil:
		got.Bytes, err = io.ReadFull(reading, lane)
		if got.End = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); got.End {
			err = nil
		}
		return got, err
	}
	return got, fmt.Errorf("%s of a file that is not open", r.Op)
}
