package scheduling

import "testing"

// TestOlderServer: an API server that serves no more than that of Kubernetes 1.34 did, newer API groups, fields and feature
// gates switched off. It is not a server of that version: what it serves is of this one's code.
func TestOlderServer(t *testing.T) {
	s := newStage(t, 4, "--arg=kube-apiserver=--emulated-version=1.34")
	if version, err := s.client.Discovery().ServerVersion(); err != nil || version.Major != "1" || version.Minor != "34" {
		t.Fatalf("the server says that it is %v: %v", version, err)
	}
	s.asServiceAccount()
	s.start()
	names := s.gang("old", 4, nil)
	s.until("a gang to be placed", s.bound(names...))
	more := s.gang("more", 2, nil)
	s.until("another to be refused", s.saying(more[0], "2 pods wanted, 0 fit: 4 nodes, 4 without free nvidia.com/gpu (8 asked)"))
	s.clear()
}
