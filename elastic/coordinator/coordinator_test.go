package coordinator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// memory is a store in memory.
type memory struct {
	mu      sync.Mutex
	members map[Key]int
	records map[Key]elastic.Record
	ended   map[Key]elastic.Verdict
	notices map[Key][]elastic.Notice
	// refuse makes the next writes fail.
	refuse int
	// gone: all Gangs are deleted.
	gone bool
	// over has the gangs whose Job is over.
	over map[Key]bool
	// superseded makes the next write find another process's record.
	superseded bool
	writes     chan elastic.Record
	// storage is the interval at which gangs copy steps to storage.
	storage  time.Duration
	replaced []elastic.Termination
	// retention is the job's retention setting.
	retention elastic.Retention
	// supervision is what the job requests for ranks that stand still.
	supervision elastic.Supervision
	// replacing, if set, is called by each replacement before it is carried out.
	replacing func(ctx context.Context, key Key, d elastic.Termination) error
	// holders are the running pods, by slot.
	holders map[elastic.Slot]elastic.Pod
	// terminating are the pods, by UID, for which NoteTerminating was called.
	terminating []string
	// busy is how many times NoteTerminating returns false.
	busy int
}

func newMemory() *memory {
	return &memory{
		members: map[Key]int{},
		records: map[Key]elastic.Record{},
		ended:   map[Key]elastic.Verdict{},
		notices: map[Key][]elastic.Notice{},
		writes:  make(chan elastic.Record, 1000),
	}
}

func (m *memory) Load(_ context.Context, key Key) (int, elastic.Settings, elastic.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.members[key]
	if !ok {
		return 0, elastic.Settings{}, elastic.Record{}, apierrors.NewNotFound(schema.GroupResource{Resource: "gangs"}, key.Name)
	}
	storage := elastic.Storage{Every: m.storage, Retention: m.retention}
	return n, elastic.Settings{Storage: storage, Supervision: m.supervision}, m.records[key], nil
}

func (m *memory) Over(_ context.Context, key Key) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over[key], nil
}

func (m *memory) Persist(_ context.Context, key Key, r elastic.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return fmt.Errorf("as if: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "gangs"}, "any"))
	}
	if m.superseded {
		m.superseded = false
		return fmt.Errorf("as if: %w", ErrSuperseded)
	}
	if m.refuse > 0 {
		m.refuse--
		return errors.New("the API server is away")
	}
	if r.Generation < m.records[key].Generation {
		return errors.New("a generation would fall")
	}
	m.records[key] = r
	m.writes <- r
	return nil
}

func (m *memory) End(_ context.Context, key Key, v elastic.Verdict) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended[key] = v
	return nil
}

func (m *memory) Replace(ctx context.Context, key Key, d elastic.Termination) error {
	if m.replacing != nil {
		if err := m.replacing(ctx, key, d); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replaced = append(m.replaced, d)
	return nil
}

func (m *memory) NoteTerminating(_ Key, pod elastic.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy > 0 {
		m.busy--
		return false
	}
	m.terminating = append(m.terminating, pod.UID)
	return true
}

func (m *memory) ForgetTerminating(pod elastic.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terminating = slices.DeleteFunc(m.terminating, func(uid string) bool { return uid == pod.UID })
}

func (m *memory) Holders(_ context.Context, _ Key, slots []elastic.Slot) ([]elastic.SlotHolder, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []elastic.SlotHolder
	for _, slot := range slots {
		p, ok := m.holders[slot]
		out = append(out, elastic.SlotHolder{Slot: slot, Pod: p, Runs: ok})
	}
	return out, nil
}

func (m *memory) Nodes(context.Context, []string) (elastic.NodesKnown, error) {
	return elastic.NodesKnown{}, nil
}

func (m *memory) Forgive(context.Context, Key, string) {}

func (m *memory) NotePasses(context.Context, Key, []elastic.NodePass) {}

func (m *memory) Announce(_ context.Context, key Key, n elastic.Notice) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notices[key] = append(m.notices[key], n)
}

func (m *memory) verdictAtEnd(key Key) elastic.Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended[key]
}

