package manifests

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

const (
	controllerAccount = "system:serviceaccount:holdfast-system:holdfast-controller"
	nodeAccount       = "system:serviceaccount:holdfast-node:holdfast-node"
)

// request is a request for which the API server evaluates policies.
type request struct {
	by       string
	kind     schema.GroupVersionKind
	resource string
	obj, old runtime.Object
	// param is the object of the policy's paramKind for which the policy is evaluated; nil: it has none.
	param runtime.Object
	// labels are those of the namespace.
	labels map[string]string
	// may reports what the account is allowed to do; nil: nothing.
	may func(authorizer.Attributes) bool
}

func (r request) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if r.may != nil && r.may(a) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// judge returns a function that evaluates a policy by the API server's own code. That function returns the policy's message for a request,
// or "" if the request is allowed.
func judge(t *testing.T, policy string) func(request) string {
	t.Helper()
	return judgeBy(t, find[admissionregistrationv1.ValidatingAdmissionPolicy](t, policy))
}

func judgeBy(t *testing.T, p *admissionregistrationv1.ValidatingAdmissionPolicy) func(request) string {
	t.Helper()
	compiler, err := admissioncel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	declared := admissioncel.OptionalVariableDeclarations{HasAuthorizer: true, HasParams: p.Spec.ParamKind != nil}
	var variables []admissioncel.NamedExpressionAccessor
	for i := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: p.Spec.Variables[i].Name, Expression: p.Spec.Variables[i].Expression})
	}
	compiler.CompileAndStoreVariables(variables, declared, environment.StoredExpressions)
	var conditions, validations, messages []admissioncel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		var message admissioncel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
	}
	matcher := matchconditions.NewMatcher(
		compiler.CompileCondition(conditions, declared, environment.StoredExpressions),
		p.Spec.FailurePolicy,
		"policy",
		"validate",
		p.Name,
	)
	noAuthorizer := admissioncel.OptionalVariableDeclarations{HasParams: declared.HasParams}
	none := compiler.CompileCondition(nil, declared, environment.StoredExpressions)
	validator := validating.NewValidator(
		compiler.CompileCondition(validations, declared, environment.StoredExpressions),
		matcher,
		none,
		compiler.CompileCondition(messages, noAuthorizer, environment.StoredExpressions),
		p.Spec.FailurePolicy,
		nil,
	)

	return func(r request) string {
		operation := admission.Update
		if r.old == nil {
			operation = admission.Create
		}
		resource, sub, _ := strings.Cut(r.resource, "/")
		gvr := r.kind.GroupVersion().WithResource(resource)
		attr := admission.NewAttributesRecord(r.obj, r.old, r.kind, "ns", "name", gvr, sub, operation, nil, false, &user.DefaultInfo{Name: r.by})
		versioned := &admission.VersionedAttributes{Attributes: attr, VersionedKind: r.kind}
		versioned.VersionedObject.Set(r.obj)
		versioned.VersionedOldObject.Set(r.old)
		result := validator.Validate(
			context.Background(),
			gvr,
			versioned,
			r.param,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: r.labels}},
			cel.RuntimeCELCostBudget,
			r,
		)
		for _, d := range result.Decisions {
			if d.Action == validating.ActionDeny {
				return d.Message
			}
		}
		return ""
	}
}

