// Package manifests has only tests. The tests compare the objects that kustomize makes of the manifests with what the
// code and the documentation rely on.
package manifests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kustomize/api/krusty"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// made returns the output of kustomize, which takes a second.
var made = sync.OnceValues(func() ([]byte, error) {
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), ".")
	if err != nil {
		return nil, err
	}
	return all.AsYaml()
})

// rendered returns the objects that kustomize makes, decoded strictly: an unknown field is an error.
func rendered(t *testing.T) []runtime.Object {
	t.Helper()
	text, err := made()
	if err != nil {
		t.Fatal(err)
	}
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		obj, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		objects = append(objects, obj)
	}
}

func find[T any](t *testing.T, name string) *T {
	t.Helper()
	for _, obj := range rendered(t) {
		if got, ok := obj.(interface{ GetName() string }); ok && got.GetName() == name {
			if typed, ok := any(obj).(*T); ok {
				return typed
			}
		}
	}
	t.Fatalf("no %T named %s", new(T), name)
	return nil
}

func TestAgentImageFollowsTheTag(t *testing.T) {
	d := find[appsv1.Deployment](t, "holdfast-controller")
	c := d.Spec.Template.Spec.Containers[0]
	_, tag, ok := strings.Cut(c.Image, "holdfast.dev/holdfast-controller:")
	if !ok || tag == "" {
		t.Fatalf("the controller's image is %q, without a tag", c.Image)
	}
	want := corev1.EnvVar{Name: "AGENT_IMAGE", Value: "holdfast.dev/holdfast-agent:" + tag}
	for _, e := range c.Env {
		if e.Name == want.Name {
			if e != want {
				t.Fatalf("AGENT_IMAGE is %q, want %q", e.Value, want.Value)
			}
			return
		}
	}
	t.Fatal("the controller has no AGENT_IMAGE")
}

func TestAllOfOursLiesInOurNamespace(t *testing.T) {
	for _, obj := range rendered(t) {
		m := obj.(metav1.Object)
		if ns := m.GetNamespace(); ns != "" && ns != "holdfast-system" && ns != "holdfast-node" && ns != "kube-system" && !(ns == "kube-node-lease" && m.GetName() == "holdfast-controller") {
			t.Errorf("%T %s lies in %s", obj, m.GetName(), ns)
		}
	}
}

func TestSecretsAreReadByNameAlone(t *testing.T) {
	check := func(name string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, resource := range r.Resources {
				if (resource == "secrets" || resource == "*") && fmt.Sprint(r.ResourceNames) != "[holdfast-certs]" {
					t.Errorf("%s may %v %s %v", name, r.Verbs, resource, r.ResourceNames)
				}
			}
		}
	}
	for _, obj := range rendered(t) {
		switch o := obj.(type) {
		case *rbacv1.ClusterRole:
			check(o.Name, o.Rules)
			for _, r := range o.Rules {
				for _, resource := range r.Resources {
					if resource == "secrets" {
						t.Errorf("cluster role %s reads secrets", o.Name)
					}
				}
			}
		case *rbacv1.Role:
			check(o.Name, o.Rules)
		}
	}
}

// TestTheControllerOnlyPatchesJobs: the controller reads only a part of each Job, so an update with it would erase the rest.
func TestTheControllerOnlyPatchesJobs(t *testing.T) {
	patches := false
	for _, r := range find[rbacv1.ClusterRole](t, "holdfast-controller").Rules {
		for _, resource := range r.Resources {
			if resource != "jobs" && resource != "jobs/status" {
				continue
			}
			patches = patches || slices.Contains(r.Verbs, "patch")
			if slices.Contains(r.Verbs, "update") || slices.Contains(r.Verbs, "*") {
				t.Errorf("it may %v %s", r.Verbs, resource)
			}
		}
	}
	if !patches {
		t.Error("it has no right to Jobs, so this test looks at the wrong role")
	}
}

// withComponent returns the output of kustomize for folders with an optional component.
func withComponent(t *testing.T, name string, folders ...string) string {
	t.Helper()
	overlay := t.TempDir()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	to := func(name string) string {
		rel, err := filepath.Rel(overlay, filepath.Join(here, name))
		if err != nil {
			t.Fatal(err)
		}
		return rel
	}
	var resources []string
	for _, folder := range folders {
		resources = append(resources, to(folder))
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n", strings.Join(resources, ", "), to(name))
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = kustypes.LoadRestrictionsNone
	all, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		t.Fatal(err)
	}
	made, err := all.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(made)
}

