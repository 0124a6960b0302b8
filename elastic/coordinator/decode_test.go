package coordinator

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // as in the controller, where other packages import it
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

var codec = reportCodec{encoding.GetCodecV2(grpcproto.Name)}

// received decodes a message as the server does.
func received(raw []byte) (*incoming, error) {
	in := &incoming{}
	err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, in)
	return in, err
}

// many returns a message that repeats the same bytes up to the size of a report.
func many(entry ...byte) []byte { return bytes.Repeat(entry, (4<<20)/len(entry)) }

// nested puts a message into a field of another message.
func nested(number protowire.Number, raw []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), raw)
}

// TestDecodingTakesLittle: decoding takes little more memory than the message's bytes, whatever the message repeats.
func TestDecodingTakesLittle(t *testing.T) {
	const rank, notes, modules, timeline, sealed, exit, unknown = 8, 10, 23, 13, 2, 4, 99
	varint := func(number protowire.Number) []byte { return protowire.AppendTag(nil, number, protowire.VarintType) }
	for name, c := range map[string]struct {
		raw  []byte
		says string
	}{
		"empty ranks":               {many(nested(rank, nil)...), "rank: more than 1024 entries"},
		"ranks of one number":       {many(nested(rank, []byte{8, 1})...), "rank: more than 1024 entries"},
		"ranks with empty exits":    {many(nested(rank, nested(exit, nil))...), "rank: more than 1024 entries"},
		"empty notes":               {many(nested(notes, nil)...), "notes: more than 32 entries"},
		"modules of a letter":       {many(nested(modules, []byte("x"))...), "modules: more than 8192 entries"},
		"steps, packed":             {nested(rank, nested(sealed, many(1))), "rank[0].sealed: more than 3 entries"},
		"steps, each by itself":     {nested(rank, many(append(varint(sealed), 1)...)), "rank[0].sealed: more than 3 entries"},
		"steps of the last rank":    {append(bytes.Repeat(nested(rank, nil), 1023), nested(rank, nested(sealed, many(1)))...), "rank[1023].sealed: more than 3 entries"},
		"exits of one rank":         {nested(rank, many(nested(exit, nested(4, []byte("x")))...)), "rank[0].exit: occurs twice"},
		"timelines":                 {many(nested(timeline, nil)...), "timeline: occurs twice"},
		"groups in groups":          {many(protowire.AppendTag(nil, unknown, protowire.StartGroupType)...), "field 99 of Report"},
		"fields that nobody knows":  {many(nested(unknown, []byte("x"))...), ""},
		"numbers that nobody knows": {many(append(varint(unknown), 1)...), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _ = received(c.raw) // one-time allocations
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			in, err := received(c.raw)
			if err != nil {
				t.Fatal(err)
			}
			if in.refused == nil {
				_ = wire.Report(&in.Report)
			}
			runtime.ReadMemStats(&after)
			if took, most := after.TotalAlloc-before.TotalAlloc, uint64(2*len(c.raw)); took > most {
				t.Errorf("%d KiB were allocated for a message of %d KiB, %d at most", took>>10, len(c.raw)>>10, most>>10)
			}
			if said := status.Convert(in.refused); c.says == "" != (in.refused == nil) || !strings.Contains(said.Message(), c.says) ||
				c.says != "" && said.Code() != codes.InvalidArgument {
				t.Errorf("refused with %v, want %q", in.refused, c.says)
			}
		})
	}
}

// TestAllThatRepeatsIsCounted: all repeated fields are counted, in each message from zero.
func TestAllThatRepeatsIsCounted(t *testing.T) {
	counted, path := 0, []protoreflect.FullName{}
	var walk func(protoreflect.MessageDescriptor)
	walk = func(of protoreflect.MessageDescriptor) {
		if slices.Contains(path, of.FullName()) {
			t.Fatalf("%s is of itself, so that it nests without an end", of.FullName())
		}
		path = append(path, of.FullName())
		for i := range of.Fields().Len() {
			f := of.Fields().Get(i)
			if f.IsMap() || f.Number() >= 64 {
				t.Errorf("%s is not counted", f.FullName())
			}
			if f.IsList() {
				if counted++; mostEntries[f.FullName()] == 0 {
					t.Errorf("%s may not have one entry", f.FullName())
				}
			}
			if f.Message() != nil {
				walk(f.Message())
			}
		}
		path = path[:len(path)-1]
	}
	walk(reportFields)
	if counted != len(mostEntries) {
		t.Errorf("%d fields repeat, %d are counted", counted, len(mostEntries))
	}
}

