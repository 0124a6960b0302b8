package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// example reads an object of testdata/kinds.
func example(t testing.TB, name string) (kinds.Kind, *unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "kinds", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return objectFrom(t, string(text))
}

func objectFrom(t testing.TB, text string) (kinds.Kind, *unstructured.Unstructured) {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := decodeObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	kind, ok := kinds.Of(obj.GroupVersionKind().GroupKind())
	if !ok {
		t.Fatalf("%s is of no kind", text)
	}
	return kind, obj
}

// podsOf returns the pods that the kind's controller creates for an object, as far as admission reads them.
func podsOf(kind kinds.Kind, obj *unstructured.Unstructured) (pods []*corev1.Pod) {
	read, _ := kind.Read(obj)
	for i := range read.Roles {
		r := role{Role: &read.Roles[i]}
		for replica := range r.Replicas {
			for index := range r.Each {
				p := &corev1.Pod{ObjectMeta: *r.Pod.ObjectMeta.DeepCopy(), Spec: *r.spec()}
				p.Namespace, p.Spec.SchedulerName = obj.GetNamespace(), r.Scheduler
				owned(p, kind, obj, kinds.Place{Role: r.Name, Replica: replica, Index: index})
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// owned writes on a pod what the kind's controller writes.
func owned(p *corev1.Pod, kind kinds.Kind, obj *unstructured.Unstructured, at kinds.Place) {
	gvk := kind.GroupVersionKind()
	name, uid := obj.GetName(), obj.GetUID()
	index := fmt.Sprint(at.Index)
	switch kind.(type) {
	case kinds.VolcanoJob:
		for key, value := range map[string]string{"volcano.sh/task-spec": at.Role, "volcano.sh/task-index": index, "scheduling.k8s.io/group-name": name + "-" + string(uid)} {
			p.Annotations = setKey(p.Annotations, key, value)
		}
		p.Name = name + "-" + at.Role + "-" + index
	case kinds.PyTorchJob:
		for key, value := range map[string]string{"job-name": name, "replica-type": at.Role, "replica-index": index} {
			p.Labels = setKey(p.Labels, "training.kubeflow.org/"+key, value)
		}
		p.Name = name + "-" + at.Role + "-" + index
	case kinds.JobSet:
		replica := fmt.Sprint(at.Replica)
		for key, value := range map[string]string{"jobset-name": name, "jobset-uid": string(uid), "replicatedjob-name": at.Role, "job-index": replica} {
			p.Labels = setKey(p.Labels, "jobset.sigs.k8s.io/"+key, value)
		}
		gvk, name = kinds.BatchJob{}.GroupVersionKind(), name+"-"+at.Role+"-"+replica
		uid = types.UID("uid-of-" + name)
		p.Annotations = setKey(p.Annotations, batchv1.JobCompletionIndexAnnotation, index)
		p.Name = name + "-" + index
	}
	api := gvk.GroupVersion().String()
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: api, Kind: gvk.Kind, Name: name, UID: uid, Controller: ptr.To(true)}}
}

// ofNginx has the command of the image in the examples.
var ofNginx = Facts{Minor: 37, Images: map[string]Image{"default-nginx": {
	Process: &ImageProcess{Image: "nginx@sha256:0", Entrypoint: []string{"/docker-entrypoint.sh"}, Cmd: []string{"nginx"}},
}}}

// TestKinds admits an object of each kind and the pods that its controller creates. Each pod gets a slot of its own. Pods of a role that
// ends before training starts are not changed.
func TestKinds(t *testing.T) {
	golden.Each(t, "testdata/kinds/*.yaml", func(t *testing.T, file, text string) {
		kind, obj := objectFrom(t, text)
		out := mutateJob(t.Context(), kind, obj, ofNginx)
		b := &strings.Builder{}
		b.WriteString(said(out))
		if len(out.Errors) > 0 {
			t.Fatal(out.Errors.ToAggregate())
		}
		b.WriteString(asYAML(t, out.Object.Object))
		again := mutateJob(t.Context(), kind, out.Object, ofNginx)
		if len(again.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object, again.Object) {
			t.Errorf("admitted twice: %s\n%s", said(again), asYAML(t, again.Object))
		}
		var slots []int
		for _, p := range podsOf(kind, out.Object) {
			slot, member := admittedPod(t, b, p, obj)
			if member {
				slots = append(slots, slot)
			}
		}
		slices.Sort(slots)
		for i, slot := range slots {
			if i != slot {
				t.Errorf("slots %v", slots)
				break
			}
		}
		golden.File(t, golden.Beside(file, ".txt"), b.String())
	})
}

// admittedPod admits a pod, and prints what makes the pod a member.
func admittedPod(t *testing.T, b *strings.Builder, p *corev1.Pod, obj *unstructured.Unstructured) (slot int, member bool) {
	t.Helper()
	out := MutatePod(t.Context(), p, config)
	if len(out.Errors)+len(out.Warnings) > 0 {
		t.Fatalf("pod %s: %s", p.Name, said(out))
	}
	if again := MutatePod(t.Context(), out.Object, config); len(again.Errors) > 0 || !equality.Semantic.DeepEqual(out.Object, again.Object) {
		t.Errorf("pod %s injected twice: %s", p.Name, said(again))
	}
	slot, member = membership.GangSlot(out.Object)
	if !member {
		if !equality.Semantic.DeepEqual(p, out.Object) {
			t.Errorf("pod %s is no member, and was changed", p.Name)
		}
		fmt.Fprintf(b, "pod %s: no member\n", p.Name)
		return 0, false
	}
	size, err := membership.GangSize(out.Object)
	if err != nil {
		t.Error(err)
	}
	if membership.JobUID(out.Object) != obj.GetUID() {
		t.Errorf("pod %s was made for %s", p.Name, membership.JobUID(out.Object))
	}
	fmt.Fprintf(b, "pod %s: gang %s, slot %d of %d, role %q, %s ranks, scheduler %s, group %s\n", p.Name, out.Object.Labels[v1alpha1.LabelGang], slot, size,
		membership.GangRole(out.Object), envOf(out.Object, "HOLDFAST_RANKS"), out.Object.Spec.SchedulerName, out.Object.Annotations["scheduling.k8s.io/group-name"])
	return slot, true
}

// edited returns an object with changed fields: the path of each, with dots between, and the value as YAML.
func edited(t testing.TB, obj *unstructured.Unstructured, edits ...string) *unstructured.Unstructured {
	t.Helper()
	obj = obj.DeepCopy()
	for i := 0; i < len(edits); i += 2 {
		raw, err := yaml.YAMLToJSON([]byte(edits[i+1]))
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(raw, &value); err != nil {
			t.Fatal(err)
		}
		if n, is := value.(float64); is {
			value = int64(n)
		}
		steps := strings.Split(edits[i], " ")
		var at any = obj.Object
		for _, step := range steps[:len(steps)-1] {
			switch part := at.(type) {
			case map[string]any:
				if part[step] == nil {
					part[step] = map[string]any{}
				}
				at = part[step]
			case []any:
				at = part[step[0]-'0']
			}
		}
		last := steps[len(steps)-1]
		if fields := at.(map[string]any); value == nil {
			delete(fields, last)
		} else {
			fields[last] = value
		}
	}
	return obj
}

// Paths of keys in the examples.
const (
	onObject    = "metadata annotations holdfast.dev/"
	onTask      = "spec tasks 0 template metadata annotations holdfast.dev/"
	onWorkers   = "spec replicatedJobs 2 template spec template metadata annotations holdfast.dev/"
	onWorkerJob = "spec replicatedJobs 2 template metadata annotations holdfast.dev/"
	onData      = "spec replicatedJobs 0 template spec template metadata annotations holdfast.dev/"
	onWorker    = "spec pytorchReplicaSpecs Worker template metadata annotations holdfast.dev/"
	master      = "spec pytorchReplicaSpecs Master template spec containers 0 "
	worker      = "spec pytorchReplicaSpecs Worker template spec containers 0 "
)

// TestRefusalsOfKinds: each refusal names the field and the remedy.
func TestRefusalsOfKinds(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name, of string
		edits    []string
	}{
		{"observed", "jobset-roles", []string{onObject + "mode", "observe"}},
		{"nodes for all", "pytorchjob-simple", []string{onObject + "provisioning-class", "a.b"}},
		{"enabled on a template alone", "pytorchjob-simple", []string{onObject + "enabled", "null", onWorker + "enabled", `"true"`}},
		{"a setting on a template", "volcano-ours", []string{onTask + "state-size", "2Gi"}},
		{"a setting on a Job's metadata", "jobset-roles", []string{onWorkerJob + "enabled", `"true"`}},
		{"a setting of a role that ends before", "jobset-roles", []string{onData + "ranks", `"2"`}},
		{"a key that is not known", "volcano-ours", []string{onObject + "enabeld", `"true"`}},
		{"a label", "volcano-ours", []string{"metadata labels holdfast.dev/enabled", `"true"`}},
		{"slots by hand", "pytorchjob-simple", []string{onWorker + "gang-slots", "0/0"}},
		{"slots on the object", "pytorchjob-simple", []string{onObject + "gang-slots", "0/1/1"}},
		{"a container that is none", "jobset-roles", []string{onWorkers + "container", "trainer"}},
		{"a pin on a template", "jobset-roles", []string{onWorkers + "pinned-checkpoints", "1@1"}},
		{"a command that is not known", "pytorchjob-simple", []string{"spec pytorchReplicaSpecs Worker template spec containers 0 command", "null"}},
		{"a launcher of another number of pods", "jobset-roles", []string{"spec replicatedJobs 2 template spec template spec containers 1 command", "[torchrun, --nnodes=4, train.py]"}},
		{"a launcher of as many pods as ranks", "pytorchjob-workers", []string{"spec pytorchReplicaSpecs Master",
			`{template: {spec: {schedulerName: volcano, containers: [{name: pytorch, command: [torchrun, --nnodes=$(WORLD_SIZE), train.py]}]}}}`}},
		{"a launcher in one role, a script in the other", "pytorchjob-simple", []string{master + "command", "[torchrun, train.py]"}},
		{"a launcher of a shell, another one in the other", "pytorchjob-simple", []string{
			master + "command", `[sh, -c, "cd /job; exec mpirun ./train"]`, worker + "command", `[bash, -c, "cd /job; exec torchrun train.py"]`}},
		{"slices that do not divide the job", "volcano-ours", []string{onObject + "slice-size", `"3"`}},
		{"least pods", "jobset-roles", []string{onObject + "min-pods", `"2"`}},
		{"a launcher of a range", "jobset-roles", []string{"spec replicatedJobs 2 template spec template spec containers 1 command", "[torchrun, '--nnodes=2:5', train.py]"}},
		{"two schedulers", "volcano-pytorch", []string{"spec tasks 0 template spec schedulerName", "holdfast-scheduler"}},
		{"Volcano, keys of placement", "volcano-pytorch", []string{onObject + "topology-required", "rack", onObject + "topology-preferred", "rack", onObject + "spares", `"1"`, onObject + "slice-size", `"2"`}},
		{"Volcano, keys of placement of another kind", "pytorchjob-workers", []string{onObject + "topology-required", "rack", onObject + "slice-size", `"3"`}},
		{"elastic", "pytorchjob-simple", []string{"spec elasticPolicy", "{}"}},
		{"a field of another type", "pytorchjob-simple", []string{"spec pytorchReplicaSpecs Worker replicas", "many"}},
		{"a part of another object", "jobset-roles", []string{"metadata ownerReferences", `[{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, name: llm, uid: u, controller: true}]`}},
	} {
		kind, obj := example(t, c.of)
		out := mutateJob(t.Context(), kind, edited(t, obj, c.edits...), Facts{})
		if len(out.Errors) == 0 {
			t.Errorf("%s: not refused", c.name)
		}
		b.WriteString("# " + c.name + "\n" + said(out))
	}
	golden.File(t, "testdata/refusals-kinds.txt", b.String())
}

// TestRolesWithOtherCommands: roles with different commands are refused only if both commands show how they start ranks.
func TestRolesWithOtherCommands(t *testing.T) {
	for _, commands := range [][2]string{
		{"[torchrun, a.py]", "[python3, -m, torch.distributed.run, b.py]"},
		{"[torchrun, a.py]", "[accelerate, launch, b.py]"},
		{"[torchrun, a.py]", "[./start.sh]"},
		{"[torchrun, a.py]", `[sh, -c, "python3 prepare.py && ./start.sh"]`},
		{"[torchrun, a.py]", `[sh, -c, "python3 prepare.py && torchrun b.py"]`},
		{"[./start.sh]", "[python3, b.py]"},
		{"[mpirun, a]", "[python3, b.py]"},
	} {
		kind, obj := example(t, "pytorchjob-simple")
		out := mutateJob(t.Context(), kind, edited(t, obj, master+"command", commands[0], worker+"command", commands[1]), Facts{})
		if len(out.Errors) > 0 {
			t.Errorf("%v: %s", commands, said(out))
		}
	}
}

// TestKindsThatAreNotOptedIn: objects that are not opted in are not changed, whatever their content is.
func TestKindsThatAreNotOptedIn(t *testing.T) {
	for name, edits := range map[string][]string{
		"volcano-pytorch":   {onObject + "enabled", `"false"`, "spec tasks", "many"},
		"jobset-roles":      {onObject + "enabled", `"false"`, onWorkers + "container", "null", onWorkers + "enabled", `"false"`, "spec startupPolicy", "{startupPolicyOrder: InOrder}"},
		"pytorchjob-simple": {onObject + "enabled", "null"},
	} {
		kind, obj := example(t, name)
		obj = edited(t, obj, edits...)
		out := mutateJob(t.Context(), kind, obj, Facts{ObserveOnly: true})
		if len(out.Errors)+len(out.Warnings) > 0 || !equality.Semantic.DeepEqual(obj, out.Object) {
			t.Errorf("%s: %s\n%s", name, said(out), asYAML(t, out.Object))
		}
	}
	kind, obj := example(t, "jobset-roles")
	out := mutateJob(t.Context(), kind, obj, Facts{ObserveOnly: true})
	if len(out.Errors) > 0 || !equality.Semantic.DeepEqual(obj, out.Object) ||
		!strings.Contains(said(out), "--observe-only, and holdfast observes no JobSet: it stays as it is") {
		t.Errorf("while all is only observed: %s\n%s", said(out), asYAML(t, out.Object))
	}
}

// TestChangesOfKinds: an existing object keeps its pods and its settings. What admission had written, and a file that is applied again does
// not have, is written again.
func TestChangesOfKinds(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name, of    string
		notAdmitted bool
		edits       []string
	}{
		{"nothing of ours", "jobset-roles", false, []string{"spec suspend", "true"}},
		{"a role grows", "volcano-pytorch", false, []string{"spec tasks 0 replicas", "5"}},
		{"a role is added", "pytorchjob-workers", false, []string{"spec pytorchReplicaSpecs Master", "{template: {spec: {containers: [{name: pytorch}]}}}"}},
		{"a role goes", "pytorchjob-simple", false, []string{"spec pytorchReplicaSpecs Worker", "null"}},
		{"fewer Jobs", "jobset-roles", false, []string{"spec replicatedJobs 2 replicas", "1"}},
		{"a setting changes", "jobset-roles", false, []string{onObject + "run-time", "1h"}},
		{"a setting on a template", "jobset-roles", false, []string{onWorkers + "state-size", "1Gi"}},
		{"opted out", "pytorchjob-simple", false, []string{onObject + "enabled", "null"}},
		{"a bad value", "pytorchjob-simple", false, []string{onObject + "state-size", `"40"`}},
		{"a size by hand", "pytorchjob-simple", false, []string{onWorker + "gang-size", `"7"`}},
		{"slots by hand", "pytorchjob-simple", false, []string{onWorker + "gang-slots", "0/2/2"}},
		{"another image", "volcano-example", false, []string{"spec tasks 0 template spec containers 0 image", "other"}},
		{"a policy that restarts all", "volcano-example", false, []string{"spec policies", `[{event: "*", action: RestartJob}]`}},
		{"opted in", "pytorchjob-simple", true, []string{onObject + "enabled", `"true"`}},
		{"opted in on a template", "pytorchjob-simple", true, []string{onWorker + "enabled", `"true"`}},
		{"opted in on a Job's metadata", "jobset-roles", true, []string{onWorkerJob + "enabled", `"true"`}},
		{"made a member by hand", "pytorchjob-simple", true, []string{onWorker + "gang-size", `"2"`}},
		{"not opted in, grows", "pytorchjob-simple", true, []string{"spec pytorchReplicaSpecs Worker replicas", "5"}},
	} {
		kind, obj := example(t, c.of)
		off := []string{onObject + "enabled", "null"}
		if c.of == "jobset-roles" {
			off = append(off, onObject+"run-time", "null", onWorkers+"container", "null")
		}
		old := edited(t, obj, off...)
		if !c.notAdmitted {
			out := mutateJob(t.Context(), kind, obj, ofNginx)
			if len(out.Errors) > 0 {
				t.Fatal(out.Errors.ToAggregate())
			}
			old = out.Object
		}
		out := checkJobUpdate(t.Context(), kind, old, edited(t, old, c.edits...), Facts{})
		b.WriteString("# " + c.name + "\n" + said(out))
	}
	golden.File(t, "testdata/updates-kinds.txt", b.String())
}

