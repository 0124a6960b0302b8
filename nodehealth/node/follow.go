package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// followFor is the approximate duration of one watch of the Node.
	followFor = 5 * time.Minute
	// followAgain is the least pause between two watches.
	followAgain = time.Second
	// metadataOnly requests only the Node's metadata, which users and operators write.
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)

// Follow handles each change of the Node as it happens, until ctx ends. Without it changes are seen when the Node is read.
func (w *Writer) Follow(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		if err := w.follow(ctx); err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			w.Log.Warn("watching the Node", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(followAgain, 4)):
		}
	}
}

// follow runs one watch, which the API server ends after a while.
func (w *Writer) follow(ctx context.Context) error {
	query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + w.Node}, "resourceVersion": {"0"},
		"timeoutSeconds": {fmt.Sprint(int(wait.Jitter(followFor, 0.5).Seconds()))}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Server+"/api/v1/nodes?"+query.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", metadataOnly)
	resp, err := w.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("watching Node %s: %s", w.Node, resp.Status)
	}
	for events := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return nil // a normal end; the next watch follows
		}
		n := &object{}
		switch event.Type {
		case "ADDED", "MODIFIED":
			if err := json.Unmarshal(event.Object, n); err != nil {
				return fmt.Errorf("watching Node %s: %w", w.Node, err)
			}
			w.take(n)
		case "ERROR":
			return errors.New("watching Node " + w.Node + ": the API server ended it")
		}
	}
}

// take handles a version of the Node, unless a newer one was handled: they come from a watch, from reads, and from a cache.
func (w *Writer) take(n *object) {
	w.said.Lock()
	defer w.said.Unlock()
	if order, err := resourceversion.CompareResourceVersion(n.Metadata.ResourceVersion, w.version); err == nil && order < 0 {
		return
	}
	w.version = n.Metadata.ResourceVersion
	w.count(n)
	if by := releasedBy(n); w.Released != nil && by != w.released {
		w.released = by
		w.Log.Info("the Node's settings for its GPUs", "released", by)
		w.Released(by)
	}
}
