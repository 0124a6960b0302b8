package manifests

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// ask returns the request that creates an object or, if old is not empty, changes old to it.
func ask(t *testing.T, text, old string) request {
	t.Helper()
	read := func(text string) *unstructured.Unstructured {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return &u
	}
	obj := read(text)
	r := request{by: "someone", kind: obj.GroupVersionKind(), resource: strings.ToLower(obj.GetKind()) + "s", obj: obj}
	if old != "" {
		r.old = runtime.Object(read(old))
	}
	return r
}

// Messages of the policy; %s is the kind.
const (
	notYet    = "Holdfast does not support the kind %s yet: train in an Indexed batch Job, a Volcano Job, a JobSet or a PyTorchJob, and annotate that, or remove"
	notAKind  = "%s is no kind of job that Holdfast knows: annotate the job that trains"
	inTheJobs = "has no effect on a CronJob itself: write it in spec.jobTemplate.metadata.annotations"
)

// unknownKinds has one row per place where the annotation may be: the metadata of the object, and the pod templates of each kind. ON is
// that metadata.
var unknownKinds = []struct{ apiVersion, kind, rest, want string }{
	{"apps/v1", "StatefulSet", "ON", notYet},
	{"apps/v1", "Deployment", "spec: {template: {ON}}", notYet},
	{"apps/v1", "Deployment", `metadata: {annotations: {holdfast.dev/enabled: "yes"}}`, notYet},
	{"apps/v1", "Deployment", `metadata: {annotations: {holdfast.dev/enabled: "false"}}`, ""},
	{"apps/v1", "Deployment", "spec: {template: {metadata: {annotations: {a: b}}}}", ""},
	{"apps/v1", "ReplicaSet", "ON", notYet},
	{"apps/v1", "ReplicaSet",
		`metadata: {annotations: {holdfast.dev/enabled: "true"}, ownerReferences: [{kind: Deployment, controller: true}]}`, ""},
	{"scheduling.volcano.sh/v1beta1", "PodGroup", "ON", notAKind},
	{"scheduling.volcano.sh/v1beta1", "PodGroup",
		`metadata: {annotations: {holdfast.dev/enabled: "true"}, ownerReferences: [{kind: Job, controller: true}]}`, ""},
	{"v1", "ReplicationController", "ON", notYet},
	{"batch.volcano.sh/v1alpha1", "CronJob", "ON", notYet},
	{"kubeflow.org/v1", "TFJob", "ON", notYet},
	{"kubeflow.org/v1", "TFJob", "spec: {runPolicy: {a: b}, tfReplicaSpecs: {Chief: {replicas: 1}, Worker: {template: {ON}}}}", notYet},
	{"kubeflow.org/v2beta1", "MPIJob", "spec: {mpiReplicaSpecs: {Launcher: {template: {ON}}}}", notYet},
	{"trainer.kubeflow.org/v1alpha1", "TrainJob", "ON", notYet},
	{"trainer.kubeflow.org/v1alpha1", "TrainJob", "spec: {runtimePatches: [{trainingRuntimeSpec: {template: {ON}}}]}", notYet},
	{"trainer.kubeflow.org/v1alpha1", "TrainJob",
		"spec: {runtimePatches: [{trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{template: {spec: {template: {ON}}}}]}}}}]}", notYet},
	{"leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "spec: {leaderWorkerTemplate: {workerTemplate: {ON}}}", notYet},
	{"ray.io/v1", "RayCluster", "spec: {workerGroupSpecs: [{template: {ON}}]}", notYet},
	{"ray.io/v1", "RayJob", "spec: {rayClusterSpec: {headGroupSpec: {template: {ON}}}}", notYet},
	{"example.com/v1", "TrainingTask", "ON", notAKind},
	{"example.com/v1", "Text", `ON, spec: {template: "not an object"}`, notAKind},
	{"example.com/v1", "Text", `spec: {template: "not an object"}`, ""},
	{"tekton.dev/v1", "Pipeline", "spec: {tasks: [{name: a}]}", ""},
	{"v1", "Namespace", "ON", notAKind},
	{"batch/v1", "CronJob", "ON", inTheJobs},
	{"batch/v1", "CronJob", "ON, spec: {jobTemplate: {ON}}", ""},
	{"batch/v1", "CronJob", "spec: {jobTemplate: {ON}}", ""},
	{"batch/v1", "CronJob", "spec: {jobTemplate: {spec: {template: {ON}}}}", ""},
}

// TestUnknownKindsAreDenied: the annotation that opts a job in is refused where it has no effect, and the message names the kind. Other
// changes of an object that already has the annotation are allowed.
func TestUnknownKindsAreDenied(t *testing.T) {
	refusal := judge(t, "holdfast-unknown-kinds")
	for _, c := range unknownKinds {
		rest := c.rest
		if !strings.HasPrefix(rest, "ON") && !strings.HasPrefix(rest, "metadata") {
			rest = "metadata: {name: x}, " + rest
		}
		object := fmt.Sprintf("{apiVersion: %s, kind: %s, %s}", c.apiVersion, c.kind,
			strings.ReplaceAll(rest, "ON", `metadata: {annotations: {holdfast.dev/enabled: "true"}}`))
		want, kind := c.want, c.kind
		if group, _, has := strings.Cut(c.apiVersion, "/"); has {
			kind += " (" + group + ")"
		}
		if strings.Contains(want, "%s") {
			want = fmt.Sprintf(want, kind)
		}
		if got := refusal(ask(t, object, "")); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", object, got, want)
		}
		if got := refusal(ask(t, object, object)); got != "" {
			t.Errorf("a change of %s, which carries it already: %s", object, got)
		}
		if want == "" {
			continue
		}
		without := fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: x}}", c.apiVersion, c.kind)
		if got := refusal(ask(t, object, without)); !strings.Contains(got, want) {
			t.Errorf("a change that puts it on %s: %q, want %q", object, got, want)
		}
		if got := refusal(ask(t, without, object)); got != "" {
			t.Errorf("a change that removes it from %s: %s", object, got)
		}
	}
}

