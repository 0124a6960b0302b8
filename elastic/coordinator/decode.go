package coordinator

import (
	"context"
	"fmt"
	"math/bits"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
)

// mostEntries bounds every repeated field of a report: an entry of two bytes takes hundreds once it is decoded.
var mostEntries = map[protoreflect.FullName]int{
	"holdfast.coordinator.v1.Report.rank":    protocol.MaxRanks,
	"holdfast.coordinator.v1.Report.notes":   maxNotes,
	"holdfast.coordinator.v1.Report.modules": maxModules,
	"holdfast.coordinator.v1.Rank.sealed":    maxSealed,

	"holdfast.coordinator.v1.Rank.sealed_branch": maxSealed,
}

var reportFields = (&coordinatorv1.Report{}).ProtoReflect().Descriptor()

// incoming is a report as it is received: decoded, or refused before.
type incoming struct {
	coordinatorv1.Report
	refused error
}

// reportCodec decodes no report that would take much more memory than its message.
type reportCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2. It puts a refusal into the report, because its own error would reach agents as an error of
// gRPC's.
func (c reportCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	if err := countEntries(raw.ReadOnlyData(), reportFields); err != nil {
		in.refused = status.Error(codes.InvalidArgument, err.Error())
		return nil
	}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw.ReadOnlyData(), &in.Report)
}

// countEntries refuses a message with more entries than any agent sends, or with a field twice that is none of many. It allocates nothing
// but the refusal.
func countEntries(raw []byte, of protoreflect.MessageDescriptor) error {
	var entries [bits.UintSize]int // by field number
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return malformed(of, n)
		}
		raw = raw[n:]
		if kind == protowire.StartGroupType { // they nest, and nothing of ours is one
			return fmt.Errorf("field %d of %s is a group, which no agent sends", number, of.Name())
		}
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return malformed(of, n)
		}
		value := raw[:n]
		raw = raw[n:]
		f := of.Fields().ByNumber(number)
		if f == nil || int(number) >= len(entries) {
			continue
		}
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		nth := entries[number]
		entries[number] += entriesIn(f, kind, value)
		if err := tooMany(f, entries[number]); err != nil {
			return err
		}
		if kind != protowire.BytesType || f.Message() == nil {
			continue
		}
		if err := countEntries(value, f.Message()); err != nil && f.IsList() {
			return fmt.Errorf("%s[%d].%w", f.Name(), nth, err)
		} else if err != nil {
			return fmt.Errorf("%s.%w", f.Name(), err)
		}
	}
	return nil
}

// entriesIn is how many entries of a field a value holds: numbers may be packed.
func entriesIn(f protoreflect.FieldDescriptor, kind protowire.Type, value []byte) (n int) {
	if kind != protowire.BytesType || !f.IsPacked() {
		return 1
	}
	for _, b := range value { // each number ends with a byte below 128
		if b < 0x80 {
			n++
		}
	}
	return n
}

// tooMany says why a message may not have so many entries of a field.
func tooMany(f protoreflect.FieldDescriptor, n int) error {
	switch {
	case !f.IsList() && n > 1:
		return fmt.Errorf("%s: occurs twice, which no agent sends", f.Name())
	case f.IsList() && n > mostEntries[f.FullName()]:
		return fmt.Errorf("%s: more than %d entries, which no agent sends", f.Name(), mostEntries[f.FullName()])
	}
	return nil
}

func malformed(of protoreflect.MessageDescriptor, code int) error {
	return fmt.Errorf("%s: cannot be decoded: %w", of.Name(), protowire.ParseError(code))
}

// compressed reports whether what a stream sends is: a few bytes would become a whole message. Agents compress nothing.
func compressed(ctx context.Context) bool {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	return ok && s.RecvCompress() != "" && s.RecvCompress() != encoding.Identity
}
