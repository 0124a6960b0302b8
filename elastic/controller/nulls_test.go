package controller

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/elastic"
)

// If an agent is gone its Progress is empty. The record must not contain null for it.
func TestARecordHasNoNulls(t *testing.T) {
	status := runStatus(elastic.Record{Phase: elastic.GivenUp, Recoveries: []elastic.Recovery{{Replaced: []elastic.Replacement{{}}}}})
	run, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		t.Fatal(err)
	}
	encoded := func() string {
		raw, err := json.Marshal(run)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if !strings.Contains(encoded(), "null") {
		t.Error("the converter makes no nulls any more: dropNulls can go")
	}
	if dropNulls(run); strings.Contains(encoded(), "null") {
		t.Errorf("nulls are left: %s", encoded())
	}
}
