package coordinator

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
)

var update = flag.Bool("update", false, "rewrite the recorded conversation")

// TestConversationOfProtocol1 replays what an agent of version 1 and a coordinator of version 1 said to each
// other: ">" is a report, "<" a directive. Today's coordinator must answer the same, and nothing that an
// agent of version 1 does not know. -update was last run on the coordinator of version 1; do not run it again.
func TestConversationOfProtocol1(t *testing.T) {
	const file = "testdata/protocol1.txt"
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := pod("team-a", "train", "0", "a0")
	h := open(t, leading(), p)
	h.store.members[keyOf(p)] = 1
	a := h.dial(h.allow(p))
	if *update {
		record(t, a, file, string(script))
		return
	}
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

// record writes down what a coordinator answers.
func record(t *testing.T, a *agent, file, script string) {
	out := strings.Builder{}
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "< ") {
			continue
		}
		out.WriteString(line + "\n")
		if !strings.HasPrefix(line, "> ") {
			continue
		}
		a.sayJSON(line[2:])
		for d := range a.quiet() {
			out.WriteString("< " + stable(t, d) + "\n")
		}
	}
	if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// quiet gives, for a recording, what comes until nothing comes for a while.
func (a *agent) quiet() <-chan *coordinatorv1.Directive {
	all := make(chan *coordinatorv1.Directive, 100)
	defer close(all)
	for {
		select {
		case d := <-a.orders:
			all <- d
		case <-time.After(time.Second):
			return all
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
