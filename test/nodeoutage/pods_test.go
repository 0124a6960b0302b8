package nodeoutage

import (
	"errors"
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/test/devcluster"
)

const controllerUser = "system:serviceaccount:holdfast-system:holdfast-controller"

// permit installs the controller's shipped rights, and returns a configuration that has them.
func (w *world) permit(c *devcluster.Cluster) *rest.Config {
	w.t.Helper()
	for _, file := range []string{"namespace.yaml", "controller/rbac.yaml", "controller/policy.yaml"} {
		if _, err := c.Kubectl(w.ctx, "apply", "-f", "../../manifests/"+file); err != nil {
			w.t.Fatal(err)
		}
	}
	config := rest.CopyConfig(w.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: controllerUser, Groups: []string{"system:authenticated", "system:serviceaccounts"}}
	return config
}

// jobNamed creates a Job of one pod that no node accepts.
func (w *world) jobNamed(name string, change func(*batchv1.Job), annotations map[string]string) {
	w.t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Completions: ptr.To[int32](1), CompletionMode: ptr.To(batchv1.IndexedCompletion), PodReplacementPolicy: ptr.To(batchv1.Failed),
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{"no": "node"}, Containers: []corev1.Container{{Name: "train", Image: "none"}},
		}},
	}}
	if change != nil {
		change(job)
	}
	if _, err := w.direct.BatchV1().Jobs("default").Create(w.ctx, job, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// job creates such a Job, and returns its pod.
func (w *world) job(name string, labels map[string]string) *corev1.Pod {
	w.t.Helper()
	w.jobNamed(name, func(j *batchv1.Job) {
		j.Spec.Template.Labels = labels
		j.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: membership.JobVariable, Value: "stamped"}}
	}, nil)
	var pod *corev1.Pod
	eventually.Succeeds(w.t, "a pod of Job "+name, func() error {
		list, err := w.direct.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
		if err != nil || len(list.Items) == 0 {
			return errors.Join(err, errors.New("none yet"))
		}
		pod = &list.Items[0]
		return nil
	})
	return pod
}

// podsOfGangsAlone: with the rights of the manifests the controller can do what it must do to pods of gangs, and nothing to other pods.
func podsOfGangsAlone(w *world, c *devcluster.Cluster) {
	try := w.asController(c)
	gang, other := w.job("a-gang", map[string]string{v1alpha1.LabelGang: "a-gang"}), w.job("no-gang", nil)
	try.inForce("holdfast-controller-pods", func() error { return try.patch(other.Name, `{"metadata":{"labels":{"x":"y"}}}`) })
	take := `{"metadata":{"labels":{"holdfast.dev/replaced":"true","controller-uid":null}}}`
	for _, c := range []struct{ what, pod, patch, refused string }{
		{"a pod of no gang", other.Name, take, "pods of gangs alone"},
		{"one that it would make a gang's", other.Name, `{"metadata":{"labels":{"holdfast.dev/gang":"g","holdfast.dev/replaced":"true"}}}`, "pods of gangs alone"},
		{"another label", gang.Name, `{"metadata":{"labels":{"a":"b","holdfast.dev/replaced":"true"}}}`, "only to take it out"},
		{"out of the Job without the label", gang.Name, `{"metadata":{"labels":{"controller-uid":null}}}`, "only to take it out"},
		{"into another gang", gang.Name, `{"metadata":{"labels":{"holdfast.dev/gang":"g","holdfast.dev/replaced":"true"}}}`, "only to take it out"},
		{"an annotation", gang.Name, `{"metadata":{"labels":{"holdfast.dev/replaced":"true"},"annotations":{"a":"b"}}}`, "no annotation of a pod but"},
		{"what keeps it, with no order to go", gang.Name, `{"metadata":{"annotations":{"holdfast.dev/eviction-refused":"x"}}}`, "only to take it out"},
		{"what keeps it", gang.Name, `{"metadata":{"labels":{"holdfast.dev/replaced":"true"},"annotations":{"holdfast.dev/eviction-refused":"x"}}}`, ""},
		{"how long it may run", gang.Name, `{"metadata":{"labels":{"holdfast.dev/replaced":"true"}},"spec":{"activeDeadlineSeconds":5}}`, "nothing of a pod but its labels and what keeps it"},
		{"its finalizers", gang.Name, `{"metadata":{"labels":{"holdfast.dev/replaced":"true"},"finalizers":null}}`, "nothing of a pod but its labels and what keeps it"},
		{"out of its Job", gang.Name, take, ""},
	} {
		try.expect(c.what, try.patch(c.pod, c.patch), c.refused)
	}
	try.expect("delete a pod of no gang", try.delete(other), "pods of gangs alone")
	try.expect("delete a pod of a gang that is in its Job", try.delete(gang), "only when it was taken out")
	try.expect("evict a pod that may be another by now", try.evict("default", gang.Name, nil), "must name the UID")
	try.expect("evict a pod of the cluster's own", try.evict("kube-system", "dns", &gang.UID), "cluster's own namespaces")
	try.expect("evict", try.evict("default", gang.Name, &gang.UID), "")
	w.replaces(c, try.config, gang)
	try.expect("delete what was taken out", try.delete(gang), "")
}