// TestStampsAreWrittenAgain: kubectl replace sends the user's own file, without the stamps. They are written again.
func TestStampsAreWrittenAgain(t *testing.T) {
	files, err := filepath.Glob("testdata/kinds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		kind, obj := example(t, name)
		admitted := mutateJob(t.Context(), kind, obj, ofNginx).Object
		out := checkJobUpdate(t.Context(), kind, admitted, obj, Facts{})
		if len(out.Errors)+len(out.Warnings) > 0 || !equality.Semantic.DeepEqual(out.Object, admitted) {
			t.Errorf("%s: %s\n%s", name, said(out), asYAML(t, out.Object.Object))
		}
		gone := edited(t, obj, "metadata deletionTimestamp", "2026-11-28T12:00:00Z", "spec", "{}")
		if out := checkJobUpdate(t.Context(), kind, admitted, gone, Facts{}); len(out.Errors) > 0 {
			t.Errorf("%s cannot be removed: %s", name, said(out))
		}
	}
}

// TestExportedKinds: what admission wrote into an object is adapted to its new name, size and settings.
func TestExportedKinds(t *testing.T) {
	for name, edits := range map[string][]string{
		"volcano-pytorch":    {"metadata name", "second", "spec tasks 0 replicas", "7"},
		"jobset-roles":       {onObject + "run-time", "1h", "spec replicatedJobs 2 replicas", "1", "spec replicatedJobs 2 template spec template spec containers 1 command", "[torchrun, train.py]"},
		"pytorchjob-workers": {onObject + "state-size", "null", "spec pytorchReplicaSpecs Worker replicas", "1"},
	} {
		kind, obj := example(t, name)
		want := mutateJob(t.Context(), kind, edited(t, obj, edits...), Facts{})
		got := mutateJob(t.Context(), kind, edited(t, mutateJob(t.Context(), kind, obj, Facts{}).Object, edits...), Facts{})
		if len(got.Errors) > 0 || !equality.Semantic.DeepEqual(want.Object, got.Object) {
			t.Errorf("%s: %s\n%s", name, said(got), asYAML(t, got.Object.Object))
		}
	}
}