// house has a coordinator, its callers and its store.
type house struct {
	t      *testing.T
	store  *memory
	addr   string
	pool   *x509.CertPool
	mu     sync.Mutex
	tokens map[string]Caller // guarded by mu
	stop   context.CancelFunc
	done   chan error
	server *Server
	// contactTimeout is how long an agent may send nothing in these tests; 0: a minute.
	contactTimeout time.Duration
}

// Identify returns the caller that belongs to the token.
func (h *house) Identify(ctx context.Context) (Caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.tokens[strings.TrimPrefix(strings.Join(md.Get("authorization"), ""), "Bearer ")]
	if !ok {
		return Caller{}, status.Error(codes.Unauthenticated, "nobody knows this token")
	}
	return c, nil
}

// Check returns the addresses of the token's pod, once the pod has some.
func (h *house) Check(_ context.Context, c Caller) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tokens["token-of-"+c.Pod.UID].Addresses, nil
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"coordinator"},
		NotAfter: time.Now().
			Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func open(t *testing.T, elected <-chan struct{}) *house {
	t.Helper()
	h := &house{t: t, store: newMemory(), tokens: map[string]Caller{}}
	h.serve(elected)
	return h
}

// serve starts a coordinator on the store of the house. After close, another call restarts it.
func (h *house) serve(elected <-chan struct{}) {
	h.t.Helper()
	cert, pool := certificate(h.t)
	h.pool = pool
	s, err := New(Options{Listen: "127.0.0.1:0", TLS: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}},
		Callers: h, Store: h.store, Elected: elected, Log: testr.New(h.t)})
	if err != nil {
		h.t.Fatal(err)
	}
	s.contactTimeout = time.Minute
	if h.contactTimeout > 0 {
		s.contactTimeout = h.contactTimeout
	}
	h.server = s
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.addr = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	h.stop, h.done = cancel, make(chan error, 1)
	go func() { h.done <- s.Serve(ctx, listener) }()
	h.t.Cleanup(h.close)
}

func (h *house) close() {
	if h.stop == nil {
		return
	}
	h.stop()
	h.stop = nil
	if err := <-h.done; err != nil {
		h.t.Errorf("serving: %v", err)
	}
}

func leading() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// pod returns a pod of a Job.
func pod(namespace, job string, slot elastic.Slot, uid string) Caller {
	return Caller{Key: Key{Namespace: namespace, Name: job, Job: namespace + "-" + job}, Slot: slot, Addresses: []string{"10.0.0.1"},
		Pod: elastic.Pod{UID: uid, Name: fmt.Sprintf("%s-%d", job, slot), Created: time.Now().Truncate(time.Second)}}
}

// allow returns a token for the pod.
func (h *house) allow(p Caller) string {
	token := "token-of-" + p.Pod.UID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens[token] = p
	return token
}

// agent is a minimal agent that follows the protocol. Its channel orders has the directives.
type agent struct {
	t      *testing.T
	rpc    coordinatorv1.Coordinator_AttachClient
	conn   *grpc.ClientConn
	report *coordinatorv1.Report
	orders chan *coordinatorv1.Directive
	ended  chan error
}

func (h *house) dial(token string, more ...grpc.DialOption) *agent {
	h.t.Helper()
	conn, err := grpc.NewClient(
		h.addr,
		append(more, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: h.pool, ServerName: "coordinator"})))...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	ctx := context.Background()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	// wait also if a busy machine is slow in a handshake
	rpc, err := coordinatorv1.NewCoordinatorClient(conn).Attach(ctx, grpc.WaitForReady(true))
	if err != nil {
		h.t.Fatal(err)
	}
	a := &agent{t: h.t, rpc: rpc, conn: conn, orders: make(chan *coordinatorv1.Directive, 100), ended: make(chan error, 1),
		report: &coordinatorv1.Report{
			Protocol:    protocol.Version,
			Incarnation: 1,
			Ranks:       2,
			Address:     "10.0.0.1",
			Port:        4000,
			State:       coordinatorv1.State_STATE_IDLE,
			StateBytes:  1,
		}}
	for i := range uint32(2) {
		a.report.Rank = append(a.report.Rank, &coordinatorv1.Rank{LocalRank: i})
	}
	go func() {
		for {
			d, err := rpc.Recv()
			if err != nil {
				a.ended <- err
				return
			}
			a.orders <- d
		}
	}()
	return a
}

