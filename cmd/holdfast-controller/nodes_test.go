package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"holdfast.dev/holdfast/nodehealth/budget"
)

func TestNodeFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // part of the error; empty: accepted
	}{
		{nil, ""},
		{[]string{"--nodes=dry-run", "--nodes-max-out=3", "--nodes-max-out-per-domain=100%", "--nodes-breaker=100%", "--nodes-domain-labels=a/b,c"}, ""},
		{[]string{"--nodes=maybe"}, "--nodes=maybe"},
		{[]string{"--nodes-max-out=many"}, "--nodes-max-out"},
		{[]string{"--nodes-max-out-per-domain=0%"}, "--nodes-max-out-per-domain"},
		{[]string{"--nodes-breaker=3"}, "--nodes-breaker"},
		{[]string{"--nodes-domain-labels=a b"}, "--nodes-domain-labels"},
		{[]string{"--nodes-lease-silent=5s"}, "--nodes-lease-silent"},
		{[]string{"--nodes-agent-silent=1s"}, "--nodes-agent-silent"},
		{[]string{"--nodes-lease-alone=11s", "--nodes-lease-silent=12s"}, "--nodes-lease-alone"},
	} {
		o := nodeDefaults()
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.flags(f)
		if err := f.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		_, err := o.config()
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want an error with %q", c.args, err, c.want)
		}
	}
}

// TestNodeFlagsAct: every flag sets a field of the budget's configuration.
func TestNodeFlagsAct(t *testing.T) {
	o := nodeDefaults()
	if got, err := o.config(); err != nil || got != budget.Defaults() {
		t.Errorf("without flags: %+v, %v", got, err)
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.flags(f)
	if err := f.Parse([]string{"--nodes-max-out=7", "--nodes-max-out-per-domain=30%", "--nodes-breaker=60%", "--nodes-lease-silent=30s", "--nodes-agent-silent=9s", "--nodes-lease-alone=50s"}); err != nil {
		t.Fatal(err)
	}
	want := budget.Defaults()
	want.MaxOut, want.MaxOutPerDomain, want.BreakerPercent = budget.Limit{Count: 7}, budget.Limit{Percent: 30}, 60
	want.LeaseTimeout, want.AgentTimeout = 30*time.Second, 9*time.Second
	want.LeaseAloneTimeout, want.LeaseLate = 50*time.Second, 30*time.Second
	if got, err := o.config(); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
