package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// autoscaler checks the settings of Cluster Autoscaler and Karpenter.
func autoscaler(f *Facts, j *judgement) {
	if f.Deployments.Unread != "" {
		j.unread("Deployments", f.Deployments.Unread)
	}
	if f.NodePools.Unread != "" {
		j.unread("Karpenter's NodePools", f.NodePools.Unread)
	}
	for i := range f.Deployments.Value {
		if d := &f.Deployments.Value[i]; strings.Contains(d.Name, "cluster-autoscaler") || runs(d, "cluster-autoscaler") {
			clusterAutoscaler(d, j)
		}
	}
	for _, p := range f.NodePools.Value {
		if p.Grace != "" {
			j.warn("leave terminationGracePeriod out: without it Karpenter waits for pods of gangs",
				"Karpenter's NodePool %s has terminationGracePeriod %s: after it Karpenter ends pods of gangs on nodes that expire", p.Name, p.Grace)
			continue
		}
		j.pass("Karpenter's NodePool %s waits for pods of gangs", p.Name)
	}
	if len(j.found) == 0 {
		j.skip("no Cluster Autoscaler and no NodePool of Karpenter is in the cluster; an autoscaler of the cloud is not seen from here")
	}
}

// runs reports whether a Deployment has a container whose image or command has the word.
func runs(d *appsv1.Deployment, word string) bool {
	for _, c := range d.Spec.Template.Spec.Containers {
		if strings.Contains(c.Image, word) ||
			slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(a string) bool { return strings.HasSuffix(a, word) }) {
			return true
		}
	}
	return false
}

func clusterAutoscaler(d *appsv1.Deployment, j *judgement) {
	var args []string
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, a := range slices.Concat(c.Command, c.Args) {
			args = append(args, strings.TrimLeft(a, "-"))
		}
	}
	name, good := d.Namespace+"/"+d.Name, true
	for _, key := range []string{v1alpha1.TaintUnhealthy, v1alpha1.TaintOutage} {
		switch {
		case slices.Contains(args, "startup-taint="+key), slices.Contains(args, "ignore-taint="+key):
			good = false
			j.fail("use --status-taint="+key+" instead", "Cluster Autoscaler %s takes %s for a startup taint: it waits for sick nodes and adds none", name, key)
		case !slices.Contains(args, "status-taint="+key):
			good = false
			j.warn("add --status-taint="+v1alpha1.TaintUnhealthy+" --status-taint="+v1alpha1.TaintOutage,
				"Cluster Autoscaler %s has no --status-taint=%s: with a sick node as its template it adds no nodes", name, key)
		}
	}
	if good {
		j.pass("Cluster Autoscaler %s has --status-taint for Holdfast's taints", name)
	}
}

// enforce is the label with a namespace's profile of pod security.
const enforce = "pod-security.kubernetes.io/enforce"

// podSecurity checks the profiles of Holdfast's namespaces and of the user's.
func podSecurity(f *Facts, j *judgement) {
	if f.Namespaces.Unread != "" {
		j.unread("namespaces", f.Namespaces.Unread)
		return
	}
	switch n := find(f.Namespaces.Value, "", f.nodes()); {
	case !f.Serves:
	case n == nil:
		j.fail("apply the manifests", "namespace %s is missing", f.nodes())
	case n.Labels[enforce] == "":
		j.warn("label it "+enforce+"=privileged", "namespace %s has no profile, so the API server's default applies: holdfast-node is privileged", f.nodes())
	case n.Labels[enforce] != "privileged":
		j.fail("label it "+enforce+"=privileged", "namespace %s enforces profile %s, which refuses holdfast-node", f.nodes(), n.Labels[enforce])
	default:
		j.pass("namespace %s admits holdfast-node", f.nodes())
	}
	switch n := find(f.Namespaces.Value, "", f.Namespace); {
	case n == nil:
		j.fail("create it, or name another with -n", "namespace %s is missing", f.Namespace)
	case n.Labels[enforce] == "restricted" || n.Labels[enforce] == "baseline":
		j.pass("namespace %s enforces profile %s: pods of gangs fit, but none with hostNetwork", f.Namespace, n.Labels[enforce])
	case n.Labels[enforce] == "":
		j.pass("namespace %s has no profile: the API server's default applies, which restricts nothing unless it is configured", f.Namespace)
	default:
		j.pass("namespace %s restricts pods of gangs in nothing", f.Namespace)
	}
}

