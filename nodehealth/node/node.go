// Package node writes a daemon's verdict to its own Node object: an annotation with the whole verdict, a taint that
// keeps pods away, and a condition for users. Writer retries until the newest verdict is written, and writes it again
// if another client removed it. Taints, annotations and conditions of other writers are never changed. Writer passes
// annotations that users or operators set on the Node to the daemon.
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/retry"
	"holdfast.dev/holdfast/nodehealth"
)

const (
	// FieldManager is the daemon's field manager at the API server.
	FieldManager = "holdfast-node"
	// lookEvery is the approximate interval at which the Node is read to check that the verdict is still there.
	lookEvery    = time.Minute
	requestLimit = 10 * time.Second
)

// Options of New. All fields but Expected, Released and Answered must be set.
type Options struct {
	// Client sends requests to the API server at Server, such as https://10.0.0.1:443, with its credentials.
	Client *http.Client
	Server string
	// Node is the name of the one Node that is written.
	Node string
	Log  *slog.Logger
	// Expected is called with the number of GPUs that the Node should have, by its labels or finally by a user's annotation, whenever that
	// changes; 0: unknown. Released is called with the annotation or label that makes the daemon release the GPUs, whenever that changes;
	// empty: they are not released. Answered is called after every answer of the API server.
	Expected func(gpus int, by string, final bool)
	Released func(by string)
	Answered func()
}

// Writer writes one Node.
type Writer struct {
	Options
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu: the verdict to write, and whether one was published yet.
	newest    nodehealth.Verdict
	published bool

	said sync.Mutex
	// Guarded by said: the Node's last content, and its version.
	gpus     expectation
	wrong    string
	released string
	version  string
}

// New returns a Writer; the caller must call Run.
func New(o Options) *Writer { return &Writer{Options: o, wake: make(chan struct{}, 1)} }

// Load returns what an earlier process wrote; the zero Verdict if none did. It retries until the API server answers or ctx ends: starting
// without the earlier verdict would lose it.
func (w *Writer) Load(ctx context.Context) (nodehealth.Verdict, error) {
	var n *object
	err := retry.Do(ctx, w.pauses("reading the Node"), func(ctx context.Context) (err error) {
		n, err = w.get(ctx, newest)
		return err
	})
	if err != nil {
		return nodehealth.Verdict{}, err
	}
	text, ok := n.Metadata.Annotations[v1alpha1.AnnotationHealth]
	if !ok {
		return nodehealth.Verdict{}, nil
	}
	v, err := Verdict(text)
	if err != nil {
		w.Log.Warn("the Node's annotation cannot be decoded; starting without history", "error", err)
	}
	return v, nil
}

// pauses returns the pauses between attempts, without end; it logs each error except conflicts.
func (w *Writer) pauses(doing string) func(error) (time.Duration, bool) {
	away, conflict := retry.WhileAway(), retry.AfterConflict()
	return func(err error) (time.Duration, bool) {
		if errors.Is(err, errConflict) {
			return conflict.Step(), true
		}
		pause := away.Step()
		w.Log.Warn(doing, "error", err, "again in", pause)
		return pause, true
	}
}

// Publish sets the verdict to write on the Node. It never blocks.
func (w *Writer) Publish(v nodehealth.Verdict) {
	w.mu.Lock()
	w.newest, w.published = v, true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	look := time.NewTimer(wait.Jitter(lookEvery, 0.2))
	defer look.Stop()
	var known *object // as last read; nil: must be read
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-look.C:
			known = nil
			look.Reset(wait.Jitter(lookEvery, 0.2))
		}
		known = w.settle(ctx, known)
	}
}

// settle retries until the Node has the newest verdict, or ctx ends, and returns the Node.
func (w *Writer) settle(ctx context.Context, known *object) *object {
	read := cached
	err := retry.Do(ctx, w.pauses("writing the verdict"), func(ctx context.Context) error {
		v, ok := w.level()
		if !ok {
			return nil
		}
		n, err := w.reconcile(ctx, known, v, read)
		if known = n; err != nil {
			known = nil
		}
		if errors.Is(err, errConflict) { // the known or cached version is outdated
			read = newest
		}
		return err
	})
	if err != nil {
		return nil
	}
	return known
}

func (w *Writer) level() (nodehealth.Verdict, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest, w.published
}

// reconcile writes v on the Node and returns the Node.
func (w *Writer) reconcile(ctx context.Context, n *object, v nodehealth.Verdict, read string) (*object, error) {
	var err error
	if n == nil {
		if n, err = w.get(ctx, read); err != nil {
			return nil, err
		}
	}
	patch, err := metadataPatch(n, v)
	if err != nil {
		return nil, err
	}
	if patch != nil {
		if n, err = w.send(ctx, http.MethodPatch, "", "application/merge-patch+json", patch); err != nil {
			return nil, err
		}
	}
	if patch, err = conditionPatch(n, v, time.Now()); err != nil || patch == nil {
		return n, err
	}
	return w.send(ctx, http.MethodPatch, "/status", "application/strategic-merge-patch+json", patch)
}

// How the Node is read. Reading from the API server's cache costs its store nothing and may be outdated: a write based on it names the
// version, and fails if the Node has changed.
const (
	newest = ""
	cached = "?resourceVersion=0"
)

func (w *Writer) get(ctx context.Context, read string) (*object, error) {
	return w.send(ctx, http.MethodGet, read, "", nil)
}

var errConflict = errors.New("another client wrote the Node at the same time")

func (w *Writer) send(ctx context.Context, method, rest, kind string, body []byte) (*object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	address := w.Server + "/api/v1/nodes/" + url.PathEscape(w.Node) + rest
	if method == http.MethodPatch {
		address += "?fieldManager=" + FieldManager
	}
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := w.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if w.Answered != nil && resp.StatusCode < http.StatusInternalServerError {
		w.Answered()
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", method, address, err)
	}
	switch {
	case resp.StatusCode == http.StatusConflict:
		return nil, errConflict
	case resp.StatusCode >= 300:
		return nil, fmt.Errorf("%s %s: %s: %.500s", method, address, resp.Status, text)
	}
	n := &object{}
	if err := json.Unmarshal(text, n); err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", method, address, err)
	}
	w.take(n)
	return n, nil
}
