package wire

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/protocol"
)

// filler sets every field to a different value.
type filler struct {
	t *testing.T
	n int64
}

func (f *filler) next() int64 { f.n++; return f.n }

func (f *filler) value(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(0, f.next())))
		return
	case time.Duration:
		v.Set(reflect.ValueOf(time.Duration(f.next()) * time.Second))
		return
	case protocol.AgentState:
		v.Set(reflect.ValueOf(protocol.StateHalted))
		return
	case protocol.Order:
		v.Set(reflect.ValueOf(protocol.OrderHalt))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f.value(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.value(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.value(v.Index(i))
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(f.next())
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.next()))
	case reflect.Float64:
		v.SetFloat(float64(f.next()))
	case reflect.String:
		v.SetString(fmt.Sprint("text ", f.next()))
	case reflect.Bool:
		v.SetBool(true)
	default:
		f.t.Fatalf("there is no rule how to fill a %s", v.Type())
	}
}

func (f *filler) message(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		d := fields.Get(i)
		switch {
		case d.IsList() && d.Message() != nil:
			for range 2 {
				f.message(m.Mutable(d).List().AppendMutable().Message())
			}
		case d.IsList():
			m.Mutable(d).List().Append(f.scalar(d))
			m.Mutable(d).List().Append(f.scalar(d))
		case d.Message() != nil:
			f.message(m.Mutable(d).Message())
		default:
			m.Set(d, f.scalar(d))
		}
	}
}

func (f *filler) scalar(d protoreflect.FieldDescriptor) protoreflect.Value {
	n := f.next()
	switch d.Kind() {
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(d.Enum().Values().Get(3).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint("text ", n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	}
	f.t.Fatalf("there is no rule how to fill %s, a %s", d.FullName(), d.Kind())
	return protoreflect.Value{}
}

// TestValuesKeepAll: a value that is converted to a message and back has all fields, so the message lacks none.
func TestValuesKeepAll(t *testing.T) {
	f := filler{t: t}
	var r protocol.Report
	f.value(reflect.ValueOf(&r).Elem())
	if got := Report(ReportMessage(r)); !reflect.DeepEqual(got, r) {
		t.Errorf("a report that said\n%+v\nsays\n%+v", r, got)
	}
	var d protocol.Directive
	f.value(reflect.ValueOf(&d).Elem())
	if got := Directive(DirectiveMessage(d)); !reflect.DeepEqual(got, d) {
		t.Errorf("a directive that said\n%+v\nsays\n%+v", d, got)
	}
	if got := Report(ReportMessage(protocol.Report{})); !reflect.DeepEqual(got, protocol.Report{}) {
		t.Errorf("an empty report says %+v", got)
	}
	if got := Directive(DirectiveMessage(protocol.Directive{})); !reflect.DeepEqual(got, protocol.Directive{}) {
		t.Errorf("an empty directive says %+v", got)
	}
}

// TestMessagesKeepAll: a message that is converted to a value and back has all fields, so the value lacks none.
func TestMessagesKeepAll(t *testing.T) {
	f := filler{t: t}
	r, d := &v1.Report{}, &v1.Directive{}
	f.message(r.ProtoReflect())
	f.message(d.ProtoReflect())
	if got := ReportMessage(Report(r)); !proto.Equal(got, r) {
		t.Errorf("a report that said\n%v\nsays\n%v", r, got)
	}
	if got := DirectiveMessage(Directive(d)); !proto.Equal(got, d) {
		t.Errorf("a directive that said\n%v\nsays\n%v", d, got)
	}
}

func TestStatesAndOrdersAreThoseOfTheMessages(t *testing.T) {
	for n, name := range v1.State_name {
		s := state(v1.State(n))
		if want := strings.ToUpper("STATE_" + string(s)); name != want && n != 0 || states[s] != v1.State(n) {
			t.Errorf("%s is %q", name, s)
		}
	}
	orders := map[protocol.Order]v1.Order{
		protocol.OrderNone: v1.Order_ORDER_UNSPECIFIED, protocol.OrderWait: v1.Order_ORDER_WAIT, protocol.OrderRun: v1.Order_ORDER_RUN,
		protocol.OrderHalt: v1.Order_ORDER_HALT, protocol.OrderExit: v1.Order_ORDER_EXIT,
	}
	for o, want := range orders {
		if v1.Order(o) != want {
			t.Errorf("order %d is %s, want %s", o, v1.Order(o), want)
		}
	}
	if len(orders) != len(v1.Order_name) {
		t.Errorf("%d orders, the messages have %d", len(orders), len(v1.Order_name))
	}
}

func TestNothingToRunIsToWait(t *testing.T) {
	if got := Directive(&v1.Directive{Order: v1.Order_ORDER_RUN}).Order; got != protocol.OrderWait {
		t.Errorf("order %d", got)
	}
}
