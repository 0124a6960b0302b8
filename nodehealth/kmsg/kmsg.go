// Package kmsg reads the kernel log and returns the records of the GPU driver: first those of the present boot that the
// log still has, then each new one. If the kernel overwrote records before they were read, Follow logs a warning and
// continues with the oldest remaining record. Text that other programs wrote into the log is never returned, nor text
// of tenants that the kernel quotes.
package kmsg

import (
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
	// longest exceeds what the kernel returns at once, in bytes.
	longest = 16 << 10
)

// Log is an open kernel log.
type Log struct {
	// Line is called for every record, including other programs'; nil: not called.
	Line func()

	fd  int
	log *slog.Logger
	// caughtUp: all records from before the start have been read.
	caughtUp bool
}

// Open opens the log at path, normally /dev/kmsg. Only opening needs the privilege, reading does not.
func Open(path string, log *slog.Logger) (*Log, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel log %s: %w", path, err)
	}
	return FromFD(fd, log), nil
}

// FromFD returns the log that an earlier program opened.
func FromFD(fd int, log *slog.Logger) *Log { return &Log{fd: fd, log: log} }

// FD returns the open file, for a program that continues to read it.
func (l *Log) FD() int { return l.fd }

// Follow reads until ctx ends or the log cannot be read any more. Follow calls emit in its own goroutine.
func (l *Log) Follow(ctx context.Context, emit func(nodehealth.Signal)) error {
	defer unix.Close(l.fd)
	buffer := make([]byte, longest)
	for ctx.Err() == nil {
		n, err := unix.Read(l.fd, buffer)
		switch {
		case n > 0:
			l.take(string(buffer[:n]), emit)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPIPE):
			l.log.Warn("records of the kernel log were overwritten before they were read")
		case errors.Is(err, unix.EAGAIN):
			l.caughtUp = true
			began := time.Now()
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, int(pollFor.Milliseconds()))
			if time.Since(began) < time.Millisecond { // ready, or unable to wait: in both cases avoid a busy loop
				time.Sleep(time.Millisecond)
			}
		case err != nil:
			return fmt.Errorf("reading the kernel log: %w", err)
		default:
			return errors.New("reading the kernel log: it has ended, so it is not the kernel's device")
		}
	}
	return nil
}

// take emits the signal of one record: each read returns one complete record.
func (l *Log) take(entry string, emit func(nodehealth.Signal)) {
	if l.Line != nil {
		l.Line()
	}
	r, kernels := split(entry)
	if !kernels {
		return
	}
	sig, ok := parse(r.text)
	if !ok {
		return
	}
	sig.Seq, sig.At = r.seq+1, time.Now() // 0 is for signals without a number
	if past := sinceBoot() - r.since; !l.caughtUp && past > 0 {
		sig.At = sig.At.Add(-past)
	}
	emit(sig)
}

func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
