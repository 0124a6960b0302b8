package lives

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

const (
	// Container trains in each pod, with the scripts in its working directory and its state below StateAt.
	Container = "trainer"
	StateAt   = "/state"
	// RendezvousPort is the port of torchrun's own rendezvous, in the first pod's network.
	RendezvousPort = 29400

	pythonHome = "/opt/holdfast-python"
)

// Pod is the one template of every system; each pod gets GPUs for its ranks.
func Pod(job, line string, grace, gpus int64, state corev1.VolumeSource, env ...corev1.EnvVar) corev1.PodSpec {
	memory := resource.MustParse("4Gi")
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Subdomain: job, TerminationGracePeriodSeconds: &grace,
		AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To[int64](1000),
			RunAsGroup:     ptr.To[int64](1000),
			FSGroup:        ptr.To[int64](1000),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: Container, Image: layout.BaseImage, Command: []string{"bash", "-c", line}, WorkingDir: "/bench",
			Env: append([]corev1.EnvVar{
				{Name: "PATH", Value: pythonHome + "/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				{Name: "HOME", Value: "/tmp"}, {Name: "OMP_NUM_THREADS", Value: "1"}, {Name: "PYTHONDONTWRITEBYTECODE", Value: "1"},
			}, env...),
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: memory, corev1.ResourceCPU: resource.MustParse("200m")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: memory, layout.GPUResource: *resource.NewQuantity(gpus, resource.DecimalSI)},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "scripts", MountPath: "/bench", ReadOnly: true}, {Name: "python", MountPath: pythonHome, ReadOnly: true},
				{Name: "state", MountPath: StateAt}, {Name: "tmp", MountPath: "/tmp"},
			},
		}},
		Volumes: []corev1.Volume{
			harness.ConfigVolume("scripts"), harness.ClaimVolume("python", true),
			{Name: "state", VolumeSource: state}, {Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
}

// Room returns the objects that all jobs of a benchmark share: namespace, scripts and Python.
func Room(namespace string, scripts map[string]string) []client.Object {
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "scripts", Namespace: namespace}, Data: scripts},
		harness.Claim(namespace, "python", layout.PythonStorageClass, corev1.ReadOnlyMany),
	}
}

// Service returns a Service by which torchrun's rendezvous resolves a job's pods.
func Service(namespace, job string) client.Object {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: job, Namespace: namespace},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
			Selector: map[string]string{batchv1.JobNameLabel: job}},
	}
}

// Run returns the run in the status of a job's Gang.
func Run(ctx context.Context, w *harness.World, namespace, job string) (*v1alpha1.RunStatus, error) {
	var g v1alpha1.Gang
	if err := w.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: job}, &g); err != nil {
		return nil, fmt.Errorf("reading the gang: %w", err)
	}
	if g.Status.Run == nil {
		return &v1alpha1.RunStatus{}, nil
	}
	return g.Status.Run, nil
}

// Remove deletes a job and waits until its pods are gone, so that the next job has the machine to itself.
func Remove(ctx context.Context, w *harness.World, namespace, name string, limit time.Duration) error {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	err := w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting job %s: %w", name, err)
	}
	return w.Until(ctx, "pods of "+name+" gone", limit, func(ctx context.Context) (bool, string) {
		all, err := w.Pods(ctx, namespace, name)
		return err == nil && len(all) == 0, fmt.Sprintf("%d pods, %v", len(all), err)
	})
}

// Follow collects the output of a job's present and future pods until ctx ends. On a dead node it loses only what is printed later.
func (r *Record) Follow(ctx context.Context, w *harness.World, namespace, job string) {
	followed := map[string]bool{}
	for ctx.Err() == nil {
		all, _ := w.Pods(ctx, namespace, job) // the next pass retries
		for _, p := range all {
			if followed[p.Name] || p.Status.Phase != corev1.PodRunning {
				continue
			}
			followed[p.Name] = true
			go func() {
				_ = w.Follow(ctx, namespace, p.Name, Container, func(line string) { r.Line(p.Name, line) })
			}()
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
