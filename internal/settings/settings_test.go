package settings

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestSettings(t *testing.T) {
	low, high := field.NewPath("low"), field.NewPath("high")
	type m = map[string]string
	for name, c := range map[string]struct {
		low, high m
		want      Settings
		errs      []string
	}{
		"nothing":       {nil, nil, Settings{Standbys: true, StandbyBytes: 512 << 20}, nil},
		"others' keys":  {m{"a/b": "c", "holdfast.devil/x": ""}, nil, Settings{Standbys: true, StandbyBytes: 512 << 20}, nil},
		"on":            {m{v1alpha1.AnnotationEnabled: "true"}, nil, Settings{Enabled: true, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"high wins":     {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationRanks: "2"}, m{v1alpha1.AnnotationRanks: "4"}, Settings{Enabled: true, Ranks: 4, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"high opts out": {m{v1alpha1.AnnotationEnabled: "true"}, m{v1alpha1.AnnotationEnabled: "false"}, Settings{Standbys: true, StandbyBytes: 512 << 20}, nil},
		"all": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1.5Gi", v1alpha1.AnnotationStandbys: "off", v1alpha1.AnnotationStandbyMemory: "2G", v1alpha1.AnnotationContainer: "c"}, nil,
			Settings{Enabled: true, StateBytes: 3 << 29, StandbyBytes: 2e9, Container: "c"}, nil},
		"storage": {
			m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Gi", v1alpha1.AnnotationStorageClaim: "ckpt", v1alpha1.AnnotationMode: "observe"},
			nil,
			Settings{
				Enabled:         true,
				StateBytes:      1 << 30,
				StorageClaim:    "ckpt",
				StorageInterval: time.Minute,
				Observe:         true,
				Standbys:        true,
				StandbyBytes:    512 << 20,
			},
			nil,
		},
		"steps kept": {
			m{
				v1alpha1.AnnotationEnabled:         "true",
				v1alpha1.AnnotationStateSize:       "1Gi",
				v1alpha1.AnnotationStorageClaim:    "ckpt",
				v1alpha1.AnnotationKeepCheckpoints: "5",
			},
			m{v1alpha1.AnnotationKeepCheckpointEvery: "90m"},
			Settings{
				Enabled:         true,
				StateBytes:      1 << 30,
				StorageClaim:    "ckpt",
				StorageInterval: time.Minute,
				Keep:            5,
				KeepEvery:       90 * time.Minute,
				Standbys:        true,
				StandbyBytes:    512 << 20,
			},
			nil,
		},
		"no restart":               {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationMaxRestarts: "0"}, nil, Settings{Enabled: true, LimitRestarts: true, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"restarts":                 {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationMaxRestarts: "0"}, m{v1alpha1.AnnotationMaxRestarts: "7"}, Settings{Enabled: true, MaxRestarts: 7, LimitRestarts: true, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"less than none":           {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationMaxRestarts: "-1"}, nil, Settings{Enabled: true, Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/max-restarts]"}},
		"hang, reported":           {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHang: "report"}, nil, Settings{Enabled: true, Hang: "report", Standbys: true, StandbyBytes: 512 << 20}, nil},
		"node check":               {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationNodeCheck: "always"}, nil, Settings{Enabled: true, NodeCheck: "always", Standbys: true, StandbyBytes: 512 << 20}, nil},
		"slow nodes":               {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationSlowNodes: "exclude"}, nil, Settings{Enabled: true, SlowNodes: "exclude", Standbys: true, StandbyBytes: 512 << 20}, nil},
		"grow":                     {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGrow: "with-restart"}, nil, Settings{Enabled: true, Grow: "with-restart", Standbys: true, StandbyBytes: 512 << 20}, nil},
		"grow, another word":       {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGrow: "true"}, nil, Settings{Enabled: true, Grow: "true", Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/grow]"}},
		"node check, another word": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationNodeCheck: "true"}, nil, Settings{Enabled: true, NodeCheck: "true", Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/node-check]"}},
		"hang, another word":       {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHang: "true"}, nil, Settings{Enabled: true, Hang: "true", Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/hang]"}},
		"hang timeout": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHangTimeout: "30m", v1alpha1.AnnotationHang: "act"}, nil,
			Settings{Enabled: true, Hang: "act", HangTimeout: 30 * time.Minute, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"hang timeout alone": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHangTimeout: "30m"}, nil,
			Settings{Enabled: true, HangTimeout: 30 * time.Minute, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"hang timeout that ends nothing": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHangTimeout: "30m"}, m{v1alpha1.AnnotationHang: "off"},
			Settings{Enabled: true, Hang: "off", HangTimeout: 30 * time.Minute, Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/hang-timeout]"}},
		"hang timeout kept while off": {m{v1alpha1.AnnotationEnabled: "false", v1alpha1.AnnotationHangTimeout: "30m", v1alpha1.AnnotationHang: "report"}, nil,
			Settings{Hang: "report", HangTimeout: 30 * time.Minute, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"a port":           {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationMasterPort: "29500"}, nil, Settings{Enabled: true, MasterPorts: Ports{29500, 29500}, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"nodes of a class": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationProvisioningClass: "a.b"}, nil, Settings{Enabled: true, ProvisioningClass: "a.b", Standbys: true, StandbyBytes: 512 << 20}, nil},
		"nodes of no class": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationProvisioningClass: "A_b"}, nil, Settings{Enabled: true, ProvisioningClass: "A_b", Standbys: true, StandbyBytes: 512 << 20},
			[]string{"low[holdfast.dev/provisioning-class]"}},
		"ports":       {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationMasterPort: "1024-65535"}, nil, Settings{Enabled: true, MasterPorts: Ports{1024, 65535}, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"two slots":   {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationSlots: "2"}, m{v1alpha1.AnnotationStateSize: "1Gi"}, Settings{Enabled: true, StateBytes: 1 << 30, Slots: 2, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"three slots": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationSlots: "3", v1alpha1.AnnotationStateSize: "1Gi"}, nil, Settings{Enabled: true, StateBytes: 1 << 30, Slots: 3, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"slots of nothing": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationSlots: "2"}, nil, Settings{Enabled: true, Slots: 2, Standbys: true, StandbyBytes: 512 << 20},
			[]string{"low[holdfast.dev/slots]"}},
		"shared memory":           {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationShmSize: "off"}, m{v1alpha1.AnnotationShmSize: "8Gi"}, Settings{Enabled: true, ShmBytes: 8 << 30, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"shared memory, off":      {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationShmSize: "8Gi"}, m{v1alpha1.AnnotationShmSize: "off"}, Settings{Enabled: true, NoShm: true, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"shared memory of a byte": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationShmSize: "1"}, nil, Settings{Enabled: true, Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/shm-size]"}},
		"slots kept while off":    {m{v1alpha1.AnnotationEnabled: "false", v1alpha1.AnnotationSlots: "2"}, nil, Settings{Slots: 2, Standbys: true, StandbyBytes: 512 << 20}, nil},
		"storage, how often": {
			m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Gi", v1alpha1.AnnotationStorageInterval: "90s"},
			m{v1alpha1.AnnotationStorageClaim: "ckpt"},
			Settings{
				Enabled:         true,
				StateBytes:      1 << 30,
				StorageClaim:    "ckpt",
				StorageInterval: 90 * time.Second,
				Standbys:        true,
				StandbyBytes:    512 << 20,
			},
			nil,
		},
		"errors are ordered": {m{"holdfast.dev/z": "", "holdfast.dev/a": "", v1alpha1.AnnotationEnabled: "true"}, m{v1alpha1.AnnotationRanks: "x"}, Settings{Enabled: true, Standbys: true, StandbyBytes: 512 << 20},
			[]string{"low[holdfast.dev/a]", "low[holdfast.dev/z]", "high[holdfast.dev/ranks]"}},
		"a long value": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationContainer: strings.Repeat("c", maxValue+1), v1alpha1.AnnotationStandbys: "off"}, nil, Settings{Enabled: true, StandbyBytes: 512 << 20},
			[]string{"low[holdfast.dev/container]"}},
		"a value just so long": {m{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationContainer: strings.Repeat("c", maxValue)}, nil, Settings{Enabled: true, Container: strings.Repeat("c", maxValue), Standbys: true, StandbyBytes: 512 << 20}, nil},
		"setting alone":        {m{v1alpha1.AnnotationRanks: "2"}, nil, Settings{Ranks: 2, Standbys: true, StandbyBytes: 512 << 20}, []string{"low[holdfast.dev/ranks]"}},
	} {
		got, errs := ParseSettings(Annotated{low, c.low}, Annotated{high, c.high})
		var paths []string
		for _, e := range errs {
			paths = append(paths, e.Field)
		}
		if got != c.want || !slices.Equal(paths, c.errs) {
			t.Errorf("%s: %+v, errors at %v", name, got, paths)
		}
	}
}

