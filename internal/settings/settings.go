// Package settings parses the annotations that users set on jobs and pods. A value that cannot be parsed is an error
// with the path of the annotation and a remedy; it is never replaced by a default. No other package parses these
// annotations.
package settings

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/protocol"
)

// Bounds of values. A value beyond them is a typing error, such as "40" for "40Gi".
const (
	minBytes = 4 << 10
	maxBytes = 16 << 40
	// maxQuantity is the greatest length of a size: the time to parse digits grows with the square of their number.
	maxQuantity = 64
	// maxValue is the greatest length of any value, because each is stored in memory as long as the job exists.
	maxValue = 512

	minInterval = time.Second
	maxInterval = 24 * time.Hour
)

// Settings has the values of a job's annotations.
type Settings struct {
	// Enabled reports whether the job is opted in.
	Enabled bool
	// StateBytes is the size of the state that one rank keeps in memory; 0: off.
	StateBytes int64
	// Slots is the number of states for which a rank's arena has room; 0: unset, three.
	Slots int32 `json:",omitzero"`
	// Standbys reports whether each rank has a warm standby, StandbyBytes how much memory the standbys of a pod may use.
	Standbys     bool
	StandbyBytes int64
	// StandbySkip are the modules that standbys do not import, separated by commas.
	StandbySkip string `json:",omitzero"`
	// ShmBytes is the size of the volume at /dev/shm; 0: unset. NoShm: none is mounted.
	ShmBytes int64 `json:",omitzero"`
	NoShm    bool  `json:",omitzero"`
	// Ranks is the number of ranks per pod; 0: unset.
	Ranks int32
	// MaxRestarts is the number of restarts after which a failure ends the job, if LimitRestarts is true.
	MaxRestarts   int32 `json:",omitzero"`
	LimitRestarts bool  `json:",omitzero"`
	// Hang is what is done about ranks that stand still; empty: unset. HangTimeout is the longest time without a step; 0: unset.
	Hang        string        `json:",omitzero"`
	HangTimeout time.Duration `json:",omitzero"`
	// MinPods is the least number of pods with which the job goes on; 0: unset. ShrinkAfter is how long it waits for a pod whose coming cannot
	// be foretold; 0: unset.
	MinPods     int32         `json:",omitzero"`
	ShrinkAfter time.Duration `json:",omitzero"`
	// PodsUnit is the number of pods of a block, of which such a job goes on with whole ones; 0: unset.
	PodsUnit int32 `json:",omitzero"`
	// Grow is for which pods ranks of such a job are restarted; empty: unset.
	Grow string `json:",omitzero"`
	// NodeCheck is when pods are tried before a generation; empty: unset, never.
	NodeCheck string `json:",omitzero"`
	// SlowNodes is what is done about a node that a node check finds slow; empty: unset.
	SlowNodes string `json:",omitzero"`
	// Container is the name of the training container; empty: unset.
	Container string
	// StorageClaim is the name of the claim to which steps are copied; empty: storage is off. StorageInterval is the interval of copies; 0:
	// storage is off.
	StorageClaim    string
	StorageInterval time.Duration
	// Keep is how many of the newest steps stay in storage. KeepEvery is the interval of further steps that stay; 0: unset.
	Keep      int32         `json:",omitzero"`
	KeepEvery time.Duration `json:",omitzero"`
	// Observe: Holdfast only reports on the job's pods, and changes nothing of them.
	Observe bool
	// RunTime is the longest time that the pods run after their start; 0: unset.
	RunTime time.Duration `json:",omitzero"`
	// MasterPorts are the ports on which rank 0's store may listen; the zero value: any.
	MasterPorts Ports `json:",omitzero"`
	// ProvisioningClass is the class of the gang's ProvisioningRequest; empty: the gang has none.
	ProvisioningClass string `json:",omitzero"`
	// Topology is what the gang requests of the fabric.
	Topology gang.Topology `json:",omitzero"`
}

// Annotated has annotations with settings, and the path of the field that holds them.
type Annotated struct {
	Path   *field.Path
	Values map[string]string
}

