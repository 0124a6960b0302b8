package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
)

// fallenOff is the GPU driver's message for which a node is given up.
const fallenOff = "NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

// huge is the largest number that a Job may request, and some PodGroups.
const huge = math.MaxInt32

// attack is one action of a malicious tenant.
type attack struct {
	name string
	// play carries out the attack. It returns the refusal, or the bound of the effect. It returns an error if the attack is neither refused
	// nor bounded.
	play func(context.Context, *tenant) (string, error)
	// says are words of the refusal: the field and, where promised, the remedy.
	says []string
}

// attacks are the attacks that docs/threat-model.md names.
func attacks() []attack {
	forever := []string{"spec.parallelism", "a gang has at most 5000 pods: request fewer, with more GPUs each"}
	written := []string{"metadata.annotations[holdfast.dev/gang-size]", "is written only by holdfast: remove it"}
	asWere := []string{"labels and annotations under holdfast.dev/ stay as they were when the pod was created", "change them in the Job and create it again"}
	held := []string{"holdfast.dev/whole-nodes and holdfast.dev/spares", "only namespaces labelled holdfast.dev/held-nodes=allowed may ask: remove the annotation"}
	return []attack{
		{"variables that double", refusedJob(doubling), []string{"spec.template.spec.containers[0]", "longer than 128Ki with its references resolved", "pass it in a file"}},
		{"references without an end", admittedJob(endlessReferences), nil},
		{"more pods than can be counted", refusedJob(func(j *batchv1.Job) {
			j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](huge), ptr.To[int32](huge)
		}), forever},
		{"more pods than can be counted, only watched", refusedJob(func(j *batchv1.Job) {
			watched(j)
			j.Spec.Parallelism = ptr.To[int32](huge)
		}), forever},
		{"a watched job that grows beyond count", growing, forever},
		{"a watched job that runs and grows beyond count", growingRun, []string{"spec.parallelism", "a gang has at most 5000 pods: request fewer, with more GPUs each", "create it again without holdfast.dev/enabled"}},
		{"settings of 250 KB", refusedJob(func(j *batchv1.Job) { j.Annotations[v1alpha1.AnnotationStateSize] = strings.Repeat("9", 250_000) }),
			[]string{"metadata.annotations[holdfast.dev/state-size]"}},
		{"annotations of 250 KB", admittedJob(func(j *batchv1.Job) { j.Annotations["note"] = strings.Repeat("9", 250_000) }), nil},
		{"a gang's size on a pod without an owner", refusedPod(func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGangSize] = fmt.Sprint(huge) }), written},
		{"a gang's size behind a forged owner", forgedOwner(v1alpha1.AnnotationGangSize, fmt.Sprint(huge)), []string{"metadata.annotations[holdfast.dev/gang-size]", "must be from 1 to 5000", "remove the annotation"}},
		{"a slot behind a forged owner", forgedOwner(v1alpha1.AnnotationGangSlot, "1"), []string{"metadata.annotations[holdfast.dev/gang-slot]", "is written only by holdfast: remove it"}},
		{"an index past the gang's size behind a forged owner", forgedOwner(batchv1.JobCompletionIndexAnnotation, "2"), []string{"metadata.annotations[batch.kubernetes.io/job-completion-index]", "an index from 0 to 1", "create the Job, and leave its pods to it"}},
		{"a pod patched into a slot", patched(`{"metadata":{"annotations":{"holdfast.dev/gang-slot":"0"}}}`), asWere},
		{"a pod patched into a gang", patched(`{"metadata":{"labels":{"holdfast.dev/gang":"train"}}}`), asWere},
		{"a pod patched out of its gang", patched(`{"metadata":{"labels":{"holdfast.dev/replaced":"true"}}}`), asWere},
		{"a pod patched into a gang by its status", patchedStatus(`{"metadata":{"labels":{"holdfast.dev/gang":"train"}}}`), asWere},
		{"a gang made by hand", refusedObject(func() client.Object {
			return &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: "mine"}, Spec: v1alpha1.GangSpec{Members: 5}}
		}), []string{"gangs.holdfast.dev is forbidden"}},
		{"another's gang read", reads(func() client.Object {
			return &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: victim, Name: train}}
		}), []string{"is forbidden"}},
		{"whole nodes past the quota", refusedJob(func(j *batchv1.Job) { j.Annotations[v1alpha1.AnnotationWholeNodes] = "true" }), held},
		{"spares past the quota", refusedJob(func(j *batchv1.Job) {
			j.Annotations[v1alpha1.AnnotationSpares], j.Annotations[v1alpha1.AnnotationTopologyRequired] = "1000", "zone"
		}), held},
		{"spares past the quota, for a pod of a group", refusedPod(inGroup("mine"), func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationSpares] = "1000" }), held},
		{"more gangs than a namespace may have", manyGangs, []string{"metadata.namespace", fmt.Sprintf("may have %d: delete Jobs that are over", maxGangs)}},
		{"the largest gangs, as many as there may be", largestGangs, []string{"its Gang has 5000 members"}},
		{"large Jobs that do not use Holdfast", largeJobs, nil},
		{"a registry that never ends its answer", endlessRegistry, []string{"spec.template.spec.containers[0].command", "sends more than 256Ki for it", "within 3s"}},
		{"a group of more pods than can be counted", grouped(map[string]any{"minMember": int64(huge)}), []string{fmt.Sprintf("requests %d pods: the limit is 5000", huge)}},
		{"a group that needs the largest quantity", grouped(map[string]any{"minMember": int64(1), "minResources": map[string]any{"cpu": "9E", "memory": "9E", gpu: "9E"}}), []string{"spec.minResources", "which no cluster has: write less"}},
		{"a group of more shapes than are planned", shapes, []string{"its pods have 1100 different shapes, and at most 1024 are possible", "give them the same requests", "or split the gang"}},
		{"a group whose pods have volumes of their own", ownVolumes, []string{"1100 pods wanted"}},
		{"a group whose first pod is re-created repeatedly", newLeaders, []string{"300 pods wanted"}},
		{"pods that a node must reject", rejected, nil},
		{"the driver's message in a log", forgedLog, nil},
		{"another's placement asked for", asked, []string{"401", "must carry a token of service account holdfast-system/holdfast-preview", "403", "may not get on /holdfast/fabric", `cannot create resource "serviceaccounts/token"`}},
		{"large and slow questions about placement", questions, nil},
		{"terminal control characters in a traceback", loud, nil},
		{"metrics of all", metrics, []string{"controller 401", "controller 403", "scheduler 403"}},
		{"reports that no agent sends", reports, nil},
		{"reports that never become whole", halfSent, nil},
		{"failed fetches without an end", fetches, nil},
		{"full reports of many pods", fullReports, nil},
		{"tokens by the hundred", tokens, nil},
		{"connections by the thousand", connections, nil},
	}
}

