package coordinator

import (
	"math"
	"strings"
	"testing"

	nodecheck "holdfast.dev/holdfast/elastic/check"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestTrialsAreBounded: texts of answers are printable and short, their memory counts, and answers that no agent sends are refused.
func TestTrialsAreBounded(t *testing.T) {
	long := strings.Repeat("\x1b[2J", protocol.MaxTrialText)
	r := protocol.Report{Protocol: protocol.Version, Trials: []protocol.TrialAnswer{{Outcome: protocol.TrialFailed, Text: long, Model: long}}}
	if err := check(&r, "pod", nil); err != nil {
		t.Fatal(err)
	}
	with := sizeOf(&r)
	clean(&r)
	for _, text := range []string{r.Trials[0].Text, r.Trials[0].Model} {
		if len(text) > protocol.MaxTrialText || strings.Contains(text, "\x1b") || text == "" {
			t.Errorf("%d bytes: %q", len(text), text)
		}
	}
	short := sizeOf(&r)
	if r.Trials = nil; with <= short || short < sizeOf(&r)+2*protocol.MaxTrialText-20 {
		t.Errorf("%d bytes before, %d cleaned, %d without", with, short, sizeOf(&r))
	}
	for name, bad := range map[string]protocol.TrialAnswer{
		"a negative generation": {TrialID: protocol.TrialID{Check: -1}},
		"an unknown round":      {TrialID: protocol.TrialID{Round: int(nodecheck.Rounds)}},
		"a late attempt":        {TrialID: protocol.TrialID{Attempt: nodecheck.LastAttempt + 1}},
		"a long partner":        {TrialID: protocol.TrialID{Partner: strings.Repeat("x", maxUID+1)}},
		"a long outcome":        {Outcome: protocol.TrialOutcome(strings.Repeat("x", maxUID+1))},
		"no speed":              {Speed: math.NaN()},
	} {
		r := protocol.Report{Protocol: protocol.Version, Trials: []protocol.TrialAnswer{bad}}
		if check(&r, "pod", nil) == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}