// TestPullSecretsAreForWhoBindsThem: the optional component sets the controller's flag and grants no right.
func TestPullSecretsAreForWhoBindsThem(t *testing.T) {
	made := withComponent(t, "image-pull-secrets", "controller")
	if !strings.Contains(made, "- --image-pull-secrets") || strings.Count(made, "name: holdfast-image-pull-secrets") != 1 {
		t.Errorf("made\n%s", made)
	}
	if text, err := os.ReadFile("image-pull-secrets/role.yaml"); err != nil || !strings.Contains(string(text), "resources: [secrets, serviceaccounts], verbs: [get]") {
		t.Errorf("the role is another one: %v", err)
	}
}

// TestDeploymentsNameNoUser: the SCC restricted-v2 admits only users of the namespace's own range.
func TestDeploymentsNameNoUser(t *testing.T) {
	for _, name := range []string{"holdfast-controller", "holdfast-scheduler"} {
		spec := find[appsv1.Deployment](t, name).Spec.Template.Spec
		if pod := spec.SecurityContext; pod == nil || !ptr.Deref(pod.RunAsNonRoot, false) || pod.RunAsUser != nil || pod.RunAsGroup != nil ||
			pod.FSGroup != nil {
			t.Errorf("%s: %+v", name, pod)
		}
		for _, c := range spec.Containers {
			if c.SecurityContext.RunAsUser != nil || c.SecurityContext.RunAsGroup != nil {
				t.Errorf("%s: container %s names a user", name, c.Name)
			}
		}
	}
}

// TestPrivateRegistry: Holdfast's own pods, and the pods into which the webhook injects, pull images with the secret. The component grants
// no right.
func TestPrivateRegistry(t *testing.T) {
	made := withComponent(t, "private-registry", "controller", "scheduler", "node")
	if n := strings.Count(made, "imagePullSecrets:\n      - name: holdfast-registry\n"); n != 3 || strings.Count(made, "- --agent-pull-secrets=holdfast-registry") != 1 {
		t.Errorf("%d of our pods pull with it\n%s", n, made)
	}
	if before, after := strings.Count(withComponent(t, "image-pull-secrets", "controller"), "- secrets\n"), strings.Count(withComponent(t, "private-registry", "controller"), "- secrets\n"); after != before-1 {
		t.Errorf("%d rules name secrets", after)
	}
}

// kinds for which the API server calls the webhook.
var (
	podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	jobKind = schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}
)

// asked reports whether the API server would call the named webhook. The API server's own code decides that.
func asked(t *testing.T, hook string, kind schema.GroupVersionKind, obj, old runtime.Object) bool {
	t.Helper()
	config := find[admissionregistrationv1.MutatingWebhookConfiguration](t, "holdfast")
	for i := range config.Webhooks {
		h := &config.Webhooks[i]
		if h.Name != hook {
			continue
		}
		accessor := webhook.NewMutatingWebhookAccessor(string(types.UID("1")), config.Name, h)
		matcher := accessor.GetCompiledMatcher(
			admissioncel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())),
		)
		operation := admission.Create
		if old != nil {
			operation = admission.Update
		}
		resource := kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")
		attr := admission.NewAttributesRecord(obj, old, kind, "ns", "name", resource, "", operation, nil, false, nil)
		versioned := &admission.VersionedAttributes{Attributes: attr, VersionedKind: kind}
		versioned.VersionedObject.Set(obj)
		if old != nil {
			versioned.VersionedOldObject.Set(old)
		}
		var answers []bool
		// The API server presents an object to an expression in one of two ways.
		for _, byType := range []bool{false, true} {
			//lint:ignore SA1019 the server still has both ways
			versioned.VersionedObject.UseSchemalessTypeRef, versioned.VersionedOldObject.UseSchemalessTypeRef = byType, byType
			versioned.VersionedObject.Set(obj)
			versioned.VersionedOldObject.Set(versioned.VersionedOldObject.Object())
			result := matcher.Match(context.Background(), versioned, nil, nil)
			if result.Error != nil {
				t.Fatalf("%s: %v", hook, result.Error)
			}
			answers = append(answers, result.Matches)
		}
		if answers[0] != answers[1] {
			t.Fatalf("%s: the answer hangs on how the object is shown: %v", hook, answers)
		}
		return answers[0]
	}
	t.Fatalf("no webhook %s", hook)
	return false
}

