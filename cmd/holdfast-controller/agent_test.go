package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestAgentOptions(t *testing.T) {
	for name, c := range map[string]struct {
		flags       []string
		want        string // part of the error; empty: none
		team, other []string
	}{
		"defaults":            {nil, "", nil, nil},
		"a secret":            {[]string{"--agent-pull-secrets=registry", "--agent-pull-policy=Always"}, "", []string{"registry"}, []string{"registry"}},
		"one of a namespace":  {[]string{"--agent-pull-secrets=team/own,registry"}, "", []string{"own", "registry"}, []string{"registry"}},
		"a policy of no kind": {[]string{"--agent-pull-policy=Sometimes"}, `"Sometimes" must be IfNotPresent, Always or Never`, nil, nil},
		"a secret of no name": {[]string{"--agent-pull-secrets=team/"}, `"team/" is not a secret`, nil, nil},
		"of no namespace":     {[]string{"--agent-pull-secrets=/registry"}, `"/registry" is not a secret`, nil, nil},
		"a path":              {[]string{"--agent-pull-secrets=a/b/c"}, `"a/b/c" is not a secret`, nil, nil},
		"what is no name":     {[]string{"--agent-pull-secrets=Registry"}, `"Registry" is not a secret`, nil, nil},
	} {
		o := agentDefaults()
		f := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.flags(f)
		if err := f.Parse(c.flags); err != nil {
			t.Fatal(err)
		}
		if err := o.check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if team, other := o.secretsFor("team"), o.secretsFor("other"); c.want == "" && (!slices.Equal(team, c.team) || !slices.Equal(other, c.other)) {
			t.Errorf("%s: %q in the namespace, %q elsewhere", name, team, other)
		}
	}
}