// fullest returns about the largest report of an agent.
func fullest() protocol.Report {
	text := strings.Repeat("x", protocol.MaxText)
	r := protocol.Report{
		Protocol:    protocol.Version,
		Incarnation: 1 << 40,
		Ranks:       protocol.MaxRanks,
		Address:     "10.0.0.1",
		Port:        65535,
		Generation:  protocol.MaxGeneration,
		State:       protocol.StateFailed,
		StateBytes:  1 << 44,
		Refused:     text,
		Terminating: true,
	}
	for range maxNotes {
		r.Notes = append(r.Notes, text[:500])
	}
	for local := range protocol.MaxRanks {
		k := protocol.Rank{
			Local:        local,
			Sealed:       []protocol.Point{{Step: 1 << 30}, {Step: 1<<30 + 1}, {Step: 1<<30 + 2}},
			Step:         1 << 30,
			Exit:         &protocol.Exit{Code: 255, Signal: 64},
			StandbyReady: true,
			PID:          1 << 22,
		}
		k.FromStandby, k.OptimizerSteps, k.ResumedAt, k.ResumeKnown = true, 1<<30, 1<<30, true
		k.Copied = protocol.Copied{Mark: protocol.Mark{Step: 1 << 30, Generation: 1 << 20}, Length: 1 << 44, Checksum: 1<<32 - 1}
		if local < 16 {
			k.Exit.Traceback = text
		}
		r.Rank = append(r.Rank, k)
	}
	r.Unprotected, r.ModulesKnown = text, 1000
	for range r.ModulesKnown {
		r.Modules = append(r.Modules, strings.Repeat("m", 40))
	}
	return r
}

func TestTheMostThatAnAgentSaysIsTaken(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[mine.Key] = 1
	a := h.dial(h.allow(mine))
	a.report = wire.ReportMessage(fullest())
	if size := proto.Size(a.report); size > protocol.MaxReport || size < protocol.MaxReport*3/4 {
		t.Errorf("the largest report has %d bytes, %d can be received", size, protocol.MaxReport)
	}
	a.say()
	select {
	case <-a.orders:
	case err := <-a.ended:
		t.Error(err)
	}
}

// TestFieldsOfNewerAgentsAreSkipped: unknown fields are neither refused nor stored.
func TestFieldsOfNewerAgentsAreSkipped(t *testing.T) {
	raw, err := proto.Marshal(&coordinatorv1.Report{Protocol: protocol.Version, Rank: []*coordinatorv1.Rank{{}}})
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, nested(60, []byte("new"))...)
	raw = append(raw, nested(200, []byte("new"))...)
	in, err := received(append(raw, nested(200, []byte("again"))...))
	if err != nil || in.refused != nil || len(in.Report.Rank) != 1 || len(in.Report.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("%v: %v, %v", in, err, in.refused)
	}
}

// TestCompressedReportsAreRefused: a few compressed bytes could expand to a whole report.
func TestCompressedReportsAreRefused(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[mine.Key] = 1
	a := h.dial(h.allow(mine), grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	a.say()
	if err := <-a.ended; status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "reports are not compressed") {
		t.Errorf("ended with %v", err)
	}
}

// within reports whether no list in a message exceeds its limit.
func within(m protoreflect.Message) bool {
	ok := true
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			ok = ok && v.List().Len() <= mostEntries[f.FullName()]
			for i := 0; f.Message() != nil && i < v.List().Len(); i++ {
				ok = ok && within(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			ok = ok && within(v.Message())
		}
		return ok
	})
	return ok
}

// FuzzEntries: no message above a limit is decoded, and every message of an agent is.
func FuzzEntries(f *testing.F) {
	full := fullest()
	full.Rank, full.Notes, full.Modules = full.Rank[:2], []string{"n"}, full.Modules[:3]
	for i := range full.Rank {
		full.Rank[i].Exit.Traceback = "x"
	}
	full.Refused, full.Unprotected = "r", "u"
	honest, err := proto.Marshal(wire.ReportMessage(full))
	if err != nil {
		f.Fatal(err)
	}
	for _, raw := range [][]byte{
		honest,
		nested(8, nested(2, []byte{1, 2, 3, 4})),
		bytes.Repeat(nested(10, nil), 33),
		bytes.Repeat(nested(13, nil), 2),
		nested(8, nested(4, nested(4, []byte("x")))),
		protowire.AppendTag(nil, 99, protowire.StartGroupType),
		{8},
		nil,
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		refused := countEntries(raw, reportFields)
		if refused != nil && len(refused.Error()) > 1000 {
			t.Fatalf("a refusal of %d bytes", len(refused.Error()))
		}
		m := &coordinatorv1.Report{}
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, m) != nil {
			return
		}
		if refused == nil && !within(m.ProtoReflect()) {
			t.Fatalf("decoded: %v", m)
		}
		written, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if again := countEntries(written, reportFields); (again == nil) != within(m.ProtoReflect()) {
			t.Fatalf("what an agent writes is answered with %v: %v", again, m)
		}
	})
}