func TestAdmittedJob(t *testing.T) {
	for name, c := range map[string]struct {
		own, template map[string]string
		ok            bool
	}{
		"stamped":                  {nil, map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "4"}, true},
		"annotated later":          {map[string]string{v1alpha1.AnnotationEnabled: "true"}, nil, false},
		"annotated, not stamped":   {nil, map[string]string{v1alpha1.AnnotationEnabled: "true"}, false},
		"opted out":                {nil, map[string]string{v1alpha1.AnnotationEnabled: "false", v1alpha1.AnnotationGangSize: "4"}, false},
		"size that is none":        {nil, map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "0"}, false},
		"more pods than a gang":    {nil, map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "5001"}, false},
		"the job's own turned off": {map[string]string{v1alpha1.AnnotationEnabled: "false"}, map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "4"}, true},
	} {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Annotations: c.own}}
		job.Spec.Template.Annotations = c.template
		j, ok := AdmittedJob(job)
		if ok != c.ok || ok && j.Members != 4 {
			t.Errorf("%s: %v %+v", name, ok, j)
		}
	}
}

// TestAJobOfASetIsNotAdmitted: the Job of a JobSet does not count as admitted. Its pods are in the gang of the JobSet, which stamped its
// template.
func TestAJobOfASetIsNotAdmitted(t *testing.T) {
	yes := true
	for owner, want := range map[metav1.OwnerReference]bool{
		{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"}: false,
		{APIVersion: "jobset.x-k8s.io/v1beta1", Kind: "JobSet"}:  false,
		{APIVersion: "batch/v1", Kind: "CronJob"}:                true,
		{APIVersion: "example.com/v1", Kind: "JobSet"}:           true,
	} {
		owner.Controller = &yes
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owner}}}
		job.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "4"}
		if _, ok := AdmittedJob(job); ok != want {
			t.Errorf("owned by %s %s: %v", owner.APIVersion, owner.Kind, ok)
		}
	}
}

// Users may change the parallelism of an observed Job without admission. So what Holdfast stores per pod is bounded.
func TestObservedJobOfAnySize(t *testing.T) {
	for parallelism, want := range map[int32]int32{7: 7, v1alpha1.MaxMembers: v1alpha1.MaxMembers, math.MaxInt32: v1alpha1.MaxMembers} {
		job := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: &parallelism}}
		job.Spec.Template.Annotations = map[string]string{
			v1alpha1.AnnotationEnabled:  "true",
			v1alpha1.AnnotationMode:     "observe",
			v1alpha1.AnnotationGangSize: "4",
		}
		if j, ok := AdmittedJob(job); !ok || j.Members != want {
			t.Errorf("parallelism %d: %d members, %t", parallelism, j.Members, ok)
		}
	}
}

// A size with so many digits that parsing takes long is refused before it is parsed, even if its value would be valid.
func TestSizesAreShort(t *testing.T) {
	for digits, want := range map[int]string{10: "", 250_000: `must be a size such as "40Gi" or "512Mi"`} {
		if _, problem := parseBytes("1."+strings.Repeat("0", digits)+"Gi", ""); problem != want {
			t.Errorf("%d digits: %q", digits, problem)
		}
	}
}
