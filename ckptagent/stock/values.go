package stock

import (
	"encoding/binary"
	"strconv"
)

// legacyHead is what a file of torch.save begins with that is no zip: magic number, protocol version, and the machine.
const legacyHead = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." +
	"\x80\x02M\xe9\x03." +
	"\x80\x02}(X\x10\x00\x00\x00protocol_versionM\xe9\x03X\x0d\x00\x00\x00little_endian\x88X\x0a\x00\x00\x00type_sizes" +
	"}(X\x05\x00\x00\x00shortK\x02X\x03\x00\x00\x00intK\x04X\x04\x00\x00\x00longK\x04uu."

// value writes one value as torch.save does, such that torch.load reads it.
type value struct {
	pickler
	of *state
	// tensors are those within, in the order of their bytes.
	tensors []*row
}

// encode is a value in the file of values.
func (s *state) encode(v *node) ([]byte, error) {
	w := value{of: s}
	w.op(legacyHead + "\x80\x02")
	if err := w.put(v); err != nil {
		return nil, err
	}
	w.op(".\x80\x02](")
	for i := range w.tensors {
		w.text(strconv.Itoa(i))
	}
	w.op("e.")
	for _, r := range w.tensors {
		b, err := w.data(r)
		if err != nil {
			return nil, err
		}
		_, count := r.storage()
		w.b = append(binary.LittleEndian.AppendUint64(w.b, uint64(count)), b...)
	}
	return w.b, nil
}

func (w *value) put(v *node) error {
	if len(w.b) > MaxValues {
		return errValues
	}
	switch v.kind {
	case null:
		w.op("N")
	case boolean:
		w.op([]string{"\x89", "\x88"}[v.n])
	case integer:
		return w.number(v.s)
	case float:
		return w.float(v.s)
	case text:
		w.text(v.s)
	case list:
		return w.all("](", v.kids, "e")
	case tuple:
		return w.all("(", v.kids, "t")
	case dict:
		return w.all("}(", v.kids, "u")
	case ordered:
		return w.all("ccollections\nOrderedDict\n)R(", v.kids, "u")
	case leaf:
		return w.leaf(v)
	case object:
		b, err := w.of.object(v)
		w.class("pickle", "loads")
		w.op("(")
		w.bytes(b)
		w.op("tR")
		return err
	default:
		return notNamed("its tree has a value that is none")
	}
	return nil
}

func (w *value) all(begin string, kids []node, end string) error {
	w.op(begin)
	for i := range kids {
		if err := w.put(&kids[i]); err != nil {
			return err
		}
	}
	w.op(end)
	return nil
}

func (w *value) data(r *row) ([]byte, error) {
	if r.n > int64(MaxValues-len(w.b)) {
		return nil, errValues
	}
	return w.of.read(r.at, r.n)
}

func (w *value) leaf(v *node) error {
	r, err := w.of.row(v)
	if err != nil {
		return err
	}
	switch r.kind {
	case "torch":
		w.tensor(r)
		return nil
	case "dtensor":
		return notNamed("a tuple has sharded tensors in it")
	}
	b, err := w.data(r)
	if err != nil {
		return err
	}
	switch r.kind {
	case "bytes":
		w.bytes(b)
	case "bytearray":
		w.bytearray(b)
	case "array":
		w.class("array", "array")
		w.op("(")
		w.text(r.dtype)
		w.bytes(b)
		w.op("tR")
	case "numpy":
		w.class("numpy", "ndarray")
		w.op("(")
		w.ints(r.shape)
		w.text(r.dtype)
		w.bytearray(b)
		w.op("tR")
	}
	return nil
}

func (w *value) bytearray(b []byte) {
	w.class("builtins", "bytearray")
	w.op("(")
	w.bytes(b)
	w.op("tR")
}

// storage is the class of the storage that a tensor's bytes are, and of how many elements.
func (r *row) storage() (class string, count int64) {
	if class = storages[r.dtype]; class != "" {
		return class, product(r.shape)
	}
	return "Byte", r.n
}

// tensor writes one whose bytes follow, as holdfast._prefix does.
func (w *value) tensor(r *row) {
	class, count := r.storage()
	stride := make([]int64, len(r.shape))
	for i, n := len(stride)-1, int64(1); i >= 0; i-- {
		stride[i] = n
		n *= max(r.shape[i], 1)
	}
	typed := storages[r.dtype] != ""
	if typed {
		w.class("torch._utils", "_rebuild_tensor_v2")
	} else {
		w.class("torch._utils", "_rebuild_tensor_v3")
	}
	w.op("((")
	w.text("storage")
	w.class("torch", class+"Storage")
	w.text(strconv.Itoa(len(w.tensors)))
	w.text("cpu")
	w.int(count)
	w.op("NtQK\x00")
	w.ints(r.shape)
	w.ints(stride)
	w.op("\x89ccollections\nOrderedDict\n)R")
	if !typed {
		w.class("torch", r.dtype)
	}
	w.op("tR")
	w.tensors = append(w.tensors, r)
}
