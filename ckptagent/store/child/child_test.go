//go:build linux

package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// asChild makes the test's binary run as the child.
const asChild = "HOLDFAST_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		if err := Serve(odd{}, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// odd is the file system of the machine, except that operations on "hang" never return and no file named "full" is renamed.
type odd struct{ store.OS }

func (o odd) Create(name string) (store.File, error) {
	f, err := o.OS.Create(name)
	if filepath.Base(name) == "hang" {
		f = stuck{f}
	}
	return f, err
}

type stuck struct{ store.File }

func (stuck) WriteAt([]byte, int64) (int, error) { select {} }

func (o odd) Remove(name string) error {
	if filepath.Base(name) == "hang" {
		select {}
	}
	return o.OS.Remove(name)
}

func (o odd) Rename(from, to string) error {
	if filepath.Base(to) == "full" {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.ENOSPC}
	}
	return o.OS.Rename(from, to)
}

func newFS(t testing.TB) *FS {
	f := New(func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		// otherwise the race detector keeps the child alive for a second
		cmd.Env = append(os.Environ(), asChild+"=1", "GORACE=atexit_sleep_ms=0")
		cmd.Stderr = struct{ io.Writer }{os.Stderr}
		return cmd
	})
	t.Cleanup(f.Close)
	return f
}

func random(n int) []byte {
	b, rnd := make([]byte, n), rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(b)
	return b
}

// TestAStoreOverAChild: Get returns what Put stored, for any size, also in concurrent calls.
func TestAStoreOverAChild(t *testing.T) {
	s := store.New(newFS(t), filepath.Join(t.TempDir(), "job"), "w")
	if err := s.Probe(); err != nil || !s.Answers() {
		t.Fatalf("probe: %v", err)
	}
	sizes := []int{1, laneBytes - 1, laneBytes, laneBytes + 1, 3*laneBytes + 17}
	errs := make(chan error, len(sizes))
	for rank, size := range sizes {
		go func() {
			data := random(size)
			f := format.RankFile{
				Rank:       uint32(rank),
				WorldSize:  uint32(len(sizes)),
				Step:       7,
				Generation: 2,
				Length:     uint64(size),
				Checksum:   format.Checksum(data),
			}
			err := s.Put(context.Background(), f, bytes.NewReader(data))
			var got bytes.Buffer
			if err == nil {
				_, err = s.Get(
					context.Background(),
					protocol.Mark{Step: 7, Generation: 2},
					uint32(rank),
					func(format.RankFile) (io.Writer, error) { return &got, nil },
				)
			}
			if err == nil && !bytes.Equal(got.Bytes(), data) {
				err = errors.New("it is not what was put")
			}
			errs <- err
		}()
	}
	for range sizes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	_, err := s.Get(context.Background(), protocol.Mark{Step: 8, Generation: 2}, 0, nil)
	if !errors.Is(err, store.ErrUseless) {
		t.Errorf("a step that is not there: %v", err)
	}
}

// TestTheChildCopies: a state that is in a file is read, checksummed and written by the child. If the file has no name any more, the
// calling process does that.
func TestTheChildCopies(t *testing.T) {
	dir, at := t.TempDir(), int64(17)
	s := store.New(newFS(t), filepath.Join(dir, "job"), "w")
	for step, size := range []int{1, laneBytes - 1, laneBytes, laneBytes + 1, 3*laneBytes + 17} {
		data, name := random(size), filepath.Join(dir, fmt.Sprint(size))
		if err := os.WriteFile(name, slices.Concat(make([]byte, at), data, []byte("more")), 0o600); err != nil {
			t.Fatal(err)
		}
		f := format.RankFile{WorldSize: 1, Step: int64(2*step + 1), Generation: 2, Length: uint64(size), Checksum: format.Checksum(data)}
		mine, err := os.OpenFile(name, os.O_WRONLY, 0) // so that this process cannot read it
		if err != nil {
			t.Fatal(err)
		}
		put := func(f format.RankFile, from *os.File, size int) error {
			return s.Put(context.Background(), f, io.NewSectionReader(from, at, int64(size)))
		}
		if err := put(f, mine, size); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		same(t, s, f, data)
		other := f
		other.Step, other.Checksum = f.Step+1, f.Checksum+1
		if err := put(other, mine, size); !errors.Is(err, store.ErrChanged) {
			t.Errorf("bytes that are not those that were sealed: %v", err)
		}
		gone, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name, name+"-before"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, make([]byte, at+int64(size)), 0o600); err != nil {
			t.Fatal(err)
		}
		other.Checksum = f.Checksum
		if err := put(other, gone, size); err != nil {
			t.Errorf("another file has the name: %v", err)
		}
		same(t, s, other, data)
		_, _ = mine.Close(), gone.Close()
	}
}