func (a *agent) say() {
	if err := a.rpc.Send(a.report); err != nil {
		a.t.Logf("sending: %v", err)
	}
}

// await carries out directives until one has this order.
func (a *agent) await(order coordinatorv1.Order, generation uint64) *coordinatorv1.Directive {
	a.t.Helper()
	deadline := time.After(eventually.Timeout)
	for {
		select {
		case d := <-a.orders:
			if d.Order == order && d.Generation == generation {
				return d
			}
		case err := <-a.ended:
			a.t.Fatalf("the stream ended while %v %d was awaited: %v", order, generation, err)
		case <-deadline:
			a.t.Fatalf("no %v of generation %d came", order, generation)
		}
	}
}

func (a *agent) runs(generation uint64) {
	a.report.Generation, a.report.State = generation, coordinatorv1.State_STATE_RUNNING
	for _, k := range a.report.Rank {
		k.Exit = nil
	}
	a.say()
}

func (a *agent) seals(step uint64) {
	for _, k := range a.report.Rank {
		k.Sealed, k.Step = append(k.Sealed, step), step
	}
	a.say()
}

func (a *agent) fails(local int, e *coordinatorv1.Exit) {
	a.report.State = coordinatorv1.State_STATE_FAILED
	a.report.Rank[local].Exit = e
	a.say()
}

func (a *agent) halted(generation uint64) {
	a.report.Generation, a.report.State = generation, coordinatorv1.State_STATE_HALTED
	a.say()
}

// refused waits until the stream ends, and returns the code.
func (a *agent) refused() codes.Code {
	a.t.Helper()
	select {
	case err := <-a.ended:
		return status.Code(err)
	case <-time.After(2 * time.Minute):
		a.t.Fatal("the stream was not ended")
		return codes.OK
	}
}

// pair returns a house with one gang of two waiting pods.
func pair(t *testing.T) (h *house, p []Caller, a []*agent, key Key) {
	p = []Caller{pod("team-a", "train", 0, "a0"), pod("team-a", "train", 1, "a1")}
	h = open(t, leading())
	key = p[0].Key
	h.store.members[key] = 2
	for i := range p {
		a = append(a, h.dial(h.allow(p[i])))
		a[i].say()
	}
	return h, p, a, key
}

func start(a []*agent, generation uint64) *coordinatorv1.Directive {
	var first *coordinatorv1.Directive
	for i := range a {
		d := a[i].await(coordinatorv1.Order_ORDER_RUN, generation)
		if i == 0 {
			first = d
		}
		a[i].runs(generation)
	}
	return first
}

func TestKillAndRunAgain(t *testing.T) {
	h, _, a, key := pair(t)
	d := start(a, 1)
	if r := d.Run; r.WorldSize != 4 || r.Nodes != 2 || r.MasterAddr != "10.0.0.1" || r.MasterPort != 4000 || r.RestartCount != 0 {
		t.Errorf("generation 1 is %v", r)
	}
	for step := uint64(1); step <= 3; step++ {
		a[0].seals(step)
		if step < 3 {
			a[1].seals(step)
		}
	}
	for d := a[1].await(coordinatorv1.Order_ORDER_RUN, 1); d.CommonStep < 2; d = a[1].await(coordinatorv1.Order_ORDER_RUN, 1) {
	}
	begun := time.Now()
	a[1].fails(0, &coordinatorv1.Exit{Code: 137, Signal: 9, At: time.Now().UnixNano()})
	for i := range a {
		a[i].await(coordinatorv1.Order_ORDER_HALT, 1)
		a[i].halted(1)
	}
	second := a[0].await(coordinatorv1.Order_ORDER_RUN, 2)
	took := time.Since(begun)
	t.Logf("from the failure's report to the next generation: %s", took)
	if second.Run.RestoreStep != 2 || second.Run.RestartCount != 1 || second.Run.BaseRank != 0 {
		t.Errorf("generation 2 is %v", second.Run)
	}
	if got := a[1].await(coordinatorv1.Order_ORDER_RUN, 2).Run.BaseRank; got != 2 {
		t.Errorf("slot 1 begins at rank %d", got)
	}
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	r := h.store.records[key]
	if len(r.Recoveries) != 1 || r.Recoveries[0].Cause.Rank != 2 || r.Recoveries[0].Cause.Code != "RankKilled" {
		t.Errorf("recoveries: %+v", r.Recoveries)
	}
}