// TestRequestsOfKinds: the patch of a response changes only the metadata of the templates. An image that several roles use is read once.
// Requests of other kinds are not handled.
func TestRequestsOfKinds(t *testing.T) {
	_, obj := example(t, "pytorchjob-simple")
	const command = "spec pytorchReplicaSpecs %s template spec containers 0 command"
	obj = edited(t, obj, fmt.Sprintf(command, "Master"), "null", fmt.Sprintf(command, "Worker"), "null", "spec newField", "x")
	var asked []ImageQuery
	h := Jobs(Cluster{Images: func(_ context.Context, q ImageQuery) (ImageProcess, error) {
		asked = append(asked, q)
		return ImageProcess{Entrypoint: []string{"torchrun", "train.py"}}, nil
	}})
	in := raw(t, obj.Object)
	req := request(admissionv1.Create, in, runtime.RawExtension{})
	req.Kind = metav1.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: "PyTorchJob"}
	req.Namespace = "kubeflow"
	r := h.Handle(t.Context(), req)
	if !r.Allowed || len(asked) != 1 || asked[0].Namespace != "kubeflow" {
		t.Fatalf("%+v, asked %+v", r, asked)
	}
	for _, p := range r.Patches {
		if !strings.HasSuffix(p.Path, "/template/metadata") || p.Operation != "add" {
			t.Errorf("%s %s", p.Operation, p.Path)
		}
	}
	req.Operation, req.OldObject, req.Object = admissionv1.Update, runtime.RawExtension{Raw: applied(t, in.Raw, r)}, in
	if r := h.Handle(t.Context(), req); !r.Allowed || len(r.Patches) != 2 || len(asked) != 1 {
		t.Errorf("replaced by its file: %+v, asked %+v", r, asked)
	}
	req.Kind.Kind = "TFJob"
	if r := h.Handle(t.Context(), req); r.Allowed || r.Result.Code != http.StatusBadRequest || !strings.Contains(r.Result.Message, "no kind TFJob of kubeflow.org") {
		t.Errorf("another kind: %+v", r)
	}
}

