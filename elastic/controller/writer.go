package controller

import (
	"crypto/rand"
	"fmt"
	"maps"
	"strings"
	"sync"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic/coordinator"
)

// writer tells this process's records from those of any other, so that a process that has lost its lead
// without knowing writes over nothing: each record names who wrote it and counts. What stands in a Gang may be
// written over by who wrote it, and by who has read exactly that.
type writer struct {
	id string

	mu     sync.Mutex
	writes int64                      // guarded by mu
	read   map[coordinator.Key]string // guarded by mu: what Load found, until this process has written itself
}

func newWriter() *writer {
	return &writer{id: rand.Text(), read: map[coordinator.Key]string{}}
}

// next is the mark of a new write.
func (w *writer) next() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	return fmt.Sprintf("%s/%d", w.id, w.writes)
}

// loaded records what this process starts from.
func (w *writer) loaded(key coordinator.Key, run *v1alpha1.RunStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.read, key)
	if run != nil && run.Writer != "" {
		w.read[key] = run.Writer
	}
}

// wrote forgets what was loaded: it was written over.
func (w *writer) wrote(key coordinator.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.read, key)
}

// may reports whether this process may write over a record.
func (w *writer) may(key coordinator.Key, run *v1alpha1.RunStatus) bool {
	if run == nil || run.Writer == "" || strings.HasPrefix(run.Writer, w.id+"/") {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read[key] == run.Writer
}

// forget drops what was loaded of gangs that are gone.
func (w *writer) forget(gone func(coordinator.Key) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.read, func(k coordinator.Key, _ string) bool { return gone(k) })
}
