package hostile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/trainer"
)

const (
	// mallory is the tenant, and her namespace; victim is the other one.
	mallory, victim = "mallory", "victim"
	// train is the name of a job in each of the two.
	train = "train"
	// maxGangs is how many Gangs a namespace may have here.
	maxGangs = 8
	gpu      = "nvidia.com/gpu"
)

// overlay is an administrator's kustomization for tenants that do not trust one another.
const overlay = `
resources: [BASE]
components: [BASE/held-nodes]
patches:
- target: {kind: Deployment, name: holdfast-controller}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --max-gangs-per-namespace=MAX}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--insecure-registries=REGISTRY"}
`

// rights are a tenant's rights: the role edit in one namespace, PodGroups there, and the status of her pods.
const rights = `
apiVersion: v1
kind: Namespace
metadata: {name: mallory}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mallory-works-here, namespace: mallory}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mallory}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: groups, namespace: mallory}
rules:
- {apiGroups: [scheduling.x-k8s.io], resources: [podgroups], verbs: ["*"]}
- {apiGroups: [""], resources: [pods/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mallory-groups-pods, namespace: mallory}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: groups}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mallory}]
`

// trains is a job of two ranks that records each step, and the group of the pods that show that the scheduler serves others.
const trains = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: python, namespace: victim}
spec: {accessModes: [ReadOnlyMany], storageClassName: holdfast-python, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: logs, namespace: victim}
spec: {accessModes: [ReadWriteMany], storageClassName: SHARED, resources: {requests: {storage: 1Gi}}}
---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: probe, namespace: victim}
spec: {minMember: 1}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: victim
  annotations: {holdfast.dev/enabled: "true", holdfast.dev/state-size: 1Mi, holdfast.dev/standbys: "off"}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000}
      containers:
      - name: trainer
        image: IMAGE
        command:
        - bash
        - -c
        - PATH=$PATH:/opt/holdfast-python/venv/bin exec torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$JOB_COMPLETION_INDEX
          --master-addr=none --master-port=29500 --no-python /opt/holdfast-python/venv/bin/python3 -u /trainer/trainer.py 0.1 65536 /logs/$JOB_COMPLETION_INDEX
        resources: {requests: {cpu: 50m}, limits: {memory: 192Mi, nvidia.com/gpu: 1}}
        volumeMounts:
        - {name: trainer, mountPath: /trainer}
        - {name: logs, mountPath: /logs}
        - {name: python, mountPath: /opt/holdfast-python, readOnly: true}
      volumes:
      - {name: trainer, configMap: {name: trainer}}
      - {name: logs, persistentVolumeClaim: {claimName: logs}}
      - {name: python, persistentVolumeClaim: {claimName: python, readOnly: true}}
