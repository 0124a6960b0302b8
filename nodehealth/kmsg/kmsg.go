// Package kmsg reads the kernel log and hands on what the GPU driver wrote there: first what this boot's log
// still holds, then each record as it comes. A reader that was too slow goes on with what is left. It reads
// the kernel's own device, and a plain file of such lines as well.
package kmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/nodehealth"
)

const (
	// pollFor bounds one wait for the device, so that the end of ctx is seen.
	pollFor = 500 * time.Millisecond
	// lookEvery is how often a plain file is read: it cannot be waited for.
	lookEvery = 100 * time.Millisecond
	// longest is more than the kernel ever returns at once.
	longest = 16 << 10
)

// Log is an open kernel log.
type Log struct {
	// Line is told of every record, also of those that are none of ours; nil: nobody wants to know.
	Line func()

	fd     int
	log    *slog.Logger
	parser parser
	// rest is the beginning of a line whose end has not come yet, lines how many a plain file had.
	rest  []byte
	lines uint64
	// caughtUp: what was there at the beginning has been read.
	caughtUp bool
}

// Open opens the log at path, normally /dev/kmsg. It needs to be allowed to only now: what is read later needs
// no further right.
func Open(path string, log *slog.Logger) (*Log, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel log %s: %w", path, err)
	}
	return FromFD(fd, log), nil
}

// FromFD is the log that an earlier program opened.
func FromFD(fd int, log *slog.Logger) *Log { return &Log{fd: fd, log: log} }

// FD is the open file, for a program that goes on with it.
func (l *Log) FD() int { return l.fd }

// Follow reads until ctx ends or the log cannot be read any more. Emit is called from this goroutine.
func (l *Log) Follow(ctx context.Context, emit func(nodehealth.Signal)) error {
	defer unix.Close(l.fd)
	buffer := make([]byte, longest)
	for ctx.Err() == nil {
		n, err := unix.Read(l.fd, buffer)
		switch {
		case n > 0:
			l.take(buffer[:n], emit)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPIPE):
			l.log.Warn("records of the kernel log were overwritten before they were read")
		case errors.Is(err, unix.EAGAIN):
			l.caughtUp = true
			began := time.Now()
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, int(pollFor.Milliseconds()))
			if time.Since(began) < time.Millisecond { // ready, or unable to wait: either way not at once again for nothing
				time.Sleep(time.Millisecond)
			}
		case err != nil:
			return fmt.Errorf("reading the kernel log: %w", err)
		default: // the end of a plain file
			l.caughtUp = true
			if err := l.rewindIfCut(); err != nil {
				return err
			}
			time.Sleep(lookEvery)
		}
	}
	return nil
}

// rewindIfCut begins at the start of a plain file that has become shorter.
func (l *Log) rewindIfCut() error {
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil {
		return fmt.Errorf("looking at the kernel log: %w", err)
	}
	at, err := unix.Seek(l.fd, 0, unix.SEEK_CUR)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 && st.Size < at {
		_, err = unix.Seek(l.fd, 0, unix.SEEK_SET)
		l.rest, l.lines = nil, 0
	}
	if err != nil && !errors.Is(err, unix.ESPIPE) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("looking at the kernel log: %w", err)
	}
	return nil
}

// take hands on what is in the bytes just read: one record of the device, or lines of a file.
func (l *Log) take(b []byte, emit func(nodehealth.Signal)) {
	l.rest = append(l.rest, b...)
	for {
		at := bytes.IndexByte(l.rest, '\n')
		if at < 0 {
			break
		}
		entry := string(l.rest[:at])
		l.rest = l.rest[at+1:]
		if entry == "" || entry[0] == ' ' {
			continue // fields of the record before, for machines
		}
		l.lines++
		if l.Line != nil {
			l.Line()
		}
		r := split(entry)
		sig, ok := l.parser.parse(r.text)
		if !ok {
			continue
		}
		sig.Seq, sig.At = r.seq+1, time.Now() // 0 is for signals without a number
		if r.since < 0 {
			sig.Seq = l.lines
		} else if past := sinceBoot() - r.since; !l.caughtUp && past > 0 {
			sig.At = sig.At.Add(-past)
		}
		emit(sig)
	}
	if len(l.rest) > longest {
		l.rest = nil // no line is so long
	}
}

func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
