package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"holdfast.dev/holdfast/nodehealth/budget"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
)

// Values of --nodes.
const (
	nodesAct    = "act"
	nodesDryRun = "dry-run"
	nodesOff    = "off"
)

// nodeQPS and nodeBurst are for writes on Nodes alone: when a rack fails, other writes must not delay these.
const (
	nodeQPS   = 1000
	nodeBurst = 2000
)

type nodeOptions struct {
	mode                                          string
	maxOut, maxOutPerDomain, breaker              string
	maxSuspected, maxSuspectedPerNamespace        string
	domainLabels                                  []string
	leaseTimeout, agentTimeout, leaseAloneTimeout time.Duration
}

func nodeDefaults() nodeOptions {
	d := budget.Defaults()
	return nodeOptions{
		mode: nodesAct, maxOut: d.MaxOut.String(), maxOutPerDomain: d.MaxOutPerDomain.String(), breaker: fmt.Sprintf("%d%%", d.BreakerPercent),
		maxSuspected: d.MaxSuspected.String(), maxSuspectedPerNamespace: d.MaxSuspectedPerNamespace.String(),
		domainLabels: []string{"topology.kubernetes.io/rack", "topology.kubernetes.io/zone"},
		leaseTimeout: d.LeaseTimeout, agentTimeout: d.AgentTimeout, leaseAloneTimeout: d.LeaseAloneTimeout,
	}
}

func (o *nodeOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.mode, "nodes", o.mode, "what to do about sick and dead nodes: act, dry-run (decide and report, change nothing) or off")
	f.StringVar(&o.maxOut, "nodes-max-out", o.maxOut, "how many nodes may be given up at a time: a number, or a share (never less than one node)")
	f.StringVar(&o.maxOutPerDomain, "nodes-max-out-per-domain", o.maxOutPerDomain, "the same for each failure domain")
	f.StringVar(&o.maxSuspected, "nodes-max-suspected", o.maxSuspected, "how many nodes may be excluded at a time because gangs suspect them: a number, or a share (never less than one node); 0: none")
	f.StringVar(&o.maxSuspectedPerNamespace, "nodes-max-suspected-per-namespace", o.maxSuspectedPerNamespace, "the same for the gangs of each namespace")
	f.StringSliceVar(&o.domainLabels, "nodes-domain-labels", o.domainLabels, "labels with a node's failure domain; the first that a node has is used")
	f.StringVar(&o.breaker, "nodes-breaker", o.breaker, "share of nodes (of five or more) that, when sick at once, holds all new decisions until an operator intervenes; 100%: only if all are")
	f.DurationVar(&o.leaseTimeout, "nodes-lease-silent", o.leaseTimeout, "a node whose lease and whose agents are silent for this long and for --nodes-agent-silent is dead; scaled up for kubelets with longer leases")
	f.DurationVar(&o.agentTimeout, "nodes-agent-silent", o.agentTimeout, "see --nodes-lease-silent")
	f.DurationVar(&o.leaseAloneTimeout, "nodes-lease-alone", o.leaseAloneTimeout, "a node whose agents never reported is dead once its lease has not been renewed for this long")
}

// config validates the flags; an error names the flag.
func (o *nodeOptions) config() (budget.Config, error) {
	c := budget.Defaults()
	if o.mode != nodesAct && o.mode != nodesDryRun && o.mode != nodesOff {
		return c, fmt.Errorf("--nodes=%s: give %s, %s or %s", o.mode, nodesAct, nodesDryRun, nodesOff)
	}
	for _, limit := range []struct {
		flag, text string
		into       *budget.Limit
	}{
		{"--nodes-max-out", o.maxOut, &c.MaxOut}, {"--nodes-max-out-per-domain", o.maxOutPerDomain, &c.MaxOutPerDomain},
		{"--nodes-max-suspected", o.maxSuspected, &c.MaxSuspected},
		{"--nodes-max-suspected-per-namespace", o.maxSuspectedPerNamespace, &c.MaxSuspectedPerNamespace},
	} {
		var err error
		if *limit.into, err = budget.ParseLimit(limit.text); err != nil {
			return c, fmt.Errorf("%s=%w", limit.flag, err)
		}
	}
	share, err := budget.ParseLimit(o.breaker)
	if err != nil || share.Percent == 0 {
		return c, fmt.Errorf("--nodes-breaker=%q: give a share from 1%% to 100%%", o.breaker)
	}
	c.BreakerPercent = share.Percent
	for _, key := range o.domainLabels {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return c, fmt.Errorf("--nodes-domain-labels: %q is no label key: %s", key, strings.Join(wrong, "; "))
		}
	}
	c.LeaseTimeout, c.AgentTimeout, c.LeaseAloneTimeout = o.leaseTimeout, o.agentTimeout, o.leaseAloneTimeout
	c.LeaseLate = max(c.LeaseLate, c.LeaseTimeout)
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("--nodes-lease-silent, --nodes-agent-silent, --nodes-lease-alone: %w", err)
	}
	return c, nil
}

// addNodes adds the node controller, with its own client.
func addNodes(mgr manager.Manager, contacts nodecontroller.ContactSource, o nodeOptions) (*nodecontroller.Controller, error) {
	if o.mode == nodesOff {
		return nil, nil
	}
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.QPS, cfg.Burst = nodeQPS, nodeBurst
	writer, err := client.New(cfg, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("making the client that writes on Nodes: %w", err)
	}
	nodes, err := nodecontroller.New(nodecontroller.Options{
		Informers: mgr.GetCache(), Reader: mgr.GetCache(), Writer: writer, Recorder: mgr.GetEventRecorder("holdfast-nodes"),
		Contacts: contacts, Now: time.Now, Log: mgr.GetLogger().WithName("nodes"), Metrics: metrics.Registry,
		Budget: config, DomainLabels: o.domainLabels, DryRun: o.mode == nodesDryRun,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the node controller: %w", err)
	}
	if err := nodes.SetupWithManager(mgr); err != nil {
		return nil, fmt.Errorf("adding the node controller: %w", err)
	}
	return nodes, nil
}
