//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

func TestReach(t *testing.T) {
	for name, resolves := range map[string]bool{"127.0.0.1": true, "no such name": false} {
		var out bytes.Buffer
		var r reached
		if err := reach(name, &out); err != nil || json.Unmarshal(out.Bytes(), &r) != nil {
			t.Fatalf("%v: %s", err, &out)
		}
		if got := slices.Contains(r.Resolved, name); got != resolves || (r.NotResolved == "") != resolves {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