func meta(labels, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Labels: labels, Annotations: annotations}
}

var (
	ours   = map[string]string{"holdfast.dev/enabled": "true"}
	theirs = map[string]string{"example.com/holdfast.dev": "x", "holdfast.device/enabled": "true"}
)

func TestWebhookIsAskedAboutPodsOfOursAlone(t *testing.T) {
	for name, c := range map[string]struct {
		meta metav1.ObjectMeta
		want bool
	}{
		"bare":                    {meta(nil, nil), false},
		"others' keys":            {meta(theirs, theirs), false},
		"our annotation":          {meta(nil, ours), true},
		"a key we do not know":    {meta(nil, map[string]string{"holdfast.dev/nonsense": ""}), true},
		"our label":               {meta(map[string]string{"holdfast.dev/gang": "x"}, nil), true},
		"ours among many":         {meta(theirs, map[string]string{"a/b": "", "c": "", "holdfast.dev/ranks": "1"}), true},
		"our prefix in the value": {meta(nil, map[string]string{"a": "holdfast.dev/enabled"}), false},
	} {
		pod := &corev1.Pod{ObjectMeta: c.meta}
		if got := asked(t, "pods.holdfast.dev", podKind, pod, nil); got != c.want {
			t.Errorf("%s: asked = %v", name, got)
		}
	}
}

func jobOf(meta, template metav1.ObjectMeta) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: meta,
		Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](2), Template: corev1.PodTemplateSpec{ObjectMeta: template}},
	}
}

func TestWebhookIsAskedAboutJobsOfOursAlone(t *testing.T) {
	none := metav1.ObjectMeta{}
	for name, c := range map[string]struct {
		job  *batchv1.Job
		want bool
	}{
		"bare":                   {jobOf(none, none), false},
		"no spec at all":         {&batchv1.Job{}, false},
		"others' keys":           {jobOf(meta(theirs, theirs), meta(theirs, theirs)), false},
		"annotation":             {jobOf(meta(nil, ours), none), true},
		"label":                  {jobOf(meta(ours, nil), none), true},
		"template's annotation":  {jobOf(none, meta(nil, ours)), true},
		"template's label":       {jobOf(none, meta(ours, nil)), true},
		"both, others' as well":  {jobOf(meta(theirs, ours), meta(theirs, ours)), true},
		"template, others' meta": {jobOf(meta(theirs, theirs), meta(theirs, ours)), true},
	} {
		if got := asked(t, "jobs.holdfast.dev", jobKind, c.job, nil); got != c.want {
			t.Errorf("%s: asked = %v", name, got)
		}
	}
}