// refused returns a refusal's text; an empty or unreadable one is an error.
func refused(err error) (string, error) {
	if err == nil {
		return "", errors.New("it was not refused")
	}
	if n := len(err.Error()); n > 4<<10 {
		return "", fmt.Errorf("the answer has %d bytes: %.200s", n, err.Error())
	}
	return err.Error(), nil
}

func nothing(*batchv1.Job) {}

func refusedObject(object func() client.Object) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) { return refused(m.api.Create(ctx, object())) }
}

func refusedJob(change func(*batchv1.Job)) func(context.Context, *tenant) (string, error) {
	return refusedObject(func() client.Object { return job("hostile", change) })
}

func refusedPod(changes ...func(*corev1.Pod)) func(context.Context, *tenant) (string, error) {
	return refusedObject(func() client.Object { return pod("hostile", changes...) })
}

// admittedJob is an attack by a Job that may be admitted, because it does no harm. If admission takes too long, the API server returns an
// error.
func admittedJob(change func(*batchv1.Job)) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) {
		j := job("hostile", change)
		if err := m.api.Create(ctx, j); err != nil {
			return "", err
		}
		return m.gangOf(ctx, j)
	}
}

// gangOf waits until a Job's Gang has a status, and fails if the Gang is large.
func (m *tenant) gangOf(ctx context.Context, j *batchv1.Job) (string, error) {
	gang := &v1alpha1.Gang{}
	if err := m.Until(ctx, "the Gang of "+j.Name, eventually.Timeout, func(ctx context.Context) (bool, string) {
		err := m.Client().Get(ctx, client.ObjectKeyFromObject(j), gang)
		return err == nil && gang.Status.Phase != "", fmt.Sprint(err)
	}); err != nil {
		return "", err
	}
	text, err := json.Marshal(gang)
	if err != nil || gang.Spec.Members > v1alpha1.MaxMembers || len(text) > 64<<10 {
		return "", fmt.Errorf("its Gang has %d members and %d bytes: %w", gang.Spec.Members, len(text), err)
	}
	return fmt.Sprintf("its Gang has %d members and %d bytes", gang.Spec.Members, len(text)), nil
}

