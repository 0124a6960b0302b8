//go:build linux

package arena

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// TestReadersShareHalfOfTheCores: however many ranks of a pod seal at once, their readers use half of the cores.
func TestReadersShareHalfOfTheCores(t *testing.T) {
	for _, c := range []struct{ cores, ranks, want int }{
		{1, 1, 1},
		{2, 1, 1},
		{2, 8, 1},
		{4, 1, 2},
		{16, 1, 4},
		{192, 1, 4},
		{48, 8, 3},
		{64, 8, 4},
		{64, 0, 4},
	} {
		if got := readersOf(c.cores, c.ranks); got != c.want {
			t.Errorf("%d cores, %d ranks: %d readers, want %d", c.cores, c.ranks, got, c.want)
		}
	}
}

// TestChecksumOfALargeSlot: several readers compute the same checksum as one, wherever in the file the slot is and however it is divided.
func TestChecksumOfALargeSlot(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rnd := rand.New(rand.NewPCG(1, 2))
	for at := int64(0); at < 4*partBytes; at += partBytes / 16 { // the rest are zeros
		if _, err := f.WriteAt([]byte{byte(rnd.Uint32())}, at+rnd.Int64N(partBytes/16)); err != nil {
			t.Fatal(err)
		}
	}
	a := &Arena{file: f}
	for _, length := range []uint64{0, 1, partBytes, 2*partBytes + 1, 3*partBytes - 1, 3*partBytes + 12345} {
		want, err := a.checksumOf(4096, length)
		if err != nil {
			t.Fatal(err)
		}
		for a.readers = 1; a.readers <= 4; a.readers++ {
			if got, err := a.checksum(4096, length, 0); got != want || err != nil {
				t.Errorf("%d bytes by %d readers: %08x, %v; by one %08x", length, a.readers, got, err, want)
			}
		}
	}
	a.readers = 3
	if _, err := a.checksum(partBytes, 4*partBytes, idleTimeout); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("of a file that is shorter: %v", err)
	}
}

// TestReadersThatGetNoCore: the caller does not wait for readers that have begun parts and get no core, and ignores what they read later.
func TestReadersThatGetNoCore(t *testing.T) {
	begun, core, ended, late := make(chan bool), make(chan bool), make(chan bool), make(chan time.Time)
	idle := func(do func() error) error {
		defer func() { ended <- true }()
		return do()
	}
	starved := errors.New("read after the slot was given to another copy")
	var readers [4]bool // by the part that each has begun; the caller reads parts after that
	of := func(i int) part {
		if i < 2 && !readers[i] {
			readers[i] = true
			begun <- true
			<-core
			return part{i, 0, starved}
		}
		return part{i, uint32(10 + i), nil}
	}
	go func() {
		<-begun
		<-begun
		close(late)
	}()
	sums, err := shared(4, 2, late, idle, of)
	if want := []uint32{10, 11, 12, 13}; err != nil || !slices.Equal(sums, want) {
		t.Errorf("%v, %v; want %v", sums, err, want)
	}
	close(core)
	<-ended
	<-ended
}
