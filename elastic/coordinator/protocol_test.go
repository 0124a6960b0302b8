package coordinator

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
)

// TestConversationOfProtocol1 replays what an agent of version 1 and a coordinator of version 1 said to each
// other: ">" is a report, "<" a directive. Today's coordinator must answer the same, and nothing that an
// agent of version 1 does not know. It was recorded with the coordinator of version 1, and nothing records it anew.
func TestConversationOfProtocol1(t *testing.T) {
	const file = "testdata/protocol1.txt"
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[p.Key] = 1
	a := h.dial(h.allow(p))
	want := []string{} // answers to the newest report
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "> "):
			a.expect(want)
			want = nil
			a.sayJSON(line[2:])
		case strings.HasPrefix(line, "< "):
			want = append(want, line[2:])
		}
	}
	a.expect(want)
	select {
	case d := <-a.orders:
		t.Errorf("more was said: %s", stable(t, d))
	default:
	}
}

func (a *agent) sayJSON(line string) {
	a.t.Helper()
	r := &coordinatorv1.Report{}
	if err := protojson.Unmarshal([]byte(line), r); err != nil {
		a.t.Fatal(err)
	}
	if err := a.rpc.Send(r); err != nil {
		a.t.Fatal(err)
	}
}

// expect waits for the last of the directives; of those before, which it replaces, some may be left out.
func (a *agent) expect(want []string) {
	a.t.Helper()
	for len(want) > 0 {
		select {
		case d := <-a.orders:
			got := stable(a.t, d)
			i := slices.Index(want, got)
			if i < 0 {
				a.t.Fatalf("got  %s\nwant %s", got, strings.Join(want, "\nor   "))
			}
			want = want[i+1:]
		case err := <-a.ended:
			a.t.Fatalf("the stream ended while %s was awaited: %v", want, err)
		case <-time.After(time.Minute):
			a.t.Fatalf("%s never came", want)
		}
	}
}

// stable is a message as JSON with its keys in order.
func stable(t *testing.T, m proto.Message) string {
	t.Helper()
	var v any
	raw, err := protojson.Marshal(m)
	if err == nil {
		err = json.Unmarshal(raw, &v)
	}
	if err == nil {
		raw, err = json.Marshal(v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
