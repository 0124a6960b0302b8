package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const tryRemedy = "run kubectl holdfast doctor --try: it creates two Jobs of one small pod each, and deletes them"

// webhook checks that the API server reaches Holdfast's admission: by a dry run, which creates nothing.
func webhook(f *Facts, j *judgement) {
	const firewall = "let the control plane connect to TCP port 9443 of nodes and pods, or run the controller on its node's network"
	switch w := f.Webhooks; {
	case w.Unread != "":
		j.unread("the webhooks' configuration", w.Unread)
	case w.Value == nil:
		j.fail("apply the manifests", "MutatingWebhookConfiguration %s is missing: annotated jobs are created without Holdfast", f.named(webhooksName))
	}
	switch {
	case f.Slices.Unread != "":
		j.unread("EndpointSlices in namespace "+f.own(), f.Slices.Unread)
	case ready(f.Slices.Value, f.named(webhookService)) == 0:
		j.fail("see check Components", "Service %s has no ready endpoint", f.named(webhookService))
	}
	switch d := f.DryRun; {
	case d.Admitted:
		j.pass("the API server reaches admission: a dry run of an annotated Job was admitted")
	case d.NotAllowed:
		j.add(Unknown, "name a namespace in which you may create Jobs, with -n", "you may not create Jobs in namespace %s, which a dry run needs", f.Namespace)
	case strings.Contains(d.Refused, "failed calling webhook"):
		j.fail(firewall, "the API server does not reach admission, so it refuses annotated jobs: %s", d.Refused)
	case d.Refused != "":
		j.add(Unknown, "remove the cause of the refusal, or name another namespace with -n", "a dry run of an annotated Job was refused: %s", d.Refused)
	case f.Webhooks.Value != nil || f.Webhooks.Unread != "":
		j.fail("compare MutatingWebhookConfiguration "+f.named(webhooksName)+" with the manifests; see whether namespace "+f.Namespace+" is excluded",
			"the API server admitted an annotated Job without Holdfast's admission")
	}
}

// renewal is how long before its end the controller renews the authority; with less left it has not.
const renewal = 30 * 24 * time.Hour

// certificate checks the authority that the API server trusts.
func certificate(f *Facts, j *judgement) {
	remedy := fmt.Sprintf("look at the controller's log for certificates: kubectl -n %s logs deploy/%s", f.own(), f.named(controllerName))
	if f.Webhooks.Unread != "" {
		j.unread("the webhooks' configuration", f.Webhooks.Unread)
		return
	}
	if f.Webhooks.Value == nil {
		j.skip("there is no webhooks' configuration")
		return
	}
	seen := map[string]bool{}
	for _, w := range f.Webhooks.Value.Webhooks {
		bundle := string(w.ClientConfig.CABundle)
		if seen[bundle] {
			continue
		}
		seen[bundle] = true
		if bundle == "" {
			j.fail(remedy, "webhook %s trusts no authority yet: the controller has not written one", w.Name)
			continue
		}
		until, err := lastEnd([]byte(bundle))
		switch left := until.Sub(f.At); {
		case err != nil:
			j.fail(remedy, "the authority of webhook %s cannot be read: %v", w.Name, err)
		case left <= 0:
			j.fail(remedy, "the authority of webhook %s expired on %s", w.Name, until.UTC().Format(time.DateOnly))
		case left < renewal:
			j.warn(remedy, "the authority of webhook %s expires on %s and was not renewed", w.Name, until.UTC().Format(time.DateOnly))
		default:
			j.pass("the authority is valid until %s", until.UTC().Format(time.DateOnly))
		}
	}
}

// lastEnd is when the last authority of a bundle expires.
func lastEnd(bundle []byte) (end time.Time, err error) {
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return end, err
		}
		if c.NotAfter.After(end) {
			end = c.NotAfter
		}
	}
	if end.IsZero() {
		return end, fmt.Errorf("it has no certificate")
	}
	return end, nil
}

// coordinator checks that agents reach the coordinator, on the pods' network and on the nodes'.
func coordinator(f *Facts, j *judgement) {
	switch s := find(f.Services.Value, f.own(), f.named(coordinatorService)); {
	case f.Services.Unread != "":
		j.unread("Services in namespace "+f.own(), f.Services.Unread)
	case s == nil:
		j.fail("apply the manifests", "Service %s is missing", f.named(coordinatorService))
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		j.warn("give the Service a cluster IP, or pods on their node's network dnsPolicy ClusterFirstWithHostNet",
			"Service %s is headless: pods on their node's network may not resolve its name", f.named(coordinatorService))
	}
	switch {
	case f.Slices.Unread != "":
		j.unread("EndpointSlices in namespace "+f.own(), f.Slices.Unread)
	case ready(f.Slices.Value, f.named(coordinatorService)) == 0:
		j.fail("see check Components", "Service %s has no ready endpoint", f.named(coordinatorService))
	}
	if len(f.Trials) == 0 {
		if n := f.attached(); n > 0 {
			j.pass("agents of %d pods in namespace %s are attached", n, f.Namespace)
			return
		}
		j.add(Unknown, tryRemedy, "whether pods of namespace %s reach it was not tried", f.Namespace)
		return
	}
	for _, t := range f.Trials {
		f.reached(t, j)
	}
}

