// Package coordinatortest has what a coordinator.Server needs when it runs without a cluster: callers that are
// identified by their tokens, and a store in memory. The callers and the store behave like the real ones on a cluster
// without failures.
package coordinatortest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/elastic/replacements"
)

// Token is the token in the caller's context; "": none.
func Token(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.TrimPrefix(strings.Join(md.Get("authorization"), ""), "Bearer ")
}

// Callers knows callers by their tokens; it implements coordinator.Callers. The zero value knows no caller.
type Callers struct {
	mu      sync.Mutex
	byToken map[string]coordinator.Caller
}

// Set assigns a caller to a token. Open streams keep the caller that opened them.
func (c *Callers) Set(token string, caller coordinator.Caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byToken == nil {
		c.byToken = map[string]coordinator.Caller{}
	}
	c.byToken[token] = caller
}

// Identify returns the caller of the token.
func (c *Callers) Identify(ctx context.Context) (coordinator.Caller, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	caller, ok := c.byToken[Token(ctx)]
	if !ok {
		return coordinator.Caller{}, status.Error(codes.Unauthenticated, "unknown token")
	}
	return caller, nil
}

// Check accepts every stream.
func (c *Callers) Check(context.Context, coordinator.Caller) ([]string, error) { return nil, nil }

// holder returns the pod that has a slot now.
func (c *Callers) holder(key coordinator.Key, slot elastic.Slot) (elastic.Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, caller := range c.byToken {
		if caller.Key == key && caller.Slot == slot {
			return caller.Pod, true
		}
	}
	return elastic.Pod{}, false
}

// Store stores gangs in memory; it implements coordinator.Store.
type Store struct {
	// Callers are the existing pods.
	Callers *Callers
	// SetPendingReplacements is called with the terminating pods of a gang, as coordinator.Server.SetPendingReplacements is after their
	// deletion.
	SetPendingReplacements func(ctx context.Context, key coordinator.Key, pods []elastic.Termination) error

	mu           sync.Mutex
	gangs        map[coordinator.Key]*Gang
	terminations map[coordinator.Key][]elastic.Termination // pods that must end and are not replaced yet
}

// Gang is the stored state of one gang.
type Gang struct {
	Members int
	// Storage is the interval at which steps are copied to storage; 0: never.
	Storage     time.Duration
	Retention   elastic.Retention
	Supervision elastic.Supervision
	Limits      quorum.Limits
	Record      elastic.Record
	// Manifests counts steps that became durable.
	Manifests int
}

// Add adds a gang.
func (s *Store) Add(key coordinator.Key, g Gang) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gangs == nil {
		s.gangs, s.terminations = map[coordinator.Key]*Gang{}, map[coordinator.Key][]elastic.Termination{}
	}
	s.gangs[key] = &g
}

// Gang returns the stored state of a gang.
func (s *Store) Gang(key coordinator.Key) Gang {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.gangs[key]; g != nil {
		return *g
	}
	return Gang{}
}

// Load implements coordinator.Store.
func (s *Store) Load(_ context.Context, key coordinator.Key) (int, elastic.Settings, elastic.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gangs[key]
	if g == nil {
		return 0, elastic.Settings{}, elastic.Record{}, notFound(key)
	}
	storage := elastic.Storage{Every: g.Storage, Retention: g.Retention}
	return g.Members, elastic.Settings{Storage: storage, Supervision: g.Supervision, Limits: g.Limits}, g.Record, nil
}

func notFound(key coordinator.Key) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "gangs"}, key.Name)
}

// Over implements coordinator.Store: no Job ends here.
func (s *Store) Over(context.Context, coordinator.Key) (bool, error) { return false, nil }

// Persist implements coordinator.Store.
func (s *Store) Persist(_ context.Context, key coordinator.Key, r elastic.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gangs[key]
	if g == nil {
		return notFound(key)
	}
	if d := r.Durable; d != nil && (g.Record.Durable == nil || g.Record.Durable.Mark != d.Mark) {
		g.Manifests++
	}
	g.Record = r
	return nil
}

// End implements coordinator.Store; no Job creates pods here.
func (s *Store) End(context.Context, coordinator.Key, elastic.Verdict) error { return nil }

// Replace implements coordinator.Store; the test creates the next pod with Callers.Set.
func (s *Store) Replace(_ context.Context, key coordinator.Key, d elastic.Termination) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terminations[key] = slices.DeleteFunc(s.terminations[key], func(o elastic.Termination) bool { return o.Pod == d.Pod })
	return nil
}

// Holders implements coordinator.Store.
func (s *Store) Holders(_ context.Context, key coordinator.Key, slots []elastic.Slot) ([]elastic.SlotHolder, error) {
	var out []elastic.SlotHolder
	for _, slot := range slots {
		pod, ok := s.Callers.holder(key, slot)
		out = append(out, elastic.SlotHolder{Slot: slot, Pod: pod, Runs: ok})
	}
	return out, nil
}

// NoteTerminating implements coordinator.Store: a terminating pod is being deleted.
func (s *Store) NoteTerminating(key coordinator.Key, pod elastic.Pod) bool {
	s.mu.Lock()
	if s.gangs[key] == nil {
		s.mu.Unlock()
		return true
	}
	level := slices.Clone(s.terminations[key])
	if !slices.ContainsFunc(level, func(d elastic.Termination) bool { return d.Pod == pod.UID }) {
		level = append(
			level,
			elastic.Termination{Slot: s.slot(key, pod), Pod: pod.UID, Name: pod.Name, Node: pod.Node, Cause: replacements.PodDeleted},
		)
	}
	s.terminations[key] = level
	s.mu.Unlock()
	return s.SetPendingReplacements == nil || s.SetPendingReplacements(context.Background(), key, level) == nil
}

// slot returns the slot of a pod.
func (s *Store) slot(key coordinator.Key, pod elastic.Pod) elastic.Slot {
	for slot := range elastic.Slot(s.gangs[key].Members) {
		if p, ok := s.Callers.holder(key, slot); ok && p.UID == pod.UID {
			return slot
		}
	}
	return -1 // another pod has it by now; the core ignores slot -1
}

// Nodes implements coordinator.Store: nothing is known.
func (s *Store) Nodes(context.Context, []string) (elastic.NodesKnown, error) {
	return elastic.NodesKnown{}, nil
}

// NotePasses implements coordinator.Store.
func (s *Store) NotePasses(context.Context, coordinator.Key, []elastic.NodePass) {}

// Forgive implements coordinator.Store.
func (s *Store) Forgive(context.Context, coordinator.Key, string) {}

// ForgetTerminating implements coordinator.Store.
func (s *Store) ForgetTerminating(elastic.Pod) {}

// Announce implements coordinator.Store.
func (s *Store) Announce(context.Context, coordinator.Key, elastic.Notice) {}