// doubling makes a command that would expand from 100 bytes to 100 GB.
func doubling(j *batchv1.Job) {
	c := &j.Spec.Template.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 100)}}
	for i := range 30 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i+1), Value: fmt.Sprintf("$(V%d)$(V%d)", i, i)})
	}
	c.Command = []string{"bash", "-c", "echo $(V30)"}
}

// endlessReferences is a command of the maximal size in which every byte begins a reference and none ends one.
func endlessReferences(j *batchv1.Job) {
	c := &j.Spec.Template.Spec.Containers[0]
	c.Command = []string{"sleep"}
	for range 7 {
		c.Command = append(c.Command, strings.Repeat("$(", 64_000))
	}
}

// watched makes a job observed; such a job needs no slots.
func watched(j *batchv1.Job) {
	j.Annotations = map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationMode: v1alpha1.ModeObserve}
	j.Spec.CompletionMode, j.Spec.Completions = nil, nil
}

func growing(ctx context.Context, m *tenant) (string, error) {
	j := job("grows", watched)
	if err := m.api.Create(ctx, j); err != nil {
		return "", err
	}
	return refused(m.api.Patch(ctx, j, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"parallelism":%d}}`, huge))))
}

// growingRun increases the pods of an observed job that runs. The job's template no longer shows that it is new.
func growingRun(ctx context.Context, m *tenant) (string, error) {
	j := job("grows-later", func(j *batchv1.Job) {
		watched(j)
		j.Spec.Suspend = nil
		j.Spec.Template.Spec.SchedulerName = "nobody"
	})
	if err := m.api.Create(ctx, j); err != nil {
		return "", err
	}
	if err := m.Until(ctx, "the job begins", eventually.Timeout, func(ctx context.Context) (bool, string) {
		err := m.api.Get(ctx, client.ObjectKeyFromObject(j), j)
		return err == nil && j.Status.StartTime != nil, fmt.Sprint(err, j.Status)
	}); err != nil {
		return "", err
	}
	grow := func(n int) error {
		return m.api.Patch(ctx, j, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"parallelism":%d}}`, n)))
	}
	if err := grow(2); err != nil { // a size within the limit is allowed
		return "", err
	}
	return refused(grow(huge))
}

// forgedOwner creates a pod of a gang of two that looks as if a Job had created it, with an annotation that no such pod has.
func forgedOwner(key, value string) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) {
		owner := job("front", func(j *batchv1.Job) { j.Annotations = nil })
		if err := m.api.Create(ctx, owner); err != nil {
			return "", err
		}
		p := pod("forged", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "batch/v1", Kind: "Job", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)},
			}
			p.Annotations = map[string]string{
				v1alpha1.AnnotationEnabled:           "true",
				v1alpha1.AnnotationStandbys:          "off",
				v1alpha1.AnnotationGangSize:          "2",
				batchv1.JobCompletionIndexAnnotation: "0",
			}
			p.Annotations[key] = value
		})
		return refused(m.api.Create(ctx, p))
	}
}

// waits returns why a pod of mallory's is not placed; the pod must not be placed.
func (m *tenant) waits(ctx context.Context, which func(*corev1.Pod) bool, words string) (why string, err error) {
	return why, m.Until(ctx, "a pod with the reason why it is not placed", eventually.Timeout, func(ctx context.Context) (bool, string) {
		pods := &corev1.PodList{}
		err := m.api.List(ctx, pods, client.InNamespace(mallory), ofAttack)
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Spec.NodeName != "" && which(p) {
				err = fmt.Errorf("pod %s is on node %s", p.Name, p.Spec.NodeName)
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && which(p) {
					if why = c.Message; strings.Contains(why, words) {
						return true, ""
					}
				}
			}
		}
		return false, fmt.Sprintf("%v, %q", err, why)
	})
}

