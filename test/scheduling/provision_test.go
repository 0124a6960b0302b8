package scheduling

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	gangcontroller "holdfast.dev/holdfast/gang/controller"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/slim"
)

const (
	requestsDefinition = "testdata/provisioningrequests.yaml"
	requestClass       = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
)

// asked is a stage with the gang controller, which has exactly the rights of the manifests.
type asked struct {
	*stage
	api client.Client
}

// TestObjectsOfGangs tests the objects that the gang controller creates for a gang in APIs of other projects.
func TestObjectsOfGangs(t *testing.T) {
	a := &asked{stage: newStage(t, 1)}
	if err := a.client.CoreV1().Nodes().DeleteCollection(a.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	a.leader = a.start()
	a.controls()
	a.testProvisioningRequest(t)
	a.testHandOver(t)
	a.testKindsComeAndGo(t)
}

// testProvisioningRequest: a gang that is refused for lack of room requests all of its nodes at once, as long as the API is served. The
// test answers in place of the autoscaler.
func (a *asked) testProvisioningRequest(t *testing.T) {
	a.jobThatAsks("quad")
	a.saying("quad", "no ProvisioningRequest is created: the cluster serves no autoscaling.x-k8s.io/v1")
	a.applyFile(requestsDefinition)
	first := a.standing("quad", "")
	template := &corev1.PodTemplate{}
	if err := a.api.Get(a.ctx, client.ObjectKeyFromObject(first), template); err != nil {
		t.Fatal(err)
	}
	sets, _, _ := unstructured.NestedSlice(first.Object, "spec", "podSets")
	if want := fmt.Sprintf("[map[count:%d podTemplateRef:map[name:%s]]]", squad, template.Name); fmt.Sprint(sets) != want {
		t.Errorf("asked is for %v, want %s", sets, want)
	}
	if gpus := template.Template.Spec.Containers[0].Resources.Limits[gpu]; gpus.Value() != 8 || template.Template.Spec.NodeName != "" {
		t.Errorf("asked is for pods like %+v", template.Template.Spec)
	}
	a.answer(first, "Accepted", metav1.ConditionTrue, "Accepted", time.Now())
	a.saying("quad", "for 4 pods was accepted")
	a.answer(first, "Provisioned", metav1.ConditionFalse, "CapacityIsNotFound", time.Now())
	a.saying("quad", "for 4 pods is retried: CapacityIsNotFound")
	a.answer(first, "Failed", metav1.ConditionTrue, "Expired", time.Now().Add(-time.Hour))
	second := a.standing("quad", first.GetUID())
	if n := second.GetAnnotations()[v1alpha1.AnnotationAttempt]; n != "2" {
		t.Errorf("the next one is attempt %s", n)
	}
	a.answer(second, "Provisioned", metav1.ConditionTrue, "CapacityIsProvisioned", time.Now())
	a.saying("quad", "for 4 pods, attempt 2, was provisioned")
	for i := range squad {
		a.kept(fmt.Sprint("bought-", i), nil)
	}
	a.until("the gang to be placed, and nothing of its request to be left", func() bool {
		request := a.api.Get(a.ctx, client.ObjectKeyFromObject(second), second.DeepCopy())
		left := a.api.Get(a.ctx, client.ObjectKeyFromObject(second), template)
		return apierrors.IsNotFound(request) && apierrors.IsNotFound(left)
	})
	if out, err := a.cluster.Kubectl(a.ctx, "delete", "-f", requestsDefinition); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a.jobThatAsks("late")
	a.saying("late", "no ProvisioningRequest is created: the cluster serves no autoscaling.x-k8s.io/v1")
	late := client.ObjectKey{Namespace: "default", Name: v1alpha1.RequestName("late")}
	if err := a.api.Get(a.ctx, late, template); !apierrors.IsNotFound(err) {
		t.Errorf("a template is left of no request: %v", err)
	}
}

// controls starts the gang controller.
func (a *asked) controls() {
	a.t.Helper()
	ctrllog.SetLogger(logr.Discard())
	for _, file := range []string{"controller/rbac.yaml", "controller/policy.yaml"} {
		a.applyFile(source + "/manifests/" + file)
	}
	config, err := a.cluster.Config()
	if err != nil {
		a.t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		a.t.Fatal(err)
	}
	if a.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		a.t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:holdfast-system:holdfast-controller",
		Groups: []string{"system:authenticated", "system:serviceaccounts"}}
	ofGangs, err := labels.Parse(v1alpha1.LabelGang)
	if err != nil {
		a.t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: ofGangs}, &batchv1.Job{}: {Transform: slim.Job}}}})
	if err != nil {
		a.t.Fatal(err)
	}
	reader, err := jobs.ForManager(mgr, kinds.Served())
	if err != nil {
		a.t.Fatal(err)
	}
	gangs := gangcontroller.New(gangcontroller.Options{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Jobs:     reader,
		ByGang:   elasticcontroller.PodsByGang,
		Recorder: mgr.GetEventRecorder("holdfast-gang"),
		Now:      time.Now,
	})
	if err := errors.Join(elasticcontroller.IndexPods(mgr), gangs.SetupWithManager(mgr)); err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(a.ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	a.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			a.t.Errorf("the manager: %v", err)
		}
	})
}

