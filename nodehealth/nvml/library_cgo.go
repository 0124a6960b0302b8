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

// errReopen: the driver was unloaded or replaced while the library was loaded.
var errReopen = errors.New("the driver was unloaded")

type loaded struct {
	lib     nvml.Interface
	devices []handle
	events  nvml.EventSet // nil where no device can report
	// The functions that the library has: calling a missing one ends the process.
	remaps, links, lanes, mig bool
}

type handle struct {
	nvml.Device
	id, pci string
	// lost: NVML has returned no handle yet.
	lost bool
}

// control is the device that every NVIDIA driver has.
const control = "/dev/nvidiactl"

// open loads the first of paths that can be loaded and finds all devices.
func open(paths []string) (library, error) {
	why, found := errors.New("no path to NVIDIA's library was given"), false
	for i, p := range paths {
		l := &loaded{lib: nvml.New(nvml.WithLibraryPath(p))}
		ret := l.lib.Init()
		if ret == nvml.SUCCESS {
			return l, l.find()
		}
		found = found || ret != nvml.ERROR_LIBRARY_NOT_FOUND
		// A missing file is the least informative error; another one replaces it.
		if ret != nvml.ERROR_LIBRARY_NOT_FOUND || i == 0 {
			why = fmt.Errorf("no NVIDIA driver answers on this node (%s: %s)", p, explain(ret))
		}
	}
	if !found {
		why = unfound(control, len(paths), why)
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
	l.remaps = l.has("nvmlDeviceGetRemappedRows")
	l.links = l.has("nvmlDeviceGetNvLinkState")
	l.lanes = l.has("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetPerformanceState")
	l.mig = l.has("nvmlDeviceGetMigMode")
	for i := range count {
		l.devices = append(l.devices, l.attach(i))
	}
	return nil
}

func (l *loaded) has(symbols ...string) bool {
	for _, s := range symbols {
		if l.lib.Extensions().LookupSymbol(s) != nil {
			return false
		}
	}
	return true
}

// attach gets a device's handle by its number and registers for its errors.
func (l *loaded) attach(i int) handle {
	h := handle{}
	var ret nvml.Return
	if h.Device, ret = l.lib.DeviceGetHandleByIndex(i); ret != nvml.SUCCESS {
		return handle{lost: true}
	}
	if id, ret := h.GetUUID(); ret == nvml.SUCCESS {
		h.id = id
	}
	if pci, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
		h.pci = fmt.Sprintf("%04x:%02x:%02x", pci.Domain, pci.Bus, pci.Device)
	}
	l.listen(h)
	return h
}

// listen registers for the device's errors; the event set exists if any device can report.
func (l *loaded) listen(h handle) {
	fresh := l.events == nil
	if fresh {
		events, ret := l.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return
		}
		l.events = events
	}
	if h.RegisterEvents(nvml.EventTypeXidCriticalError, l.events) != nvml.SUCCESS && fresh {
		l.events.Free()
		l.events = nil
	}
}

func (l *loaded) close() { l.lib.Shutdown() }

func (l *loaded) read(thorough bool) ([]nodehealth.Reading, error) {
	out := make([]nodehealth.Reading, 0, len(l.devices))
	for i, h := range l.devices {
		if h.lost && thorough { // it may have returned
			h = l.attach(i)
			l.devices[i] = h
		}
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

// ask reads one device. A call that the device does not support is no evidence about it.
func (l *loaded) ask(h handle, r *nodehealth.Reading, thorough bool) error {
	// Old drivers have no recovery action; all of them read the temperature from the device itself.
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
	if err := take(ret, r); err != nil {
		return err
	}
	l.askLanes(h, r)
	return l.askLinks(h, r)
}

// askLinks counts NVLinks. A GPU in MIG mode has none to others by design. If any answer fails their number is unknown: links that were not
// counted are not down.
func (l *loaded) askLinks(h handle, r *nodehealth.Reading) error {
	if !l.links {
		return nil
	}
	if l.mig {
		if mode, _, ret := h.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			return nil
		}
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := h.GetNvLinkState(link)
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_SUPPORTED: // no more links
			return nil
		case ret != nvml.SUCCESS:
			r.LinksUp, r.LinksDown, r.LinksUnknown = 0, 0, true
			return take(ret, r)
		case state == nvml.FEATURE_ENABLED:
			r.LinksUp++
		default:
			r.LinksDown++
		}
	}
	return nil
}

// askLanes reads the PCIe link of the GPU. An idle GPU lowers the generation by design, so the generation is reported only at full clocks.
func (l *loaded) askLanes(h handle, r *nodehealth.Reading) {
	if !l.lanes {
		return
	}
	width, ret1 := h.GetCurrPcieLinkWidth()
	most, ret2 := h.GetMaxPcieLinkWidth()
	if ret1 == nvml.SUCCESS && ret2 == nvml.SUCCESS {
		r.Width, r.MaxWidth = width, most
	}
	if state, ret := h.GetPerformanceState(); ret != nvml.SUCCESS || state != nvml.PSTATE_0 {
		return
	}
	speed, ret1 := h.GetCurrPcieLinkGeneration()
	fastest, ret2 := h.GetMaxPcieLinkGeneration()
	if ret1 == nvml.SUCCESS && ret2 == nvml.SUCCESS {
		r.Speed, r.MaxSpeed = speed, fastest
	}
}

// take records what a result means for the device as a whole.
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
		// With a lost device the wait returns at once, every time.
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
