package coordinator

import (
	"fmt"
	"regexp"
)

// maxModules bounds a list of modules, which is kept for each gang; its bytes are those of a report at most.
const maxModules = 8192

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// moduleList is what ranks of a gang import. A pod that comes later warms its ranks by it before it has run any. It is lost with
// this process, and asked for again.
type moduleList struct{ names []string }

// recordModules records which modules an agent knows. It asks one agent at a time for their names, if that agent knows more
// than is known here. It reports whether directives change. g.mu is held.
func (g *gang) recordModules(st *stream, knows int, names []string) (news bool) {
	news = st.knows == 0 && knows > 0 && g.modules != nil
	st.knows = knows
	if g.sender == st && len(names) > 0 {
		g.sender, st.sent, news = nil, knows, true
		if err := checkModules(names); err != nil {
			if g.refusedLists++; g.refusedLists&(g.refusedLists-1) == 0 { // a pod may send them for ever, on one stream or on many
				g.server.Log.Info("the list of modules is ignored", "gang", g.key, "pod", st.peer.Pod.Name, "because", err.Error(), "refused", g.refusedLists)
			}
		} else if g.modules == nil || len(names) > len(g.modules.names) {
			g.modules = &moduleList{names: names}
		}
	}
	known := 0
	if g.modules != nil {
		known = len(g.modules.names)
	}
	if g.sender == nil && knows > max(known, st.sent) {
		g.sender, news = st, true
	}
	return news
}

// checkModules refuses what no agent of ours would send: other agents of the gang import these names.
func checkModules(names []string) error {
	if len(names) > maxModules {
		return fmt.Errorf("modules: %d names, %d at most", len(names), maxModules)
	}
	for _, name := range names {
		if !moduleName.MatchString(name) {
			return fmt.Errorf("modules: %.100q is not a module name: only letters, digits, _ and . are allowed", name)
		}
	}
	return nil
}
