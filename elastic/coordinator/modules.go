package coordinator

import (
	"fmt"
	"regexp"
)

// maxModules bounds the length of a gang's list of modules; the size of a report bounds its bytes.
const maxModules = 8192

var moduleName = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// moduleList is what ranks of a gang import. With it a later pod warms standbys before it has run any rank. It is not stored: a restarted
// coordinator asks agents for it again.
type moduleList struct{ names []string }

// recordModules records how many modules an agent knows. If these are more than the gang's, it asks for their names, one agent at a time.
// recordModules reports whether directives of other agents change. The caller holds g.mu.
func (g *gang) recordModules(st *stream, knows int, names []string) (news bool) {
	st.knows = knows
	if g.sender == st && len(names) > 0 {
		g.sender, st.sent = nil, knows
		if err := checkModules(names); err != nil {
			if g.refusedLists++; g.refusedLists&(g.refusedLists-1) == 0 { // a pod may send them for ever, on one stream or on many
				g.server.Log.Info("the list of modules is ignored", "gang", g.key, "pod", st.peer.Pod.Name, "because", err.Error(), "refused", g.refusedLists)
			}
		} else if g.modules == nil || len(names) > len(g.modules.names) {
			g.modules, news = &moduleList{names: names}, true
		}
	}
	known := 0
	if g.modules != nil {
		known = len(g.modules.names)
	}
	if g.sender == nil && knows > max(known, st.sent) {
		g.sender = st
	}
	return news
}

// checkModules refuses names that no correct agent sends: other agents of the gang import them.
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