// TestKeysOfPodsAreWrittenOnce: an account that may patch pods can change no key that Holdfast has written on them, by any subresource.
func TestKeysOfPodsAreWrittenOnce(t *testing.T) {
	const says = "stay as they were when the pod was created"
	refusal := judge(t, "holdfast-pod-keys")
	of := func(labels, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: meta(labels, annotations)}
	}
	gang := map[string]string{"holdfast.dev/gang": "g", "a": "b"}
	with := func(m map[string]string, key, value string) map[string]string {
		out := map[string]string{key: value}
		for k, v := range m {
			if k != key {
				out[k] = v
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		old, pod *corev1.Pod
		want     string
	}{
		"nothing of ours":          {of(nil, nil), of(theirs, theirs), ""},
		"others' keys of a gang's": {of(gang, ours), of(with(gang, "a", "c"), with(ours, "x", "y")), ""},
		"made a gang's":            {of(nil, nil), of(gang, nil), says},
		"taken out":                {of(gang, nil), of(with(gang, "holdfast.dev/replaced", "true"), nil), says},
		"another gang's":           {of(gang, nil), of(with(gang, "holdfast.dev/gang", "h"), nil), says},
		"out of its gang":          {of(gang, nil), of(nil, nil), says},
		"annotated":                {of(nil, theirs), of(nil, with(theirs, "holdfast.dev/whole-nodes", "true")), says},
		"another size":             {of(nil, map[string]string{"holdfast.dev/gang-size": "2"}), of(nil, map[string]string{"holdfast.dev/gang-size": "3"}), says},
		"another slot":             {of(nil, map[string]string{"holdfast.dev/gang-slot": "2"}), of(nil, map[string]string{"holdfast.dev/gang-slot": "3"}), says},
		"another role":             {of(nil, map[string]string{"holdfast.dev/gang-role": "a"}), of(nil, map[string]string{"holdfast.dev/gang-role": "b"}), says},
		"a slot":                   {of(gang, nil), of(gang, map[string]string{"holdfast.dev/gang-slot": "3"}), says},
		"an annotation less":       {of(nil, ours), of(nil, nil), says},
	} {
		for _, resource := range []string{"pods", "pods/status", "pods/resize"} {
			r := request{kind: podKind, resource: resource, obj: c.pod, old: c.old}
			for _, r.by = range []string{"someone", "kubernetes-admin", "system:serviceaccount:ns:holdfast-controller", "system:serviceaccount:holdfast-system:holdfast-scheduler"} {
				if got := refusal(r); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
					t.Errorf("%s, %s by %s: %q", name, resource, r.by, got)
				}
			}
			r.by = controllerAccount
			if got := refusal(r); got != "" {
				t.Errorf("%s: the controller may not: %s", name, got)
			}
		}
	}
}

// TestBindingsWriteNoStamps: the API server copies labels and annotations of a binding to its pod. So no account may set Holdfast's stamps
// in a binding.
func TestBindingsWriteNoStamps(t *testing.T) {
	refusal := judge(t, "holdfast-binding-keys")
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Binding"}
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		refused             bool
	}{
		"nothing":                               {nil, nil, false},
		"others' keys":                          {theirs, theirs, false},
		"the scheduler's own":                   {nil, map[string]string{"holdfast.dev/topology-domain": "zone=a", "holdfast.dev/initial-placement": "x"}, false},
		"a slot":                                {nil, map[string]string{"holdfast.dev/gang-slot": "0"}, true},
		"another size":                          {nil, map[string]string{"holdfast.dev/topology-domain": "zone=a", "holdfast.dev/gang-size": "1"}, true},
		"into a gang":                           {map[string]string{"holdfast.dev/gang": "g"}, nil, true},
		"out of its gang":                       {map[string]string{"holdfast.dev/replaced": "true"}, nil, true},
		"a label of ours that is an annotation": {map[string]string{"holdfast.dev/topology-domain": "a"}, nil, true},
	} {
		binding := &corev1.Binding{ObjectMeta: meta(c.labels, c.annotations)}
		for _, by := range []string{"someone", "system:kube-scheduler", "system:serviceaccount:holdfast-system:holdfast-scheduler", controllerAccount} {
			got := refusal(request{by: by, kind: kind, resource: "pods/binding", obj: binding})
			if c.refused != strings.Contains(got, "a binding may write no label or annotation under holdfast.dev/ but") || !c.refused && got != "" {
				t.Errorf("%s by %s: %q", name, by, got)
			}
		}
	}
	// Volcano repeats the pod's own annotations in its binding. An account that may bind in only one namespace belongs to a tenant.
	repeats := request{
		by:       "system:serviceaccount:volcano-system:volcano-scheduler",
		kind:     kind,
		resource: "pods/binding",
		obj:      &corev1.Binding{ObjectMeta: meta(nil, map[string]string{"holdfast.dev/gang-slot": "0"})},
	}
	for of, refused := range map[string]bool{metav1.NamespaceAll: false, "ns": true} {
		repeats.may = func(a authorizer.Attributes) bool {
			return a.GetVerb() == "create" && a.GetResource() == "pods" && a.GetSubresource() == "binding" && a.GetNamespace() == of
		}
		if got := refusal(repeats); (got != "") != refused {
			t.Errorf("an account that may bind in namespace %q: %q", of, got)
		}
	}
	p := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, "holdfast-binding-keys")
	if got := fmt.Sprint(p.Spec.MatchConstraints.ResourceRules[0].Resources); got != "[pods/binding bindings]" {
		t.Errorf("it is about %s", got)
	}
}

// manyKeys returns annotations for which a check of each key exceeds the cost limit of a condition. They are half of what the API server
// allows, because the time that CEL takes to estimate the cost grows with the square of their number.
func manyKeys() map[string]string {
	many := map[string]string{}
	for len(many) < 40_000 {
		many[strconv.FormatInt(int64(len(many)), 36)] = ""
	}
	return many
}

