package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// Limits are the LimitRanges and quotas of a namespace. Kubernetes checks them when a pod is created: after injection, and after
// the Job's creator has gone on.
type Limits struct {
	Ranges []corev1.LimitRange
	Quotas []corev1.ResourceQuota
}

// installStorage is what the install container requests if a LimitRange restricts ephemeral storage.
const installStorage = "256Mi"

// fitLimits refuses an object whose injected pods can never be created in its namespace. If only the install container does not fit,
// the template gets the resources that it must request.
func (o *subject) fitLimits(ctx context.Context, facts Facts) (errs field.ErrorList, warnings []string) {
	if facts.LimitsError != nil {
		return nil, []string{fmt.Sprintf("whether the namespace's LimitRanges and quotas admit the pods is unknown: %v", facts.LimitsError)}
	}
	if len(facts.Limits.Ranges)+len(facts.Limits.Quotas) == 0 {
		return nil, nil
	}
	var gang gangLimits
	for _, r := range o.roles {
		c := o.limitCheck(ctx, r, facts)
		if c == nil {
			return nil, nil // admission itself refuses a template that cannot be injected
		}
		for _, l := range facts.Limits.Ranges {
			for _, item := range l.Spec.Limits {
				c.checkRange(l.Name, item)
			}
		}
		errs, gang = append(errs, c.errs...), append(gang, c)
	}
	for _, q := range facts.Limits.Quotas {
		refused, warned := gang.checkQuota(q)
		errs, warnings = append(errs, refused...), append(warnings, warned...)
	}
	return errs, warnings
}

// limitCheck makes a pod of a role as it would be created; nil: it cannot be injected.
func (o *subject) limitCheck(ctx context.Context, r *role, facts Facts) *limitCheck {
	s := r.s
	s.Container = r.Role.Container
	pod := &corev1.Pod{ObjectMeta: *r.Pod.ObjectMeta.DeepCopy(), Spec: *r.spec()}
	facts.Limits.setDefaults(&pod.Spec)
	useImage(ctx, pod, s)
	t, errs := findTraining(ctx, &pod.Spec, pod.Annotations, specPath, s, settings.TemplateAnnotations.Key)
	if len(errs) > 0 {
		return nil
	}
	t.count(s, facts.Devices)
	if install := facts.Limits.fitInstall(t.installResources(nil).Requests); len(install) > 0 {
		text, err := json.Marshal(install)
		if err != nil {
			panic(err) // quantities always encode
		}
		r.Pod.Annotations = setKey(r.Pod.Annotations, v1alpha1.AnnotationInstallResources, string(text))
		pod.Annotations = setKey(pod.Annotations, v1alpha1.AnnotationInstallResources, string(text))
	}
	out := inject(ctx, pod, Config{Minor: facts.Minor, Devices: facts.Devices}, s, membership.Stamp{Gang: o.obj.GetName()}, "")
	if len(out.Errors) > 0 {
		return nil
	}
	facts.Limits.setDefaults(&out.Object.Spec)
	return &limitCheck{
		pod:   out.Object,
		spec:  r.Template.Child("spec"),
		count: r.Count,
		pods:  r.Pods(),
		added: t.demand(s).total(),
	}
}

// setDefaults does what Kubernetes does to a pod before its limits are checked.
func (l Limits) setDefaults(spec *corev1.PodSpec) {
	each := func(c *corev1.Container) {
		c.Resources.Requests = withMissing(c.Resources.Requests, c.Resources.Limits)
		for _, r := range l.Ranges {
			for _, item := range r.Spec.Limits {
				if item.Type == corev1.LimitTypeContainer {
					c.Resources.Limits = withMissing(c.Resources.Limits, item.Default)
					c.Resources.Requests = withMissing(c.Resources.Requests, item.DefaultRequest)
				}
			}
		}
	}
	for i := range spec.InitContainers {
		each(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		each(&spec.Containers[i])
	}
}

func withMissing(list, from corev1.ResourceList) corev1.ResourceList {
	for name, q := range from {
		if _, there := list[name]; !there {
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[name] = q.DeepCopy()
		}
	}
	return list
}

// fitInstall is what the install container asks for instead of base, by kind, so that LimitRanges admit it.
func (l Limits) fitInstall(base corev1.ResourceList) corev1.ResourceList {
	changed := corev1.ResourceList{}
	if len(base) == 0 {
		return nil // it asks for nothing, as its pod does
	}
	for _, r := range l.Ranges {
		for _, item := range r.Spec.Limits {
			if item.Type != corev1.LimitTypeContainer {
				continue
			}
			for _, kind := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
				least, hasLeast := item.Min[kind]
				most, hasMost := item.Max[kind]
				_, hasRatio := item.MaxLimitRequestRatio[kind]
				q, set := base[kind]
				if !set && !hasLeast && !hasMost && !hasRatio {
					continue
				}
				if !set {
					q = resource.MustParse(installStorage)
				}
				if was, again := changed[kind]; again {
					q = was
				}
				if hasLeast && q.Cmp(least) < 0 {
					q = least
				}
				if hasMost && q.Cmp(most) > 0 {
					q = most
				}
				if was := base[kind]; !set || q.Cmp(was) != 0 {
					changed[kind] = q.DeepCopy()
				}
			}
		}
	}
	return changed
}