// userKeys are the annotations that users write, each with the values that it accepts.
var userKeys = map[string]string{
	v1alpha1.AnnotationEnabled:       `"true" or "false"`,
	v1alpha1.AnnotationStateSize:     `a size such as "40Gi"`,
	v1alpha1.AnnotationSlots:         `"2" or "3"`,
	v1alpha1.AnnotationStandbys:      `"auto" or "off"`,
	v1alpha1.AnnotationStandbyMemory: `a size such as "512Mi"`,

	v1alpha1.AnnotationStandbySkipModules: `modules such as "pynvml,wandb"`,

	v1alpha1.AnnotationRanks:           `a number such as "8"`,
	v1alpha1.AnnotationMaxRestarts:     `a number such as "5"`,
	v1alpha1.AnnotationHang:            `"act", "report" or "off"`,
	v1alpha1.AnnotationHangTimeout:     `a duration such as "30m"`,
	v1alpha1.AnnotationNodeCheck:       `"auto", "always" or "off"`,
	v1alpha1.AnnotationMinPods:         `a number of pods such as "2"`,
	v1alpha1.AnnotationPodsUnit:        `a number of pods such as "2"`,
	v1alpha1.AnnotationShrinkAfter:     `a duration such as "30s"`,
	v1alpha1.AnnotationSlowNodes:       `"report" or "exclude"`,
	v1alpha1.AnnotationGrow:            `"auto", "with-restart" or "off"`,
	v1alpha1.AnnotationRetrySizes:      `a number such as "1"`,
	v1alpha1.AnnotationShmSize:         `a size such as "8Gi", or "off"`,
	v1alpha1.AnnotationContainer:       `a container's name`,
	v1alpha1.AnnotationStorageClaim:    `the name of a PersistentVolumeClaim`,
	v1alpha1.AnnotationStorageInterval: `a duration such as "1m"`,
	v1alpha1.AnnotationMode:            `"act" or "observe"`,
	v1alpha1.AnnotationRunTime:         `a duration such as "36h"`,
	v1alpha1.AnnotationMasterPort:      `a port such as "29500", or a range such as "29500-29531"`,

	v1alpha1.AnnotationKeepCheckpoints:     `a number of steps such as "5"`,
	v1alpha1.AnnotationKeepCheckpointEvery: `a duration such as "1h"`,
	v1alpha1.AnnotationPinnedCheckpoints:   `steps such as "120@3,180@3"`,
	v1alpha1.AnnotationPinWish:             `a number such as "1"`,
	v1alpha1.AnnotationCheckWish:           `a number such as "1"`,

	v1alpha1.AnnotationProvisioningClass: `a class such as "best-effort-atomic-scale-up.autoscaling.x-k8s.io"`,

	v1alpha1.AnnotationTopologyRequired:  `a topology level such as "rack"`,
	v1alpha1.AnnotationTopologyPreferred: `a topology level such as "rack"`,
	v1alpha1.AnnotationSliceLevel:        `a topology level such as "nvlink"`,
	v1alpha1.AnnotationSliceSize:         `a number of pods such as "12"`,
	v1alpha1.AnnotationSliceShape:        `"even" or "uneven"`,
	v1alpha1.AnnotationBlockSize:         `a number of pods such as "4"`,
	v1alpha1.AnnotationSpares:            `a number of nodes such as "2"`,
	v1alpha1.AnnotationWholeNodes:        `"true" or "false"`,
}

// systemKeys are the keys that only Holdfast writes.
var systemKeys = map[string]bool{
	v1alpha1.LabelGang:                  true,
	v1alpha1.AnnotationGangSize:         true,
	v1alpha1.AnnotationGangMin:          true,
	v1alpha1.AnnotationGangUnit:         true,
	v1alpha1.AnnotationGangSlots:        true,
	v1alpha1.AnnotationGangRole:         true,
	v1alpha1.AnnotationGangSlot:         true,
	v1alpha1.AnnotationInjected:         true,
	v1alpha1.AnnotationImageCommand:     true,
	v1alpha1.AnnotationInstallResources: true,
	v1alpha1.AnnotationInjection:        true,
	v1alpha1.AnnotationInitialPlacement: true,

	v1alpha1.AnnotationTopologyDomain: true,
	v1alpha1.LabelReplaced:            true,
	v1alpha1.AnnotationMadeRoom:       true,
}

// IsUserKey reports whether users may write the annotation.
func IsUserKey(key string) bool { return userKeys[key] != "" }