// TestPodKeysNeedBothConditions: with as many annotations as the API server allows, the expression must stay within its cost limit, or no
// client could write the pod's status. The first condition skips the second for writes that change no annotation. The second checks each
// key and allows changes of other keys. Each condition alone would refuse a valid request.
func TestPodKeysNeedBothConditions(t *testing.T) {
	many := manyKeys()
	large, theirsNow := &corev1.Pod{ObjectMeta: meta(many, many)}, &corev1.Pod{ObjectMeta: meta(theirs, map[string]string{"x": "y"})}
	writes := map[string]request{
		"labels-or-annotations-change": {by: "kubelet", kind: podKind, resource: "pods/status", obj: large, old: large.DeepCopy()},
		"a-key-of-ours-changes":        {by: "someone", kind: podKind, resource: "pods", obj: theirsNow, old: &corev1.Pod{ObjectMeta: meta(theirs, theirs)}},
	}
	whole := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, "holdfast-pod-keys")
	if n := len(whole.Spec.MatchConditions); n != len(writes) {
		t.Fatalf("%d conditions", n)
	}
	both := judgeBy(t, whole)
	for i, c := range whole.Spec.MatchConditions {
		write, ok := writes[c.Name]
		if !ok {
			t.Fatalf("condition %s is not known here", c.Name)
		}
		if got := both(write); got != "" {
			t.Errorf("with both, a write is refused that %s is for: %s", c.Name, got)
		}
		without := whole.DeepCopy()
		without.Spec.MatchConditions = slices.Delete(without.Spec.MatchConditions, i, i+1)
		if got := judgeBy(t, without)(write); got == "" {
			t.Errorf("without %s the same writes are let through: it is of no use", c.Name)
		}
	}
}

// TestHeldNodesAreForNamespacesThatMay: with the component only namespaces that an administrator allowed can keep other pods off nodes.
func TestHeldNodesAreForNamespacesThatMay(t *testing.T) {
	var p admissionregistrationv1.ValidatingAdmissionPolicy
	for _, text := range component(t, "held-nodes", "ValidatingAdmissionPolicy") {
		if err := yaml.UnmarshalStrict(text, &p); err != nil {
			t.Fatal(err)
		}
	}
	refusal := judgeBy(t, &p)
	none := metav1.ObjectMeta{}
	asks := func(key, value string) metav1.ObjectMeta {
		return meta(nil, map[string]string{"holdfast.dev/" + key: value})
	}
	volcano := func(annotations string) *unstructured.Unstructured {
		text := fmt.Sprintf("{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {annotations: {%s}}, spec: {tasks: []}}", annotations)
		return ask(t, text, "").obj.(*unstructured.Unstructured)
	}
	for name, c := range map[string]struct {
		obj  runtime.Object
		want bool
	}{
		"a job that asks nothing":     {jobOf(none, none), false},
		"a job of ours":               {jobOf(meta(nil, ours), none), false},
		"not whole, no spares":        {jobOf(asks("whole-nodes", "false"), asks("spares", "0")), false},
		"whole nodes":                 {jobOf(asks("whole-nodes", "true"), none), true},
		"spares":                      {jobOf(asks("spares", "2"), none), true},
		"whole nodes on the template": {jobOf(none, asks("whole-nodes", "true")), true},
		"spares on the template":      {jobOf(none, asks("spares", "1")), true},
		"a pod":                       {&corev1.Pod{}, false},
		"a pod that wants its node":   {&corev1.Pod{ObjectMeta: asks("whole-nodes", "true")}, true},
		"a pod with spares":           {&corev1.Pod{ObjectMeta: asks("spares", "9")}, true},
		"a Volcano Job":               {volcano("a: b"), false},
		"a Volcano Job with spares":   {volcano(`holdfast.dev/spares: "1"`), true},
	} {
		kind, resource := jobKind, "jobs"
		switch obj := c.obj.(type) {
		case *corev1.Pod:
			kind, resource = podKind, "pods"
		case *unstructured.Unstructured:
			kind = obj.GroupVersionKind()
		}
		r := request{by: "someone", kind: kind, resource: resource, obj: c.obj}
		if got := refusal(r); strings.Contains(got, "holdfast.dev/held-nodes=allowed") != c.want || got != "" && !c.want {
			t.Errorf("%s: %q", name, got)
		}
		r.labels = map[string]string{"holdfast.dev/held-nodes": "allowed"}
		if got := refusal(r); got != "" {
			t.Errorf("%s, in a namespace that may: %s", name, got)
		}
	}
}

