//go:build linux

package loop

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/ckptagent/store/child"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestWhatIsSaidOfStorage: of several faults of storage the note has the most certain one. Without a fault there is no note.
func TestWhatIsSaidOfStorage(t *testing.T) {
	now := time.Now()
	full := why(fmt.Errorf("copying step 3: %w", syscall.ENOSPC))
	for _, tt := range []struct {
		name    string
		change  func(*uploader)
		want    string
		unknown bool
	}{
		{"well", func(k *uploader) {}, "", false},
		{"nothing is known yet", func(k *uploader) { k.lastAnswer, k.probing = false, now.Add(-probeEvery) }, "", true},
		{"no answer", func(k *uploader) { k.lastAnswer, k.probing = false, now.Add(-probeEvery-1) }, "storage does not answer", true},
		{"no answer for long", func(k *uploader) { k.lastAnswer, k.probing = false, now.Add(-answerTimeout-1) }, "storage does not answer", false},
		{"cannot be written", func(k *uploader) { k.unwritable = why(errors.New("read-only")) }, "storage cannot be used: read-only", false},
		{"full", func(k *uploader) { k.unwritable, k.failing = "storage cannot be used: read-only", full }, "storage is full; give the claim more room", false},
		{"a copy takes its time", func(k *uploader) { k.since = now.Add(-slowAfter) }, "", false},
		{"slow", func(k *uploader) { k.since = now.Add(-slowAfter - 1) }, "storage is slow: copying step 7 takes longer than 1 min", false},
	} {
		k := &uploader{fs: child.New(nil), lastAnswer: true, ok: true, copying: protocol.Mark{Step: 7, Generation: 1}}
		tt.change(k)
		known, _, note := k.status(now)
		if known == tt.unknown || !strings.HasPrefix(note, tt.want) || tt.want == "" && note != "" {
			t.Errorf("%s: known %v, %q; want %q", tt.name, known, note, tt.want)
		}
	}
}

// TestRangeNote: a launcher's range of pods has no effect in a gang that needs all, and the note names the annotation.
func TestRangeNote(t *testing.T) {
	for name, c := range map[string]struct {
		spec launch.Spec
		run  protocol.Run
		says bool
	}{
		"all are needed":       {launch.Spec{Nodes: 4, MinNodes: 2, NodesFlag: "--nnodes=2:4"}, protocol.Run{Number: 1, Nodes: 4}, true},
		"fewer are enough":     {launch.Spec{Nodes: 4, MinNodes: 2, NodesFlag: "--nnodes=2:4"}, protocol.Run{Number: 1, Nodes: 4, Slots: 4}, false},
		"not known yet":        {launch.Spec{Nodes: 4, MinNodes: 2, NodesFlag: "--nnodes=2:4"}, protocol.Run{}, false},
		"it requests no range": {launch.Spec{Nodes: 4, NodesFlag: "--nnodes=4"}, protocol.Run{Number: 1, Nodes: 4}, false},
	} {
		note := rangeNote(&c.spec, &c.run)
		if says := strings.HasPrefix(note, "--nnodes=2:4: training needs all 4 pods, unless annotation holdfast.dev/min-pods"); says != c.says || !says && note != "" {
			t.Errorf("%s: %q", name, note)
		}
	}
}
