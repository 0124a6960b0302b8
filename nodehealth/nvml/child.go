package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// library is NVIDIA's library, opened. Every call may block for ever.
type library interface {
	// read asks every device; thorough asks for memory and links as well, and for the handle of a device that gave none
	// before. An error means that the library must be opened anew.
	read(thorough bool) ([]nodehealth.Reading, error)
	// wait returns the next error that the driver reports, or ok false when the time is over.
	wait(time.Duration) (device string, code int, ok bool)
	close()
}

const (
	// readEvery is how often devices are asked, memoryEvery how many times less often for their memory.
	readEvery   = 400 * time.Millisecond
	memoryEvery = 5
	// openEvery is how often it is tried while there is no library or driver.
	openEvery = 2 * time.Second
	// reopenAfter is how long a device may be lost until the library is loaded anew: a handle from before a device was
	// reset may stay dead, and the count of devices is taken when the library is opened.
	reopenAfter = time.Minute
)

// unfound says why nothing can be asked where none of the paths is a library: that is a mistake of the installation where
// there is a driver.
func unfound(control string, paths int, why error) error {
	if _, err := os.Stat(control); err != nil {
		return why
	}
	return fmt.Errorf("this node has an NVIDIA driver (%s), and none of the %d paths of --nvml has its library: mount the folder that has "+
		"libnvidia-ml.so.1 and name it there (docs/node-outages.md, \"Where NVIDIA's library lies\")", control, paths)
}

// Serve is the child: it writes what it finds to out until out or in is closed, and ends when the library must be loaded again. The
// first of paths that can be loaded is the library.
func Serve(paths []string, in io.Reader, out io.Writer) error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	served := make(chan error, 1)
	go func() { served <- serve(paths, json.NewEncoder(out), open) }()
	select {
	case <-ended: // the parent is gone; a call that hangs ends with the process
		return nil
	case err := <-served:
		return err
	}
}

func serve(paths []string, out *json.Encoder, open func([]string) (library, error)) error {
	lib, err := open(paths)
	for ; err != nil; lib, err = open(paths) {
		if err := out.Encode(line{Blind: err.Error()}); err != nil {
			return err
		}
		time.Sleep(openEvery)
	}
	defer lib.close()
	last := map[string]nodehealth.Reading{} // what the thorough rounds said
	var lostSince time.Time                 // zero while no device is lost
	for n := 0; ; n++ {
		began := time.Now()
		lost, err := round(lib, out, last, n%memoryEvery == 0)
		switch {
		case err != nil:
			return err
		case !lost:
			lostSince = time.Time{}
		case lostSince.IsZero():
			lostSince = began
		case began.Sub(lostSince) >= reopenAfter:
			return nil // the parent starts another child
		}
		for left := readEvery; left > 0; left = readEvery - time.Since(began) {
			device, code, ok := lib.wait(left)
			if !ok {
				continue
			}
			if err := out.Encode(line{Xid: code, Device: device}); err != nil {
				return err
			}
			// What the driver thinks of it is asked at once.
			if _, err := round(lib, out, last, true); err != nil {
				return err
			}
		}
	}
}

// round asks once and tells the parent; lost reports whether any device does not answer.
func round(lib library, out *json.Encoder, last map[string]nodehealth.Reading, thorough bool) (lost bool, err error) {
	began := time.Now()
	readings, err := lib.read(thorough)
	if err != nil {
		return false, errors.Join(err, out.Encode(line{Blind: err.Error()}))
	}
	took := time.Since(began)
	for i := range readings {
		r := &readings[i]
		lost = lost || r.Lost
		if thorough {
			last[r.Device] = *r
			continue
		}
		was := last[r.Device] // what is asked for only now and then is so until it is asked for again
		r.RemapPending, r.RemapFailed, r.Uncorrected = was.RemapPending, was.RemapFailed, was.Uncorrected
		r.LinksUp, r.LinksDown, r.LinksUnknown = was.LinksUp, was.LinksDown, was.LinksUnknown
		r.Width, r.MaxWidth, r.Speed, r.MaxSpeed = was.Width, was.MaxWidth, was.Speed, was.MaxSpeed
	}
	if err := out.Encode(line{Read: true, Readings: readings, Took: took}); err != nil {
		return lost, fmt.Errorf("writing to the parent: %w", err)
	}
	return lost, nil
}