// TestPodKeysCoverAllWays: the policy covers all subresources of pods, because labels can also be changed through pods/status.
func TestPodKeysCoverAllWays(t *testing.T) {
	p := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, "holdfast-pod-keys")
	if got := fmt.Sprint(p.Spec.MatchConstraints.ResourceRules[0].Resources); got != "[pods pods/*]" {
		t.Error(got)
	}
}

var hookKind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"}

// TestTheControllerChangesTrustAlone: an attacker with the controller's account cannot make the API server call the webhook for other
// objects.
func TestTheControllerChangesTrustAlone(t *testing.T) {
	refusal := judge(t, "holdfast-controller-webhook")
	for name, c := range map[string]struct {
		change func(*admissionregistrationv1.MutatingWebhookConfiguration)
		want   string
	}{
		"trust": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			for i := range c.Webhooks {
				c.Webhooks[i].ClientConfig.CABundle = []byte("ca")
			}
		}, ""},
		"all pods": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks[2].MatchConditions = nil }, "nothing of its webhook configuration but each caBundle"},
		"all resources": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].Rules[0].Resources = []string{"*"}
		}, "nothing of its webhook configuration but"},
		"the cluster's own namespaces": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks[1].NamespaceSelector = nil }, "nothing of its webhook configuration but"},
		"another server": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.Service.Name = "x"
		}, "nothing of its webhook configuration but"},
		"one more": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks = append(c.Webhooks, admissionregistrationv1.MutatingWebhook{Name: "x.holdfast.dev"})
		}, "nothing of its webhook configuration but"},
		"one less": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks = c.Webhooks[:2] }, "nothing of its webhook configuration but"},
		"a label":  {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Labels = nil }, "may not change the metadata"},
	} {
		old := find[admissionregistrationv1.MutatingWebhookConfiguration](t, "holdfast")
		now := old.DeepCopy()
		c.change(now)
		for _, by := range []string{controllerAccount, "system:serviceaccount:other:blue-holdfast-controller-2"} {
			got := refusal(request{by: by, kind: hookKind, resource: "mutatingwebhookconfigurations", obj: now, old: old})
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s by %s: %q", name, by, got)
			}
		}
		if got := refusal(request{by: "kubernetes-admin", kind: hookKind, resource: "mutatingwebhookconfigurations", obj: now, old: old}); got != "" {
			t.Errorf("%s: people may not: %s", name, got)
		}
	}
	made := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if got := refusal(request{by: controllerAccount, kind: hookKind, resource: "mutatingwebhookconfigurations", obj: made}); got == "" {
		t.Error("the controller may make another one")
	}
}

// TestTheControllerAsksForGangsAlone: the controller may create PodTemplates and ProvisioningRequests only for Gangs.
func TestTheControllerAsksForGangsAlone(t *testing.T) {
	refusal := judge(t, "holdfast-controller-requests")
	kind := schema.GroupVersionKind{Version: "v1", Kind: "PodTemplate"}
	of := func(name, version, kind, owner string, controls bool) *corev1.PodTemplate {
		return &corev1.PodTemplate{
			ObjectMeta: metav1.ObjectMeta{
				Name:            name,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: owner, Controller: &controls}},
			},
		}
	}
	gangs := of("holdfast-llama", "holdfast.dev/v1alpha1", "Gang", "llama", true)
	for name, c := range map[string]struct {
		object *corev1.PodTemplate
		want   string
	}{
		"a gang's":        {gangs, ""},
		"nobody's":        {&corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "holdfast-llama"}}, "of a Gang alone"},
		"a Job's":         {of("holdfast-llama", "batch/v1", "Job", "llama", true), "of a Gang alone"},
		"of another name": {of("holdfast-mistral", "holdfast.dev/v1alpha1", "Gang", "llama", true), "of a Gang alone"},
		"not in control":  {of("holdfast-llama", "holdfast.dev/v1alpha1", "Gang", "llama", false), "of a Gang alone"},
		"another API's":   {of("holdfast-llama", "example.com/v1", "Gang", "llama", true), "of a Gang alone"},
	} {
		if got := refusal(request{by: controllerAccount, kind: kind, resource: "podtemplates", obj: c.object}); (c.want == "") != (got == "") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
		if got := refusal(request{by: "kubernetes-admin", kind: kind, resource: "podtemplates", obj: c.object}); got != "" {
			t.Errorf("%s: people may not: %s", name, got)
		}
	}
	if got := refusal(request{by: controllerAccount, kind: kind, resource: "podtemplates", obj: gangs, old: gangs}); !strings.Contains(got, "may change neither") {
		t.Errorf("a change: %q", got)
	}
}