// replaces lets the product take the pod out of its Job.
func (w *world) replaces(c *devcluster.Cluster, config *rest.Config, pod *corev1.Pod) {
	w.t.Helper()
	w.gangs(c)
	api, err := client.New(config, client.Options{Scheme: ours(w)})
	if err != nil {
		w.t.Fatal(err)
	}
	gang := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "a-gang"}}
	gang.Spec.Members = 1
	gang.Spec.JobRef = v1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: "a-gang", UID: string(membership.JobUID(pod))}
	eventually.Succeeds(w.t, "the Gang", func() error { return client.IgnoreAlreadyExists(api.Create(w.ctx, gang)) })
	store := storeOver(w.t, api, config)
	key := coordinator.Key{Namespace: pod.Namespace, Name: "a-gang", Job: string(membership.JobUID(pod))}
	if err := store.Replace(w.ctx, key, elastic.Termination{Pod: string(pod.UID), Name: pod.Name, Cause: v1alpha1.CauseNodeGone}); err != nil {
		w.t.Fatalf("with its own rights the controller cannot replace a pod: %v", err)
	}
	eventually.Succeeds(w.t, "the Job creates its pod again", func() error {
		list, err := w.direct.CoreV1().
			Pods("default").
			List(w.ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=a-gang," + v1alpha1.LabelReplaced + "!=true"})
		if err != nil || len(list.Items) != 1 {
			return errors.Join(err, fmt.Errorf("%d pods", len(list.Items)))
		}
		return nil
	})
}

// tries sends dry-run requests with the controller's rights.
type tries struct {
	*world
	config *rest.Config
	kube   kubernetes.Interface
}

func (w *world) asController(c *devcluster.Cluster) *tries {
	w.t.Helper()
	config := w.permit(c)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return &tries{world: w, config: config, kube: kube}
}

// inForce waits until the policy refuses what it forbids, with its name in the message. Until the API server has the controller's rights it
// refuses everything, with another message.
func (t *tries) inForce(policy string, forbidden func() error) {
	t.t.Helper()
	eventually.Succeeds(t.t, "the policy is in force", func() error {
		if err := forbidden(); err == nil || !strings.Contains(err.Error(), policy) {
			return fmt.Errorf("it does not refuse with %q: %v", policy, err)
		}
		return nil
	})
}

var dry = []string{metav1.DryRunAll}

func (t *tries) patch(pod, patch string) error {
	_, err := t.kube.CoreV1().Pods("default").Patch(t.ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dry})
	return err
}

func (t *tries) delete(pod *corev1.Pod) error {
	return t.kube.CoreV1().
		Pods("default").
		Delete(t.ctx, pod.Name, metav1.DeleteOptions{
			DryRun:             dry,
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      &metav1.Preconditions{UID: &pod.UID},
		})
}

func (t *tries) evict(namespace, pod string, uid *types.UID) error {
	o := &metav1.DeleteOptions{DryRun: dry}
	if uid != nil {
		o.Preconditions = &metav1.Preconditions{UID: uid}
	}
	return t.kube.PolicyV1().
		Evictions(namespace).
		Evict(t.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}, DeleteOptions: o})
}

func (t *tries) expect(what string, err error, refused string) {
	t.t.Helper()
	switch {
	case refused == "" && err != nil:
		t.t.Errorf("%s: refused: %v", what, err)
	case refused != "" && (!apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refused)):
		t.t.Errorf("%s: %v; want a refusal with %q", what, err, refused)
	}
}
