package kmsg

import "encoding/binary"

// The part of the kernel's FUSE protocol (linux/fuse.h, 7.31) that one file needs. It is implemented here because Go libraries for it
// cannot answer a poll, and without one a Go program that opens the file hangs.

type opcode uint32

const (
	opForget      opcode = 2
	opGetattr     opcode = 3
	opSetattr     opcode = 4
	opOpen        opcode = 14
	opRead        opcode = 15
	opWrite       opcode = 16
	opStatfs      opcode = 17
	opRelease     opcode = 18
	opInit        opcode = 26
	opInterrupt   opcode = 36
	opDestroy     opcode = 38
	opPoll        opcode = 40
	opBatchForget opcode = 42
	opLseek       opcode = 46
)

const (
	protoMajor, protoMinor = 7, 31
	getattrByHandle        = 1 << 0
	openDirectIO           = 1 << 0
	pollScheduleNotify     = 1 << 0
	notifyPoll             = 1
	requestRoom            = 128 << 10
	maxWrite               = 64 << 10
)

type header struct {
	Len    uint32
	Opcode opcode
	Unique uint64
	Node   uint64
	UID    uint32
	GID    uint32
	PID    uint32
	_      uint32
}

type outHeader struct {
	Len    uint32
	Error  int32
	Unique uint64
}

type initIn struct{ Major, Minor, MaxReadahead, Flags uint32 }

type initOut struct {
	Major, Minor, MaxReadahead, Flags  uint32
	MaxBackground, CongestionThreshold uint16
	MaxWrite, TimeGran                 uint32
	MaxPages, _                        uint16
	_                                  [8]uint32
}

type getattrIn struct {
	Flags, _ uint32
	Handle   uint64
}

type attrOut struct {
	Valid                                     uint64
	ValidNsec, _                              uint32
	Ino, Size, Blocks                         uint64
	Atime, Mtime, Ctime                       uint64
	AtimeNsec, MtimeNsec, CtimeNsec           uint32
	Mode, Nlink, UID, GID, Rdev, Blksize, Low uint32
}

type openOut struct {
	Handle   uint64
	Flags, _ uint32
}

type readIn struct {
	Handle, Offset  uint64
	Size, ReadFlags uint32
	Owner           uint64
	Flags, _        uint32
}

// writeIn precedes the written bytes.
type writeIn readIn

type writeOut struct{ Size, _ uint32 }

type releaseIn struct{ Handle uint64 }

type interruptIn struct{ Unique uint64 }

type pollIn struct {
	Handle, Kernel uint64
	Flags, Events  uint32
}

type pollOut struct{ Events, _ uint32 }

type notifyPollOut struct{ Kernel uint64 }

type lseekIn struct {
	Handle, Offset uint64
	Whence, _      uint32
}

type lseekOut struct{ Offset uint64 }

type statfsOut [10]uint64

// take decodes T from the front of a request's body; a short body is an error of the kernel.
func take[T any](body []byte) (T, bool) {
	var v T
	n, err := binary.Decode(body, binary.NativeEndian, &v)
	return v, err == nil && n > 0
}

// message is a response, or with unique 0 a notice, whose code replaces the error.
func message(unique uint64, code int32, body any) []byte {
	var b []byte
	switch body := body.(type) {
	case nil:
	case []byte:
		b = body
	default:
		b, _ = binary.Append(nil, binary.NativeEndian, body) // fails only for types that are not of fixed size
	}
	out, _ := binary.Append(nil, binary.NativeEndian, outHeader{Unique: unique, Error: code})
	out = append(out, b...)
	binary.NativeEndian.PutUint32(out, uint32(len(out)))
	return out
}
