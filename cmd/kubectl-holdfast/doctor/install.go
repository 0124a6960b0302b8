package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Versions of Kubernetes 1.N: the one that Holdfast is made for, and the oldest that the documentation names.
const (
	madeFor = 37
	oldest  = 31
)

// Linux that has pidfd_open.
const (
	leastKernelMajor = 5
	leastKernelMinor = 3
)

// apiServer compares the API server's version with the one that Holdfast is made for.
func apiServer(f *Facts, j *judgement) {
	if f.Server.Unread != "" {
		j.unread("the API server's version", f.Server.Unread)
		return
	}
	major, minor, ok := numbers(strings.TrimPrefix(f.Server.Value, "v"))
	const upgrade = "upgrade the API server to 1.37, or try placement, preemption and a drained node in a test cluster first"
	switch {
	case !ok || major != 1:
		j.add(Unknown, "", "the API server calls its version %q", f.Server.Value)
	case minor < oldest:
		j.fail(upgrade, "Kubernetes %s is older than 1.%d", f.Server.Value, oldest)
	case minor != madeFor:
		j.warn(upgrade, "Kubernetes %s: Holdfast is made for 1.%d and was not tested with this version", f.Server.Value, madeFor)
	default:
		j.pass("Kubernetes %s", f.Server.Value)
	}
}

