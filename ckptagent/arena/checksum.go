//go:build linux

package arena

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"holdfast.dev/holdfast/ckptagent/background"
	"holdfast.dev/holdfast/ckptagent/format"
)

// pieces are read buffers. They are pooled: allocating one for each save would dominate the cost of the checksum of a small state.
var pieces = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// readersOf returns the number of threads per slot: half of the cores, shared by the ranks, at least 1 and at most 4. They use free cores
// only, and leave bandwidth of memory to training.
func readersOf(cores, ranks int) int { return max(1, min(4, cores/2/max(1, ranks))) }

// partBytes is what one thread reads at a time.
const partBytes = 16 << 20

// idleTimeout is how long a seal may wait for free cores.
const idleTimeout = time.Second

// checksum returns the checksum of length bytes from offset on; an error if the file is shorter. Threads that use only free cores compute
// it; after the timeout, or if there is only one part, the calling one does.
func (a *Arena) checksum(offset int64, length uint64, timeout time.Duration) (uint32, error) {
	count := int((length + partBytes - 1) / partBytes)
	if count <= 1 {
		return a.checksumOf(offset, length)
	}
	size := func(i int) uint64 { return min(partBytes, length-uint64(i)*partBytes) }
	of := func(i int) part {
		sum, err := a.checksumOf(offset+int64(i)*partBytes, size(i))
		return part{i, sum, err}
	}
	sums, err := shared(count, min(a.readers, count), time.After(timeout), background.Idle, of)
	sum := sums[0]
	for i, one := range sums[1:] {
		sum = format.JoinChecksums(sum, one, size(i+1))
	}
	return sum, err
}

// part is the checksum of one part of a slot.
type part struct {
	number int
	sum    uint32
	err    error
}

// shared returns the checksums of all parts and the first error. Readers compute them on threads of idle; once late, the calling thread
// computes what none has begun, and then again what readers have begun and not finished: it waits for none of them, and what they read
// after that is ignored. So each may keep a core that it does not get for as long as it likes.
func shared(count, readers int, late <-chan time.Time, idle func(func() error) error, of func(int) part) (sums []uint32, err error) {
	var next atomic.Int64
	computed := make(chan part, count) // each part is begun once: no reader waits
	read := func() error {
		for i := int(next.Add(1) - 1); i < count; i = int(next.Add(1) - 1) {
			computed <- of(i)
		}
		return nil
	}
	for range readers {
		go func() { _ = idle(read) }()
	}
	sums = make([]uint32, count)
	done, left := make([]bool, count), count
	take := func(p part) {
		if done[p.number] {
			return
		}
		done[p.number], sums[p.number], left = true, p.sum, left-1
		if err == nil {
			err = p.err
		}
	}
	for waits := true; waits && left > 0; {
		select {
		case p := <-computed:
			take(p)
		case <-late:
			waits = false
		}
	}
	for i := int(next.Add(1) - 1); i < count; i = int(next.Add(1) - 1) {
		take(of(i))
	}
	for i := 0; left > 0; {
		select {
		case p := <-computed:
			take(p)
		default:
			if !done[i] {
				take(of(i))
			}
			i++
		}
	}
	return sums, err
}

func (a *Arena) checksumOf(offset int64, length uint64) (uint32, error) {
	sum, buffer := format.NewChecksum(), pieces.Get().(*[256 << 10]byte)
	defer pieces.Put(buffer)
	n, err := io.CopyBuffer(sum, io.NewSectionReader(a.file, offset, int64(length)), buffer[:])
	if err == nil && uint64(n) != length {
		err = io.ErrUnexpectedEOF
	}
	return sum.Sum32(), err
}
