package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestLogger: a line has the keys that docs/operations.md lists, or is text; what client-go logs is such a line, too.
func TestLogger(t *testing.T) {
	for _, format := range []string{logJSON, logText} {
		var b bytes.Buffer
		log, err := logger(&b, format)
		if err != nil {
			t.Fatal(err)
		}
		useLogger(log)
		klog.Info("lease acquired")
		klog.ClearLogger()
		line := map[string]any{}
		err = json.Unmarshal(b.Bytes(), &line)
		if isJSON := err == nil && line["level"] == "info" && line["msg"] == "lease acquired" && line["ts"] != nil; isJSON != (format == logJSON) {
			t.Errorf("%s: %v: %s", format, err, &b)
		}
		if !strings.Contains(b.String(), "lease acquired") {
			t.Errorf("%s: %s", format, &b)
		}
	}
	if _, err := logger(&bytes.Buffer{}, "xml"); err == nil || !strings.Contains(err.Error(), "--logging-format") {
		t.Error(err)
	}
}
