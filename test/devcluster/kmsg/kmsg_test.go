package kmsg

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const serveEnv = "HOLDFAST_TEST_SERVE_KMSG"

// TestMain lets the test run itself as the serving process: a process that opens a file it serves itself may hang.
func TestMain(m *testing.M) {
	path := os.Getenv(serveEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	d, err := Mount(path, NewLog(400))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("mounted")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		facility, level, text := ParseLine(lines.Text())
		d.Append(facility<<3|level, text)
		fmt.Println("logged")
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// device is a served file and a way to append to its kernel log.
type device struct {
	t    *testing.T
	path string
	in   io.Writer
	out  *bufio.Scanner
}

func newDevice(t *testing.T) *device {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: mounting needs root")
	}
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("the serving process: %v", err)
		}
	})
	d := &device{t: t, path: path, in: in, out: bufio.NewScanner(out)}
	d.hear("mounted")
	return d
}

func (d *device) hear(want string) {
	d.t.Helper()
	if !d.out.Scan() || d.out.Text() != want {
		d.t.Fatalf("the serving process says %q, not %q", d.out.Text(), want)
	}
}

func (d *device) log(line string) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.in, line); err != nil {
		d.t.Fatal(err)
	}
	d.hear("logged")
}

// open uses the system call: Go's files wait by poll, which TestPoll covers.
func (d *device) open(flags int) int {
	d.t.Helper()
	fd, err := unix.Open(d.path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// read is the next record without number and time.
func (d *device) read(fd int) (string, error) {
	b := make([]byte, 8192)
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", err
	}
	return plain(d.t, string(b[:n])), nil
}

func plain(t *testing.T, record string) string {
	t.Helper()
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) != 4 || !strings.HasSuffix(text, "\n") {
		t.Fatalf("a record is %q", record)
	}
	return fields[0] + ";" + strings.TrimSuffix(text, "\n")
}

func (d *device) want(fd int, want string) {
	d.t.Helper()
	if got, err := d.read(fd); err != nil || got != want {
		d.t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

func (d *device) wantError(fd int, want error) {
	d.t.Helper()
	if got, err := d.read(fd); !errors.Is(err, want) {
		d.t.Fatalf("read %q, %v; want %v", got, err, want)
	}
}

func (d *device) seek(fd, whence int) {
	d.t.Helper()
	if _, err := unix.Seek(fd, 0, whence); err != nil {
		d.t.Fatal(err)
	}
}

func TestReadsOneRecordAtATime(t *testing.T) {
	d := newDevice(t)
	d.log("<3>NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
	d.log("plain")
	fd, other := d.open(unix.O_RDONLY|unix.O_NONBLOCK), d.open(unix.O_RDONLY|unix.O_NONBLOCK)
	d.want(fd, "3;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
	d.want(fd, "4;plain")
	d.wantError(fd, syscall.EAGAIN)
	d.log("<6>later")
	d.want(fd, "6;later")
	d.want(other, "3;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
	if _, err := unix.Read(other, make([]byte, 5)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a small buffer: %v", err)
	}
	if st, err := os.Stat(d.path); err != nil || st.Size() != 0 {
		t.Errorf("the file's size is %v, %v", st, err)
	}
}

func TestSeeks(t *testing.T) {
	d := newDevice(t)
	d.log("one")
	d.log("two")
	fd := d.open(unix.O_RDONLY | unix.O_NONBLOCK)
	d.seek(fd, unix.SEEK_END)
	d.wantError(fd, syscall.EAGAIN)
	d.log("three")
	d.seek(fd, unix.SEEK_END) // again, although nothing was read in between
	d.wantError(fd, syscall.EAGAIN)
	d.log("four")
	d.want(fd, "4;four")
	d.seek(fd, unix.SEEK_SET)
	d.want(fd, "4;one")
	d.want(fd, "4;two")
	d.seek(fd, unix.SEEK_DATA)
	d.want(fd, "4;one")
}

func TestOverrun(t *testing.T) {
	d := newDevice(t)
	fd := d.open(unix.O_RDONLY | unix.O_NONBLOCK)
	for i := range 40 {
		d.log(fmt.Sprintf("record %d", i))
	}
	d.wantError(fd, syscall.EPIPE)
	first, err := d.read(fd)
	if err != nil || first == "4;record 0" {
		t.Fatalf("after the overrun: %q, %v", first, err)
	}
	last := first
	for {
		got, err := d.read(fd)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = got
	}
	if last != "4;record 39" {
		t.Errorf("the last record is %q", last)
	}
}

// TestWrites: a program's record is accepted, but not as one of the kernel.
func TestWrites(t *testing.T) {
	d := newDevice(t)
	if err := os.WriteFile(d.path, []byte("<3>from a program\n"), 0o644); err != nil { // truncates, too
		t.Fatal(err)
	}
	fd := d.open(unix.O_RDWR | unix.O_NONBLOCK)
	for _, text := range []string{"no prefix", "<30>daemon", "two\nlines \\ é"} {
		if _, err := unix.Write(fd, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Write(fd, make([]byte, MaxText+1)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a long text: %v", err)
	}
	for _, want := range []string{"11;from a program", "12;no prefix", "30;daemon", `12;two\x0alines \x5c \xc3\xa9`} {
		d.want(fd, want)
	}
}

// TestBlockingRead: a read waits for a record, and the end of its process interrupts it.
func TestBlockingRead(t *testing.T) {
	d := newDevice(t)
	d.log("there")
	cat := exec.Command("cat", d.path)
	out, err := cat.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"4;there", "4;new", "4;newer"} {
		if want != "4;there" {
			d.log(strings.TrimPrefix(want, "4;"))
		}
		if !lines.Scan() || plain(t, lines.Text()+"\n") != want {
			t.Fatalf("cat prints %q, want %q", lines.Text(), want)
		}
	}
	if err := cat.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cat.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("a reader that waits cannot be killed")
	}
}

// TestPoll: Go's own files wait by epoll.
func TestPoll(t *testing.T) {
	d := newDevice(t)
	f, err := os.Open(d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make(chan string)
	go func() {
		defer close(got)
		b := make([]byte, 8192)
		for {
			n, err := f.Read(b)
			if err != nil {
				return
			}
			got <- string(b[:n])
		}
	}()
	for _, text := range []string{"one", "two", "three"} {
		d.log(text)
		select {
		case record := <-got:
			if plain(t, record) != "4;"+text {
				t.Fatalf("read %q, want %q", record, text)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q was not read", text)
		}
	}
	if err := f.Close(); err != nil { // wakes the reader
		t.Fatal(err)
	}
	if record, ok := <-got; ok {
		t.Errorf("read %q after the end", record)
	}
	fds := []unix.PollFd{{Fd: int32(d.open(unix.O_RDONLY)), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); err != nil || n != 1 {
		t.Errorf("polling a log with records: %d, %v", n, err)
	}
	d.seek(int(fds[0].Fd), unix.SEEK_END)
	if n, err := unix.Poll(fds, 0); err != nil || n != 0 {
		t.Errorf("polling at the end: %d, %v", n, err)
	}
}