// TestUnknownKindsSpareWhatIsOften: for objects that are written often, and for kinds that the webhook handles, the policy is not evaluated
// at all.
func TestUnknownKindsSpareWhatIsOften(t *testing.T) {
	p := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, "holdfast-unknown-kinds")
	for resource, want := range map[schema.GroupVersionResource]bool{
		{Version: "v1", Resource: "pods"}:                                                false,
		{Version: "v1", Resource: "nodes"}:                                               false,
		{Version: "v1", Resource: "events"}:                                              false,
		{Version: "v1", Resource: "configmaps"}:                                          false,
		{Group: "batch", Version: "v1", Resource: "jobs"}:                                false,
		{Group: "events.k8s.io", Version: "v1", Resource: "events"}:                      false,
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}:                false,
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}:           false,
		{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}:            false,
		{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}: false,
		{Group: "holdfast.dev", Version: "v1alpha1", Resource: "gangs"}:                  false,
		{Group: "batch", Version: "v1", Resource: "cronjobs"}:                            true,
		{Group: "batch.volcano.sh", Version: "v1alpha1", Resource: "jobs"}:               false,
		{Group: "jobset.x-k8s.io", Version: "v1alpha2", Resource: "jobsets"}:             false,
		{Group: "kubeflow.org", Version: "v1", Resource: "pytorchjobs"}:                  false,
		{Group: "kubeflow.org", Version: "v1", Resource: "tfjobs"}:                       true,
		{Group: "apps", Version: "v1", Resource: "statefulsets"}:                         true,
		{Version: "v1", Resource: "namespaces"}:                                          true,
		{Version: "v1", Resource: "podtemplates"}:                                        true,
		{Group: "example.com", Version: "v1", Resource: "trainingtasks"}:                 true,
	} {
		for sub, want := range map[string]bool{"": want, "status": false} {
			for _, op := range []admission.Operation{admission.Create, admission.Update} {
				attr := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "ns", "name", resource, sub, op, nil, false, nil)
				matches := func(all []admissionregistrationv1.NamedRuleWithOperations) bool {
					for _, r := range all {
						if (&rules.Matcher{Rule: r.RuleWithOperations, Attr: attr}).Matches() {
							return true
						}
					}
					return false
				}
				if got := matches(p.Spec.MatchConstraints.ResourceRules) && !matches(p.Spec.MatchConstraints.ExcludeResourceRules); got != want {
					t.Errorf("%s %s/%s: %v, want %v", op, resource, sub, got, want)
				}
			}
		}
	}
}

// ofKinds are objects of the kinds, other than batch Jobs, that the webhook handles. Each has a place for its own metadata and for that of
// its templates.
var ofKinds = []string{
	"{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {OWN}, spec: {N: 1, tasks: [{name: m}, {template: {metadata: {INNER}}}]}}",
	"{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {OWN}, spec: {N: 1, replicatedJobs: [{name: r}, {template: {spec: {template: {metadata: {INNER}}}}}]}}",
	"{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {OWN}, spec: {N: 1, replicatedJobs: [{template: {metadata: {INNER}}}]}}",
	"{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {OWN}, spec: {N: 1, pytorchReplicaSpecs: {Master: {}, Worker: {template: {metadata: {INNER}}}}}}",
}