// numbers parses the first two numbers of a version.
func numbers(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits := func(s string) (int, error) {
		end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if end >= 0 {
			s = s[:end]
		}
		return strconv.Atoi(s)
	}
	major, err := digits(parts[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = digits(parts[1])
	return major, minor, err == nil
}

// nodesFit checks kernel, processor and system of the nodes.
func nodesFit(f *Facts, j *judgement) {
	if f.Nodes.Unread != "" {
		j.unread("nodes", f.Nodes.Unread)
		return
	}
	old, unclear, archs, linux := []string{}, []string{}, map[string]int{}, 0
	for i := range f.Nodes.Value {
		n := &f.Nodes.Value[i]
		if n.Status.NodeInfo.OperatingSystem != "linux" {
			continue
		}
		linux++
		archs[n.Status.NodeInfo.Architecture]++
		major, minor, ok := numbers(n.Status.NodeInfo.KernelVersion)
		switch {
		case !ok:
			unclear = append(unclear, n.Name)
		case major < leastKernelMajor || major == leastKernelMajor && minor < leastKernelMinor:
			old = append(old, fmt.Sprintf("%s (%s)", n.Name, n.Status.NodeInfo.KernelVersion))
		}
	}
	if len(old) > 0 {
		j.fail("upgrade their kernel: agents need pidfd_open", "Linux is older than 5.3 on %s", some(old))
	}
	if len(unclear) > 0 {
		j.add(Unknown, "see kubectl get nodes -o wide", "the kernel's version is not known of %s", some(unclear))
	}
	for _, arch := range slices.Sorted(maps.Keys(archs)) {
		if arch != "amd64" && arch != "arm64" {
			j.fail("keep gangs off these nodes by a nodeSelector: there are no images for them", "%d nodes have processor %s", archs[arch], arch)
		}
	}
	if len(archs) > 1 {
		j.warn("push images for all of them: make images PLATFORMS=linux/amd64,linux/arm64",
			"nodes have several processors: %s", strings.Join(slices.Sorted(maps.Keys(archs)), ", "))
	}
	if linux == 0 {
		j.warn("", "the cluster has no Linux node now")
		return
	}
	j.pass("%d Linux nodes with a kernel that suffices", linux-len(old)-len(unclear))
}

// some lists the first few names.
func some(names []string) string {
	const most = 5
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// components checks that every part of Holdfast exists and serves.
func components(f *Facts, j *judgement) {
	const logs = "look at its pods and their events: kubectl -n %s describe pods -l app.kubernetes.io/name=%s"
	if f.Deployments.Unread != "" {
		j.unread("Deployments", f.Deployments.Unread)
	}
	for _, base := range []string{controllerName, schedulerName} {
		name := f.named(base)
		d := f.deployment(base)
		switch {
		case f.Deployments.Unread != "":
		case d == nil:
			j.fail("apply the manifests", "Deployment %s is missing in namespace %s", name, f.own())
		case d.Status.AvailableReplicas == 0:
			j.fail(fmt.Sprintf(logs, f.own(), base), "no replica of %s is available", name)
		case d.Status.AvailableReplicas < ptr.Deref(d.Spec.Replicas, 1):
			j.warn(fmt.Sprintf(logs, f.own(), base), "%d of %d replicas of %s are available", d.Status.AvailableReplicas, ptr.Deref(d.Spec.Replicas, 1), name)
		default:
			j.pass("%s: %d replicas", name, d.Status.AvailableReplicas)
		}
	}
	switch d := f.nodeDaemonSet(); {
	case f.DaemonSets.Unread != "":
		j.unread("DaemonSets", f.DaemonSets.Unread)
	case d == nil:
		j.fail("apply the manifests", "DaemonSet %s is missing in namespace %s", f.named(nodeName), f.nodes())
	case d.Status.NumberReady < d.Status.DesiredNumberScheduled:
		j.warn(fmt.Sprintf(logs, f.nodes(), nodeName), "%s is ready on %d of %d nodes", d.Name, d.Status.NumberReady, d.Status.DesiredNumberScheduled)
	default:
		j.pass("%s: %d nodes", d.Name, d.Status.NumberReady)
	}
}

// Tag is the tag of an image; empty: it has none, or a digest.
func Tag(image string) string {
	if strings.Contains(image, "@") {
		return ""
	}
	_, tag, ok := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	if !ok {
		return ""
	}
	return tag
}

// agentImageOf is the image that the controller puts into pods; empty: its command line does not say.
func (f *Facts) agentImageOf() string {
	d := f.deployment(controllerName)
	if d == nil || len(d.Spec.Template.Spec.Containers) == 0 {
		return ""
	}
	c := &d.Spec.Template.Spec.Containers[0]
	for _, arg := range slices.Concat(c.Command, c.Args) {
		value, ok := strings.CutPrefix(arg, "--agent-image=")
		if !ok {
			continue
		}
		for _, e := range c.Env {
			value = strings.ReplaceAll(value, "$("+e.Name+")", e.Value)
		}
		return value
	}
	return ""
}

// versions compares the versions of all parts, of pods that run and of this program.
func versions(f *Facts, j *judgement) {
	if f.Deployments.Unread != "" || f.DaemonSets.Unread != "" {
		j.unread("Deployments and DaemonSets", f.Deployments.Unread, f.DaemonSets.Unread)
		return
	}
	have := map[string]string{}
	image := func(name string, containers []corev1.Container) {
		if len(containers) > 0 {
			have[name] = Tag(containers[0].Image)
		}
	}
	for _, base := range []string{controllerName, schedulerName} {
		if d := f.deployment(base); d != nil {
			image(d.Name, d.Spec.Template.Spec.Containers)
		}
	}
	if d := f.nodeDaemonSet(); d != nil {
		image(d.Name, d.Spec.Template.Spec.Containers)
	}
	if agent := f.agentImageOf(); agent != "" {
		have["holdfast-agent"] = Tag(agent)
	}
	if f.Plugin != "" && f.Plugin != "dev" {
		have["kubectl-holdfast"] = f.Plugin
	}
	distinct, lines := map[string]bool{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if have[name] == "" {
			j.add(Unknown, "compare the digests with those of the release", "the image of %s has no tag, so its version is not known", name)
			continue
		}
		distinct[have[name]] = true
		lines = append(lines, name+" "+have[name])
	}
	switch {
	case len(distinct) > 1:
		j.warn("apply the manifests of one version, and use the kubectl-holdfast of that version", "parts of several versions: %s", strings.Join(lines, ", "))
	case len(distinct) == 1:
		j.pass("all parts have version %s", slices.Collect(maps.Keys(distinct))[0])
	}
}

// late is how much older than its duration a lease may be, since clocks may differ.
const late = time.Minute

// overdue returns the age of a lease that was not renewed in time; 0: it was, or was never renewed.
func overdue(l *coordinationv1.Lease, now time.Time) time.Duration {
	if l.Spec.RenewTime == nil {
		return 0
	}
	age := now.Sub(l.Spec.RenewTime.Time)
	if age <= time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0))*time.Second+late {
		return 0
	}
	return age.Round(time.Second)
}

// leaders checks that a replica of controller and scheduler leads.
func leaders(f *Facts, j *judgement) {
	if f.Leaders.Unread != "" {
		j.unread("leases in namespace "+f.own(), f.Leaders.Unread)
		return
	}
	for _, name := range []string{f.named(controllerName), f.named(schedulerName)} {
		l := find(f.Leaders.Value, f.own(), name)
		remedy := fmt.Sprintf("look at its log: kubectl -n %s logs deploy/%s", f.own(), name)
		if l == nil || ptr.Deref(l.Spec.HolderIdentity, "") == "" || l.Spec.RenewTime == nil {
			j.fail(remedy, "no replica of %s leads", name)
			continue
		}
		if age := overdue(l, f.clock()); age > 0 {
			j.fail(remedy, "the leader of %s has not renewed its lease for %s", name, age)
			continue
		}
		holder, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
		j.pass("%s leads", holder)
	}
}
