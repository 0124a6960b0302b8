//go:build linux

package proc

import (
	"io/fs"
	"testing"
)

// TestWhatMayBeInUse: a file stays if a process whose open files are unknown may have it open.
func TestWhatMayBeInUse(t *testing.T) {
	const owner = 1000
	for name, c := range map[string]struct {
		use  SharedUse
		mode fs.FileMode
		want bool
	}{
		"all were seen":             {SharedUse{}, 0o666, false},
		"the owner's":               {SharedUse{Unseen: map[int]uint32{7: owner}}, 0o600, true},
		"root's":                    {SharedUse{Unseen: map[int]uint32{7: 0}}, 0o600, true},
		"another user's":            {SharedUse{Unseen: map[int]uint32{7: 2000}}, 0o600, false},
		"another's, which may read": {SharedUse{Unseen: map[int]uint32{7: 2000}}, 0o604, true},
		"another's, by its group":   {SharedUse{Unseen: map[int]uint32{7: 2000}}, 0o660, true},
		"seen by the owner": {SharedUse{Unseen: map[int]uint32{7: owner, 8: 2000}}.and(
			SharedUse{Unseen: map[int]uint32{1: 0, 8: 2000}}), 0o600, false},
		"seen by neither": {SharedUse{Unseen: map[int]uint32{7: owner, 8: owner}}.and(
			SharedUse{Unseen: map[int]uint32{1: 0, 8: owner}}), 0o600, true},
	} {
		if got := c.use.mayBeOf(owner, c.mode); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