// TestWebhookIsAskedAboutKinds: the API server calls the webhook for objects with a key of Holdfast, and for changes of their specs and of
// these keys.
func TestWebhookIsAskedAboutKinds(t *testing.T) {
	const ours, label, theirs = "annotations: {holdfast.dev/enabled: x}", "labels: {holdfast.dev/x: x}", "annotations: {example.com/holdfast.dev: x}, labels: {a: b}"
	for _, text := range ofKinds {
		object := func(own, inner, n string) *unstructured.Unstructured {
			r := ask(t, strings.NewReplacer("OWN", own, "INNER", inner, "N: 1", "n: "+n).Replace(text), "")
			return r.obj.(*unstructured.Unstructured)
		}
		kind := object("", "", "1").GroupVersionKind()
		for _, c := range []struct {
			own, inner string
			want       bool
		}{{"", "", false}, {theirs, theirs, false}, {ours, "", true}, {label, "", true}, {"", ours, true}, {theirs, label, true}} {
			if got := asked(t, "kinds.holdfast.dev", kind, object(c.own, c.inner, "1"), nil); got != c.want {
				t.Errorf("%s with %q and %q: asked = %v", kind.Kind, c.own, c.inner, got)
			}
		}
		for name, c := range map[string]struct {
			old, obj *unstructured.Unstructured
			want     bool
		}{
			"nothing of ours":                  {object(theirs, theirs, "1"), object("", theirs, "2"), false},
			"ours, unchanged":                  {object(ours, ours, "1"), object(ours, ours, "1"), false},
			"ours, another's changes":          {object(ours, ours, "1"), object(ours+", labels: {a: b}", ours, "1"), false},
			"ours, the spec changes":           {object(ours, "", "1"), object(ours, "", "2"), true},
			"annotated":                        {object("", "", "1"), object(ours, "", "1"), true},
			"the annotation goes":              {object(ours, "", "1"), object("", "", "1"), true},
			"the template's goes":              {object(ours, ours, "1"), object(ours, "", "1"), true},
			"a template is annotated":          {object("", "", "1"), object("", ours, "1"), true},
			"all of ours goes, and all others": {object(ours, ours, "1"), object("", "", "2"), true},
		} {
			if got := asked(t, "kind-changes.holdfast.dev", kind, c.obj, c.old); got != c.want {
				t.Errorf("%s, %s: asked = %v", kind.Kind, name, got)
			}
		}
	}
}

// TestManyAnnotationsOfKinds: with as many annotations as the API server allows, on the object and on a template, the expression stays
// within the cost limit of the API server.
func TestManyAnnotationsOfKinds(t *testing.T) {
	many := map[string]any{}
	for size := 0; size < 250<<10; {
		key := fmt.Sprintf("holdfast.de/%x", len(many))
		many[key] = ""
		size += len(key)
	}
	for _, text := range ofKinds {
		object := func(n string) *unstructured.Unstructured {
			r := ask(t, strings.NewReplacer("OWN", "annotations: {}", "INNER", "annotations: {}", "N: 1", "n: "+n).Replace(text), "")
			obj := r.obj.(*unstructured.Unstructured)
			fill(obj.Object, many)
			return obj
		}
		kind := object("1").GroupVersionKind()
		if asked(t, "kinds.holdfast.dev", kind, object("1"), nil) || asked(t, "kind-changes.holdfast.dev", kind, object("2"), object("1")) {
			t.Errorf("asked about a %s without a key of ours", kind.Kind)
		}
	}
}

// fill puts annotations into all places for them.
func fill(part any, many map[string]any) {
	switch part := part.(type) {
	case []any:
		for _, item := range part {
			fill(item, many)
		}
	case map[string]any:
		for key := range part {
			if fill(part[key], many); key == "annotations" {
				part[key] = many
			}
		}
	}
}