func TestWebhookIsAskedAboutChangesOfOursAlone(t *testing.T) {
	none := metav1.ObjectMeta{}
	stamped := meta(nil, map[string]string{"holdfast.dev/enabled": "true", "holdfast.dev/gang-size": "2"})
	gang := meta(map[string]string{"holdfast.dev/gang": "x"}, stamped.Annotations)
	place := func(index string) metav1.ObjectMeta {
		return meta(map[string]string{"jobset.sigs.k8s.io/job-index": index}, stamped.Annotations)
	}
	bigger := func(j *batchv1.Job) *batchv1.Job { j.Spec.Parallelism = ptr.To[int32](3); return j }
	for name, c := range map[string]struct {
		old, job *batchv1.Job
		want     bool
	}{
		"nothing of ours":          {jobOf(none, none), bigger(jobOf(meta(theirs, theirs), none)), false},
		"ours, unchanged":          {jobOf(meta(nil, ours), stamped), jobOf(meta(theirs, ours), stamped), false},
		"annotated":                {jobOf(none, none), jobOf(meta(nil, ours), none), true},
		"annotated beside others":  {jobOf(meta(nil, theirs), none), jobOf(meta(nil, map[string]string{"a": "b", "holdfast.dev/enabled": "true"}), none), true},
		"room was made":            {jobOf(meta(nil, ours), stamped), jobOf(meta(nil, map[string]string{"holdfast.dev/enabled": "true", "holdfast.dev/made-room": "x"}), stamped), false},
		"value changed":            {jobOf(meta(nil, ours), none), jobOf(meta(nil, map[string]string{"holdfast.dev/enabled": "false"}), none), true},
		"removed":                  {jobOf(meta(nil, ours), none), jobOf(none, none), true},
		"template annotated":       {jobOf(none, none), jobOf(none, meta(nil, ours)), true},
		"template's key removed":   {jobOf(meta(nil, ours), stamped), jobOf(meta(nil, ours), none), true},
		"gang's label removed":     {jobOf(meta(nil, ours), gang), jobOf(meta(nil, ours), stamped), true},
		"other label removed":      {jobOf(meta(nil, ours), meta(theirs, stamped.Annotations)), jobOf(meta(nil, ours), stamped), false},
		"its place in a JobSet":    {jobOf(none, place("0")), jobOf(none, place("1")), true},
		"a place in a JobSet":      {jobOf(none, stamped), jobOf(none, place("1")), true},
		"a place, not ours":        {jobOf(none, none), jobOf(none, meta(place("1").Labels, nil)), false},
		"size of a gang":           {jobOf(meta(nil, ours), stamped), bigger(jobOf(meta(nil, ours), stamped)), true},
		"size of an ordinary job":  {jobOf(none, meta(nil, theirs)), bigger(jobOf(none, meta(nil, theirs))), false},
		"other annotation changed": {jobOf(meta(nil, ours), stamped), jobOf(meta(nil, map[string]string{"holdfast.dev/enabled": "true", "a": "b"}), stamped), false},
	} {
		if got := asked(t, "job-changes.holdfast.dev", jobKind, c.job, c.old); got != c.want {
			t.Errorf("%s: asked = %v", name, got)
		}
	}
}

// TestManyAnnotations: with as many annotations as the API server allows, the expression stays within its cost limit. Otherwise the API
// server would refuse the object in the webhook's name.
func TestManyAnnotations(t *testing.T) {
	many := map[string]string{}
	for size := 0; size < 250<<10; {
		key := fmt.Sprintf("holdfast.de/%x", len(many))
		many[key] = ""
		size += len(key)
	}
	if asked(t, "jobs.holdfast.dev", jobKind, jobOf(meta(nil, many), meta(nil, many)), nil) {
		t.Error("asked about a job without a key of ours")
	}
	if asked(t, "job-changes.holdfast.dev", jobKind, jobOf(meta(nil, many), meta(nil, many)), jobOf(meta(nil, many), meta(nil, many))) {
		t.Error("asked about a change that is none")
	}
}

func TestCRDIsOurs(t *testing.T) {
	crd := find[apiextensionsv1.CustomResourceDefinition](t, "gangs.holdfast.dev")
	if crd.Spec.Versions[0].Subresources == nil || crd.Spec.Versions[0].Subresources.Status == nil {
		t.Error("the Gang has no status subresource")
	}
	for _, v := range crd.Spec.Versions { // the API server itself refuses objects that did not pass Holdfast's admission
		if most := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["members"].Maximum; most == nil || *most != v1alpha1.MaxMembers {
			t.Errorf("%s: spec.members has maximum %v, want %d", v.Name, ptr.Deref(most, 0), v1alpha1.MaxMembers)
		}
	}
}

// TestMonitoring: component monitoring has what the Prometheus Operator and Grafana read, and its token belongs to the account with the
// right to read metrics alone.
func TestMonitoring(t *testing.T) {
	made := withComponent(t, "monitoring", "controller", "scheduler", "node")
	for text, n := range map[string]int{"kind: PodMonitor\n": 3, "kind: PrometheusRule\n": 1, "grafana_dashboard: \"1\"": 1, "  cluster.json: ": 1, "  job.json: ": 1,
		"kubernetes.io/service-account.name: holdfast-metrics\n": 1, "type: kubernetes.io/service-account-token\n": 1} {
		if got := strings.Count(made, text); got != n {
			t.Errorf("%q is there %d times, want %d", text, got, n)
		}
	}
}
