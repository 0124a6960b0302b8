package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/elastic"
)

// TestAnnounceMany: several notices of one reason are one event; however long, it has the first one's first line and the newest one.
func TestAnnounceMany(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 6)
	b := newBench(t, g, job)
	many := strings.Repeat("\nslot 7: "+strings.Repeat("x", 90), 30)
	b.Announce(t.Context(), key, elastic.Notice{Reason: elastic.NoticeRecovered, Message: "generation 2 runs" + many + "\ngeneration 9 runs"})
	e := b.event(t)
	if !strings.HasPrefix(e, "Normal Recovered generation 2 runs\n…\nslot 7: ") || !strings.HasSuffix(e, "\ngeneration 9 runs") || len(e) > noteLimit+30 {
		t.Errorf("%d bytes: %q", len(e), e)
	}
}
