package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// schedulerPatience is a little longer than the scheduler waits for a moment between two cycles.
const schedulerPatience = 40 * time.Second

// askEvery and askTimes bound how long a replica that schedules is looked for.
const (
	askEvery = 100 * time.Millisecond
	askTimes = 50
)

// askWhere asks the running scheduler where the pods would land. Where it may not or cannot be asked,
// unasked says why.
func askWhere(ctx context.Context, cfg *rest.Config, pods []corev1.Pod) (where *v1alpha1.PreviewResponse, unasked string, err error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, "", fmt.Errorf("connecting to the cluster: %w", err)
	}
	token, err := kube.CoreV1().ServiceAccounts(v1alpha1.Namespace).CreateToken(ctx, v1alpha1.PreviewServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{v1alpha1.PreviewAudience}, ExpirationSeconds: ptr.To[int64](600)}}, metav1.CreateOptions{})
	if err != nil {
		return nil, whyUnasked(err), nil
	}
	body, err := json.Marshal(v1alpha1.PreviewRequest{Pods: pods})
	if err != nil {
		return nil, "", fmt.Errorf("encoding the question to the scheduler: %w", err)
	}
	for range askTimes {
		answer := &v1alpha1.PreviewResponse{}
		result := kube.CoreV1().RESTClient().Post().Namespace(v1alpha1.Namespace).Resource("services").Name(v1alpha1.PreviewService).SubResource("proxy").
			Suffix(v1alpha1.PreviewPath).SetHeader(v1alpha1.PreviewTokenHeader, token.Status.Token).SetHeader("Content-Type", "application/json").
			Body(body).Do(ctx)
		err := result.Error() // which reads the Status of a refusal; Raw does not
		switch {
		case err == nil:
			raw, err := result.Raw()
			if err == nil {
				err = json.Unmarshal(raw, answer)
			}
			if err != nil {
				return nil, "", fmt.Errorf("decoding the scheduler's answer: %w", err)
			}
			return answer, "", nil
		case apierrors.ReasonForError(err) == v1alpha1.ReasonNotLeading:
			select {
			case <-ctx.Done():
				return nil, "no replica of holdfast-scheduler leads", nil
			case <-time.After(askEvery):
			}
		default:
			return nil, whyUnasked(err), nil
		}
	}
	return nil, "no replica of holdfast-scheduler leads", nil
}

func whyUnasked(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "you may not ask the scheduler: the Role " + previewRole + " in namespace " + v1alpha1.Namespace + ", bound with a RoleBinding, allows it"
	case apierrors.IsNotFound(err):
		return "the cluster's holdfast-scheduler offers no preview: install the manifests of this version"
	case apierrors.IsServiceUnavailable(err):
		return fmt.Sprintf("holdfast-scheduler does not answer (kubectl -n %s get pods): %v", v1alpha1.Namespace, err)
	}
	return err.Error()
}

// previewRole is what people are bound to who may ask.
const previewRole = "holdfast-preview"
