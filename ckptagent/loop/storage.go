//go:build linux

package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/hangs"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/ckptagent/store/child"
	"holdfast.dev/holdfast/internal/protocol"
)

// Timing of retries and notes about storage.
const (
	retryFirst = time.Second
	retryMost  = 15 * time.Second
	// probeEvery is the interval between probes of storage that cannot be written.
	probeEvery = 10 * time.Second
	// answerTimeout is how long a pod does not join while storage does not answer: joining would mean to restore a step from memory only,
	// or to start from the beginning.
	answerTimeout = 2 * time.Minute
	// slowAfter is when a note says that a copy takes long, silentAfter that one call has not returned.
	slowAfter   = time.Minute
	silentAfter = 20 * time.Second
	// fetchTries is how often a missing or incomplete file is read: a name that another machine has just created may appear late.
	fetchTries = 3
)

// uploader carries out the agent's storage tasks in other goroutines: at most one of each kind, the newest. A cancelled task ends when its
// call to storage returns; until then its slot stays pinned.
type uploader struct {
	store  *store.Store
	fs     *child.FS
	post   func(ckptagent.Event)
	logf   func(string, ...any)
	arenas func() *arena.Set // called in the agent's goroutine

	endCopy, endManifest, endFetch context.CancelFunc
	drafts                         drafts

	hangsKept   chan struct{} // a pod's hang waits to be copied
	prunesHangs atomic.Bool   // this pod has global rank 0, and removes old hangs of the job

	mu sync.Mutex
	// lastAnswer: storage has answered; ok: it is there. Once it was there it counts as there: the coordinator decides what a later error
	// means for a step.
	lastAnswer, ok bool
	probing        time.Time // since when an answer is awaited; zero: it is not
	// unwritable and failing are why probe and tasks fail, for users.
	unwritable, failing string
	notNamed            string   // why stock torch cannot read a step in place
	job                 proc.Job // its interpreter writes the index of a step
	copying             protocol.Mark
	since               time.Time // of copying; zero: no copy is under way
}

// newUploader returns the uploader for the pod's storage; nil and the reason if there is none.
func newUploader(a *Agent) (*uploader, string) {
	switch {
	case a.c.Storage == "":
		return nil, ""
	case a.c.StateBytes == 0:
		return nil, "storage is off: no holdfast.dev/state-size"
	case a.c.Gang == "" || a.c.JobUID == "":
		return nil, "storage is off: the pod does not know which job it belongs to"
	}
	nothing, fs := func() {}, child.New(a.storageProcess)
	folder, writer := filepath.Join(a.c.Storage, a.c.Gang+"-"+a.c.JobUID), fmt.Sprintf("%s-%d", a.c.PodUID, time.Now().UnixNano())
	k := &uploader{
		fs: fs, store: store.New(fs, folder, writer),
		post: a.post, logf: a.logf, arenas: func() *arena.Set { return a.arenas }, endCopy: nothing, endManifest: nothing, endFetch: nothing,
		hangsKept: make(chan struct{}, 1), drafts: drafts{under: map[int]*draft{}},
	}
	k.drafts.store = k.store
	k.store.IndexBy(k.index, k.tellNotNamed)
	go func() {
		k.probe(func() { a.do(a.reportCapabilities) })
		k.copyHangs(hangs.Folder(a.c.Root.Hangs()))
	}()
	return k, ""
}

// tellNotNamed logs why stock torch cannot read a step in place, once per reason.
func (k *uploader) tellNotNamed(m protocol.Mark, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if before := k.notNamed; before != why.Error() {
		k.notNamed = why.Error()
		k.logf("torch cannot read step %d in place in storage, export it instead: %v", m.Step, why)
	}
}

// storageProcess returns the process that accesses storage for an agent. It inherits none of the agent's descriptors: it may outlive the
// agent, and readers of the container's output wait for all processes that have it open.
func (a *Agent) storageProcess() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "storage")
	cmd.Args[0], cmd.Stderr = "holdfast-agent", struct{ io.Writer }{a.c.Log}
	return cmd
}

// index returns the index by which stock torch reads a step.
func (k *uploader) index(m format.Manifest, files string) (io.ReadCloser, error) {
	k.mu.Lock()
	job := k.job
	k.mu.Unlock()
	cmd, err := job.Index(files, len(m.Ranks))
	if err != nil {
		return nil, err
	}
	return child.Index(cmd)
}

