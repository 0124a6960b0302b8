package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/encoding/protowire"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/protocol"
)

// speaks stops the agent of mallory's pod and calls do in its place, with its token.
func (m *tenant) speaks(ctx context.Context, do func(address, token string) (string, error)) (string, error) {
	if err := m.shell.Signal(unix.SIGSTOP); err != nil {
		return "", err
	}
	defer func() { _ = m.shell.Signal(unix.SIGCONT) }()
	token, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/holdfast/token/token", m.shell.Host))
	if err != nil {
		return "", err
	}
	address, err := m.leader(ctx)
	if err != nil {
		return "", err
	}
	return do(address, string(token))
}

// message is a report followed by raw bytes.
func message(raw []byte) *coordinatorv1.Report {
	r := &coordinatorv1.Report{Protocol: protocol.Version}
	r.ProtoReflect().SetUnknown(raw)
	return r
}

// field is a field of a report with raw bytes in it.
func field(number protowire.Number, raw []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), raw)
}

// reports sends reports that no agent sends.
func reports(ctx context.Context, m *tenant) (string, error) {
	pods, err := m.Pods(ctx, victim, train)
	if err != nil || len(pods) == 0 {
		return "", fmt.Errorf("%d pods of the victim: %w", len(pods), err)
	}
	const rank, sealed, modules = 8, 2, 23
	compressed := []grpc.CallOption{grpc.UseCompressor(gzip.Name)}
	return m.speaks(ctx, func(address, token string) (string, error) {
		l, err := m.connect(address)
		if err != nil {
			return "", err
		}
		defer l.Close()
		var wrong []error
		for _, r := range []struct {
			report  *coordinatorv1.Report
			options []grpc.CallOption
			says    string
		}{
			{&coordinatorv1.Report{Protocol: 99}, nil, "re-create the pod to get the matching agent"},
			{&coordinatorv1.Report{Rank: []*coordinatorv1.Rank{{LocalRank: 1 << 31}}}, nil, "entries must be in order, one per rank"},
			{&coordinatorv1.Report{Rank: []*coordinatorv1.Rank{{Sealed: make([]uint64, 4)}}}, nil, "rank[0].sealed: more than 3 entries"},
			{&coordinatorv1.Report{Ranks: 1 << 20}, nil, "ranks on one pod, 1024 at most"},
			{&coordinatorv1.Report{Notes: make([]string, 33)}, nil, "notes: more than 32 entries"},
			{message(bytes.Repeat(field(rank, nil), 100<<10)), nil, "rank: more than 1024 entries"},
			{message(field(rank, field(sealed, bytes.Repeat([]byte{1}, 200<<10)))), nil, "rank[0].sealed: more than 3 entries"},
			{message(bytes.Repeat(field(modules, nil), 64<<10)), nil, "modules: more than 8192 entries"},
			{message(bytes.Repeat(protowire.AppendTag(nil, 99, protowire.StartGroupType), 100<<10)), nil, "which no agent sends"},
			{message(bytes.Repeat(field(99, nil), 64<<10)), compressed, "reports are not compressed"},
			{&coordinatorv1.Report{Refused: strings.Repeat("x", 8<<10)}, nil, "a text of more than 4096 bytes"},
			{&coordinatorv1.Report{Generation: 1 << 62}, nil, "generation"},
			{&coordinatorv1.Report{Address: pods[0].Status.PodIP}, nil, "is not one of pod"},
			{&coordinatorv1.Report{Address: strings.Repeat("x", 128<<10)}, nil, "is no IP address"},
			{&coordinatorv1.Report{Refused: strings.Repeat("x", 6<<20)}, nil, "larger than max"},
		} {
			if r.report.Protocol == 0 {
				r.report.Protocol = protocol.Version
			}
			if err := l.attachFor(ctx, 30*time.Second, token, r.report, r.options...); err == nil || !strings.Contains(err.Error(), r.says) {
				wrong = append(wrong, fmt.Errorf("the answer does not say %q: %w", r.says, err))
			}
		}
		return "each stream was ended with its reason", errors.Join(wrong...)
	})
}