func same(t *testing.T, s *store.Store, f format.RankFile, data []byte) {
	t.Helper()
	var got bytes.Buffer
	have, err := s.Get(
		context.Background(),
		protocol.Mark{Step: f.Step, Generation: f.Generation},
		f.Rank,
		func(format.RankFile) (io.Writer, error) { return &got, nil },
	)
	if err != nil || have != f || !bytes.Equal(got.Bytes(), data) {
		t.Errorf("of %d bytes %d came back, %+v, %v", len(data), got.Len(), have, err)
	}
}

// TestFilesAsTheyAre: a file that is written concurrently in parts larger than a lane is read back whole. Names, ends of files and errors
// are those of the file system.
func TestFilesAsTheyAre(t *testing.T) {
	f, dir := newFS(t), t.TempDir()
	name, data := filepath.Join(dir, "a"), random(2*laneBytes+5)
	out, err := f.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := out.WriteAt(data, 0); n != len(data) || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
	if err := errors.Join(
		out.Sync(),
		out.Close(),
		f.Rename(name, name+"b"),
		f.SyncDir(dir),
		f.MkdirAll(filepath.Join(dir, "c", "d")),
	); err != nil {
		t.Fatal(err)
	}
	in, err := f.Open(name+"b", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(data), err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	names, err := f.List(dir)
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"ab", "c"}) {
		t.Errorf("names %v, %v", names, err)
	}
	if _, err := f.Open(name, 0); !errors.Is(err, fs.ErrNotExist) || err.Error() != "open "+name+": no such file or directory" {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := f.Rename(name+"b", filepath.Join(dir, "full")); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "full") {
		t.Errorf("no room: %v", err)
	}
	if _, err := out.WriteAt([]byte("x"), 0); err != nil {
		t.Errorf("what becomes of the newest write is said later: %v", err)
	}
	if err := out.Sync(); err == nil {
		t.Error("a file that is closed can be written")
	}
	if _, err := out.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a write after one that failed succeeds")
	}
}

// TestWhatHangsHoldsUpNothingElse: while one call hangs, other calls are answered. The time since which a call waits is known, and it ends
// when the child ends.
func TestWhatHangsHoldsUpNothingElse(t *testing.T) {
	f, dir := newFS(t), t.TempDir()
	if err := f.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	if !f.Unanswered().IsZero() {
		t.Errorf("unanswered since %v", f.Unanswered())
	}
	before, hung := time.Now(), make(chan error, 1)
	go func() { hung <- f.Remove(filepath.Join(dir, "hang")) }()
	eventually.Holds(t, "a call waits", func() (bool, any) { return f.Unanswered().After(before), f.Unanswered() })
	for range 2 * lanes {
		if _, err := f.List(dir); err != nil {
			t.Fatal(err)
		}
	}
	if since := f.Unanswered(); !since.After(before) || len(hung) > 0 {
		t.Errorf("unanswered since %v, began at %v", since, before)
	}
	child := f.now.cmd.Process
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-hung; err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("the call that hung: %v", err)
	}
	if _, err := f.List(dir); err != nil || f.now.cmd.Process.Pid == child.Pid {
		t.Errorf("the next child: %v", err)
	}
	if !f.Unanswered().IsZero() {
		t.Errorf("unanswered since %v", f.Unanswered())
	}
}