func TestNothingIsHandedOutBeforeItIsStored(t *testing.T) {
	other := pod("team-b", "train", 0, "b0")
	h := open(t, leading())
	h.store.members[other.Key], h.store.refuse = 1, 3
	b := h.dial(h.allow(other))
	b.say()
	d := b.await(coordinatorv1.Order_ORDER_RUN, 1)
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if got := h.store.records[other.Key].Generation; got < int64(d.Run.Number) {
		t.Errorf("generation %d was handed out, %d is stored", d.Run.Number, got)
	}
}

func TestTenantsAreApart(t *testing.T) {
	h, _, a, key := pair(t)
	start(a, 1)
	other := pod("team-b", "train", 0, "b0") // a job with the same name in another namespace
	h.store.mu.Lock()
	h.store.members[other.Key] = 1
	h.store.mu.Unlock()
	b := h.dial(h.allow(other))
	b.say()
	if d := b.await(coordinatorv1.Order_ORDER_RUN, 1); d.Run.WorldSize != 2 {
		t.Errorf("the other tenant's generation is %v", d.Run)
	}
	b.runs(1)
	b.fails(0, &coordinatorv1.Exit{Code: 1, Traceback: "ValueError: x"})
	b.await(coordinatorv1.Order_ORDER_HALT, 1)
	b.halted(1)
	b.await(coordinatorv1.Order_ORDER_RUN, 2)
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if got := h.store.records[key]; got.Generation != 1 || got.Restarts != 0 {
		t.Errorf("another tenant's failure reached this gang: %+v", got)
	}
}

func TestWhoIsRefused(t *testing.T) {
	mine, ended := pod("team-a", "train", 0, "a0"), pod("team-a", "ended", 0, "e0")
	h := open(t, leading())
	h.store.members[mine.Key] = 1
	h.store.over = map[Key]bool{ended.Key: true}
	for name, c := range map[string]struct {
		token string
		want  codes.Code
	}{
		"a token nobody knows":           {"who", codes.Unauthenticated},
		"a pod of a job that is over":    {h.allow(ended), codes.NotFound},
		"an index that the gang has not": {h.allow(pod("team-a", "train", 7, "a7")), codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			a := h.dial(c.token)
			a.t = t
			a.say()
			if got := a.refused(); got != c.want {
				t.Errorf("refused with %v, want %v", got, c.want)
			}
		})
	}
}

func TestReportsThatNoAgentSends(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[mine.Key] = 1
	token := h.allow(mine)
	for name, c := range map[string]struct {
		change func(*coordinatorv1.Report)
		want   codes.Code
	}{
		"another host's address":      {func(r *coordinatorv1.Report) { r.Address = "10.0.0.99" }, codes.PermissionDenied},
		"no address":                  {func(r *coordinatorv1.Report) { r.Address = "example.org" }, codes.InvalidArgument},
		"more notes than agents make": {func(r *coordinatorv1.Report) { r.Notes = make([]string, maxNotes+1) }, codes.InvalidArgument},
		"too many ranks":              {func(r *coordinatorv1.Report) { r.Ranks = 1 << 20 }, codes.InvalidArgument},
		"a generation near overflow":  {func(r *coordinatorv1.Report) { r.Generation = 1 << 60 }, codes.InvalidArgument},
		"a rank that it has not":      {func(r *coordinatorv1.Report) { r.Rank = []*coordinatorv1.Rank{{LocalRank: 1 << 30}} }, codes.InvalidArgument},
		"a rank twice":                {func(r *coordinatorv1.Report) { r.Rank = []*coordinatorv1.Rank{{}, {}} }, codes.InvalidArgument},
		"a rank more than it has":     {func(r *coordinatorv1.Report) { r.Ranks, r.Rank = 1, []*coordinatorv1.Rank{{}, {LocalRank: 1}} }, codes.InvalidArgument},
		"more steps than slots":       {func(r *coordinatorv1.Report) { r.Rank = []*coordinatorv1.Rank{{Sealed: []uint64{1, 2, 3, 4}}} }, codes.InvalidArgument},
		"a long note":                 {func(r *coordinatorv1.Report) { r.Notes = []string{string(make([]byte, 10000))} }, codes.InvalidArgument},
		"another protocol":            {func(r *coordinatorv1.Report) { r.Protocol = 3 }, codes.FailedPrecondition},
		"a long text":                 {func(r *coordinatorv1.Report) { r.Refused = string(make([]byte, 10000)) }, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			a := h.dial(token)
			a.t = t
			c.change(a.report)
			a.say()
			if got := a.refused(); got != c.want {
				t.Errorf("refused with %v, want %v", got, c.want)
			}
		})
	}
}

