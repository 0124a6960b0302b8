package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/story"
)

// rights are the rights that docs/kubectl.md lists for a user, and no others.
const rights = `
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice-works-here, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

const previewRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice-asks-the-scheduler, namespace: holdfast-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: holdfast-preview}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

const nodeRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: alice-sees-nodes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: holdfast-nodes-view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

// job is opted in and requests one node's GPUs in each pod.
func job(name string, pods string) string {
	return strings.NewReplacer("NAME", name, "PODS", pods, "IMAGE", layout.BaseImage).Replace(`
apiVersion: batch/v1
kind: Job
metadata:
  name: NAME
  annotations: {holdfast.dev/enabled: "true", holdfast.dev/standbys: "off"}
spec:
  completionMode: Indexed
  completions: PODS
  parallelism: PODS
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: train
        image: IMAGE
        command: [sleep, "3600"]
        resources: {limits: {memory: 64Mi, cpu: 100m, nvidia.com/gpu: "2"}}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`)
}

type user struct {
	*story.World
	t *testing.T
}

// holdfast runs the plugin through kubectl as alice and returns output and exit code.
func (u user) holdfast(ctx context.Context, stdin string, args ...string) (string, int) {
	u.t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(u.Spec().BinDir(), "kubectl"), append([]string{"holdfast"}, append(args, "--as=alice", "-n", "team-a")...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+u.Kubeconfig(), "PATH="+filepath.Join(u.Source, "bin")+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	u.t.Logf("$ kubectl holdfast %s\n%s", strings.Join(args, " "), out)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		u.t.Fatal(err)
	}
	return string(out), 0
}

// kubectl runs kubectl as the cluster's administrator.
func (u user) kubectl(ctx context.Context, stdin string, args ...string) {
	u.t.Helper()
	if _, err := u.KubectlIn(ctx, stdin, args...); err != nil {
		u.t.Fatal(err)
	}
}

// says fails unless the text contains all the words.
func (u user) says(what, text string, words ...string) {
	u.t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			u.t.Errorf("%s does not say %q:\n%s", what, w, text)
		}
	}
}

// testPeople: kubectl holdfast nodes, explain and preview show what the documentation promises, with a user's rights, beside a job that
// trains on all nodes but one.
func testPeople(ctx context.Context, t *testing.T, w *story.World) {
	u := user{World: w, t: t}
	u.kubectl(ctx, rights, "apply", "-f", "-")
	for _, part := range []struct {
		name string
		test func(context.Context, user)
	}{{"Preview", preview}, {"Explain", explain}, {"Nodes", nodes}, {"Observe", observe}} {
		t.Run(part.name, func(t *testing.T) { part.test(ctx, user{World: w, t: t}) })
	}
	u.kubectl(ctx, "", "delete", "jobs", "--all", "-n", "team-a", "--cascade=foreground", "--timeout=90s") // the story needs the node
}

// preview shows what admission and scheduler would do with a job, and leaves nothing.
func preview(ctx context.Context, u user) {
	text, code := u.holdfast(ctx, job("train", "1"), "preview", "-f", "-")
	if code != 0 {
		u.t.Errorf("exit code %d", code)
	}
	u.says("preview", text, "nothing was created", "holdfast.dev/gang: train", "name: holdfast-install", "schedulerName: holdfast-scheduler",
		"+    - /run/holdfast/bin/holdfast-agent", "Memory: 128Mi more for each pod", "shared memory: 64Mi at /dev/shm", "Where: not queried: you may not query the scheduler")
	if strings.Contains(text, "controller-uid: ") {
		u.t.Error("preview shows as a difference what the API server makes up for each object")
	}
	text, code = u.holdfast(ctx, strings.Replace(job("train", "1"), "holdfast.dev/standbys", "holdfast.dev/standby", 1), "preview", "-f", "-")
	if code != 2 {
		u.t.Errorf("a Job that admission refuses: exit code %d", code)
	}
	u.says("preview of a bad Job", text, "would be refused", "holdfast.dev/standby")
	u.kubectl(ctx, previewRights, "apply", "-f", "-")
	eventually.Holds(u.t, "the scheduler says where train would land", func() (bool, any) {
		text, code := u.holdfast(ctx, job("train", "1"), "preview", "-f", "-")
		return code == 0 && strings.Contains(text, "Where: all would be placed now"), text
	})
	eventually.Holds(u.t, "the scheduler says why large would wait", func() (bool, any) {
		text, code := u.holdfast(ctx, job("large", "2"), "preview", "-f", "-")
		return code == 3 && strings.Contains(text, "Where: would not be placed now: InsufficientNodes") && strings.Contains(text, "nvidia.com/gpu"), text
	})
	for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}} {
		if err := u.Client().List(ctx, list, client.InNamespace("team-a")); err != nil {
			u.t.Fatal(err)
		}
		if list.GetRemainingItemCount() != nil || lenOf(list) != 0 {
			u.t.Errorf("a preview left %d objects of %T", lenOf(list), list)
		}
	}
}

func lenOf(list client.ObjectList) int {
	switch l := list.(type) {
	case *batchv1.JobList:
		return len(l.Items)
	case *corev1.PodList:
		return len(l.Items)
	}
	return -1
}

// explain shows the nodes of a job's pods, and why another job has none.
func explain(ctx context.Context, u user) {
	u.kubectl(ctx, job("train", "1"), "apply", "-n", "team-a", "-f", "-")
	eventually.Holds(u.t, "explain says that train is placed", func() (bool, any) {
		text, code := u.holdfast(ctx, "", "explain", "job/train")
		return code == 0 && strings.Contains(text, "Placement        yes"), text
	})
	u.kubectl(ctx, job("large", "2"), "apply", "-n", "team-a", "-f", "-")
	eventually.Holds(u.t, "explain says why large waits", func() (bool, any) {
		text, code := u.holdfast(ctx, "", "explain", "job/large")
		return code == 0 && strings.Contains(text, "InsufficientNodes") && strings.Contains(text, "nvidia.com/gpu"), text
	})
	if text, code := u.holdfast(ctx, "", "explain", "job/none"); code != 1 || !strings.Contains(text, "there is no job none") {
		u.t.Errorf("exit code %d: %s", code, text)
	}
}

// nodes shows a sick node to a user who may list nodes, and names the missing right to others.
func nodes(ctx context.Context, u user) {
	if text, code := u.holdfast(ctx, "", "nodes"); code != 1 || !strings.Contains(text, "holdfast-nodes-view") {
		u.t.Errorf("without the right: exit code %d: %s", code, text)
	}
	u.kubectl(ctx, nodeRights, "apply", "-f", "-")
	name := u.Nodes()[0].Name
	eventually.Holds(u.t, "nodes speaks", func() (bool, any) {
		text, code := u.holdfast(ctx, "", "nodes", "--all")
		return code == 0 && strings.Contains(text, name), text
	})
	if text, _ := u.holdfast(ctx, "", "nodes", "-o", "json"); !strings.Contains(text, `"gangPods": 1`) {
		u.t.Errorf("the gang's pod is not counted: %s", text)
	}
	// A Node without a machine, so that no daemon overwrites its verdict.
	u.kubectl(ctx, sick, "create", "-f", "-")
	defer u.kubectl(ctx, sick, "delete", "-f", "-")
	text, code := u.holdfast(ctx, "", "nodes")
	if code != 0 {
		u.t.Errorf("exit code %d", code)
	}
	u.says("nodes", text, "gpu-07", "GPULost", "nvml: GPU is lost", "reset the GPU")
}

const sick = `
apiVersion: v1
kind: Node
metadata:
  name: gpu-07
  annotations:
    holdfast.dev/health: >-
      {"action":"Evict","cause":"GPULost","message":"a GPU is lost","next":"reset the GPU","since":"2026-01-02T03:04:05.000000Z",
      "evidence":[{"at":"2026-01-02T03:04:05.000000Z","source":"nvml","text":"GPU is lost"}]}