// quota names quotas of the user's namespace that have nothing left: a replacement pod waits until the old one is gone.
func quota(f *Facts, j *judgement) {
	if f.Quotas.Unread != "" || f.Ranges.Unread != "" {
		j.unreadHere("quotas and LimitRanges", f.Quotas.Unread, f.Ranges.Unread)
		return
	}
	for i := range f.Quotas.Value {
		q := &f.Quotas.Value[i]
		for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
			used, hard := q.Status.Used[name], q.Status.Hard[name]
			if hard.Cmp(used) > 0 {
				continue
			}
			j.warn("raise the quota by one pod of the largest job, so that a replacement need not wait for the old pod's end",
				"quota %s has no %s left (%s of %s)", q.Name, name, used.String(), hard.String())
		}
	}
	for i := range f.Ranges.Value {
		for _, l := range f.Ranges.Value[i].Spec.Limits {
			if len(l.MaxLimitRequestRatio) > 0 {
				j.warn("run kubectl holdfast preview -f job.yaml, which shows whether admission accepts the job",
					"LimitRange %s has a maxLimitRequestRatio, which the memory for state must satisfy too", f.Ranges.Value[i].Name)
			}
		}
	}
	if len(j.found) == 0 {
		j.pass("%d quotas and %d LimitRanges of namespace %s leave room", len(f.Quotas.Value), len(f.Ranges.Value), f.Namespace)
	}
}

// runningGangs names the jobs that lose their protection.
func runningGangs(f *Facts, j *judgement) {
	if f.Gangs.Unread != "" {
		j.unread("Gangs", f.Gangs.Unread)
		return
	}
	var running []string
	for i := range f.Gangs.Value {
		if g := &f.Gangs.Value[i]; g.Status.Phase != v1alpha1.PhaseFinished && g.Status.Phase != v1alpha1.PhaseFailed {
			running = append(running, fmt.Sprintf("%s/%s", g.Namespace, g.Name))
		}
	}
	if len(running) > 0 {
		j.fail("end these jobs, or wait until they have finished: without Holdfast none of their failures is repaired, and their pods end minutes late",
			"%d jobs have not ended: %s", len(running), some(running))
		return
	}
	j.pass("all of %d jobs have ended", len(f.Gangs.Value))
}

// waitingPods names pods that no scheduler places after the removal, and replaced pods that stay.
func waitingPods(f *Facts, j *judgement) {
	if f.Pending.Unread != "" || f.Replaced.Unread != "" {
		j.notAllowed("a ClusterRoleBinding to the ClusterRole "+f.named(uninstallRole), "pods of all namespaces", []string{f.Pending.Unread, f.Replaced.Unread})
		return
	}
	var waiting, kept []string
	for i := range f.Pending.Value {
		waiting = append(waiting, f.Pending.Value[i].Namespace+"/"+f.Pending.Value[i].Name)
	}
	for i := range f.Replaced.Value {
		kept = append(kept, f.Replaced.Value[i].Namespace+"/"+f.Replaced.Value[i].Name)
	}
	if len(waiting) > 0 {
		j.fail("delete them, and create their jobs again without Holdfast's annotations", "pods wait for holdfast-scheduler and would wait for ever: %s", some(waiting))
	}
	if len(kept) > 0 {
		j.warn("kubectl delete pods -A -l holdfast.dev/replaced=true", "replaced pods that a disruption budget kept belong to no job: %s", some(kept))
	}
	if f.Deployments.Unread != "" {
		j.unread("Deployments", f.Deployments.Unread)
	}
	for i := range f.Deployments.Value {
		if d := &f.Deployments.Value[i]; d.Spec.Template.Spec.SchedulerName == v1alpha1.SchedulerName {
			j.fail("name another scheduler in its template", "Deployment %s/%s names holdfast-scheduler", d.Namespace, d.Name)
		}
	}
	if len(j.found) == 0 {
		j.pass("no pod waits for holdfast-scheduler")
	}
}

// admission says what to delete first.
func admission(f *Facts, j *judgement) {
	first := "kubectl delete mutatingwebhookconfiguration " + f.named(webhooksName)
	switch {
	case f.Webhooks.Unread != "":
		j.unread("the webhooks' configuration", f.Webhooks.Unread)
	case f.Webhooks.Value == nil:
		j.pass("the webhooks' configuration is gone")
	case f.Slices.Unread != "":
		j.unread("EndpointSlices in namespace "+f.own(), f.Slices.Unread)
	case ready(f.Slices.Value, f.named(webhookService)) == 0:
		j.fail(first, "the webhooks' configuration exists and no controller answers: the API server refuses objects with Holdfast's keys")
	default:
		j.pass("delete it first: %s", first)
	}
}