// patched patches a plain pod of mallory's.
func patched(patch string) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) {
		p := pod("plain", func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" })
		if err := m.api.Create(ctx, p); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		return refused(m.api.Patch(ctx, p, client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
}

func reads(object func() client.Object) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) {
		o := object()
		return refused(m.api.Get(ctx, client.ObjectKeyFromObject(o), o))
	}
}

func manyGangs(ctx context.Context, m *tenant) (string, error) {
	for i := range 5 * maxGangs { // the count of admission may be outdated for a moment
		if err := m.api.Create(ctx, job(fmt.Sprintf("many-%d", i), nothing)); err != nil {
			return fmt.Sprintf("after %d jobs: %v", i, err), nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", fmt.Errorf("%d jobs were admitted", 5*maxGangs)
}

// group is a PodGroup of scheduler-plugins.
func group(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "spec": spec}}
	u.SetNamespace(mallory)
	u.SetName(name)
	u.SetLabels(ofAttack)
	return u
}

// inGroup puts a pod into a PodGroup, for Holdfast's scheduler.
func inGroup(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels["scheduling.x-k8s.io/pod-group"] = name
		p.Spec.SchedulerName = v1alpha1.SchedulerName
	}
}

// grouped creates a PodGroup with one pod, and returns why the pod waits.
func grouped(spec map[string]any) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) {
		if err := m.api.Create(ctx, group("mine", spec)); err != nil {
			return "", err
		}
		p := pod("mine", inGroup("mine"))
		if err := m.api.Create(ctx, p); err != nil {
			return "", err
		}
		return m.waits(ctx, func(o *corev1.Pod) bool { return o.Name == p.Name }, "requests") // until the scheduler has seen the group
	}
}

// shapes creates a group in which every pod has another shape.
func shapes(ctx context.Context, m *tenant) (string, error) {
	return m.tooMany(ctx, "shapes", "different shapes", func(i int, p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(int64(i+1), resource.DecimalSI),
		}
	})
}

// ownVolumes creates a group whose pods differ only in the claims that Kubernetes creates for each: the planner treats them as one kind,
// and there is no room.
func ownVolumes(ctx context.Context, m *tenant) (string, error) {
	late := storagev1.VolumeBindingWaitForFirstConsumer // no volume is created before its pod has a node, and no pod here has one
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made-late"}, Provisioner: "holdfast.dev/nobody", VolumeBindingMode: &late}
	if _, err := m.Kube().StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return m.tooMany(ctx, "volumes", "pods wanted", func(_ int, p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{
				Name: "scratch",
				VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						StorageClassName: &class.Name,
						Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
					},
				}}},
			},
		}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	})
}

// tooMany creates a group with more kinds of pods than the planner accepts. tooMany returns why the pods wait; the reason must have these
// words.
func (m *tenant) tooMany(ctx context.Context, name, words string, change func(i int, p *corev1.Pod)) (string, error) {
	const n = 1100 // plugin/planner.MaxKinds and some
	if err := m.crowd(ctx, name, n, func(i int) *corev1.Pod {
		return pod(fmt.Sprintf("%s-%d", name, i), inGroup(name), func(p *corev1.Pod) { change(i, p) })
	}); err != nil {
		return "", err
	}
	return m.waits(ctx, func(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, name+"-") }, words)
}

// crowd creates a group of many pods.
func (m *tenant) crowd(ctx context.Context, name string, n int, one func(i int) *corev1.Pod) error {
	if err := m.api.Create(ctx, group(name, map[string]any{"minMember": int64(n)})); err != nil {
		return err
	}
	failed := make(chan error, n)
	each(n, func(i int) { failed <- m.api.Create(ctx, one(i)) })
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// rejected names a node in pods that the node cannot run. The scheduler must not exclude the node for that, not even for mallory's own
// gangs.
func rejected(ctx context.Context, m *tenant) (string, error) {
	if err := m.api.Create(ctx, group("probe", map[string]any{"minMember": int64(1)})); err != nil {
		return "", err
	}
	node := m.Nodes()[0].Name
	for i := range 4 {
		if err := m.api.Create(ctx, pod(fmt.Sprintf("rejected-%d", i), inGroup("probe"), func(p *corev1.Pod) {
			p.Spec.NodeName = node
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1000")}
		})); err != nil {
			return "", err
		}
	}
	said := ""
	if err := m.Until(ctx, "the node rejects them", eventually.Timeout, func(ctx context.Context) (bool, string) {
		pods := &corev1.PodList{}
		if err := m.api.List(ctx, pods, client.InNamespace(mallory), ofAttack); err != nil {
			return false, err.Error()
		}
		failed := 0
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodFailed {
				failed, said = failed+1, p.Status.Reason
			}
		}
		return failed == 4, fmt.Sprintf("%d failed", failed)
	}); err != nil {
		return "", err
	}
	// The reason depends on whether the kubelet checks resources or the device plugin first.
	if !strings.HasPrefix(said, "OutOf") && !strings.HasPrefix(said, "UnexpectedAdmissionError") {
		return "", fmt.Errorf("the node said %q, so that it rejected nothing", said)
	}
	return said + " the node said, and takes gangs as before", placed(ctx, m.Cluster, mallory, soon)
}