// probe checks whether storage is there and can be written, and repeats that until it can. Storage that can only be read (full or
// read-only) is there: steps can be fetched.
func (k *uploader) probe(report func()) {
	for tick := time.NewTicker(probeEvery); ; <-tick.C {
		k.mu.Lock()
		k.probing = time.Now()
		k.mu.Unlock()
		err := k.store.Probe()
		there := err == nil || k.store.Answers()
		k.mu.Lock()
		before := k.unwritable
		k.probing, k.lastAnswer, k.ok, k.unwritable = time.Time{}, true, k.ok || there, why(err)
		if k.unwritable != "" && k.unwritable != before {
			k.logf("%s", k.unwritable)
		}
		k.mu.Unlock()
		report()
		if err == nil {
			return
		}
	}
}

// why returns what is wrong with storage, for users.
func why(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return "storage is full; give the claim more room, or remove from it what is not needed: " + err.Error()
	}
	return "storage cannot be used: " + err.Error()
}

// noteResult records a task's result.
func (k *uploader) noteResult(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.failing
	if k.failing = why(err); k.failing != "" && k.failing != before {
		k.logf("%s", k.failing)
	}
}

// status returns the state of storage for the core and for users; known is false until it has answered, at most for answerTimeout.
func (k *uploader) status(now time.Time) (known, ok bool, note string) {
	silent := k.fs.Unanswered()
	k.mu.Lock()
	defer k.mu.Unlock()
	known = k.lastAnswer
	switch took := now.Sub(k.since); {
	case !silent.IsZero() && now.Sub(silent) > silentAfter && k.lastAnswer:
		note = "storage does not answer"
	case k.failing != "":
		note = k.failing
	case k.unwritable != "":
		note = k.unwritable
	case !k.probing.IsZero() && now.Sub(k.probing) > probeEvery:
		note = "storage does not answer"
		known = known || now.Sub(k.probing) > answerTimeout
	case !k.since.IsZero() && took > slowAfter:
		note = fmt.Sprintf("storage is slow: copying step %d takes longer than %d min", k.copying.Step, int(took.Minutes()))
	}
	return known, k.ok, note
}

// again retries a task until it succeeds, is pointless, or is cancelled.
func (k *uploader) again(ctx context.Context, what string, tries int, do func() error) error {
	pause := retryFirst
	for n := 1; ; n++ {
		err := do()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			k.noteResult(nil)
			return nil
		}
		err = fmt.Errorf("%s: %w", what, err)
		if final := errors.Is(err, store.ErrChanged) || errors.Is(err, store.ErrUseless) && tries > 0; final {
			k.logf("%v", err)
			if n >= max(tries, 1) {
				return err
			}
		} else {
			k.noteResult(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		if tries == 0 || !errors.Is(err, store.ErrUseless) {
			pause = min(pause*2, retryMost)
		}
	}
}

// copy copies the step of every local rank. The slots are pinned before it returns.
func (k *uploader) copy(e ckptagent.CopyStep) {
	k.endCopy()
	k.mu.Lock()
	k.copying, k.since, k.failing = e.Mark, time.Time{}, ""
	k.mu.Unlock()
	arenas := k.arenas()
	if e.Mark.Step == 0 || arenas == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.endCopy = cancel
	start := time.Now()
	k.mu.Lock()
	k.since = start
	k.mu.Unlock()
	var all sync.WaitGroup
	for local := range arenas.Len() {
		pinned, ok, busy := arenas.Pin(local, e.Mark.Step)
		if !ok && !busy {
			continue // an agent that lacks the step copies nothing
		}
		var early *draft
		if mine := fileOf(e.BaseRank, local, e.World, pinned.Seal); ok && mine.Generation == e.Mark.Generation {
			early = k.drafts.take(local, mine)
		} else {
			k.drafts.take(local, format.RankFile{}) // it has the wrong slot pinned
		}
		all.Go(func() {
			defer func() { early.drop() }()
			if !ok { // a cancelled task has not returned from storage
				if pinned, ok = k.await(ctx, arenas, local, e.Mark.Step); !ok {
					return
				}
			}
			defer pinned.Release()
			f := fileOf(e.BaseRank, local, e.World, pinned.Seal)
			f.Generation = e.Mark.Generation // a later one may have restored the step
			err := k.again(ctx, fmt.Sprintf("copying step %d of rank %d", f.Step, f.Rank), 0, func() error {
				if d := early; d != nil {
					early = nil
					return d.commit(ctx, f)
				}
				return k.store.Put(ctx, f, pinned.Data())
			})
			if err == nil {
				k.post(
					ckptagent.Copied{Local: local, Copy: protocol.Copied{Mark: e.Mark, Length: f.Length, Checksum: f.Checksum}, Took: time.Since(start)},
				)
			}
		})
	}
	go func() {
		all.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.copying == e.Mark {
			k.since = time.Time{}
		}
	}()
}

// await pins a slot once the pinned one is released; false: the step is gone by then.
func (k *uploader) await(ctx context.Context, arenas *arena.Set, local int, step int64) (*arena.Pinned, bool) {
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case <-time.After(retryFirst):
		}
		if pinned, ok, busy := arenas.Pin(local, step); ok || !busy {
			return pinned, ok
		}
	}
}