// TestTheControllerMakesGroupsOfGangsAlone: the controller may create PodGroups of Volcano only for gangs, and may change none.
func TestTheControllerMakesGroupsOfGangsAlone(t *testing.T) {
	refusal := judge(t, "holdfast-controller-groups")
	kind := schema.GroupVersionKind{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"}
	of := func(name, gang, version, kind, owner string, controls bool) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Labels:          map[string]string{"holdfast.dev/gang": gang},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: owner, Controller: &controls}},
		}}
	}
	gangs := of("llama", "llama", "batch/v1", "Job", "llama", true)
	for name, c := range map[string]struct {
		object *metav1.PartialObjectMetadata
		want   string
	}{
		"a gang's":           {gangs, ""},
		"without an owner":   {&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "llama"}}, "of a gang alone"},
		"of another label":   {of("llama", "mistral", "batch/v1", "Job", "llama", true), "of a gang alone"},
		"of another owner":   {of("llama", "llama", "batch/v1", "Job", "mistral", true), "of a gang alone"},
		"of another kind":    {of("llama", "llama", "apps/v1", "ReplicaSet", "llama", true), "of a gang alone"},
		"of a JobSet":        {of("llama", "llama", "jobset.x-k8s.io/v1alpha2", "JobSet", "llama", true), ""},
		"of a PyTorchJob":    {of("llama", "llama", "kubeflow.org/v1", "PyTorchJob", "llama", true), ""},
		"of a MPIJob":        {of("llama", "llama", "kubeflow.org/v2beta1", "MPIJob", "llama", true), "of a gang alone"},
		"of a Volcano Job":   {of("llama", "llama", "batch.volcano.sh/v1alpha1", "Job", "llama", true), "of a gang alone"},
		"not controlled":     {of("llama", "llama", "batch/v1", "Job", "llama", false), "of a gang alone"},
		"of another Job too": {of("mistral", "llama", "batch/v1", "Job", "llama", true), "of a gang alone"},
	} {
		if got := refusal(request{by: controllerAccount, kind: kind, resource: "podgroups", obj: c.object}); (c.want == "") != (got == "") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
		if got := refusal(request{by: "kubernetes-admin", kind: kind, resource: "podgroups", obj: c.object}); got != "" {
			t.Errorf("%s: people may not: %s", name, got)
		}
	}
	for _, resource := range []string{"podgroups", "podgroups/status"} {
		if got := refusal(request{by: controllerAccount, kind: kind, resource: resource, obj: gangs, old: gangs}); !strings.Contains(got, "neither change nor delete") {
			t.Errorf("a change of %s: %q", resource, got)
		}
	}
}

// TestPoliciesMatchTheAccountsThatShip: each policy matches an account of the manifests. A policy that matches none would allow everything.
func TestPoliciesMatchTheAccountsThatShip(t *testing.T) {
	accounts := map[string]bool{}
	for _, obj := range rendered(t) {
		if a, ok := obj.(*corev1.ServiceAccount); ok {
			accounts["system:serviceaccount:"+a.Namespace+":"+a.Name] = true
		}
	}
	was, now := &corev1.Node{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "name", Labels: map[string]string{"a": "b"}}}
	node := schema.GroupVersionKind{Version: "v1", Kind: "Node"}
	for policy, account := range map[string]string{"holdfast-controller-nodes": controllerAccount, "holdfast-node": nodeAccount} {
		if !accounts[account] {
			t.Errorf("no account %s ships", account)
		}
		refusal, moved := judge(t, policy), strings.Replace(account, ":holdfast-", ":elsewhere-", 1)
		for _, by := range []string{account, moved, account + "-v2", strings.Replace(account, ":holdfast", ":team-holdfast", 2)} {
			if refusal(request{by: by, kind: node, resource: "nodes", obj: now, old: was}) == "" {
				t.Errorf("%s does not hold for %s", policy, by)
			}
		}
		for _, by := range []string{"system:node:holdfast-node", "kubernetes-admin", "system:serviceaccount:ns:x"} {
			if said := refusal(request{by: by, kind: node, resource: "nodes", obj: now, old: was}); said != "" {
				t.Errorf("%s holds for %s: %s", policy, by, said)
			}
		}
	}
	for _, obj := range rendered(t) {
		p, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		if b := find[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, p.Name); b.Spec.PolicyName != p.Name ||
			fmt.Sprint(b.Spec.ValidationActions) != "[Deny]" {
			t.Errorf("policy %s is not in force: %+v", p.Name, b.Spec)
		}
	}
}