`

// observe leaves a job alone and reports what Holdfast would have done about its failure.
func observe(ctx context.Context, u user) {
	u.kubectl(ctx, strings.NewReplacer(`holdfast.dev/standbys: "off"`, "holdfast.dev/mode: observe", `[sleep, "3600"]`, `[bash, -c, "exit 7"]`, `, nvidia.com/gpu: "2"`, "",
		"restartPolicy: Never", "restartPolicy: OnFailure").Replace(job("watched", "1")), "apply", "-n", "team-a", "-f", "-")
	eventually.Holds(u.t, "the Gang says what would have been done", func() (bool, any) {
		text, code := u.holdfast(ctx, "", "explain", "job/watched")
		return code == 0 && strings.Contains(text, "the job is observed") && strings.Contains(text, "WouldRestart: pod watched-0-") && strings.Contains(text, "exit code 7"), text
	})
	pods := &corev1.PodList{}
	if err := u.Client().List(ctx, pods, client.InNamespace("team-a"), client.MatchingLabels{batchv1.JobNameLabel: "watched"}); err != nil ||
		len(pods.Items) != 1 {
		u.t.Fatalf("%d pods: %v", len(pods.Items), err)
	}
	if p := pods.Items[0]; len(p.Spec.InitContainers) != 0 || p.Spec.SchedulerName != corev1.DefaultSchedulerName || p.Labels["holdfast.dev/gang"] != "" {
		u.t.Errorf("the pod of an observed job was touched: %+v", p.Spec)
	}
}
