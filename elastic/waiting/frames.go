package waiting

import (
	"path"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

// class is what a rank that stands still is in.
type class int

const (
	// elsewhere: nothing in the tables; the script's own code.
	elsewhere class = iota
	// collective: an operation of a process group. rendezvous: it waits for other ranks in a way that no recorder has. device: it waits for
	// a device.
	collective
	rendezvous
	device
	// backward: it waits for threads that compute gradients; library: elsewhere inside torch or a compiler; unresponsive: it takes no
	// signal.
	backward
	library
	unresponsive
	// outside: something that is neither torch nor a device. storage: the kernel, for a file system.
	outside
	storage
	// stopped: by a signal or a debugger.
	stopped
)

// spins reports whether processor time in this class is no sign of life.
func (c class) spins() bool { return c == collective || c == rendezvous || c == device }

// inside reports whether the rank is in torch, a driver or a device.
func (c class) inside() bool { return c.spins() || c == backward || c == library || c == unresponsive }

// slow reports whether the rank may work without a sign of life: on its device, or in a thread whose stack no look has.
func (c class) slow() bool { return c == device || c == backward }

// row says what a Python frame is in. File is matched with the last two elements of the path, function with the function's name; "": any.
type row struct {
	file, function string
	is             class
	// what names it for users; activity is what a rank does that moves there.
	what, activity string
	// weak rows count only where no other row names an outer frame.
	weak bool
}

// rows are by the files of torch 2.15, Python 3.11, transformers 5, Lightning 2.6, datasets 4 and the clients of object stores.
var rows = []row{
	{file: "distributed/rendezvous.py", is: rendezvous, what: "rendezvous"},
	{file: "distributed/distributed_c10d.py", function: "init_process_group", is: rendezvous, what: "init_process_group"},
	{file: "distributed/distributed_c10d.py", function: "new_group", is: rendezvous, what: "new_group"},
	{file: "distributed/distributed_c10d.py", function: "_new_process_group_helper", is: rendezvous, what: "a new process group"},
	{file: "distributed/distributed_c10d.py", function: "_create_*", is: rendezvous, what: "a new process group"},
	{file: "distributed/distributed_c10d.py", function: "_store_based_barrier", is: rendezvous, what: "store barrier"},
	{file: "distributed/distributed_c10d.py", function: "*send*", is: rendezvous, what: "send"}, // gloo's recorder has no send and recv
	{file: "distributed/distributed_c10d.py", function: "*recv*", is: rendezvous, what: "recv"},
	{file: "distributed/distributed_c10d.py", is: collective},
	{file: "distributed/_functional_collectives.py", is: collective},
	{file: "cuda/__init__.py", function: "synchronize", is: device, what: "torch.cuda.synchronize"},
	{file: "cuda/streams.py", is: device, what: "a CUDA stream or event"},
	{file: "cuda/graphs.py", is: device, what: "a CUDA graph"},
	{file: "accelerator/__init__.py", function: "synchronize", is: device, what: "torch.accelerator.synchronize"},
	{file: "autograd/graph.py", is: backward, what: "backward pass"},

	{file: "torch/serialization.py", function: "*save*", is: outside, what: "torch.save", activity: "save"},
	{file: "torch/serialization.py", function: "*load*", is: outside, what: "torch.load", activity: "load"},
	{file: "checkpoint/state_dict_saver.py", is: outside, what: "a checkpoint's save", activity: "save"},
	{file: "checkpoint/state_dict_loader.py", is: outside, what: "a checkpoint's load", activity: "load"},
	{file: "checkpoint/*filesystem.py", is: outside, what: "a checkpoint's files", activity: "save"},
	{file: "checkpoint/_async_*.py", is: outside, what: "a checkpoint's save", activity: "save"},
	{file: "safetensors/torch.py", function: "save*", is: outside, what: "safetensors", activity: "save"},
	{file: "safetensors/torch.py", function: "load*", is: outside, what: "safetensors", activity: "load"},
	{file: "transformers/modeling_utils.py", function: "save_pretrained", is: outside, what: "save_pretrained", activity: "save"},
	{file: "transformers/modeling_utils.py", function: "from_pretrained", is: outside, what: "from_pretrained", activity: "load"},
	{file: "huggingface_hub/file_download.py", is: outside, what: "a download", activity: "load"},

	{file: "_inductor/*.py", is: library, what: "torch.compile", activity: "compile"},
	{file: "_dynamo/*.py", is: library, what: "torch.compile", activity: "compile"},
	{file: "_functorch/*.py", is: library, what: "torch.compile", activity: "compile"},
	{file: "compiler/compiler.py", is: library, what: "Triton's compiler", activity: "compile"},
	{file: "utils/cpp_extension.py", is: outside, what: "the build of an extension", activity: "compile"},

	{file: "data/dataloader.py", is: outside, what: "a data loader", activity: "data"},
	{file: "_utils/fetch.py", is: outside, what: "a data loader", activity: "data"},
	{file: "_utils/pin_memory.py", is: outside, what: "a data loader", activity: "data"},
	{file: "datasets/*.py", is: outside, what: "a dataset", activity: "data"},
	{file: "webdataset/*.py", is: outside, what: "a dataset", activity: "data"},

	{file: "python3.*/subprocess.py", is: outside, what: "a child process"},
	{file: "python3.*/ssl.py", is: outside, what: "a socket"},
	{file: "python3.*/socket.py", is: outside, what: "a socket"},
	{file: "http/client.py", is: outside, what: "an HTTP request"},
	{file: "urllib/request.py", is: outside, what: "an HTTP request"},
	{file: "urllib3/*.py", is: outside, what: "an HTTP request"},
	{file: "botocore/*.py", is: outside, what: "an object store"},
	{file: "fsspec/*.py", is: outside, what: "a remote file system"},
	{file: "gcsfs/*.py", is: outside, what: "a remote file system"},
	{file: "s3fs/*.py", is: outside, what: "a remote file system"},

	{file: "python3.*/pdb.py", is: stopped, what: "a debugger"},
	{file: "python3.*/bdb.py", is: stopped, what: "a debugger"},
	{file: "debugpy/*.py", is: stopped, what: "a debugger"},
	{file: "_pydevd_bundle/*.py", is: stopped, what: "a debugger"},

	{file: "python3.*/threading.py", is: outside, what: "another thread", weak: true},
	{file: "python3.*/queue.py", is: outside, what: "a queue", weak: true},
	{file: "python3.*/selectors.py", is: outside, what: "a socket or pipe", weak: true},
	{file: "multiprocessing/*.py", is: outside, what: "another process", weak: true},
	{file: "futures/_base.py", is: outside, what: "another thread", weak: true},
	{file: "asyncio/*.py", is: outside, what: "asyncio", weak: true},
}

// activities are what functions of any file do, for ranks that move.
var activities = []struct{ function, activity string }{
	{"*load_state*", "load"}, {"*load_checkpoint*", "load"}, {"*evaluat*", "evaluation"}, {"*eval_step*", "evaluation"}, {"eval", "evaluation"}, {"*validat*", "evaluation"}, {"*val_loop*", "evaluation"},
	{"*prediction_*", "evaluation"}, {"predict", "evaluation"}, {"*save_*", "save"}, {"save*", "save"}, {"*checkpoint*", "save"},
}

// natives say what a main thread waits for in the kernel, by the beginning of the symbol in wchan or the name of the system call.
var natives = []struct {
	begins string
	is     class
	what   string
}{
	{"hrtimer_nanosleep", outside, "sleep"}, {"do_nanosleep", outside, "sleep"}, {"clock_nanosleep", outside, "sleep"}, {"nanosleep", outside, "sleep"},
	{"pipe_read", outside, "read of a pipe"}, {"pipe_wait", outside, "read of a pipe"}, {"anon_pipe_read", outside, "read of a pipe"},
	{"pipe_write", outside, "write to a pipe"}, {"anon_pipe_write", outside, "write to a pipe"}, {"n_tty_read", outside, "read of a terminal"},
	{"wait_for_partner", outside, "the opening of a named pipe"},
	{"do_wait", outside, "a child process"}, {"wait4", outside, "a child process"}, {"waitid", outside, "a child process"},
	{"unix_stream", outside, "a socket"}, {"sk_wait_data", outside, "a socket"}, {"sk_stream_wait", outside, "a socket"},
	{"inet_csk_accept", outside, "a socket"}, {"tcp_recvmsg", outside, "a socket"}, {"recv", outside, "a socket"}, {"accept", outside, "a socket"},
	{"connect", outside, "a socket"}, {"locks_lock_inode", outside, "a file lock"}, {"flock", outside, "a file lock"},
	{"request_wait_answer", storage, "a FUSE file system"}, {"fuse_", storage, "a FUSE file system"}, {"__fuse_", storage, "a FUSE file system"},
	{"nfs", storage, "NFS"}, {"rpc_wait", storage, "NFS"}, {"cifs", storage, "SMB"}, {"wait_for_response", storage, "SMB"},
	{"ceph", storage, "Ceph"}, {"ll_", storage, "Lustre"}, {"cl_sync", storage, "Lustre"}, {"ptlrpc", storage, "Lustre"},
	{"p9_client", storage, "9P"}, {"io_schedule", storage, "a disk"}, {"folio_wait", storage, "a disk"}, {"wait_on_page", storage, "a disk"},
	{"jbd2", storage, "a disk"}, {"xfs_", storage, "a disk"}, {"ext4_", storage, "a disk"}, {"balance_dirty", storage, "a disk"},
	{"nv", device, "the GPU's driver"}, {"uvm_", device, "the GPU's driver"}, {"os_acquire", device, "the GPU's driver"},
	{"ib_", device, "the network adapter's driver"}, {"mlx5", device, "the network adapter's driver"},
	{"read", outside, "read"}, {"write", outside, "write"}, {"openat", outside, "open"},
}

// place is where a rank is.
type place struct {
	is       class
	what     string // for users
	activity string
}

// placeOf returns where a look finds its rank. The innermost frame decides, then an outer frame of something outside, then the kernel, then
// an outer frame inside torch that has called no function of the script.
func placeOf(l *protocol.Look) place {
	p := place{activity: activityOf(l.Frames)}
	at := where(l.Frames)
	native := nativeOf(l.Native)
	switch {
	case l.State == 'T' || l.State == 't':
		p.is, p.what = stopped, "a stop signal or a debugger"
		return p
	case l.State == 'D' && native.is == elsewhere:
		native = place{is: storage, what: "the kernel, uninterruptibly"}
	}
	switch {
	case l.State == 'D':
		p.is, p.what = native.is, native.what+at
		if p.is == outside {
			p.is = storage
		}
		return p
	case l.Stack == protocol.StackWithheld:
		p.is, p.what = unresponsive, "a call that takes no signal"
		return p
	}
	r, inner := strongest(l.Frames)
	switch {
	case r != nil && (inner || r.is == outside || r.is == stopped) && !r.weak:
	case native.is == outside || native.is == storage || native.is == device:
		p.is, p.what = native.is, native.what+at
		return p
	case r == nil:
		p.what = "the script" + at
		return p
	}
	p.is, p.what = r.is, r.what
	if p.what == "" {
		p.what = l.Frames[0].Function
	}
	p.what += at
	return p
}

// strongest returns the row of the innermost frame that has one which is not weak, else the innermost weak one; inner: it is that of the
// innermost frame. Frames inside torch that have called the script's own code, such as a hook of the backward pass, do not count.
func strongest(frames []protocol.Frame) (found *row, inner bool) {
	called := false
	for i := range frames {
		r := rowOf(&frames[i])
		switch {
		case r == nil:
			called = called || own(&frames[i])
		case called && r.is.inside():
			return found, false
		case !r.weak:
			return r, i == 0
		case found == nil:
			found = r
		}
	}
	return found, false
}

func rowOf(f *protocol.Frame) *row {
	for i := range rows {
		r := &rows[i]
		if matches(r.file, f.File) && (r.function == "" || matches(r.function, f.Function)) {
			return r
		}
	}
	return nil
}

func matches(pattern, text string) bool {
	ok, _ := path.Match(pattern, text)
	return ok
}

func nativeOf(name string) place {
	for _, n := range natives {
		if name != "" && strings.HasPrefix(name, n.begins) {
			return place{is: n.is, what: n.what}
		}
	}
	return place{}
}

// activityOf returns what a rank does, from its innermost frame that says so.
func activityOf(frames []protocol.Frame) string {
	for i := range frames {
		f := &frames[i]
		if r := rowOf(f); r != nil && r.activity != "" {
			return r.activity
		}
		for _, a := range activities {
			if matches(a.function, strings.ToLower(f.Function)) {
				return a.activity
			}
		}
	}
	return ""
}
