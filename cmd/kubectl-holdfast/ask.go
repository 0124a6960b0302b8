package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
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

// schedulerTimeout is a little longer than the scheduler waits for the gap between two cycles.
const schedulerTimeout = 40 * time.Second

// askEvery and askTimes bound the search for the leading replica.
const (
	askEvery = 100 * time.Millisecond
	askTimes = 50
)

// askWhere queries the running scheduler where the pods would land. unasked is why it may not or cannot be queried.
func askWhere(ctx context.Context, cfg *rest.Config, pods []corev1.Pod) (where *v1alpha1.PreviewResponse, unasked string, err error) {
	body, err := json.Marshal(v1alpha1.PreviewRequest{Pods: pods})
	if err != nil {
		return nil, "", fmt.Errorf("encoding the question to the scheduler: %w", err)
	}
	where = &v1alpha1.PreviewResponse{}
	unasked, err = askScheduler(ctx, cfg, func(c rest.Interface) *rest.Request {
		return c.Post().SetHeader("Content-Type", "application/json").Body(body)
	}, v1alpha1.PreviewPath, where)
	if err != nil || unasked != "" {
		return nil, unasked, err
	}
	return where, "", nil
}

// askFabric queries the running scheduler for the fragmentation of the fabric, like askWhere.
func askFabric(ctx context.Context, cfg *rest.Config, level string, most int) (fabric v1alpha1.FabricResponse, unasked string, err error) {
	unasked, err = askScheduler(ctx, cfg, func(c rest.Interface) *rest.Request {
		return c.Get().Param("level", level).Param("most", strconv.Itoa(most))
	}, v1alpha1.FabricPath, &fabric)
	return fabric, unasked, err
}

// askScheduler sends a query to the leading replica and decodes the response. unasked is why it may not or cannot be queried.
func askScheduler(
	ctx context.Context,
	cfg *rest.Config,
	question func(rest.Interface) *rest.Request,
	path string,
	answer any,
) (unasked string, err error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", fmt.Errorf("connecting to the cluster: %w", err)
	}
	token, err := kube.CoreV1().
		ServiceAccounts(ownNamespace()).
		CreateToken(ctx, ownName(v1alpha1.PreviewServiceAccount), &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				Audiences:         []string{v1alpha1.PreviewAudience},
				ExpirationSeconds: ptr.To[int64](600),
			}}, metav1.CreateOptions{})
	if err != nil {
		return whyUnasked(err), nil
	}
	for range askTimes {
		result := question(kube.CoreV1().RESTClient()).Namespace(ownNamespace()).Resource("services").
			Name(ownService(v1alpha1.PreviewService)).SubResource("proxy").Suffix(path).SetHeader(v1alpha1.PreviewTokenHeader, token.Status.Token).Do(ctx)
		err := result.Error() // it reads the Status of a refusal; Raw does not
		switch {
		case err == nil:
			raw, err := result.Raw()
			if err == nil {
				err = json.Unmarshal(raw, answer)
			}
			if err != nil {
				return "", fmt.Errorf("decoding the scheduler's answer: %w", err)
			}
			return "", nil
		case apierrors.ReasonForError(err) == v1alpha1.ReasonNotLeading:
			select {
			case <-ctx.Done():
				return noLeader, nil
			case <-time.After(askEvery):
			}
		default:
			return whyUnasked(err), nil
		}
	}
	return noLeader, nil
}

const noLeader = "no replica of holdfast-scheduler leads"

func whyUnasked(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "you may not query the scheduler: the Role " + ownName(previewRole) + " in namespace " + ownNamespace() + ", bound with a RoleBinding, allows it"
	case apierrors.IsNotFound(err):
		return "the cluster's holdfast-scheduler does not answer this: install the manifests of this version"
	case apierrors.IsServiceUnavailable(err):
		return fmt.Sprintf("holdfast-scheduler does not answer (kubectl -n %s get pods): %v", ownNamespace(), err)
	}
	return err.Error()
}

// previewRole is the Role that allows previews.
const previewRole = "holdfast-preview"
