package story

import (
	"bufio"
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Kube reaches the cluster's built-in objects.
func (w *World) Kube() kubernetes.Interface { return w.kube }

// Follow hands every line that a container prints to a function until the container or the context ends.
func (w *World) Follow(ctx context.Context, namespace, pod, container string, line func(string)) error {
	r, err := w.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line(lines.Text())
	}
	return lines.Err()
}

// PodsOf lists the pods of a job.
func (w *World) PodsOf(ctx context.Context, namespace, job string) ([]corev1.Pod, error) {
	list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + job})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