// shouts is a rank whose traceback would clear a terminal, set its title and, in one character, begin a command.
const shouts = `printf 'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    g()\nValueError: bad\033[2J\033]0;mine\007\302\2332J\n' > "$HOLDFAST_ERROR_FILE"; exit 7`

// loud makes a job fail twice with such a traceback, which ends the job. No output about the job has a character on which a terminal acts.
func loud(ctx context.Context, m *tenant) (string, error) {
	j := job("loud-job", func(j *batchv1.Job) {
		j.Spec.Suspend = nil
		j.Spec.Template.Spec.Containers[0].Command = []string{"bash", "-c", `exec torchrun --nnodes=1 --nproc-per-node=1 --no-python bash -c "$0"`, shouts}
	})
	if err := m.api.Create(ctx, j); err != nil {
		return "", err
	}
	gang := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Gang"}}
	const reported = `bad\x1b[2J`
	if err := m.Until(ctx, "the Gang has the reason of the failure", eventually.Timeout, func(ctx context.Context) (bool, string) {
		err := m.Client().Get(ctx, client.ObjectKeyFromObject(j), gang)
		return err == nil && strings.Contains(strings.Join(textsOf(gang.Object), "\n"), reported), fmt.Sprint(err, gang.Object["status"])
	}); err != nil {
		return "", err
	}
	var all []string
	if err := m.Until(ctx, "an event tells it", eventually.Timeout, func(ctx context.Context) (bool, string) {
		events, err := m.Kube().CoreV1().Events(mallory).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + j.Name})
		if err != nil {
			return false, err.Error()
		}
		all = nil
		for _, e := range events.Items {
			all = append(all, e.Message)
		}
		return strings.Contains(strings.Join(all, "\n"), reported), fmt.Sprint(all)
	}); err != nil {
		return "", err
	}
	explained, err := m.Explain(ctx, mallory, j.Name)
	if err != nil {
		return "", err
	}
	if !strings.Contains(explained, reported) {
		return "", fmt.Errorf("kubectl holdfast does not print it: %s", explained)
	}
	for _, text := range append(append(all, explained), textsOf(gang.Object)...) {
		if at := strings.IndexFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); at >= 0 {
			return "", fmt.Errorf("people are shown %q", text)
		}
	}
	return fmt.Sprintf("it is shown as %s, also in %d events", reported, len(all)), nil
}

// textsOf returns all texts in an object.
func textsOf(v any) (all []string) {
	switch v := v.(type) {
	case string:
		all = append(all, v)
	case []any:
		for _, e := range v {
			all = append(all, textsOf(e)...)
		}
	case map[string]any:
		for key, e := range v {
			all = append(append(all, key), textsOf(e)...)
		}
	}
	return all
}

// forgedLog writes the driver's message wherever a tenant can: to the output of a container, and into the kernel's message about a mount.
func forgedLog(ctx context.Context, m *tenant) (string, error) {
	loud := pod("loud", func(p *corev1.Pod) {
		p.Spec.Containers[0].Command = []string{"bash", "-c", `echo "$0"; echo "$0" >&2; echo "<3>$0" > /dev/kmsg; echo over`, fallenOff}
	})
	if err := m.api.Create(ctx, loud); err != nil {
		return "", err
	}
	if err := m.Until(ctx, "it was said", eventually.Timeout, func(ctx context.Context) (bool, string) {
		err := m.api.Get(ctx, client.ObjectKeyFromObject(loud), loud)
		return loud.Status.Phase == corev1.PodSucceeded, fmt.Sprint(err, loud.Status)
	}); err != nil {
		return "", err
	}
	for _, words := range []string{"tmpfs: Unknown parameter '" + fallenOff + "'", "a name of 15 b: " + fallenOff} {
		if err := m.Nodes()[0].LogKernel("<3>" + words); err != nil {
			return "", err
		}
	}
	return "the node is well", m.During(ctx, "the node is well", 3*time.Second, well(m.Cluster))
}
