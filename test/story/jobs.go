package story

import (
	"fmt"
	"os"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

const (
	bugExit = 7
	bugText = "ValueError: the bug of rank 1"
	// bugScript fails on rank 1 with its own exit code; rank 0 fails a moment later, because rank 1 is gone.
	bugScript = `
import os, sys, time
rank = int(os.environ["RANK"])
def hook(kind, value, trace, inner=sys.excepthook):
    inner(kind, value, trace)
    sys.stderr.flush()
    os._exit(7 if rank == 1 else 9)
sys.excepthook = hook
if rank == 1:
    time.sleep(0.3)
    raise ValueError("the bug of rank 1")
time.sleep(0.6)
raise RuntimeError("Connection closed by peer [10.0.0.1]:1234")
`
)

// BugJob is an opted-in job of one pod and two ranks that runs bugScript.
func BugJob(policy corev1.RestartPolicy, backoffLimit int32) *batchv1.Job {
	pod := corev1.PodSpec{
		RestartPolicy: policy,
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(1000)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: Training, Image: layout.BaseImage,
			Command: []string{
				"/opt/holdfast-python/venv/bin/torchrun",
				"--nproc-per-node=2",
				"--no-python",
				"/opt/holdfast-python/venv/bin/python3",
				"-c",
				bugScript,
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "python", MountPath: "/opt/holdfast-python", ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{harness.ClaimVolume("python", true)},
	}
	name := "bug-" + strings.ToLower(string(policy))
	return harness.Job(Namespace, name, 1, backoffLimit, map[string]string{v1alpha1.AnnotationEnabled: "true"}, pod)
}

// lateJob is an opted-in job of one pod with two sleeping ranks; it is suspended at first.
func lateJob() *batchv1.Job {
	job := BugJob(corev1.RestartPolicyNever, 0)
	job.Name, job.Spec.Suspend = "late", ptr.To(true)
	c := &job.Spec.Template.Spec.Containers[0]
	c.Command = []string{"/opt/holdfast-python/venv/bin/torchrun", "--nproc-per-node=2", "--no-python", "/bin/sleep", "3600"}
	return job
}

// exampleArgs returns the arguments of the example's job to torchrun from the script's name on, without its pauses.
func exampleArgs(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var job batchv1.Job
	if err := yaml.Unmarshal(data, &job); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	for _, c := range job.Spec.Template.Spec.Containers {
		for _, arg := range append(append([]string{}, c.Command...), c.Args...) {
			if i := strings.Index(arg, "train.py"); i >= 0 {
				return append(strings.Fields(arg[i:]), "--pause", "0"), nil
			}
		}
	}
	return nil, fmt.Errorf("%s runs no train.py", path)
}
