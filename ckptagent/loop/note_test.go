//go:build linux

package loop

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

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
