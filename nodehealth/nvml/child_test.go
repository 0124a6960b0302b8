package nvml

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// pretended is a library with one device, which may be lost.
type pretended struct{ lost func() bool }

func (p pretended) read(bool) ([]nodehealth.Reading, error) {
	return []nodehealth.Reading{{Device: "GPU-a", Lost: p.lost()}}, nil
}

func (p pretended) wait(d time.Duration) (string, int, bool) { time.Sleep(d); return "", 0, false }

func (p pretended) close() {}

// TestALibraryThatIsNowhere: on a node without a driver a missing library is normal. With a driver an administrator must set the library's
// path.
func TestALibraryThatIsNowhere(t *testing.T) {
	why, device := errors.New("library not found"), filepath.Join(t.TempDir(), "nvidiactl")
	if got := unfound(device, 3, why); got != why {
		t.Errorf("without a driver: %v", got)
	}
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := unfound(device, 3, why); !strings.Contains(got.Error(), "none of the 3 paths of --nvml") {
		t.Errorf("with one: %v", got)
	}
}

// TestALostDeviceHasTheLibraryLoadedAnew: a handle may stay invalid after its device has returned. So the child ends when a device is lost,
// unless the device returns in time.
func TestALostDeviceHasTheLibraryLoadedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		since := func() time.Duration { return time.Since(began) }
		lib := pretended{lost: func() bool {
			return since() > 10*time.Second && since() < 40*time.Second || since() > 5*time.Minute
		}}
		err := serve(nil, json.NewEncoder(io.Discard), func([]string) (library, error) { return lib, nil })
		if err != nil {
			t.Error(err)
		}
		if at := since(); at < 5*time.Minute+reopenAfter || at > 6*time.Minute+10*time.Second {
			t.Errorf("the child ended after %s, want about %s", at, 5*time.Minute+reopenAfter)
		}
	})
}