// stalling is a connection that sends a number of bytes and then none.
type stalling struct {
	net.Conn
	left  atomic.Int64
	once  sync.Once
	ended chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	if s.left.Add(-int64(len(p))) < 0 {
		<-s.ended
		return 0, net.ErrClosed
	}
	return s.Conn.Write(p)
}

func (s *stalling) Close() error {
	s.once.Do(func() { close(s.ended) })
	return s.Conn.Close()
}

// halfSent opens many streams. On each it sends most of the largest report, and then nothing. A newer stream of a pod replaces the earlier
// one, so all but the last end at once. The last ends because its report never becomes complete.
func halfSent(ctx context.Context, m *tenant) (string, error) {
	const n = 32 // each is a handshake; a source may have 64 at once
	return m.speaks(ctx, func(address, token string) (string, error) {
		var late, followed atomic.Int64
		var mu sync.Mutex
		var wrong []error
		began := time.Now()
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				l, err := m.connectBy(address, func(ctx context.Context, address string) (net.Conn, error) {
					conn, err := m.dial(ctx, address)
					if err != nil {
						return nil, err
					}
					s := &stalling{Conn: conn, ended: make(chan struct{})}
					s.left.Store(protocol.MaxReport * 3 / 4)
					return s, nil
				})
				if err == nil {
					err = l.attachFor(ctx, time.Minute, token, message(field(99, make([]byte, protocol.MaxReport-1<<10))))
					_ = l.Close()
				}
				switch {
				case err != nil && strings.Contains(err.Error(), "no report received for 10s"):
					late.Add(1)
				case err != nil && strings.Contains(err.Error(), "a newer stream of this pod is open"):
					followed.Add(1)
				default:
					mu.Lock()
					defer mu.Unlock()
					wrong = append(wrong, fmt.Errorf("a half-sent report ended with: %w", err))
				}
			})
		}
		all.Wait()
		if late.Load() == 0 {
			wrong = append(wrong, errors.New("no stream ended because its report was not whole"))
		}
		return fmt.Sprintf("%d streams ended after %.1f s without a whole report, %d were followed by another", late.Load(), time.Since(began).Seconds(), followed.Load()), errors.Join(wrong...)
	})
}

// slow is a body that is sent one byte at a time.
type slow struct {
	left int
	ctx  context.Context
}

func (s *slow) Read(p []byte) (int, error) {
	if s.left == 0 || len(p) == 0 {
		return 0, io.EOF
	}
	select {
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	case <-time.After(100 * time.Millisecond):
	}
	s.left--
	p[0] = ' '
	return 1, nil
}

// questions sends large and slow queries to the scheduler, which refuses them before it has read them.
func questions(ctx context.Context, m *tenant) (string, error) {
	url, headers, err := m.preview(ctx)
	if err != nil {
		return "", err
	}
	var mu sync.Mutex
	answers, began := map[string]int{}, time.Now()
	var wrong []error
	const n = 32
	large := make([]byte, 64<<20)
	each(n, func(i int) {
		var body io.Reader = bytes.NewReader(large)
		if i%4 > 1 {
			body = &slow{left: 1 << 20, ctx: ctx}
		}
		answer, err := m.ask(ctx, http.MethodPost, url+v1alpha1.PreviewPath, headers[i%2], body)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			answers[answer[:3]]++
		case unread(err): // the response came while the query was being sent, and the connection was closed
			answers["closed"]++
		default:
			wrong = append(wrong, err)
		}
	})
	if answers["401"] == 0 || answers["403"]+answers["401"]+answers["closed"] != n {
		wrong = append(wrong, fmt.Errorf("answered were %v", answers))
	}
	return fmt.Sprintf("%d questions were answered with %v in %.1f s", n, answers, time.Since(began).Seconds()), errors.Join(wrong...)
}

// unread reports whether the reading side closed the connection.
func unread(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed)
}
