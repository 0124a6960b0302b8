package stock

import (
	"io"
	"strconv"
	"strings"
)

const (
	metadataModule   = "torch.distributed.checkpoint.metadata"
	filesystemModule = "torch.distributed.checkpoint.filesystem"
	// batch is how many items of a dict are set at once, flushAt how much is written at once.
	batch   = 1000
	flushAt = 1 << 16
)

// Files say how the files of a step are called, from the folder that the index lies in, and where in a rank's file its data begins.
type Files struct {
	Rank   func(rank int) string
	Values string
	Data   int64
}

// WriteMetadata writes .metadata: a pickled torch.distributed.checkpoint.metadata.Metadata.
func (x *Index) WriteMetadata(out io.Writer, files Files) (err error) {
	defer asNotNamed(&err)
	if err := x.Check(); err != nil {
		return err
	}
	for _, e := range x.entries {
		e.memo = 0
	}
	w := metadata{x: x, out: out, files: files}
	w.op("\x80\x02")
	w.new("Metadata", func() {
		w.field("state_dict_metadata")
		w.dict(func(e *entry) {
			w.name(e)
			w.described(e)
		})
		w.field("planner_data")
		w.dict(func(e *entry) {
			w.name(e)
			w.path(e)
		})
		w.field("storage_data")
		w.dict(w.stored)
	})
	w.op(".")
	w.flush(0)
	return w.err
}

type metadata struct {
	pickler
	x     *Index
	out   io.Writer
	files Files
	items int // of the dict that is being written
	err   error
}

func (w *metadata) flush(at int) {
	if len(w.b) >= at && w.err == nil {
		_, w.err = w.out.Write(w.b)
		w.b = w.b[:0]
	}
}

func (w *metadata) global(module, name string) {
	w.once("class "+name, func() { w.class(module, name) })
}

func (w *metadata) field(name string) { w.once("field "+name, func() { w.text(name) }) }

// new writes an object of a class, with the fields that fill writes.
func (w *metadata) new(name string, fill func()) {
	module := metadataModule
	if name == "_StorageInfo" {
		module = filesystemModule
	}
	w.global(module, name)
	w.op(")\x81}(")
	fill()
	w.op("ub")
}

// dict writes one of all entries that are written at all; of each item writes key and value.
func (w *metadata) dict(item func(e *entry)) {
	w.op("}(")
	w.items = 0
	for _, e := range w.x.entries {
		if e.dtype == "" && e.value.n == 0 {
			continue // an empty dict
		}
		item(e)
		w.counted()
		if w.err != nil {
			return
		}
	}
	w.op("u")
}

// counted is called after each item.
func (w *metadata) counted() {
	if w.items++; w.items%batch == 0 {
		w.op("u(")
	}
	w.flush(flushAt)
}

func (w *metadata) name(e *entry) {
	if e.memo == 0 {
		w.text(key(e.path))
		e.memo = w.remember() + 1
		return
	}
	w.recall(e.memo - 1)
}

func (w *metadata) described(e *entry) {
	if e.dtype == "" {
		w.global(metadataModule, "BytesStorageMetadata")
		w.op(")\x81")
		return
	}
	w.new("TensorStorageMetadata", func() {
		w.field("properties")
		w.once("dtype "+e.dtype, func() { w.properties(e.dtype) })
		w.field("size")
		w.size(w.x.dims[e.shape])
		w.field("chunks")
		w.op("](")
		for i := range e.parts {
			w.new("ChunkStorageMetadata", func() {
				w.field("offsets")
				w.size(w.x.offsets(e, &e.parts[i]))
				w.field("sizes")
				w.size(w.x.dims[e.parts[i].sizes])
			})
			w.flush(flushAt)
		}
		w.op("e")
	})
}

// properties are of a tensor whose bytes lie row by row. Their state is that of the oldest torch that reads it, which the others know.
func (w *metadata) properties(dtype string) {
	w.global(metadataModule, "TensorProperties")
	w.op(")\x81(")
	w.class("torch", dtype)
	w.class("torch.serialization", "_get_layout")
	w.text("torch.strided")
	w.op("\x85R\x89")
	w.global(metadataModule, "_MEM_FORMAT_ENCODING")
	w.op("K\x00\x85R\x89tb") // TORCH_CONTIGUOUS_FORMAT
}

func (w *metadata) size(dims []int64) {
	var p pickler
	p.ints(dims)
	w.once("size "+string(p.b), func() {
		w.global("torch", "Size")
		w.op(string(p.b) + "\x85R")
	})
}

// offsets are where a part begins.
func (x *Index) offsets(e *entry, p *part) []int64 {
	shape, at := x.dims[e.shape], p.begin
	out := make([]int64, len(shape))
	if product(shape) == 0 {
		return out
	}
	for i := len(shape) - 1; i >= 0 && at > 0; i-- {
		out[i] = at % shape[i]
		at /= shape[i]
	}
	return out
}

func (w *metadata) path(e *entry) {
	w.op("(")
	for _, s := range steps(e.path) {
		if n, err := strconv.ParseInt(s[1:], 10, 64); err == nil && strings.HasPrefix(s, placed) {
			w.int(n)
		} else {
			w.text(s[1:])
		}
	}
	w.op("t")
}

// stored says where the bytes of an entry lie.
func (w *metadata) stored(e *entry) {
	if e.dtype == "" {
		w.item(e, func() { w.op("N") }, -1, e.value.rank, e.value.at, e.value.n)
		return
	}
	for i := range e.parts {
		p := &e.parts[i]
		w.item(e, func() { w.size(w.x.offsets(e, p)) }, i, int(p.rank), p.at, p.n)
		if i < len(e.parts)-1 {
			w.counted()
		}
	}
}

func (w *metadata) item(e *entry, offset func(), index, rank int, at, n int64) {
	w.new("MetadataIndex", func() {
		w.field("fqn")
		w.name(e)
		w.field("offset")
		offset()
		w.field("index")
		if index < 0 {
			w.op("N")
		} else {
			w.int(int64(index))
		}
	})
	w.new("_StorageInfo", func() {
		w.field("relative_path")
		if rank == inValues {
			w.field(w.files.Values)
		} else {
			w.once("file "+strconv.Itoa(rank), func() { w.text(w.files.Rank(rank)) })
			at += w.files.Data
		}
		w.field("offset")
		w.int(at)
		w.field("length")
		w.int(n)
	})
}