// reached judges one trial.
func (f *Facts) reached(t Trial, j *judgement) {
	switch {
	case t.Ended:
		j.pass("a pod on the %s's network reached it", t.Network)
	case t.Refused != "" && t.Network == NodeNetwork && strings.Contains(t.Refused, "PodSecurity"):
		j.skip("namespace %s admits no pods on their node's network", f.Namespace)
	case t.Refused != "":
		j.add(Unknown, "remove the cause of the refusal, or name another namespace with -n", "the trial on the %s's network was refused: %s", t.Network, t.Refused)
	case !t.Placed:
		j.add(Unknown, "free room for a pod of 100m and 64Mi, and run the command again", "the trial on the %s's network got no node: %s", t.Network, t.Waits)
	case !t.Pulled:
		j.add(Unknown, "see check AgentImage", "the trial on the %s's network did not start: %s", t.Network, t.Waits)
	default:
		j.fail("let pods of the namespace connect to Service "+f.named(coordinatorService)+", port 7443, and to the pods behind it",
			"a pod on the %s's network does not reach it: %s", t.Network, t.Waits)
	}
}

// attached counts the pods of the user's namespace whose agent is attached.
func (f *Facts) attached() int {
	n := 0
	for i := range f.Gangs.Value {
		if g := &f.Gangs.Value[i]; g.Namespace == f.Namespace {
			for _, m := range g.Status.Members {
				if m.Attached {
					n++
				}
			}
		}
	}
	return n
}

// dnsService is the name that the cluster's DNS has everywhere.
const dnsService = "kube-dns"

// names checks the cluster's DNS. Agents work without it; what users run may not.
func names(f *Facts, j *judgement) {
	const remedy = "see Kubernetes' guide on debugging DNS; agents dial the coordinator's address if its name does not resolve"
	for _, t := range f.Trials {
		switch r := t.Reached; {
		case r == nil:
		case r.NotResolved != "" && t.Network == NodeNetwork:
			j.pass("pods on the node's network resolve no names of the cluster; agents dial the address")
		case r.NotResolved != "":
			j.fail(remedy, "a pod on the %s's network does not resolve the coordinator's name: %s", t.Network, r.NotResolved)
		default:
			j.pass("a pod on the %s's network resolved the coordinator's name", t.Network)
		}
	}
	switch {
	case f.SystemSlices.Unread != "":
		j.unread("EndpointSlices in namespace kube-system", f.SystemSlices.Unread)
	case ready(f.SystemSlices.Value, dnsService) > 0:
		j.pass("Service %s has %d ready endpoints", dnsService, ready(f.SystemSlices.Value, dnsService))
	case len(j.found) == 0:
		j.warn(remedy, "Service %s in namespace kube-system has no ready endpoint", dnsService)
	}
}

// agentImage checks that nodes pull the agent's image for pods of the user's namespace.
func agentImage(f *Facts, j *judgement) {
	image := f.agentImageOf()
	remedy := "push the image where nodes can pull it, or name a secret for it (--agent-pull-secrets)"
	switch {
	case f.Deployments.Unread != "":
		j.unread("the controller's Deployment", f.Deployments.Unread)
	case image == "":
		j.add(Unknown, "", "the controller's command line does not name the agent's image")
	case Tag(image) == "latest":
		j.warn("name a version, or set --agent-pull-policy=Always", "the agent's image %s may differ from node to node", image)
	}
	if f.Pods.Unread != "" {
		j.unreadHere("pods", f.Pods.Unread)
	}
	started := 0
	for i := range f.Pods.Value {
		p := &f.Pods.Value[i]
		for _, c := range p.Status.InitContainerStatuses {
			switch {
			case c.Name != "holdfast-install":
			case c.State.Waiting != nil && strings.Contains(c.State.Waiting.Reason, "Image"):
				j.fail(remedy, "pod %s: %s: %s", p.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
			case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0 && installs(p, image):
				started++
			}
		}
	}
	for _, t := range f.Trials {
		switch {
		case t.Pulled:
			started++
		case strings.Contains(t.Waits, "Image"):
			j.fail(remedy, "the trial's pod: %s", t.Waits)
		}
	}
	if started > 0 {
		j.pass("pods of namespace %s started with %s", f.Namespace, image)
	} else if len(j.found) == 0 {
		j.add(Unknown, tryRemedy, "no pod of namespace %s has pulled %s yet", f.Namespace, image)
	}
}

// installs reports whether a pod gets the agent from this image: pods of before an upgrade have another one.
func installs(p *corev1.Pod, image string) bool {
	return slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "holdfast-install" && c.Image == image })
}
