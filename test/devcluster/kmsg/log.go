// Package kmsg simulates the kernel log of one node. All nodes share the kernel log of the machine, so each node gets a
// file that programs open, read, write, seek and poll like /dev/kmsg.
package kmsg

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

const (
	// MaxText is the longest text that a record holds, as in the kernel.
	MaxText = 1024
	// DefaultLimit is the total size of texts that are kept, the size of a small kernel's buffer.
	DefaultLimit = 128 << 10
	userFacility = 1
	defaultLevel = 4
)

// Log simulates the kernel's ring buffer: records in order; the oldest are dropped.
type Log struct {
	limit, size int
	// records are numbered first, first+1, …
	records [][]byte
	first   uint64
}

// NewLog keeps the newest records, up to a total size of limit, but at least one.
func NewLog(limit int) *Log { return &Log{limit: limit} }

// Append adds a record in the form in which it is read.
func (l *Log) Append(prio int, usec int64, text string) {
	record := fmt.Appendf(nil, "%d,%d,%d,-;%s\n", prio, l.next(), usec, escape(text))
	l.records = append(l.records, record)
	l.size += len(record)
	for l.size > l.limit && len(l.records) > 1 {
		l.size -= len(l.records[0])
		l.records[0] = nil
		l.records = l.records[1:]
		l.first++
	}
}

// next is the number of the next record.
func (l *Log) next() uint64 { return l.first + uint64(len(l.records)) }

// read returns the record at *at and advances; EAGAIN at the end, EPIPE once after records were lost, EINVAL if room is too small.
func (l *Log) read(at *uint64, room int) ([]byte, syscall.Errno) {
	switch {
	case *at < l.first:
		*at = l.first
		return nil, syscall.EPIPE
	case *at >= l.next():
		return nil, syscall.EAGAIN
	}
	record := l.records[*at-l.first]
	if len(record) > room {
		return nil, syscall.EINVAL
	}
	*at++
	return record, 0
}

// ParseLine splits "<prio>" off the front of a line; a line without one is a warning.
func ParseLine(line string) (facility, level int, text string) {
	text = strings.TrimSuffix(line, "\n")
	if prio, rest, ok := strings.Cut(text, ">"); ok && strings.HasPrefix(prio, "<") {
		if n, err := strconv.ParseUint(prio[1:], 10, 16); err == nil {
			return int(n >> 3), int(n & 7), rest
		}
	}
	return 0, defaultLevel, text
}

// fromUser converts a program's line as the kernel does: it must not have the kernel's facility, 0.
func fromUser(line string) (prio int, text string) {
	facility, level, text := ParseLine(line)
	if facility == 0 {
		facility = userFacility
	}
	return facility<<3 | level, text
}

// escape keeps a record on one line of plain characters, as the kernel does.
func escape(text string) string {
	var out strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 127 || c == '\\' {
			fmt.Fprintf(&out, `\x%02x`, c)
		} else {
			out.WriteByte(c)
		}
	}
	return out.String()
}