// IsLive reports whether the key is one of pins or a request, which are only on the Job itself and may change at any time.
func IsLive(key string) bool {
	switch key {
	case v1alpha1.AnnotationPinnedCheckpoints, v1alpha1.AnnotationPinWish, v1alpha1.AnnotationCheckWish, v1alpha1.AnnotationRetrySizes:
		return true
	}
	return false
}

// OfRole returns the annotations that are read on the template of one of several roles: the name of the training container.
func OfRole(annotations map[string]string) map[string]string {
	name, is := annotations[v1alpha1.AnnotationContainer]
	if !is {
		return nil
	}
	return map[string]string{v1alpha1.AnnotationContainer: name}
}

// IsSystemKey reports whether only Holdfast writes the key.
func IsSystemKey(key string) bool { return systemKeys[key] }

// ParseSettings reads the settings from places in rising priority. ParseSettings returns errors for unknown keys under Holdfast's prefix
// and for invalid values, ordered by place and key. The caller handles keys that only Holdfast writes.
func ParseSettings(places ...Annotated) (Settings, field.ErrorList) {
	s := Settings{Standbys: true, StandbyBytes: quantityBytes(v1alpha1.DefaultStandbyMemory)}
	var errs field.ErrorList
	var switched bool
	var without *field.Error
	at := map[string]*field.Path{}
	for _, place := range places {
		for _, key := range OurKeys(place.Values) {
			path, value := place.Path.Key(key), place.Values[key]
			if IsSystemKey(key) {
				continue
			}
			if !IsUserKey(key) {
				errs = append(errs, field.Invalid(path, value, "is not a key that holdfast knows: "+knownKeys()))
				continue
			}
			if key == v1alpha1.AnnotationEnabled {
				switched = true
			} else if without == nil {
				without = field.Invalid(path, value, `has no effect without `+v1alpha1.AnnotationEnabled+
					`: write "true" to opt the job in, "false" to keep the setting for later, or remove the key`)
			}
			at[key] = path
			if problem := s.set(key, value); problem != "" {
				errs = append(errs, field.Invalid(path, value, problem))
			}
		}
	}
	if !switched && without != nil && len(errs) == 0 {
		errs = append(errs, without)
	}
	if len(errs) == 0 {
		errs = slices.Concat(s.checkSlots(at), s.checkStorage(at), s.checkTopology(at), s.checkHang(at))
	}
	return s, errs
}

// checkSlots refuses slots without a state; at has the path of each key.
func (s *Settings) checkSlots(at map[string]*field.Path) field.ErrorList {
	if s.Slots == 0 || s.StateBytes > 0 || !s.Enabled {
		return nil
	}
	return field.ErrorList{field.Invalid(at[v1alpha1.AnnotationSlots], strconv.Itoa(int(s.Slots)),
		"has no effect without "+v1alpha1.AnnotationStateSize+": set that to what one rank saves, or remove the key")}
}

// checkStorage refuses settings of storage that would have no effect; at has the path of each key.
func (s *Settings) checkStorage(at map[string]*field.Path) field.ErrorList {
	claim, interval := at[v1alpha1.AnnotationStorageClaim], at[v1alpha1.AnnotationStorageInterval]
	switch {
	case s.StorageClaim != "" && s.StorageInterval == 0:
		s.StorageInterval = defaultInterval
	case s.StorageClaim == "" && interval != nil && s.Enabled:
		return field.ErrorList{field.Invalid(interval, s.StorageInterval.String(),
			"has no effect without "+v1alpha1.AnnotationStorageClaim+": name the claim that steps are copied to, or remove the key")}
	}
	for _, key := range []string{v1alpha1.AnnotationKeepCheckpoints, v1alpha1.AnnotationKeepCheckpointEvery} {
		if at[key] != nil && s.StorageClaim == "" && s.Enabled {
			return field.ErrorList{field.Forbidden(at[key], "has no effect without "+v1alpha1.AnnotationStorageClaim+": name the claim that steps are copied to, or remove the key")}
		}
	}
	if pins := at[v1alpha1.AnnotationPinnedCheckpoints]; pins != nil && s.StorageClaim == "" && s.Enabled {
		return field.ErrorList{field.Forbidden(pins, "has no effect without "+v1alpha1.AnnotationStorageClaim+", which the job was to be created with: remove the key")}
	}
	if s.StorageClaim != "" && s.StateBytes == 0 && s.Enabled {
		return field.ErrorList{field.Invalid(claim, s.StorageClaim,
			"needs "+v1alpha1.AnnotationStateSize+": what is copied to storage is the state that is kept in memory; set it to what one rank saves, or remove the key")}
	}
	return nil
}

