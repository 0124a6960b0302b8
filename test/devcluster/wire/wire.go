// Package wire creates the network links of a dev cluster: one between the machine and the router's network namespace,
// and one between the router and each real node. All traffic between two nodes, and between a node and the control
// plane, passes the router. A test can cut off one node at the router.
package wire

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// Host connects the machine with the router, whose process 1 is pid.
func Host(s *layout.Spec, pid int) error {
	name := s.HostLink()
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsPid(pid),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("making link %s: %w", name, err)
	}
	here, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer here.Close()
	if err := configure(here, name, s.HostIP()+"/24"); err != nil {
		return err
	}
	there, err := handleOf(pid)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := configure(there, "lo", ""); err != nil {
		return err
	}
	if err := configure(there, "eth0", s.ControlIP()+"/24"); err != nil {
		return err
	}
	// A packet needs a route before kube-proxy's rules give it its real destination.
	if err := route(there, "eth0", s.ServiceCIDR(), s.HostIP(), s.ControlIP()); err != nil {
		return err
	}
	return route(here, name, s.Supernet(), s.ControlIP(), s.HostIP())
}

// Node connects the router, in whose namespace the caller runs, with real node i, whose process 1 is pid.
func Node(s *layout.Spec, i, pid int) error {
	here, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer here.Close()
	name := s.NodeLink(i)
	if old, err := here.LinkByName(name); err == nil {
		if err := here.LinkDel(old); err != nil {
			return fmt.Errorf("removing the node's former link %s: %w", name, err)
		}
	}
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsPid(pid),
	}
	if err := here.LinkAdd(veth); err != nil {
		return fmt.Errorf("making link %s: %w", name, err)
	}
	there, err := handleOf(pid)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := configure(there, "lo", ""); err != nil {
		return err
	}
	if err := configure(there, "eth0", s.NodeIP(i)+"/32"); err != nil {
		return err
	}
	if err := route(there, "eth0", layout.RouterGateway+"/32", "", s.NodeIP(i)); err != nil {
		return err
	}
	if err := route(there, "eth0", "0.0.0.0/0", layout.RouterGateway, s.NodeIP(i)); err != nil {
		return err
	}
	if err := configure(here, name, layout.RouterGateway+"/32"); err != nil {
		return err
	}
	if err := route(here, name, s.NodeIP(i)+"/32", "", s.ControlIP()); err != nil {
		return err
	}
	return route(here, name, s.NodePodCIDR(i), s.NodeIP(i), s.ControlIP())
}

// Forward enables packet forwarding in the calling process's network namespace. The settings end with the namespace.
func Forward() error {
	for _, f := range []string{"ip_forward", "conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+f, []byte("1"), 0); err != nil {
			return fmt.Errorf("switching %s on: %w", f, err)
		}
	}
	// A pod's response may use another link than the request.
	return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0)
}

func handleOf(pid int) (*netlink.Handle, error) {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace of process %d: %w", pid, err)
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}

func configure(h *netlink.Handle, name, addr string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	if addr != "" {
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("giving %s the address %s: %w", name, addr, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("switching %s on: %w", name, err)
	}
	return nil
}

func route(h *netlink.Handle, name, dst, via, src string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	_, n, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: n, Src: net.ParseIP(src)}
	if via == "" {
		r.Scope = netlink.SCOPE_LINK
	} else {
		r.Gw = net.ParseIP(via)
		r.Flags = int(netlink.FLAG_ONLINK)
	}
	if err := h.RouteReplace(r); err != nil {
		return fmt.Errorf("routing %s by %s: %w", dst, name, err)
	}
	return nil
}