// TestReadsPassWritesThatHang: reads are answered while any number of writes hang, as they may for as long as storage is full.
func TestReadsPassWritesThatHang(t *testing.T) {
	f, dir, data := newFS(t), t.TempDir(), random(2*laneBytes+5)
	if err := os.WriteFile(filepath.Join(dir, "a"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	for range lanes {
		out, err := f.Create(filepath.Join(dir, "hang"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteAt([]byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	read := make(chan error, 2)
	for range cap(read) { // one after the other
		go func() {
			in, err := f.Open(filepath.Join(dir, "a"), 0)
			if err != nil {
				read <- err
				return
			}
			got, err := io.ReadAll(in)
			if err == nil && !bytes.Equal(got, data) {
				err = fmt.Errorf("%d bytes are not what lies there", len(got))
			}
			read <- errors.Join(err, in.Close())
		}()
	}
	for range cap(read) {
		select {
		case err := <-read:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(eventually.Timeout):
			t.Fatal("nothing is read while writes hang")
		}
	}
}

// TestAFileOfAChildThatEndedFails: a file of an ended child returns errors, also after another child was started.
func TestAFileOfAChildThatEndedFails(t *testing.T) {
	f, dir := newFS(t), t.TempDir()
	out, err := f.Create(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	old := f.now
	_ = old.cmd.Process.Kill()
	<-old.ended
	if _, err := f.Create(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.WriteAt([]byte("x"), 0); err == nil {
		t.Error("it can be written")
	}
	if err := errors.Join(out.Sync()); err == nil {
		t.Error("it can be synced")
	}
}

// TestCloseEndsTheChild: Close ends the child, whatever calls are running.
func TestCloseEndsTheChild(t *testing.T) {
	f, hung := newFS(t), make(chan error, 1)
	if _, err := f.List("/"); err != nil {
		t.Fatal(err)
	}
	go func() { hung <- f.Remove("/hang") }()
	eventually.Holds(t, "a call waits", func() (bool, any) { return !f.Unanswered().IsZero(), nil })
	f.Close() // waits for a time only
	eventually.Holds(t, "the child has ended", func() (bool, any) {
		select {
		case <-f.now.ended:
			return true, nil
		default:
			return false, nil
		}
	})
	if err := <-hung; err == nil {
		t.Error("what was under way has succeeded")
	}
}

// TestManyFilesAtOnce: there are more files than lanes, and each is written in parts.
func TestManyFilesAtOnce(t *testing.T) {
	f, dir := newFS(t), t.TempDir()
	const files = 3 * lanes
	errs := make(chan error, files)
	for i := range files {
		go func() {
			data := random(2*laneBytes + i)
			name := filepath.Join(dir, fmt.Sprint(i))
			out, err := f.Create(name)
			if err == nil {
				_, err = out.WriteAt(data, 0)
				err = errors.Join(err, out.Close())
			}
			got, lost := os.ReadFile(name)
			if err = errors.Join(err, lost); err == nil && !bytes.Equal(got, data) {
				err = fmt.Errorf("file %d is not what was written", i)
			}
			errs <- err
		}()
	}
	for range files {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	for _, under := range []struct {
		name string
		fs   store.FS
	}{{"here", store.OS{}}, {"child", newFS(b)}} {
		b.Run(under.name, func(b *testing.B) {
			data := random(256 << 20)
			s := store.New(under.fs, filepath.Join(b.TempDir(), "job"), "w")
			b.SetBytes(int64(len(data)))
			for n := 0; b.Loop(); n++ {
				f := format.RankFile{WorldSize: 1, Step: int64(n + 1), Generation: 1, Length: uint64(len(data)), Checksum: format.Checksum(data)}
				if err := s.Put(context.Background(), f, bytes.NewReader(data)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestTheChildGivesWay: all threads of the child have the lowest priority.
func TestTheChildGivesWay(t *testing.T) {
	f := newFS(t)
	if _, err := f.List(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", f.now.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		_, fields, _ := strings.Cut(string(stat), ") ")
		if nice := strings.Fields(fields)[16]; nice != "19" {
			t.Errorf("%s: nice is %s, want 19", task, nice)
		}
	}
}
