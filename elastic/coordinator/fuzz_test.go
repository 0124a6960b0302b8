package coordinator

import (
	"net"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

// FuzzReport: an accepted report is bounded, and conversion to a message and back does not change it. Any other report is refused with a
// gRPC code and a reason.
func FuzzReport(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"protocol":2,"incarnation":"1","ranks":2,"address":"10.0.0.1","port":29500,"state":"STATE_RUNNING","generation":"3","rank":[{"local":0,"sealed":["1","2"],"step":"2","pid":7},{"local":1,"exit":{"code":137,"signal":9,"traceback":"x"}}],"notes":["n"]}`,
		`{"protocol":2,"rank":[{"local":1}]}`, `{"protocol":9}`, `{"protocol":2,"port":70000}`, `{"protocol":2,"generation":"18446744073709551615"}`, `{"protocol":2,"ranks":4294967295}`,
		`{"protocol":2,"rank":[{"sealed":["1","2","3","4"]}]}`, `{"protocol":2,"address":"1.2.3.4"}`, `{"protocol":2,"modules":["os","no name"],"modulesKnown":2,"wholeCommand":true,"graceSeconds":30}`,
	} {
		m := &coordinatorv1.Report{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), m); err != nil {
			f.Fatal(err)
		}
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	for _, address := range []string{"a node", "fe80::1%eth0", "::1"} {
		raw, err := proto.Marshal(&coordinatorv1.Report{Protocol: protocol.Version, Address: address})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, err := received(raw)
		if len(raw) > protocol.MaxReport || err != nil {
			return
		}
		for _, addresses := range [][]string{{"10.0.0.1"}, nil} { // at first a pod's addresses are unknown
			r, err := protocol.Report{}, in.refused
			if err == nil {
				r = wire.Report(&in.Report)
				err = check(&r, "", addresses)
			}
			if err != nil {
				refusal(t, err)
				continue
			}
			bounded(t, r, addresses)
			if again := wire.Report(wire.ReportMessage(r)); !reflect.DeepEqual(again, r) {
				t.Fatalf("%+v comes back as %+v", r, again)
			}
		}
	})
}

// refusal checks that an error has a known code and a reason.
func refusal(t *testing.T, err error) {
	t.Helper()
	switch s := status.Convert(err); {
	case s.Code() != codes.InvalidArgument && s.Code() != codes.FailedPrecondition && s.Code() != codes.PermissionDenied:
		t.Fatalf("refused with %s: %v", s.Code(), err)
	case len(s.Message()) < 5 || len(s.Message()) > 4096:
		t.Fatalf("a reason of %d bytes", len(s.Message()))
	}
}

// bounded checks the bounds of everything that grows with a report.
func bounded(t *testing.T, r protocol.Report, addresses []string) {
	t.Helper()
	if r.Ranks < 0 || r.Ranks > protocol.MaxRanks || len(r.Rank) > protocol.MaxRanks || len(r.Notes) > maxNotes || r.Port < 0 ||
		r.Port > 65535 {
		t.Fatalf("taken: %+v", r)
	}
	if r.Generation < 0 || r.Generation > protocol.MaxGeneration || len(addresses) > 0 && r.Address != "" && r.Address != addresses[0] {
		t.Fatalf("taken: %+v", r)
	}
	if net.ParseIP(r.Address) == nil && r.Address != "" || len(r.Address) > 64 {
		t.Fatalf("address %q is taken", r.Address)
	}
	texts := append([]string{r.Refused, r.Unprotected}, r.Notes...)
	for i, k := range r.Rank {
		if k.Local != i || len(k.Sealed) > maxSealed {
			t.Fatalf("entry %d is taken: %+v", i, k)
		}
		if k.Exit != nil {
			texts = append(texts, k.Exit.Traceback)
		}
	}
	for _, text := range texts {
		if len(text) > 2*protocol.MaxText {
			t.Fatalf("a text of %d bytes is taken", len(text))
		}
	}
}

// FuzzModules: names that are accepted, which other agents of the gang import, are valid, and their number and length are bounded.
func FuzzModules(f *testing.F) {
	f.Add("os\ntorch.nn\n_x1")
	f.Add("os; import x")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		names := strings.Split(text, "\n")
		if err := checkModules(names); err != nil {
			if len(err.Error()) > 1000 {
				t.Fatalf("a refusal of %d bytes", len(err.Error()))
			}
			return
		}
		if len(names) > maxModules {
			t.Fatal("too many are taken")
		}
		for _, name := range names {
			if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != "" {
				t.Fatalf("%q is taken", name)
			}
		}
	})
}