`

// tenant is mallory: her client has her rights; the cluster's client, the administrator's, only observes and prepares.
type tenant struct {
	*harness.Cluster
	rest *rest.Config
	api  client.Client
	kube kubernetes.Interface
	// shell is a process in one of her containers, whose network and files she controls.
	shell harness.Process
	// pod is the pod of that container.
	pod *corev1.Pod
}

// TestTenant plays every attack while a job of another namespace trains. After each attack that job is unharmed and has made progress.
// Controller and scheduler have not restarted, and serve other tenants.
func TestTenant(t *testing.T) {
	ctx := t.Context()
	c := harness.Start(t, devcluster.Options{Nodes: 1})
	install(ctx, t, c)
	m := arrive(ctx, t, c)
	before := seen(ctx, t, c)
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			began := time.Now()
			answer, err := a.play(ctx, m)
			if err != nil {
				t.Errorf("after %.1f s: %v", time.Since(began).Seconds(), err)
			}
			for _, words := range a.says {
				if !strings.Contains(answer, words) {
					t.Errorf("the answer does not say %q: %s", words, short(answer))
				}
			}
			t.Logf("%.1f s: %s", time.Since(began).Seconds(), short(answer))
			m.clear(ctx, t)
			before.same(ctx, t, c)
			serves(ctx, t, c)
		})
	}
	peaks(ctx, t, c)
	believed(ctx, t, c)
}

// short cuts long texts.
func short(s string) string {
	if len(s) > 600 {
		return fmt.Sprintf("%s … (%d bytes)", s[:600], len(s))
	}
	return s
}

// install applies the manifests and starts the victim's job.
func install(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-f", filepath.Join(c.Source, "test/peers/podgroups.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImages(ctx); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(c.Source, "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	registry, err := registryHost(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("BASE", base, "MAX", fmt.Sprint(maxGangs), "REGISTRY", fmt.Sprintf("%s:%d", registry, registryPort)).Replace(overlay)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: victim}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: victim, Name: "trainer"}, Data: map[string]string{"trainer.py": trainer.Script}},
	} {
		if err := c.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	manifests := strings.NewReplacer("IMAGE", layout.BaseImage, "SHARED", layout.SharedStorageClass).Replace(trains)
	if _, err := c.KubectlIn(ctx, manifests, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, c, "the node is well", well(c))
	until(ctx, t, c, "the victim's job trains", func(ctx context.Context) (bool, string) {
		for rank := range 2 {
			if n, err := steps(ctx, c, rank); err != nil || n < 10 {
				return false, fmt.Sprintf("rank %d: %d steps, %v", rank, n, err)
			}
		}
		return true, ""
	})
}

// arrive gives mallory her rights, and a pod of an opted-in job with the same name as the victim's.
func arrive(ctx context.Context, t *testing.T, c *harness.Cluster) *tenant {
	t.Helper()
	if _, err := c.KubectlIn(ctx, rights, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: mallory}
	m := &tenant{Cluster: c, rest: config}
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if m.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if m.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	own := job(train, func(j *batchv1.Job) { j.Spec.Suspend, j.Labels = nil, nil })
	until(ctx, t, c, "mallory may work", func(ctx context.Context) (bool, string) {
		err := m.api.Create(ctx, own)
		return err == nil, fmt.Sprint(err)
	})
	until(ctx, t, c, "the agent of mallory's pod runs", func(ctx context.Context) (bool, string) {
		pods, err := c.Pods(ctx, mallory, train)
		if err != nil || len(pods) != 1 {
			return false, fmt.Sprintf("%d pods, %v", len(pods), err)
		}
		m.pod = &pods[0]
		m.shell, err = c.Find(ctx, mallory, m.pod.Name, "c", harness.Agent)
		return err == nil && m.pod.Status.PodIP != "", fmt.Sprint(err)
	})
	return m
}

// ofAttack is the label of all objects of an attack.
var ofAttack = client.MatchingLabels{"attack": "yes"}

// job is an opted-in job of mallory's that has no pods until it is resumed.
func job(name string, change func(*batchv1.Job)) *batchv1.Job {
	one, zero, yes, indexed := int32(1), int32(0), true, batchv1.IndexedCompletion
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   mallory,
			Name:        name,
			Labels:      ofAttack,
			Annotations: map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStandbys: "off"},
		},
		Spec: batchv1.JobSpec{Completions: &one, Parallelism: &one, BackoffLimit: &zero, CompletionMode: &indexed, Suspend: &yes,
			Template: corev1.PodTemplateSpec{Spec: *pod("").Spec.DeepCopy()}},
	}
	change(j)
	return j
}

// pod is a sleeping pod of mallory's.
func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	second := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: name, Labels: map[string]string{"attack": "yes"}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &second,
			Containers: []corev1.Container{{Name: "c", Image: layout.BaseImage, Command: []string{"sleep", "3600"}}}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

// clear deletes the objects of an attack, as the administrator, and does not wait for it.
func (m *tenant) clear(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, of := range []client.Object{&batchv1.Job{}, &corev1.Pod{}, group("", nil)} {
		if err := m.Client().DeleteAllOf(
			ctx,
			of,
			client.InNamespace(mallory),
			ofAttack,
			client.GracePeriodSeconds(0),
			client.PropagationPolicy(metav1.DeletePropagationBackground),
		); err != nil {
			t.Error(err)
		}
	}
}

func until(ctx context.Context, t *testing.T, c *harness.Cluster, what string, holds func(context.Context) (bool, string)) {
	t.Helper()
	if err := c.Until(ctx, what, eventually.Timeout, holds); err != nil {
		t.Fatal(err)
	}
}
