//go:build linux

package watch

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// mostStack is the most bytes of a stack that are read: faulthandler writes at most 100 frames.
	mostStack = 64 << 10
	// stackEvery is how often the file is read. A stack that has not grown for settled is whole: it is written at once.
	stackEvery = 2 * time.Millisecond
	settled    = 20 * time.Millisecond
)

// process is a process that can write its main thread's stack.
type process struct {
	proc.Process
	signal syscall.Signal
	file   string
}

// stack makes the main thread of a process that handles the signal write its Python stack, and returns that. It waits until ctx is over.
func (p process) stack(ctx context.Context) (protocol.StackState, []byte) {
	f, err := openOwned(p.file, p.PID)
	if err != nil {
		return protocol.StackNone, nil
	}
	defer f.Close()
	if f.Truncate(0) != nil || unix.Tgkill(p.PID, p.PID, p.signal) != nil {
		return protocol.StackNone, nil
	}
	if raw := written(ctx, f); len(raw) > 0 {
		return protocol.StackFresh, raw
	}
	return protocol.StackWithheld, nil
}

// openOwned opens a file that a process's user has made. That user may put anything in its place.
func openOwned(name string, pid int) (*os.File, error) {
	var owner unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(pid), &owner); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Uid != owner.Uid) {
		err = errors.New("it is not the rank's own file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// written returns what is written to an empty file, once it no longer grows; empty: nothing in time.
func written(ctx context.Context, f *os.File) []byte {
	tick := time.NewTicker(stackEvery)
	defer tick.Stop()
	buf := make([]byte, mostStack)
	n, since := 0, time.Now()
	for {
		now, _ := f.ReadAt(buf, 0)
		if now > n {
			n, since = now, time.Now()
		}
		if n > 0 && buf[n-1] == '\n' && time.Since(since) >= settled {
			return buf[:n]
		}
		select {
		case <-ctx.Done():
			return buf[:n]
		case <-tick.C:
		}
	}
}

// parseStack reads what faulthandler writes; frames of the site hook are left out.
//
//	Stack (most recent call first):
//	  File "/app/train.py", line 20 in load_batch
func parseStack(raw []byte) []protocol.Frame {
	var out []protocol.Frame
	for line := range bytes.Lines(raw) {
		rest, ok := strings.CutPrefix(string(line), `  File "`)
		file, rest, quoted := strings.Cut(rest, `", line `)
		number, function, named := strings.Cut(rest, " in ")
		if !ok || !quoted || !named || !strings.HasSuffix(function, "\n") || strings.HasPrefix(path.Base(file), "_holdfast_") {
			continue
		}
		n, _ := strconv.Atoi(number) // ??? where it is unknown
		out = append(out, protocol.Frame{
			Function: cut(strings.TrimSuffix(function, "\n"), protocol.MaxLookText),
			File:     cut(shortened(file), protocol.MaxLookText),
			Line:     max(n, 0),
		})
		if len(out) == protocol.MaxLookFrames {
			break
		}
	}
	return out
}

// shortened returns the last two elements of a path.
func shortened(file string) string {
	dir, base := path.Split(file)
	if dir = path.Base(dir); dir == "." || dir == "/" {
		return base
	}
	return dir + "/" + base
}
