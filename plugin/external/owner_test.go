package external

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// The jobs below have PodGroups of the same name. Their controllers create no pods while the PodGroup is Pending.
const (
	vcJob = `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {namespace: ns, name: g, uid: job}, spec: {
  schedulerName: SCHEDULER, tasks: [{name: a, replicas: 1, template: {spec: {containers: []}}}, {name: b, replicas: 2}]}}`
	// torch is a job whose master is for one scheduler and whose workers are for another.
	torch = `{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {namespace: ns, name: g, uid: job}, spec: {pytorchReplicaSpecs: {
  Master: {template: {spec: {schedulerName: MASTER, containers: []}}}, Worker: {replicas: 2, template: {spec: {schedulerName: SCHEDULER, containers: []}}}}}}`
)

// TestGroupsWithoutPods: a group without pods is admitted if its owner shows that its pods will be for this scheduler. Otherwise it is not
// touched.
func TestGroupsWithoutPods(t *testing.T) {
	ours := v1alpha1.SchedulerName
	foreign := pod("g-0", corev1.PodPending)
	foreign.Labels, foreign.Annotations = map[string]string{"training.kubeflow.org/job-name": "g"}, map[string]string{vcscheduling.KubeGroupNameAnnotationKey: "g"}
	foreign.Spec.SchedulerName = "volcano"
	member := foreign.DeepCopy() // Holdfast's own gang: its PodGroup is not read
	member.Labels[v1alpha1.LabelGang], member.Spec.SchedulerName = "g", ours
	for name, c := range map[string]struct {
		job, kind string
		phase     string
		uid       string
		pod       *corev1.Pod
		fails     bool
		want      string // the phase that is written, or the error
		reads     int
	}{
		"Volcano Job":                       {job: of(vcJob, ours, ""), want: "Inqueue", reads: 1},
		"Volcano Job, Pending":              {job: of(vcJob, ours, ""), phase: "Pending", want: "Inqueue", reads: 1},
		"Volcano Job of Volcano":            {job: of(vcJob, "volcano", ""), reads: 1},
		"PyTorchJob":                        {job: of(torch, ours, ours), want: "Inqueue", reads: 1},
		"PyTorchJob whose master says none": {job: of(torch, ours, `""`), reads: 1},
		"PyTorchJob of Volcano":             {job: of(torch, "volcano", "volcano"), reads: 1},
		"PyTorchJob, let in":                {job: of(torch, ours, ours), phase: "Inqueue"},
		"PyTorchJob with members of ours":   {job: of(torch, ours, ours), phase: "Pending", pod: member, want: "Inqueue", reads: 1},
		"PyTorchJob with others' pods":      {job: of(torch, ours, ours), pod: foreign},
		"PyTorchJob without roles":          {job: "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {namespace: ns, name: g, uid: job}, spec: {}}", reads: 1},
		"PyTorchJob that was re-created":    {job: of(torch, ours, ours), uid: "earlier", reads: 1},
		"PyTorchJob that is gone":           {kind: "PyTorchJob", reads: 1},
		"PyTorchJob that cannot be read":    {job: of(torch, ours, ours), fails: true, want: "reading the scheduler's name of pytorchjobs.kubeflow.org ns/g", reads: 1},
		"a kind that waits for no group":    {job: strings.Replace(of(torch, ours, ours), "PyTorchJob", "TFJob", 1)},
		"of no owner":                       {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			group := map[string]any{"apiVersion": vcscheduling.SchemeGroupVersion.String(), "kind": "PodGroup",
				"metadata": map[string]any{"namespace": "ns", "name": "g", "uid": "group", "resourceVersion": "7"},
				"spec":     map[string]any{"minMember": int64(3)}, "status": map[string]any{"phase": c.phase}}
			job := map[string]any{}
			if c.job != "" {
				if err := yaml.Unmarshal([]byte(c.job), &job); err != nil {
					t.Fatal(err)
				}
				c.kind = fmt.Sprint(job["kind"])
			}
			if c.kind != "" {
				api := map[string]string{"Job": "batch.volcano.sh/v1alpha1"}[c.kind]
				if api == "" {
					api = "kubeflow.org/v1"
				}
				uid := "job"
				if c.uid != "" {
					uid = c.uid
				}
				group["metadata"].(map[string]any)["ownerReferences"] = []any{
					map[string]any{"apiVersion": api, "kind": c.kind, "name": "g", "uid": uid, "controller": true}}
			}
			for _, o := range owners {
				if gvk := o.kind.GroupVersionKind(); c.job != "" && gvk.Kind == c.kind {
					s.create(gvk.GroupVersion(), o.kind.Resource(), job)
				}
			}
			if c.pod != nil {
				s.add(c.pod)
			}
			s.create(vcscheduling.SchemeGroupVersion, "podgroups", group)
			s.serve(vcscheduling.SchemeGroupVersion, "podgroups")
			key := types.NamespacedName{Namespace: "ns", Name: membership.Volcano + "/g"}
			s.until("the group to be read", func() bool { _, err := s.book.Terms(key, nil); return err == nil })
			if c.fails {
				s.dynamic.PrependReactor("get", "pytorchjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, errors.New("no answer")
				})
			}
			got := ""
			if err := s.writer(ours, func(*corev1.ObjectReference, string, string) {}).Write(s.ctx, key, nil, false); err != nil {
				got = err.Error()
			}
			reads := 0
			for _, a := range s.dynamic.Actions() {
				if a.GetVerb() == "get" {
					reads++
				}
				if patch, ok := a.(clienttesting.PatchAction); ok {
					var written struct{ Status vcscheduling.PodGroupStatus }
					if err := json.Unmarshal(patch.GetPatch(), &written); err != nil {
						t.Fatal(err)
					}
					got = string(written.Status.Phase)
				}
			}
			if got != c.want && (!c.fails || !strings.HasPrefix(got, c.want)) || reads != c.reads {
				t.Errorf("%q after %d reads of the owner, want %q after %d", got, reads, c.want, c.reads)
			}
		})
	}
}

// of returns a job whose pods are for one scheduler, and whose master is for another.
func of(job, scheduler, master string) string {
	return strings.NewReplacer("SCHEDULER", scheduler, "MASTER", master).Replace(job)
}

// TestOwnersAreControllers: only a controller reference makes a group belong to a job.
func TestOwnersAreControllers(t *testing.T) {
	pg := &vcscheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Name: "g"}}}}
	if _, ref := ownerOf(pg); ref != nil {
		t.Errorf("owned by %v", ref)
	}
}
