package wire

import (
	"fmt"
	"os/exec"
	"strings"
)

// CutRules is the router's rule set: it drops traffic from and to the links in the set "cut". It exists in the router's namespace only.
const CutRules = `
table inet holdfast-dev {
	set cut { type ifname; }
	chain from { type filter hook prerouting priority raw; iifname @cut drop; }
	chain through { type filter hook forward priority filter; oifname @cut drop; }
	chain out { type filter hook output priority filter; oifname @cut drop; }
}
`

// LoadRules loads CutRules into the calling process's network namespace.
func LoadRules() error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(CutRules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("loading the router's rules: %w: %s", err, out)
	}
	return nil
}

// CutArgs is the nft command that disconnects a link, or connects it again.
func CutArgs(link string, cut bool) []string {
	verb := "delete"
	if cut {
		verb = "add"
	}
	return []string{"nft", verb, "element", "inet", "holdfast-dev", "cut", "{", fmt.Sprintf("%q", link), "}"}
}
