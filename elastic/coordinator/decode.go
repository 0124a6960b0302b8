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

// mostEntries bounds every repeated field of a report: an entry of two bytes takes hundreds of bytes once decoded.
var mostEntries = map[protoreflect.FullName]int{
	"holdfast.coordinator.v1.Report.rank":    protocol.MaxRanks,
	"holdfast.coordinator.v1.Report.notes":   maxNotes,
	"holdfast.coordinator.v1.Report.modules": maxModules,
	"holdfast.coordinator.v1.Rank.sealed":    maxSealed,

	"holdfast.coordinator.v1.Rank.sealed_branch": maxSealed,

	"holdfast.coordinator.v1.Report.trials":   protocol.MaxCheckAnswers,
	"holdfast.coordinator.v1.Report.looks":    protocol.MaxLooks,
	"holdfast.coordinator.v1.Look.groups":     protocol.MaxLookGroups,
	"holdfast.coordinator.v1.Look.frames":     protocol.MaxLookFrames,
	"holdfast.coordinator.v1.Look.faults":     protocol.MaxLookFaults,
	"holdfast.coordinator.v1.GroupLook.ranks": protocol.MaxLookRanges,
}

var reportFields = (&coordinatorv1.Report{}).ProtoReflect().Descriptor()

// incoming is a received report: decoded, or refused before.
type incoming struct {
	coordinatorv1.Report
	refused error
}

// reportCodec decodes no report that would take much more memory than its message.
type reportCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2. Unmarshal stores a refusal in the report: gRPC would send its own error to the agent instead of a
// returned one.
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

// countEntries refuses a message with more entries than any agent sends, or with a singular field twice. countEntries allocates only the
// refusal.
func countEntries(raw []byte, of protoreflect.MessageDescriptor) error {
	var entries [bits.UintSize]int // by field number
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return malformed(of, n)
		}
		raw = raw[n:]
		if kind == protowire.StartGroupType { // groups nest, and no message has one
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

// entriesIn returns the number of entries in a value of a field: numbers may be packed.
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

// tooMany returns the refusal for too many entries of a field.
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

// compressed reports whether a stream is compressed: a few bytes could become a whole message. Agents never compress.
func compressed(ctx context.Context) bool {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	return ok && s.RecvCompress() != "" && s.RecvCompress() != encoding.Identity
}