// manifest writes a manifest, then removes superseded steps.
func (k *uploader) manifest(e ckptagent.WriteManifest, job proc.Job) {
	k.endManifest()
	k.mu.Lock()
	k.job = job
	k.mu.Unlock()
	mark := e.Manifest.Mark
	if mark.Step == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.endManifest = cancel
	m := format.Manifest{Step: mark.Step, Generation: mark.Generation, Branch: mark.Branch}
	for _, r := range e.Manifest.Ranks {
		m.Ranks = append(m.Ranks, format.ManifestRank(r))
	}
	go func() {
		if k.again(ctx, "writing a manifest", 0, func() error { return k.store.PutManifest(m) }) != nil {
			return
		}
		k.post(ckptagent.ManifestWritten{Mark: mark})
		if err := k.prune(e.Manifest.Below, e.Manifest.Recorded); err != nil {
			k.logf("removing old steps from storage: %v", err)
		}
	}()
}

// prune removes superseded steps: unrecorded ones older than below or, for a coordinator that sends no below, those older than all recorded
// ones.
func (k *uploader) prune(below protocol.Mark, recorded []protocol.Mark) error {
	if below.Step == 0 {
		return k.store.Prune(recorded...)
	}
	return k.store.PruneBelow(below, recorded...)
}

// fetch fetches a step into the arenas that lack it.
func (k *uploader) fetch(e ckptagent.Fetch) {
	k.endFetch()
	arenas := k.arenas()
	if e.Mark.Step == 0 || arenas == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.endFetch = cancel
	go func() {
		var all sync.WaitGroup
		free, errs := make(chan struct{}, store.Streams), make([]error, arenas.Len())
		for local := range arenas.Len() {
			all.Go(func() {
				select {
				case free <- struct{}{}:
				case <-ctx.Done():
					return
				}
				defer func() { <-free }()
				rank := uint32(e.BaseRank + local)
				errs[local] = k.again(ctx, fmt.Sprintf("fetching step %d of rank %d", e.Mark.Step, rank), fetchTries, func() error {
					return k.fetchRank(ctx, arenas, e.Mark, local, rank)
				})
			})
		}
		all.Wait()
		if err := errors.Join(errs...); ctx.Err() == nil {
			k.post(ckptagent.Fetched{Mark: e.Mark, Failed: err != nil, Sealed: arenas.Sealed()})
		}
	}()
}

func (k *uploader) fetchRank(ctx context.Context, arenas *arena.Set, mark protocol.Mark, local int, rank uint32) error {
	if arenas.Holds(local, mark.Point(), mark.Generation) {
		return nil
	}
	var hole *arena.Fill
	f, err := k.store.Get(ctx, mark, rank, func(f format.RankFile) (out io.Writer, err error) {
		if hole, err = arenas.BeginFill(local, f.Point(), f.Generation, f.Length); err != nil {
			return nil, fmt.Errorf("%w: %d bytes: %w", store.ErrUseless, f.Length, err)
		}
		return hole, nil
	})
	switch {
	case err != nil && hole != nil:
		hole.Abort()
		return err
	case err != nil:
		return err
	case !hole.Commit(f.Checksum, time.Now()):
		return fmt.Errorf("%w: a generation began meanwhile", store.ErrUseless)
	}
	return nil
}
