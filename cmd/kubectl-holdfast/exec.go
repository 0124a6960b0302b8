package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/ckpt"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/membership"
)

// podToAsk finds a pod of a gang whose training container runs, and that container.
func podToAsk(ctx context.Context, c client.Reader, g *v1alpha1.Gang) (*corev1.Pod, *corev1.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if g.Spec.Storage == nil {
		return nil, nil, fmt.Errorf("%s keeps no steps in storage: it has no annotation %s", page.JobName(g.Spec.JobRef), v1alpha1.AnnotationStorageClaim)
	}
	list := &corev1.PodList{}
	if err := c.List(ctx, list, client.InNamespace(g.Namespace), client.MatchingLabels{v1alpha1.LabelGang: g.Name}); err != nil {
		return nil, nil, fmt.Errorf("listing the pods of gang %s: %w", g.Name, err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range list.Items {
		pod := &list.Items[i]
		if !membership.MadeFor(pod, types.UID(g.Spec.JobRef.UID)) || pod.DeletionTimestamp != nil {
			continue
		}
		for j := range pod.Spec.Containers {
			if c := &pod.Spec.Containers[j]; hasStorage(c) && running(pod, c.Name) {
				return pod, c, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("no running pod of %s can be queried: mount claim %s on a machine and name its folder, kubectl holdfast ckpt … %[1]s --dir DIR",
		page.JobName(g.Spec.JobRef), g.Spec.Storage.Claim)
}

// hasStorage reports whether a container is the training container with its claim; its command begins with the agent's binary.
func hasStorage(c *corev1.Container) bool {
	return len(c.Command) > 0 && slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "HOLDFAST_STORAGE" && e.Value != "" })
}

func running(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(
		pod.Status.ContainerStatuses,
		func(s corev1.ContainerStatus) bool { return s.Name == container && s.State.Running != nil },
	)
}

// askAgent runs the agent's binary in a container and returns its output. Its input stays open as long as the caller waits.
func askAgent(ctx context.Context, cfg *rest.Config, pod *corev1.Pod, container *corev1.Container, words []string) ([]byte, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	url := kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container.Name,
			Command:   append([]string{container.Command[0]}, words...),
			Stdin:     true,
			Stdout:    true,
			Stderr:    true,
		},
			clientscheme.ParameterCodec).URL()
	old, err := remotecommand.NewSPDYExecutor(cfg, "POST", url)
	if err != nil {
		return nil, fmt.Errorf("preparing to query pod %s: %w", pod.Name, err)
	}
	ws, err := remotecommand.NewWebSocketExecutor(cfg, "GET", url.String())
	if err != nil {
		return nil, fmt.Errorf("preparing to query pod %s: %w", pod.Name, err)
	}
	both, err := remotecommand.NewFallbackExecutor(
		ws,
		old,
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) },
	)
	if err != nil {
		return nil, fmt.Errorf("preparing to query pod %s: %w", pod.Name, err)
	}
	in, hold := io.Pipe()
	defer hold.Close()
	out, said := &bounded{most: ckpt.MaxAnswer}, &bounded{most: 4 << 10}
	err = both.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: said})
	switch {
	case out.more:
		return nil, fmt.Errorf("pod %s answered more than %d bytes: use --dir", pod.Name, ckpt.MaxAnswer)
	case err != nil:
		return nil, unanswered(pod, err, said.kept.String())
	}
	return out.kept.Bytes(), nil
}

// unanswered returns why a pod did not respond, and the remedy.
func unanswered(pod *corev1.Pod, err error, said string) error {
	said = strings.TrimSpace(said)
	var ended exec.CodeExitError
	switch {
	case strings.Contains(err.Error(), `resource "pods/exec"`): // of a refused upgrade only the text remains
		return fmt.Errorf("you may not run commands in pods of namespace %s, which asking one takes: what ClusterRole edit allows, or use --dir: %w", pod.Namespace, err)
	case errors.As(err, &ended) && ended.Code == 2 && strings.HasPrefix(said, "usage:"):
		return fmt.Errorf("the agent in pod %s has a version without this query: use --dir", pod.Name)
	case errors.As(err, &ended) && said != "":
		return fmt.Errorf("pod %s: %s", pod.Name, said)
	}
	return fmt.Errorf("asking pod %s: %w; if that stays so, use --dir", pod.Name, err)
}

// bounded stores what is written to it, up to a limit.
type bounded struct {
	kept bytes.Buffer // not embedded: its ReadFrom has no limit
	most int
	more bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > b.most {
		b.more = true
		return 0, errors.New("more than is read")
	}
	return b.kept.Write(p)
}
