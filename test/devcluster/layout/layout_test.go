package layout

import (
	"net"
	"testing"
)

func nets(t *testing.T, cidrs ...string) []*net.IPNet {
	t.Helper()
	var out []*net.IPNet
	for _, c := range cidrs {
		_, n, err := net.ParseCIDR(c)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func TestFreeOctet(t *testing.T) {
	for _, tc := range []struct {
		name  string
		taken []string
		start int
		want  int
	}{
		{"nothing taken", nil, 0, 64},
		{"the start spreads", nil, 3, 67},
		{"a smaller net inside", []string{"10.64.3.0/24"}, 0, 65},
		{"a larger net around", []string{"10.64.0.0/12"}, 0, 80},
		{"the default route counts for nothing", []string{"0.0.0.0/0", "::/0", "192.168.0.0/16"}, 0, 64},
		{"around the end", []string{"10.250.0.0/16"}, 186, 64},
	} {
		got, err := FreeOctet(nets(t, tc.taken...), tc.start)
		if err != nil || got != tc.want {
			t.Errorf("%s: got %d, %v, want %d", tc.name, got, err, tc.want)
		}
	}
	if got, err := FreeOctet(nets(t, "10.0.0.0/8"), 0); err == nil {
		t.Errorf("all taken: got %d", got)
	}
}

// TestAddressPlan: no two ranges of one cluster may overlap.
func TestAddressPlan(t *testing.T) {
	s := &Spec{Name: "x", Octet: 77, Nodes: MaxNodes}
	ranges := nets(t, s.ServiceCIDR(), s.PodCIDR(), s.HostIP()+"/24", s.NodeIP(0)+"/24")
	for i, a := range ranges {
		if !nets(t, s.Supernet())[0].Contains(a.IP) {
			t.Errorf("%s lies outside the cluster's range", a)
		}
		for _, b := range ranges[i+1:] {
			if a.Contains(b.IP) || b.Contains(a.IP) {
				t.Errorf("%s and %s overlap", a, b)
			}
		}
	}
	for i := range MaxNodes {
		if !ranges[1].Contains(nets(t, s.NodePodCIDR(i))[0].IP) {
			t.Errorf("pods of node %d lie outside %s", i, ranges[1])
		}
	}
}

func TestValidate(t *testing.T) {
	good := Spec{Name: "a-1", Nodes: 3}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Spec{
		"upper case":  {Name: "Dev", Nodes: 1},
		"dots":        {Name: "../x", Nodes: 1},
		"long":        {Name: "abcdefghijkl", Nodes: 1},
		"no node":     {Name: "a"},
		"many nodes":  {Name: "a", Nodes: MaxNodes + 1},
		"minus nodes": {Name: "a", Nodes: -1, Sim: Sim{Nodes: 5}},
	} {
		if err := s.Validate(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
