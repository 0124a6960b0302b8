package settings

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/protocol"
)

// FuzzSettings reads lines KEY=VALUE as annotations; a key without prefix gets Holdfast's. Accepted values are within the bounds. Any other
// value is refused with the path, the value and the remedy.
func FuzzSettings(f *testing.F) {
	for key := range userKeys {
		f.Add("enabled=true\n" + strings.TrimPrefix(key, v1alpha1.Prefix) + "=1")
	}
	f.Add("enabled=true\nstate-size=40Gi\nranks=8\nstorage-claim=c\nstorage-interval=1m\nrun-time=36h\nslice-level=nvlink\nslice-size=12\nwhole-nodes=true\nspares=2")
	f.Add("enabled=true\nstate-size=1e99Gi\nother=x\nstandby-memory=-1")
	f.Add("mode=observe\nenabled=maybe\nexample.com/x=y\ngang-size=3")
	f.Fuzz(func(t *testing.T, text string) {
		values := map[string]string{}
		for line := range strings.SplitSeq(text, "\n") {
			key, value, _ := strings.Cut(line, "=")
			if !strings.Contains(key, "/") {
				key = v1alpha1.Prefix + key
			}
			values[key] = value
		}
		path := field.NewPath("metadata", "annotations")
		s, errs := ParseSettings(Annotated{Path: path, Values: values})
		if again, same := ParseSettings(Annotated{Path: path, Values: values}); !reflect.DeepEqual(s, again) || !reflect.DeepEqual(errs, same) {
			t.Fatal("read twice, read differently")
		}
		for _, e := range errs {
			key, ok := strings.CutPrefix(e.Field, path.String()+"[")
			if key = strings.TrimSuffix(key, "]"); !ok || e.Detail == "" {
				t.Fatalf("%v names no key or says nothing", e)
			}
			if _, there := values[key]; !there {
				t.Fatalf("%v is about a key that was not written", e)
			}
			if len(e.Error()) > len(text)*4+6000 {
				t.Fatalf("a refusal of %d bytes for %d", len(e.Error()), len(text))
			}
		}
		if len(errs) > 0 {
			return
		}
		within := func(what string, n, low, high int64) {
			if n != 0 && (n < low || n > high) {
				t.Fatalf("%s %d is taken, outside of %d to %d", what, n, low, high)
			}
		}
		within("state", s.StateBytes, minBytes, maxBytes)
		within("standby memory", s.StandbyBytes, minBytes, maxBytes)
		within("shared memory", s.ShmBytes, minBytes, maxBytes)
		within("ranks", int64(s.Ranks), 1, protocol.MaxRanks)
		within("interval", int64(s.StorageInterval), int64(minInterval), int64(maxInterval))
		within("hang timeout", int64(s.HangTimeout), int64(minHangTimeout), int64(maxHangTimeout))
		if s.RunTime < 0 || s.Topology.SliceSize < 0 || s.Topology.Spares < 0 || s.Topology.SliceSize > v1alpha1.MaxMembers {
			t.Fatalf("taken: %+v", s)
		}
		if s.StorageClaim != "" && s.Enabled && (s.StateBytes == 0 || s.StorageInterval == 0) {
			t.Fatalf("storage that would do nothing is taken: %+v", s)
		}
	})
}