func TestNotTheLeader(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	elected := make(chan struct{})
	h := open(t, elected)
	h.store.members[mine.Key] = 1
	token := h.allow(mine)
	a := h.dial(token)
	a.say()
	if got := a.refused(); got != codes.Unavailable {
		t.Errorf("a replica that does not lead answers %v", got)
	}
	close(elected)
	b := h.dial(token)
	b.say()
	b.await(coordinatorv1.Order_ORDER_RUN, 1)
}

func TestRestartChangesNothing(t *testing.T) {
	h, p, a, key := pair(t)
	start(a, 1)
	h.close()
	for i := range a {
		if got := a[i].refused(); got != codes.Unavailable {
			t.Errorf("a coordinator that ends says %v", got)
		}
	}
	h.serve(leading())
	for i := range a {
		old := a[i].report
		a[i] = h.dial(h.allow(p[i]))
		a[i].report = old
		a[i].say()
		if d := a[i].await(coordinatorv1.Order_ORDER_RUN, 1); d.Run.Number != 1 {
			t.Errorf("after a restart slot %d is told %v", i, d)
		}
	}
	// The next generation repairs a failure.
	a[0].fails(1, &coordinatorv1.Exit{Code: 137, Signal: 9})
	for i := range a {
		a[i].await(coordinatorv1.Order_ORDER_HALT, 1)
		a[i].halted(1)
	}
	start(a, 2)
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if got := h.store.records[key].Restarts; got != 1 {
		t.Errorf("%d restarts are counted", got)
	}
}

func TestGivenUp(t *testing.T) {
	h, _, a, key := pair(t)
	for generation := uint64(1); generation <= 2; generation++ {
		start(a, generation)
		a[1].fails(1, &coordinatorv1.Exit{Code: 7, At: time.Now().UnixNano(), Traceback: "Traceback (most recent call last):\n  File \"t.py\", line 3, in f\n    g()\nValueError: bad\x1b[2J"})
		for i := range a {
			a[i].await(coordinatorv1.Order_ORDER_HALT, generation)
			a[i].halted(generation)
		}
	}
	for i := range a {
		if d := a[i].await(coordinatorv1.Order_ORDER_EXIT, 2); d.ExitCode != 7 {
			t.Errorf("slot %d is told to exit with %d", i, d.ExitCode)
		}
	}
	if v := h.store.verdictAtEnd(key); v.Reason != elastic.ReasonSameFailureTwice || v.Cause.Rank != 3 ||
		!strings.HasSuffix(v.Cause.Message, `bad\x1b[2J`) {
		t.Errorf("the job was ended for %+v, %+v", v, v.Cause)
	}
}

func TestTheNewerStreamSpeaks(t *testing.T) {
	h, p, a, _ := pair(t)
	start(a, 1)
	again := h.dial(h.allow(p[0]))
	again.report = a[0].report
	again.report.Incarnation = 2
	again.say()
	if got := a[0].refused(); got != codes.Aborted {
		t.Errorf("the older stream ended with %v", got)
	}
	if d := again.await(coordinatorv1.Order_ORDER_RUN, 1); d.Run.Number != 1 {
		t.Errorf("the agent that took over is told %v", d)
	}
}