// limitCheck compares a pod of a role, as it would be created, with limits.
type limitCheck struct {
	pod *corev1.Pod
	// spec is the path of the pod spec that users write, count that of the number of pods.
	spec, count *field.Path
	pods        int32
	// added is the memory that injection added.
	added int64
	errs  field.ErrorList
}

func (c *limitCheck) checkRange(name string, item corev1.LimitRangeItem) {
	switch item.Type {
	case corev1.LimitTypeContainer:
		for i, ic := range c.pod.Spec.InitContainers {
			at := c.spec.Child("initContainers").Index(i)
			if ic.Name == installContainer {
				at = c.spec.Child("initContainers").Key(installContainer)
			}
			c.within(name, item, ic.Resources, at.Child("resources"))
		}
		for i, cc := range c.pod.Spec.Containers {
			c.within(name, item, cc.Resources, c.spec.Child("containers").Index(i).Child("resources"))
		}
	case corev1.LimitTypePod:
		none := resourcehelper.PodResourcesOptions{}
		c.within(
			name,
			item,
			corev1.ResourceRequirements{Requests: resourcehelper.PodRequests(c.pod, none), Limits: resourcehelper.PodLimits(c.pod, none)},
			c.spec.Child("resources"),
		)
	}
}

// within refuses what lies outside of one item of a LimitRange; where is the field of requests and limits.
func (c *limitCheck) within(name string, item corev1.LimitRangeItem, has corev1.ResourceRequirements, where *field.Path) {
	refuse := func(kind corev1.ResourceName, list, bound string, value, of resource.Quantity) {
		text := fmt.Sprintf("LimitRange %s has %s of %s per %s", name, bound, of.String(), item.Type)
		if kind == corev1.ResourceMemory {
			text += fmt.Sprintf(", and holdfast adds %s of memory to each pod (state, standbys, /dev/shm, agent)", mebibytes(c.added))
		}
		c.errs = append(c.errs, field.Invalid(where.Child(list).Key(string(kind)), value.String(), text+": change the value, or have the LimitRange changed"))
	}
	missing := func(kind corev1.ResourceName, list string) {
		c.errs = append(c.errs, field.Required(where.Child(list).Key(string(kind)), fmt.Sprintf("LimitRange %s requires one for each %s: write it, or have the LimitRange give a default", name, item.Type)))
	}
	for _, kind := range slices.Sorted(maps.Keys(item.Min)) {
		least := item.Min[kind]
		if request, set := has.Requests[kind]; !set {
			missing(kind, "requests")
		} else if request.Cmp(least) < 0 {
			refuse(kind, "requests", "a minimum", request, least)
		} else if limit, set := has.Limits[kind]; set && limit.Cmp(least) < 0 {
			refuse(kind, "limits", "a minimum", limit, least)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(item.Max)) {
		most := item.Max[kind]
		if limit, set := has.Limits[kind]; !set {
			missing(kind, "limits")
		} else if limit.Cmp(most) > 0 {
			refuse(kind, "limits", "a maximum", limit, most)
		} else if request := has.Requests[kind]; request.Cmp(most) > 0 {
			refuse(kind, "requests", "a maximum", request, most)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
		ratio := item.MaxLimitRequestRatio[kind]
		request, limit := has.Requests[kind], has.Limits[kind]
		switch {
		case request.IsZero():
			missing(kind, "requests")
		case limit.IsZero():
			missing(kind, "limits")
		case limit.AsApproximateFloat64() > request.AsApproximateFloat64()*ratio.AsApproximateFloat64():
			refuse(kind, "limits", "a maximum ratio of limit to request", limit, ratio)
		}
	}
}

// onEach are the kinds that every container must set if a quota counts them.
var onEach = map[corev1.ResourceName][2]string{
	corev1.ResourceCPU: {"requests", "cpu"}, corev1.ResourceRequestsCPU: {"requests", "cpu"}, corev1.ResourceLimitsCPU: {"limits", "cpu"},
	corev1.ResourceMemory: {"requests", "memory"}, corev1.ResourceRequestsMemory: {"requests", "memory"}, corev1.ResourceLimitsMemory: {"limits", "memory"},
}

// gangLimits are the checks of all roles.
type gangLimits []*limitCheck

// checkQuota refuses pods of which one alone is more than the quota, and warns of a gang that is. Quotas whose scopes a pod does not
// show are skipped.
func (g gangLimits) checkQuota(q corev1.ResourceQuota) (errs field.ErrorList, warnings []string) {
	for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		hard, used := q.Spec.Hard[name], q.Status.Used[name]
		var all resource.Quantity
		pods, added, counted, refused := int32(0), int64(0), false, false
		for _, c := range g {
			if !c.inScope(q.Spec) {
				continue
			}
			errs = append(errs, c.unset(q.Name, name)...)
			one, list, kind, is := c.counted(name)
			if !is {
				continue
			}
			each := one.DeepCopy()
			each.Mul(int64(c.pods))
			all.Add(each)
			pods, added, counted = pods+c.pods, max(added, c.added), true
			if one.Cmp(hard) <= 0 {
				continue
			}
			refused = true
			if text := quotaText(q.Name, hard, name, c.added); list == "" {
				errs = append(errs, field.Forbidden(c.count, text+": no pod can be created; have the quota raised"))
			} else {
				errs = append(errs, field.Invalid(c.spec.Child("resources", list).Key(kind), one.String(), "is the total request of one pod; "+text+": request less, or have the quota raised"))
			}
		}
		withUsed := all.DeepCopy()
		withUsed.Add(used)
		if counted && !refused && withUsed.Cmp(hard) > 0 {
			warnings = append(warnings, fmt.Sprintf("%s; the %d pods request %s, and %s is used: the gang waits until there is room for all of them, or the quota is raised",
				quotaText(q.Name, hard, name, added), pods, all.String(), cmp.Or(used.String(), "0")))
		}
	}
	return errs, warnings
}

func quotaText(quota string, hard resource.Quantity, name corev1.ResourceName, added int64) string {
	text := fmt.Sprintf("ResourceQuota %s has %s of %s", quota, hard.String(), name)
	if _, kind, _ := strings.Cut(string(name), "."); kind == string(corev1.ResourceMemory) || name == corev1.ResourceMemory {
		text += fmt.Sprintf(", and holdfast adds %s of memory to each pod", mebibytes(added))
	}
	return text
}

// unset refuses containers that do not set what the quota counts of each.
func (c *limitCheck) unset(quota string, name corev1.ResourceName) (errs field.ErrorList) {
	each, ok := onEach[name]
	if !ok || sharesBudget(&c.pod.Spec) {
		return nil
	}
	for i, cc := range c.pod.Spec.Containers {
		list := map[string]corev1.ResourceList{"requests": cc.Resources.Requests, "limits": cc.Resources.Limits}[each[0]]
		if _, set := list[corev1.ResourceName(each[1])]; !set {
			errs = append(errs, field.Required(c.spec.Child("containers").Index(i).Child("resources", each[0]).Key(each[1]),
				fmt.Sprintf("ResourceQuota %s counts %s, so every container must set it: write it, or have a LimitRange give a default", quota, name)))
		}
	}
	return errs
}

// counted is how much of what a quota counts one pod takes, and in which list and under which name the pod says so; "": pods are counted.
func (c *limitCheck) counted(name corev1.ResourceName) (one resource.Quantity, list, kind string, is bool) {
	none := resourcehelper.PodResourcesOptions{}
	requests, limits := resourcehelper.PodRequests(c.pod, none), resourcehelper.PodLimits(c.pod, none)
	switch of, rest, split := strings.Cut(string(name), "."); {
	case name == corev1.ResourcePods || name == "count/pods":
		return *resource.NewQuantity(1, resource.DecimalSI), "", "", true
	case split && of == "limits":
		return limits[corev1.ResourceName(rest)], "limits", rest, true
	case split && of == "requests":
		return requests[corev1.ResourceName(rest)], "requests", rest, true
	case name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage:
		return requests[name], "requests", string(name), true
	}
	return one, "", "", false
}

// inScope reports whether a quota counts the pod, as far as the pod shows.
func (c *limitCheck) inScope(spec corev1.ResourceQuotaSpec) bool {
	scopes := slices.Clone(spec.Scopes)
	if spec.ScopeSelector != nil {
		for _, e := range spec.ScopeSelector.MatchExpressions {
			if e.Operator != corev1.ScopeSelectorOpExists {
				return false
			}
			scopes = append(scopes, e.ScopeName)
		}
	}
	bestEffort, ends := qosClass(&c.pod.Spec) == corev1.PodQOSBestEffort, c.pod.Spec.ActiveDeadlineSeconds != nil
	counts := map[corev1.ResourceQuotaScope]bool{
		corev1.ResourceQuotaScopeTerminating: ends, corev1.ResourceQuotaScopeNotTerminating: !ends,
		corev1.ResourceQuotaScopeBestEffort: bestEffort, corev1.ResourceQuotaScopeNotBestEffort: !bestEffort,
		corev1.ResourceQuotaScopePriorityClass: c.pod.Spec.PriorityClassName != "",
	}
	return !slices.ContainsFunc(scopes, func(s corev1.ResourceQuotaScope) bool { return !counts[s] })
}
