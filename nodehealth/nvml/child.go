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

// library is NVIDIA's library, loaded. Every call may block for ever.
type library interface {
	// read reads every device; thorough also reads memory and links, and retries devices without a handle. After an error the library must
	// be loaded again.
	read(thorough bool) ([]nodehealth.Reading, error)
	// wait returns the next error that the driver reports, or ok false after the given time.
	wait(time.Duration) (device string, code int, ok bool)
	close()
}

const (
	// readEvery is the interval between reads of all devices; every memoryEvery-th read is thorough.
	readEvery   = 400 * time.Millisecond
	memoryEvery = 5
	// openEvery is the interval between attempts to load the library while there is no library or driver.
	openEvery = 2 * time.Second
	// reopenAfter is how long a device may be lost before the library is loaded again: a handle from before a device's reset may stay
	// invalid, and the number of devices is read when the library is loaded.
	reopenAfter = time.Minute
)

// unfound returns why nothing can be queried if none of the paths is a library: with a driver present, that is an installation error.
func unfound(control string, paths int, why error) error {
	if _, err := os.Stat(control); err != nil {
		return why
	}
	return fmt.Errorf("this node has an NVIDIA driver (%s), and none of the %d paths of --nvml has its library: mount the folder that has "+
		"libnvidia-ml.so.1 and name it there (docs/node-outages.md, \"Where NVIDIA's library lies\")", control, paths)
}

// Serve is the child's main loop: it writes its findings to out until out or in is closed, and ends when the library must be loaded again.
// It loads the first of paths that can be loaded.
func Serve(paths []string, in io.Reader, out io.Writer) error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	served := make(chan error, 1)
	go func() { served <- serve(paths, json.NewEncoder(out), open) }()
	select {
	case <-ended: // the parent is gone; a hanging call ends with the process
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
	last := map[string]nodehealth.Reading{} // results of the last thorough reads
	var lostSince time.Time                 // zero: no device is lost
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
			// Read the driver's recovery action at once.
			if _, err := round(lib, out, last, true); err != nil {
				return err
			}
		}
	}
}

// round reads once and writes the result to the parent; lost reports whether any device does not answer.
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
		was := last[r.Device] // values of thorough reads stay valid until the next one
		r.RemapPending, r.RemapFailed, r.Uncorrected = was.RemapPending, was.RemapFailed, was.Uncorrected
		r.LinksUp, r.LinksDown, r.LinksUnknown = was.LinksUp, was.LinksDown, was.LinksUnknown
		r.Width, r.MaxWidth, r.Speed, r.MaxSpeed = was.Width, was.MaxWidth, was.Speed, was.MaxSpeed
	}
	if err := out.Encode(line{Read: true, Readings: readings, Took: took}); err != nil {
		return lost, fmt.Errorf("writing to the parent: %w", err)
	}
	return lost, nil
}
