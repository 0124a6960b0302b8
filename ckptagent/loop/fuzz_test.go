//go:build linux

package loop

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/internal/protocol"
)

// FuzzDatagram: a datagram to the clients' socket changes at most the state of the rank of this generation that it names, and no step
// decreases.
func FuzzDatagram(f *testing.F) {
	for _, text := range []string{
		`{"v":1,"rank":1,"gen":3,"pid":7,"ev":"step","step":9}`, `{"rank":0,"gen":3,"ev":"restored","step":4}`, `{"rank":-1,"gen":3,"ev":"attached"}`, `{"rank":0,"gen":3,"ev":"copied","step":-5}`,
		`{"rank":9223372036854775807,"gen":3,"ev":"step"}`, `{"rank":0,"gen":18446744073709551615,"ev":"step","step":1}`, `{"rank":1,"gen":2,"ev":"step","step":99}`, `[]`, `{"ev":"gone"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d datagram
		if json.Unmarshal(text, &d) != nil {
			return
		}
		p, ok := d.progress()
		if !ok {
			return
		}
		before := ckptagent.New()
		before.Phase, before.Clean, before.Generation, before.Run, before.Ranks = protocol.StateRunning, false, 3, protocol.Run{
			Number:      3,
			WorldSize:   2,
			Nodes:       1,
			RestoreStep: 4,
		}, 2
		before.Rank = []ckptagent.Rank{{PID: 7, Alive: true, Step: 5}, {PID: 8, Alive: true}}
		was := slices.Clone(before.Rank)
		after, _ := ckptagent.Step(before, p, time.Unix(1000, 0))
		for local, r := range after.Rank {
			mine := d.Gen == 3 && local == d.Rank
			if !mine && !reflect.DeepEqual(r, was[local]) || r.Step < was[local].Step || r.Step != was[local].Step && r.Step != d.Step ||
				r.PID != was[local].PID {
				t.Fatalf("%s makes %+v of rank %d, %+v before", text, r, local, was[local])
			}
		}
		after.Rank, after.Timeline, before.Rank, before.Timeline = nil, protocol.Timeline{}, nil, protocol.Timeline{}
		after.Volatile, before.Volatile = ckptagent.Volatile{}, ckptagent.Volatile{}
		if !reflect.DeepEqual(after, before) {
			t.Fatalf("%s makes %+v, before %+v", text, after, before)
		}
	})
}
