package plugin

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The fabric is told as it is, held room included, with the moves that would mend it; a level that there is none of is
// refused.
func TestFabricIsTold(t *testing.T) {
	inRack := func(name, rack string) *v1.Node {
		n := node(name, 2)
		n.Labels["topology.kubernetes.io/rack"] = rack
		return n
	}
	w := newWorld(t, extras{}, inRack("a", "r0"), inRack("b", "r0"), inRack("c", "r1"), inRack("d", "r1"), inRack("e", "r2"), inRack("f", "r2"))
	w.create(on(pod("web", 1), "a"), on(pod("x", 1), "c"), on(pod("y", 1), "d"))
	w.create(memberPod("g", 0, 2, 8), memberPod("g", 1, 2, 8)) // whom nobody waits for, nothing is held for
	w.until("the refusal", w.says("g", "2 pods wanted"))
	h := hold{until: time.Now().Add(time.Hour)}
	h.seats = append(h.seats, taking("c", 1))
	w.plugin.holds.keep(key("g"), h)
	var got v1alpha1.FabricResponse
	w.until("the scheduler to lead and to know all pods", func() bool {
		var err error
		got, err = w.station.Fabric(w.ctx, "rack", 3)
		if err != nil && !errors.Is(err, ErrNotLeading) {
			t.Fatal(err)
		}
		return err == nil && len(got.Levels) == 1 && got.Levels[0].Free == 3
	})
	// Room on c is held, so nobody goes there, nor to e or f, which are in a whole rack; of x and y only one has a place.
	want := "[{rack 3 1 3 1 2 [{r0 2 1 1 [{pod ns/web [{a d}]}]}]}]"
	if text := fmt.Sprint(got.Levels); text != want {
		t.Errorf("%s, want %s", text, want)
	}
	var bad *InvalidError
	if _, err := w.station.Fabric(w.ctx, "row", 3); !errors.As(err, &bad) || err.Error() != `level: the fabric has no level "row", use one of: rack` {
		t.Errorf("%v", err)
	}
}
