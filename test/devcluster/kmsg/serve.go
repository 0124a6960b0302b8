package kmsg

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The file offset, which counts bytes, does not determine a reader's position. These offsets mean seeks; 0 is the oldest record, any other
// offset is where the last read ended.
const (
	offsetEnd  = 1 << 40
	offsetData = 1 << 41
)

// Device serves one log as a file.
type Device struct {
	fd int

	mu sync.Mutex
	// guarded by mu
	log        *Log
	handles    map[uint64]*handle
	lastHandle uint64
	// waiting are the reads that found no record, by request.
	waiting map[uint64]waitingRead
}

// handle is one opening of the file.
type handle struct {
	// next is the number of the record to read.
	next uint64
	// offset is where the kernel expects the next read to begin, unless a program seeks.
	offset uint64
	// polled is the kernel's id of this handle in waiting polls; 0: none.
	polled uint64
}

type waitingRead struct {
	handle *handle
	room   int
}

// Mount replaces the file at path by a log, in the caller's mount namespace, and serves it until the process ends. The process itself must
// not open it: a Go program that waits for its own response may hang.
func Mount(path string, log *Log) (*Device, error) {
	fd, err := OpenFUSE()
	if err != nil {
		return nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other,default_permissions", fd, mode)
	if err := unix.Mount("kmsg", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mounting a kernel log on %s: %w", path, err)
	}
	d := &Device{fd: fd, log: log, handles: map[uint64]*handle{}, waiting: map[uint64]waitingRead{}}
	go d.serve()
	return d, nil
}

const (
	mode = unix.S_IFREG | 0o644
	// readable is POLLIN and POLLRDNORM, as a device reports it.
	readable = unix.POLLIN | 0x40
)

// OpenFUSE opens the kernel's interface to file systems in user space.
func OpenFUSE() (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening /dev/fuse, which serves each node's kernel log: %w; run hack/prepare.sh, or: modprobe fuse; mknod /dev/fuse c 10 229", err)
	}
	return fd, nil
}

// Append adds a record, which readers see at once. With facility 0 in prio it is one of the kernel.
func (d *Device) Append(prio int, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.append(prio, text)
}

func (d *Device) append(prio int, text string) {
	d.log.Append(prio, sinceBoot().Microseconds(), text)
	for unique, w := range d.waiting {
		record, errno := d.log.read(&w.handle.next, w.room)
		if errno == syscall.EAGAIN {
			continue // another thread read it by the same handle
		}
		delete(d.waiting, unique)
		d.answerRead(unique, w.handle, record, errno)
	}
	for _, h := range d.handles {
		if h.polled != 0 {
			d.send(message(0, notifyPoll, notifyPollOut{Kernel: h.polled}))
		}
	}
}

func (d *Device) serve() {
	request := make([]byte, requestRoom)
	for {
		n, err := unix.Read(d.fd, request)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOENT): // the last: the caller is gone
			continue
		case err != nil:
			return // unmounted
		}
		head, ok := take[header](request[:n])
		if !ok {
			continue
		}
		d.mu.Lock()
		d.handle(head, request[40:n])
		d.mu.Unlock()
	}
}

// send writes a message to the kernel, which refuses only a response to a request that it has given up.
func (d *Device) send(b []byte) { _, _ = unix.Write(d.fd, b) }

func (d *Device) answer(unique uint64, body any) { d.send(message(unique, 0, body)) }

func (d *Device) refuse(unique uint64, errno syscall.Errno) {
	d.send(message(unique, -int32(errno), nil))
}

