package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	kauth "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/webhook"
)

// mostSecrets is how many pull secrets of one Job are read.
const mostSecrets = 16

// credentials reads what the Job's pods would pull with: the secrets that they name, else those of their service
// account, as the API server fills them in. As for the kubelet, a secret that is not there counts for nothing.
func (r *Reader) credentials(ctx context.Context, q webhook.ImageQuery) (credentials, error) {
	none := credentials{id: "-", keychain: authn.NewMultiKeychain()}
	if r.o.PullSecrets == nil {
		none.off = true
		return none, nil
	}
	names := q.PullSecrets
	if len(names) == 0 {
		account := &corev1.ServiceAccount{}
		err := r.o.PullSecrets.Get(ctx, types.NamespacedName{Namespace: q.Namespace, Name: q.ServiceAccount}, account)
		if err != nil && !apierrors.IsNotFound(err) {
			none.missing = fmt.Sprintf("service account %s: %s", q.ServiceAccount, shorten(err.Error(), 200))
		}
		for _, s := range account.ImagePullSecrets {
			names = append(names, s.Name)
		}
	}
	var secrets []corev1.Secret
	for _, name := range names[:min(len(names), mostSecrets)] {
		secret := corev1.Secret{}
		switch err := r.o.PullSecrets.Get(ctx, types.NamespacedName{Namespace: q.Namespace, Name: name}, &secret); {
		case err == nil:
			secrets = append(secrets, secret)
		case !apierrors.IsNotFound(err):
			none.missing = fmt.Sprintf("secret %s: %s", name, shorten(err.Error(), 200))
		}
	}
	if len(secrets) == 0 {
		return none, nil
	}
	keychain, err := kauth.NewFromPullSecrets(ctx, secrets)
	if err != nil {
		return none, fmt.Errorf("one of its pull secrets is no registry secret (%s)", shorten(err.Error(), 100))
	}
	return credentials{id: digestOf(secrets), keychain: keychain, missing: none.missing}, nil
}

// digestOf is the same for the same credentials.
func digestOf(secrets []corev1.Secret) string {
	h := sha256.New()
	for _, s := range secrets {
		for _, key := range []string{corev1.DockerConfigJsonKey, corev1.DockerConfigKey} {
			fmt.Fprintf(h, "%s %d ", key, len(s.Data[key]))
			h.Write(s.Data[key])
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