// jobThatAsks creates a Job whose gang requests nodes.
func (a *asked) jobThatAsks(name string) {
	a.t.Helper()
	a.jobOf(name, func(pod *corev1.Pod) {
		pod.Annotations[v1alpha1.AnnotationProvisioningClass] = requestClass
		pod.Annotations[v1alpha1.AnnotationConsumesRequest] = v1alpha1.RequestName(name)
	})
}

// jobOf creates a Job and its pods as admission would leave them. There is no webhook and no Job controller.
func (a *asked) jobOf(name string, change func(*corev1.Pod)) {
	a.t.Helper()
	like := member(name, 0, squad, "")
	like.Annotations[v1alpha1.AnnotationEnabled] = "true"
	like.Spec.RestartPolicy = corev1.RestartPolicyNever
	change(like)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: batchv1.JobSpec{
		Parallelism:    ptr.To[int32](squad),
		Completions:    ptr.To[int32](squad),
		CompletionMode: ptr.To(batchv1.IndexedCompletion),
		ManagedBy:      ptr.To("holdfast.dev/test"),
		Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: like.Annotations}, Spec: like.Spec},
	}}
	if err := a.api.Create(a.ctx, job); err != nil {
		a.t.Fatal(err)
	}
	for slot := range squad {
		pod := member(name, slot, squad, fmt.Sprintf("%s-%d", name, slot))
		pod.Annotations[v1alpha1.AnnotationEnabled] = "true"
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: membership.JobVariable, Value: string(job.UID)}}
		change(pod)
		a.create(pod)
	}
}

// saying waits until the Gang's reason for not being placed has these words.
func (a *asked) saying(gang, what string) {
	a.t.Helper()
	a.until(fmt.Sprintf("the Gang to say %q", what), func() bool {
		g := &v1alpha1.Gang{}
		if err := a.api.Get(a.ctx, client.ObjectKey{Namespace: "default", Name: gang}, g); err != nil {
			return false
		}
		c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionPlaced)
		return c != nil && strings.Contains(c.Message, what)
	})
}

// standing waits until the gang has a request whose UID is not the given one.
func (a *asked) standing(gang string, not types.UID) *unstructured.Unstructured {
	a.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling.x-k8s.io", Version: "v1", Kind: "ProvisioningRequest"})
	a.until("a request of the gang", func() bool {
		return a.api.Get(a.ctx, client.ObjectKey{Namespace: "default", Name: v1alpha1.RequestName(gang)}, u) == nil && u.GetUID() != not
	})
	return u
}

// answer sets the autoscaler's answer to a request.
func (a *asked) answer(u *unstructured.Unstructured, condition string, is metav1.ConditionStatus, reason string, since time.Time) {
	a.t.Helper()
	before := u.DeepCopy()
	said := map[string]any{"type": condition, "status": string(is), "reason": reason, "message": "m",
		"lastTransitionTime": since.UTC().Format(time.RFC3339)}
	if err := unstructured.SetNestedSlice(u.Object, []any{said}, "status", "conditions"); err != nil {
		a.t.Fatal(err)
	}
	if err := a.api.Status().Patch(a.ctx, u, client.MergeFrom(before)); err != nil {
		a.t.Fatal(err)
	}
}