func (d *Device) handle(head header, body []byte) {
	switch head.Opcode {
	case opInit:
		in, _ := take[initIn](body)
		d.answer(head.Unique, initOut{Major: protoMajor, Minor: min(in.Minor, protoMinor), MaxWrite: maxWrite})
	case opForget, opBatchForget: // these get no response
	case opInterrupt:
		if in, ok := take[interruptIn](body); ok {
			if _, waits := d.waiting[in.Unique]; waits {
				delete(d.waiting, in.Unique)
				d.refuse(in.Unique, syscall.EINTR)
			}
		}
	case opGetattr:
		d.getattr(head.Unique, body)
	case opSetattr: // as with the kernel's, truncation has no effect
		d.answer(head.Unique, attributes(0))
	case opOpen:
		d.lastHandle++
		d.handles[d.lastHandle] = &handle{next: d.log.first}
		d.answer(head.Unique, openOut{Handle: d.lastHandle, Flags: openDirectIO})
	case opRelease:
		if in, ok := take[releaseIn](body); ok {
			delete(d.handles, in.Handle)
		}
		d.answer(head.Unique, nil)
	case opRead:
		d.read(head.Unique, body)
	case opWrite:
		d.write(head.Unique, body)
	case opPoll:
		d.poll(head.Unique, body)
	case opLseek:
		d.lseek(head.Unique, body)
	case opStatfs:
		d.answer(head.Unique, statfsOut{})
	case opDestroy:
		d.answer(head.Unique, nil)
	default:
		d.refuse(head.Unique, syscall.ENOSYS)
	}
}

// getattr reports an empty file, as for a device, except for the kernel's query of an open file, which it makes for a seek to the end.
func (d *Device) getattr(unique uint64, body []byte) {
	in, ok := take[getattrIn](body)
	h := d.handles[in.Handle]
	if !ok || in.Flags&getattrByHandle == 0 || h == nil {
		d.answer(unique, attributes(0))
		return
	}
	h.next, h.offset = d.log.next(), offsetEnd
	d.answer(unique, attributes(offsetEnd))
}

// lseek handles SEEK_DATA, which means the records since the log was last cleared; it is never cleared.
func (d *Device) lseek(unique uint64, body []byte) {
	in, ok := take[lseekIn](body)
	h := d.handles[in.Handle]
	if !ok || h == nil || in.Whence != unix.SEEK_DATA {
		d.refuse(unique, syscall.EINVAL)
		return
	}
	h.next, h.offset = d.log.first, offsetData
	d.answer(unique, lseekOut{Offset: offsetData})
}

func attributes(size uint64) attrOut {
	return attrOut{Ino: 1, Size: size, Mode: mode, Nlink: 1, Blksize: 4096}
}

func (d *Device) read(unique uint64, body []byte) {
	in, ok := take[readIn](body)
	h := d.handles[in.Handle]
	switch {
	case !ok || h == nil:
		d.refuse(unique, syscall.EBADF)
		return
	case in.Offset == h.offset:
	case in.Offset == 0:
		h.next, h.offset = d.log.first, 0
	default:
		d.refuse(unique, syscall.ESPIPE)
		return
	}
	record, errno := d.log.read(&h.next, int(in.Size))
	if errno == syscall.EAGAIN && in.Flags&unix.O_NONBLOCK == 0 {
		d.waiting[unique] = waitingRead{handle: h, room: int(in.Size)}
		return
	}
	d.answerRead(unique, h, record, errno)
}

func (d *Device) answerRead(unique uint64, h *handle, record []byte, errno syscall.Errno) {
	if errno != 0 {
		d.refuse(unique, errno)
		return
	}
	h.offset += uint64(len(record))
	d.answer(unique, record)
}

func (d *Device) write(unique uint64, body []byte) {
	in, ok := take[writeIn](body)
	const head = 40
	if !ok || len(body) < head+int(in.Size) || in.Size > MaxText {
		d.refuse(unique, syscall.EINVAL)
		return
	}
	if h := d.handles[in.Handle]; h != nil {
		h.offset = in.Offset + uint64(in.Size) // a write moves the kernel's offset as a read does
	}
	d.answer(unique, writeOut{Size: in.Size})
	d.append(fromUser(string(body[head : head+int(in.Size)])))
}

func (d *Device) poll(unique uint64, body []byte) {
	in, ok := take[pollIn](body)
	h := d.handles[in.Handle]
	if !ok || h == nil {
		d.refuse(unique, syscall.EBADF)
		return
	}
	if in.Flags&pollScheduleNotify != 0 {
		h.polled = in.Kernel
	}
	var out pollOut
	switch {
	case h.next < d.log.first:
		out.Events = readable | unix.POLLERR | unix.POLLPRI
	case h.next < d.log.next():
		out.Events = readable
	}
	d.answer(unique, out)
}

// sinceBoot is the node's clock: records must use the same one.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every kernel has this clock
	}
	return time.Duration(ts.Nano())
}