var defaultInterval = func() time.Duration {
	d, err := time.ParseDuration(v1alpha1.DefaultStorageInterval)
	if err != nil {
		panic(err) // a constant of ours
	}
	return d
}()

// set parses one value, and returns what is wrong with it.
func (s *Settings) set(key, value string) (problem string) {
	if len(value) > maxValue {
		return fmt.Sprintf("has %d characters, and %d are the most: write %s", len(value), maxValue, userKeys[key])
	}
	switch key {
	case v1alpha1.AnnotationEnabled:
		s.Enabled = value == "true"
		if value != "true" && value != "false" {
			return `must be "true" or "false"`
		}
	case v1alpha1.AnnotationStateSize:
		s.StateBytes, problem = parseBytes(value, "to keep no state in memory remove the key")
	case v1alpha1.AnnotationSlots:
		s.Slots = map[string]int32{"2": 2, "3": 3}[value]
		if s.Slots == 0 {
			return `must be "3", or "2" for a third less memory, with saves that wait for the other ranks`
		}
	case v1alpha1.AnnotationStandbyMemory:
		s.StandbyBytes, problem = parseBytes(value, `to run without standbys write `+v1alpha1.AnnotationStandbys+`: "off"`)
	case v1alpha1.AnnotationStandbySkipModules:
		s.StandbySkip = value
		if !moduleNames.MatchString(value) {
			return `must be names of Python modules with commas between and no blanks, such as "pynvml,wandb"; remove the key to leave none out`
		}
	case v1alpha1.AnnotationStandbys:
		s.Standbys = value == "auto"
		if value != "auto" && value != "off" {
			return `must be "auto" (one warm standby per rank) or "off"`
		}
	case v1alpha1.AnnotationRanks:
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 || n > protocol.MaxRanks {
			return fmt.Sprintf("must be the number of ranks per pod, 1 to %d; remove the key to have it derived from the launcher or the GPUs", protocol.MaxRanks)
		}
		s.Ranks = int32(n)
	case v1alpha1.AnnotationMaxRestarts:
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil || n > protocol.MaxRestarts {
			return fmt.Sprintf("must be a whole number, 0 to %d: so many failures are followed by a restart; remove the key to have as many as there is progress between", protocol.MaxRestarts)
		}
		s.MaxRestarts, s.LimitRestarts = int32(n), true
	case v1alpha1.AnnotationHang:
		s.Hang = value
		if value != v1alpha1.HangAct && value != v1alpha1.HangReport && value != v1alpha1.HangOff {
			return `must be "act" (report ranks that stand still, and restart them), "report" or "off"`
		}
	case v1alpha1.AnnotationHangTimeout:
		s.HangTimeout, problem = parseHangTimeout(value)
	case v1alpha1.AnnotationNodeCheck:
		s.NodeCheck = value
		if value != v1alpha1.NodeCheckAuto && value != v1alpha1.NodeCheckAlways && value != v1alpha1.NodeCheckOff {
			return `must be "auto" (try the pods before training where they request devices), "always" or "off"`
		}
	case v1alpha1.AnnotationMinPods:
		s.MinPods, problem = parseMinPods(value)
	case v1alpha1.AnnotationPodsUnit:
		s.PodsUnit, problem = parsePodsUnit(value)
	case v1alpha1.AnnotationShrinkAfter:
		s.ShrinkAfter, problem = parseShrinkAfter(value)
	case v1alpha1.AnnotationSlowNodes:
		s.SlowNodes = value
		if value != v1alpha1.SlowReport && value != v1alpha1.SlowExclude {
			return `must be "report" (report nodes that a node check finds slow) or "exclude" (replace their pods, too)`
		}
	case v1alpha1.AnnotationGrow:
		s.Grow = value
		if value != v1alpha1.GrowAuto && value != v1alpha1.GrowWithRestart && value != v1alpha1.GrowOff {
			return `must be "auto" (restart ranks for pods that can join at a step at which all ranks stay), "with-restart" (also where the script loads its own checkpoint) or "off"`
		}
	case v1alpha1.AnnotationShmSize:
		if s.ShmBytes, s.NoShm = 0, value == "off"; !s.NoShm {
			s.ShmBytes, problem = parseBytes(value, `to have nothing mounted at /dev/shm write "off"`)
		}
	case v1alpha1.AnnotationContainer:
		s.Container = value
		if value == "" {
			return "must name the container that trains; remove the key to have it found by devices, or by its launcher"
		}
	case v1alpha1.AnnotationStorageClaim:
		s.StorageClaim = value
		if bad := validation.IsDNS1123Subdomain(value); len(bad) > 0 {
			return "must be the name of a PersistentVolumeClaim in the job's namespace; to keep nothing in storage remove the key"
		}
	case v1alpha1.AnnotationStorageInterval:
		d, err := time.ParseDuration(value)
		if err != nil || d < minInterval || d > maxInterval || d%time.Second != 0 {
			return `must be a duration in whole seconds, from "1s" to "24h", such as "1m"`
		}
		s.StorageInterval = d
	case v1alpha1.AnnotationKeepCheckpoints:
		s.Keep, problem = parseKeep(value)
	case v1alpha1.AnnotationKeepCheckpointEvery:
		s.KeepEvery, problem = parseKeepEvery(value)
	case v1alpha1.AnnotationPinnedCheckpoints:
		_, problem = parsePins(value)
	case v1alpha1.AnnotationPinWish:
		if positive(value) == 0 {
			return "must be a number from 1, which kubectl holdfast ckpt pin writes: remove the key"
		}
	case v1alpha1.AnnotationCheckWish:
		if n, _ := parseCheckWish(value); n == 0 {
			return "must be a number from 1, which kubectl holdfast check writes: remove the key"
		}
	case v1alpha1.AnnotationRetrySizes:
		if positive(value) == 0 {
			return "must be a number from 1, higher than the one before, to have struck sizes tried again: remove the key, or write a number"
		}
	case v1alpha1.AnnotationMode:
		s.Observe = value == v1alpha1.ModeObserve
		if value != v1alpha1.ModeAct && value != v1alpha1.ModeObserve {
			return `must be "act" or "observe"`
		}
	case v1alpha1.AnnotationRunTime:
		s.RunTime, problem = runTime(value)
	case v1alpha1.AnnotationProvisioningClass:
		s.ProvisioningClass = value
		if bad := validation.IsDNS1123Subdomain(value); len(bad) > 0 {
			return `must be the class of a ProvisioningRequest, such as "best-effort-atomic-scale-up.autoscaling.x-k8s.io"; to have none made remove the key`
		}
	case v1alpha1.AnnotationMasterPort:
		s.MasterPorts, problem = parsePorts(value)
	default:
		return setTopology(&s.Topology, key, value)
	}
	return problem
}

var moduleNames = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*(,[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)*$`)

// parseBytes parses a size, and returns what is wrong with it.
func parseBytes(value, off string) (int64, string) {
	const sizes = `must be a size such as "40Gi" or "512Mi"`
	if len(value) > maxQuantity {
		return 0, sizes
	}
	q, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, sizes
	}
	if q.Sign() == 0 {
		return 0, "must be above zero; " + off
	}
	n := q.Value()
	if n < minBytes || n > maxBytes {
		return 0, fmt.Sprintf(`is %d bytes, outside of 4Ki to 16Ti; write a unit, as in "40Gi"`, n)
	}
	return n, ""
}

func quantityBytes(s string) int64 {
	q := resource.MustParse(s)
	return q.Value()
}

// OurKeys returns the keys under Holdfast's prefix, sorted.
func OurKeys(values map[string]string) []string {
	var keys []string
	for k := range values {
		if strings.HasPrefix(k, v1alpha1.Prefix) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	return keys
}

func knownKeys() string {
	var keys []string
	for k, accepts := range userKeys {
		keys = append(keys, k+" ("+accepts+")")
	}
	sort.Strings(keys)
	return "correct it or remove it; known are " + strings.Join(keys, ", ")
}
