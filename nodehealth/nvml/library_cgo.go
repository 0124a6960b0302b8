//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"holdfast.dev/holdfast/nodehealth"
)

// errReopen: the driver has gone or was changed under the library.
var errReopen = errors.New("the driver has gone")

type loaded struct {
	lib     nvml.Interface
	devices []handle
	events  nvml.EventSet // nil where no device can report
	remaps  bool
}

type handle struct {
	nvml.Device
	id, pci string
	// lost: not even a handle was given.
	lost bool
}

// open loads the first of paths that can be loaded and finds all devices.
func open(paths []string) (library, error) {
	why := errors.New("no path to NVIDIA's library was given")
	for i, p := range paths {
		l := &loaded{lib: nvml.New(nvml.WithLibraryPath(p))}
		ret := l.lib.Init()
		if ret == nvml.SUCCESS {
			return l, l.find()
		}
		// That one is missing says least; what another one says is told.
		if ret != nvml.ERROR_LIBRARY_NOT_FOUND || i == 0 {
			why = fmt.Errorf("no NVIDIA driver answers on this node (%s: %s)", p, explain(ret))
		}
	}
	return nil, why
}

func explain(ret nvml.Return) string {
	names := map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "library not found", nvml.ERROR_DRIVER_NOT_LOADED: "driver not loaded", nvml.ERROR_GPU_IS_LOST: "GPU is lost",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "library and driver are of different versions", nvml.ERROR_NO_PERMISSION: "no permission",
	}
	if n, ok := names[ret]; ok {
		return n
	}
	return fmt.Sprintf("NVML error %d", ret)
}

func (l *loaded) find() error {
	count, ret := l.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		l.close()
		return fmt.Errorf("counting the GPUs: %s", explain(ret))
	}
	l.remaps = l.lib.Extensions().LookupSymbol("nvmlDeviceGetRemappedRows") == nil
	events, ret := l.lib.EventSetCreate()
	if ret == nvml.SUCCESS {
		l.events = events
	}
	listening := false
	for i := range count {
		h := handle{}
		if h.Device, ret = l.lib.DeviceGetHandleByIndex(i); ret != nvml.SUCCESS {
			l.devices = append(l.devices, handle{lost: true})
			continue
		}
		if id, ret := h.GetUUID(); ret == nvml.SUCCESS {
			h.id = id
		}
		if pci, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
			h.pci = fmt.Sprintf("%04x:%02x:%02x", pci.Domain, pci.Bus, pci.Device)
		}
		if l.events != nil && h.RegisterEvents(nvml.EventTypeXidCriticalError, l.events) == nvml.SUCCESS {
			listening = true
		}
		l.devices = append(l.devices, h)
	}
	if !listening && l.events != nil {
		l.events.Free()
		l.events = nil
	}
	return nil
}

func (l *loaded) close() { l.lib.Shutdown() }

func (l *loaded) read(thorough bool) ([]nodehealth.Reading, error) {
	out := make([]nodehealth.Reading, 0, len(l.devices))
	for _, h := range l.devices {
		r := nodehealth.Reading{Device: h.id, PCI: h.pci, Recovery: nodehealth.RecoveryUnknown, Lost: h.lost}
		if !h.lost {
			if err := l.ask(h, &r, thorough); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// ask reads one device. A call that a device does not support says nothing about it.
func (l *loaded) ask(h handle, r *nodehealth.Reading, thorough bool) error {
	// Old drivers know no recovery action; the temperature is asked of the device itself by all of them.
	_, ret := h.GetTemperature(nvml.TEMPERATURE_GPU)
	if err := take(ret, r); err != nil {
		return err
	}
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret = h.GetFieldValues(field)
	if err := take(ret, r); err != nil {
		return err
	}
	if ret == nvml.SUCCESS {
		switch nvml.Return(field[0].NvmlReturn) {
		case nvml.SUCCESS:
			r.Recovery = int(binary.LittleEndian.Uint32(field[0].Value[:4]))
		default:
			if err := take(nvml.Return(field[0].NvmlReturn), r); err != nil {
				return err
			}
		}
	}
	if !thorough || r.Lost {
		return nil
	}
	if l.remaps {
		_, _, pending, failed, ret := h.GetRemappedRows()
		if err := take(ret, r); err != nil {
			return err
		}
		r.RemapPending, r.RemapFailed = ret == nvml.SUCCESS && pending, ret == nvml.SUCCESS && failed
	}
	count, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	if ret == nvml.SUCCESS {
		r.Uncorrected = count
	}
	return take(ret, r)
}

// take notes what an answer says of the device as such.
func take(ret nvml.Return, r *nodehealth.Reading) error {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		r.Lost = true
	case nvml.ERROR_RESET_REQUIRED:
		r.ResetRequired = true
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%w: %s", errReopen, explain(ret))
	}
	return nil
}

func (l *loaded) wait(d time.Duration) (string, int, bool) {
	if l.events == nil {
		time.Sleep(d)
		return "", 0, false
	}
	began := time.Now()
	data, ret := l.events.Wait(uint32(d.Milliseconds()))
	if ret != nvml.SUCCESS || data.EventType != nvml.EventTypeXidCriticalError {
		// A lost device makes the wait return at once, every time.
		if left := d - time.Since(began); ret != nvml.SUCCESS && ret != nvml.ERROR_TIMEOUT && left > 0 {
			time.Sleep(left)
		}
		return "", 0, false
	}
	for _, h := range l.devices {
		if h.Device == data.Device {
			return h.id, int(data.EventData), true
		}
	}
	id, _ := data.Device.GetUUID()
	return strings.TrimSpace(id), int(data.EventData), true
}
