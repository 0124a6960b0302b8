//go:build linux

package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"time"
)

// reachTimeout bounds the lookup of a name.
const reachTimeout = 10 * time.Second

// reached is what a pod finds out about a name, as `kubectl holdfast doctor` reads it.
type reached struct {
	Resolved    []string `json:"resolved,omitempty"`
	NotResolved string   `json:"notResolved,omitempty"`
}

// reach runs in pods of `kubectl holdfast doctor --try`, and prints the addresses of a name, or why it has none.
func reach(name string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), reachTimeout)
	defer cancel()
	var r reached
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if r.Resolved = addresses; err != nil {
		r.NotResolved = err.Error()
	}
	return json.NewEncoder(out).Encode(r)
}