// TestUnknownKindsHaveTwoBindings: exactly one binding of the policy applies to each namespace. A label that tenants cannot set selects it.
func TestUnknownKindsHaveTwoBindings(t *testing.T) {
	for name, want := range map[string]struct {
		action     admissionregistrationv1.ValidationAction
		in, notSet bool
	}{
		"holdfast-unknown-kinds":      {admissionregistrationv1.Deny, false, true},
		"holdfast-unknown-kinds-warn": {admissionregistrationv1.Warn, true, false},
	} {
		b := find[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, name)
		s, err := metav1.LabelSelectorAsSelector(b.Spec.MatchResources.NamespaceSelector)
		if err != nil {
			t.Fatal(err)
		}
		if b.Spec.PolicyName != "holdfast-unknown-kinds" || fmt.Sprint(b.Spec.ValidationActions) != fmt.Sprintf("[%s]", want.action) ||
			s.Matches(labels.Set{"holdfast.dev/unknown-kinds": "warn"}) != want.in || s.Matches(labels.Set{}) != want.notSet {
			t.Errorf("%s: %+v", name, b.Spec)
		}
	}
}

var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// TestGangsAreNotScaled: a scale of the object of a Gang is refused, unless the number stays. Other objects can be scaled.
func TestGangsAreNotScaled(t *testing.T) {
	gang := &v1alpha1.Gang{Spec: v1alpha1.GangSpec{Members: 4, JobRef: v1alpha1.JobReference{Kind: "PyTorchJob", Name: "name", UID: "u"}}}
	param, err := runtime.DefaultUnstructuredConverter.ToUnstructured(gang)
	if err != nil {
		t.Fatal(err)
	}
	scale := func(uid types.UID, n int32) *autoscalingv1.Scale {
		return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "name", UID: uid}, Spec: autoscalingv1.ScaleSpec{Replicas: n}}
	}
	const says = "the gang was formed with 4 pods and cannot change its size yet: delete the PyTorchJob and create it again"
	refusal := judge(t, "holdfast-scales")
	for name, c := range map[string]struct {
		old, now *autoscalingv1.Scale
		want     string
	}{
		"more":                         {scale("u", 3), scale("u", 7), says},
		"more, the request has no UID": {scale("u", 3), scale("", 7), says},
		"fewer":                        {scale("u", 3), scale("u", 2), says},
		"none":                         {scale("u", 3), scale("u", 0), says},
		"the first":                    {scale("u", 0), scale("u", 1), says},
		"as many":                      {scale("u", 3), scale("u", 3), ""},
		"another object of that name":  {scale("v", 3), scale("v", 7), ""},
		"another, with the Gang's UID": {scale("v", 3), scale("u", 7), ""},
	} {
		r := request{kind: scaleKind, resource: "pytorchjobs/scale", obj: c.now, old: c.old, param: &unstructured.Unstructured{Object: param}}
		for _, r.by = range []string{"someone", "system:serviceaccount:kube-system:horizontal-pod-autoscaler", controllerAccount} {
			if got := refusal(r); got != c.want {
				t.Errorf("%s by %s: %q, want %q", name, r.by, got, c.want)
			}
		}
	}
}

// TestScalesAreComparedWithEachGang: the policy is evaluated for all Gangs of the namespace, and for subresource scale of each kind that
// may have it.
func TestScalesAreComparedWithEachGang(t *testing.T) {
	p := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, "holdfast-scales")
	crd := find[apiextensionsv1.CustomResourceDefinition](t, "gangs.holdfast.dev")
	want := admissionregistrationv1.ParamKind{APIVersion: v1alpha1.GroupVersion.String(), Kind: crd.Spec.Names.Kind}
	if p.Spec.ParamKind == nil || *p.Spec.ParamKind != want {
		t.Errorf("compared with %+v, not with Gangs", p.Spec.ParamKind)
	}
	b := find[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, p.Name)
	all := admissionregistrationv1.ParamRef{
		Selector:                &metav1.LabelSelector{},
		ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction),
	}
	if b.Spec.MatchResources != nil || !reflect.DeepEqual(b.Spec.ParamRef, &all) {
		t.Errorf("not compared with each Gang of the namespace: %+v", b.Spec)
	}
	for _, k := range kinds.Served() {
		gvr := k.GroupVersionKind().GroupVersion().WithResource(k.Resource())
		for sub, want := range map[string]bool{"scale": k != (kinds.BatchJob{}), "": false, "status": false} { // Kubernetes' own Job has no scale
			attr := admission.NewAttributesRecord(nil, nil, scaleKind, "ns", "name", gvr, sub, admission.Update, nil, false, nil)
			got := slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
				return (&rules.Matcher{Rule: r.RuleWithOperations, Attr: attr}).Matches()
			})
			if got != want {
				t.Errorf("%s/%s: evaluated = %v", gvr, sub, got)
			}
		}
	}
}
