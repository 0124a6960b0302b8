package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestLogger: a line has the keys that docs/operations.md lists.
func TestLogger(t *testing.T) {
	var b bytes.Buffer
	logger(&b, logJSON).Error("reading the kernel log", "error", errors.New("no right"))
	line := map[string]string{}
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, &b)
	}
	if _, err := time.Parse(time.RFC3339, line["ts"]); err != nil || line["level"] != "error" || line["msg"] != "reading the kernel log" || line["error"] != "no right" {
		t.Errorf("%s", &b)
	}
	b.Reset()
	logger(&b, logText).Info("started", "node", "n1")
	if text := b.String(); !strings.HasPrefix(text, "ts=") || !strings.Contains(text, "level=info msg=started node=n1") {
		t.Error(text)
	}
}