// TestLimitsOfKinds: the namespace's limits are compared with the pods of each role, and with the pods of all roles together.
func TestLimitsOfKinds(t *testing.T) {
	kind, obj := example(t, "jobset-roles")
	worker := `[{name: worker, image: trainer, command: [torchrun, train.py], resources: {limits: {memory: 1Gi, cpu: "1"}}}]`
	driver := `{limits: {memory: 2Gi, cpu: "2"}}`
	obj = edited(t, obj, "spec replicatedJobs 1 template spec template spec containers 0 resources", driver,
		"spec replicatedJobs 2 template spec template spec containers", worker)
	for want, limits := range map[string]Limits{
		"": quota(nil, nil, "limits.cpu", "6", "pods", "5"),
		"warning: ResourceQuota q has 5500m of limits.cpu; the 5 pods request 6, and 0 is used: the gang waits":                                                           quota(nil, nil, "limits.cpu", "5500m"),
		"warning: ResourceQuota q has 4 of pods; the 5 pods request 5":                                                                                                    quota(nil, nil, "pods", "4"),
		"refused: spec.replicatedJobs[1].template.spec.template.spec.resources.limits[cpu]: Invalid value: \"2\": is the total request of one pod":                        quota(nil, nil, "limits.cpu", "1500m"),
		"refused: spec.replicatedJobs[1].template.spec.template.spec.containers[0].resources.limits[cpu]: Invalid value: \"2\": LimitRange lr has a maximum of 1500m per": ranged(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: list("cpu", "1500m")}),
		"refused: spec.replicatedJobs[1].replicas: Forbidden: ResourceQuota q has 0 of pods: no pod can be created":                                                       quota(nil, nil, "pods", "0"),
	} {
		text := said(mutateJob(t.Context(), kind, obj, Facts{Limits: limits}))
		if !strings.Contains(text, want) || want == "" && strings.Contains(text, "ResourceQuota") {
			t.Errorf("want %q, got %s", want, text)
		}
	}
}
