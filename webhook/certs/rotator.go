package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// checkEvery is the interval at which the certificates' ends are checked.
const checkEvery = 12 * time.Hour

// Options of a Rotator; all must be set.
type Options struct {
	// Client reads the Secret and the webhook configuration from a cache that holds these two alone.
	Client client.Client
	// Secret keeps the certificates. It must exist, possibly empty.
	Secret types.NamespacedName
	// Webhook is the name of the MutatingWebhookConfiguration that must trust the authority.
	Webhook string
	// Names are the DNS names that the servers are reached by.
	Names []string
}

// Rotator keeps the certificates. It runs on every replica.
type Rotator struct {
	Options
	serving atomic.Pointer[serving]
	// trusted reports whether the webhook configuration holds the authority.
	trusted atomic.Bool
}

// serving is what was last read from the Secret.
type serving struct {
	certificate tls.Certificate
	authority   []byte
}

// New returns a Rotator that has no certificate yet.
func New(o Options) *Rotator { return &Rotator{Options: o} }

// SetupWithManager registers the keeper.
func (k *Rotator) SetupWithManager(mgr ctrl.Manager) error {
	toSecret := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: k.Secret}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("certificates").
		For(&corev1.Secret{}).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, toSecret).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(k)
}

// Reconcile renews the certificates that end soon, serves those in the Secret, and writes the authority into the webhook
// configuration.
func (k *Rotator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if req.NamespacedName != k.Secret {
		return reconcile.Result{}, nil
	}
	secret := &corev1.Secret{}
	if err := k.Client.Get(ctx, k.Secret, secret); err != nil {
		if apierrors.IsNotFound(err) {
			log.FromContext(ctx).Info("the Secret for certificates is missing: apply the manifests again", "secret", k.Secret)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading Secret %s: %w", k.Secret, err)
	}
	if r := Decide(secret.Data, k.Names, time.Now()); r != Keep {
		return reconcile.Result{}, k.renew(ctx, secret, r)
	}
	certificate, err := tls.X509KeyPair(secret.Data[dataServer], secret.Data[dataServerKey])
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the server certificate of Secret %s: %w", k.Secret, err)
	}
	k.serving.Store(&serving{certificate: certificate, authority: secret.Data[dataAuthority]})
	if err := k.trust(ctx, secret.Data[dataAuthority]); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: checkEvery}, nil
}

// renew writes new certificates. If several replicas try at once, one succeeds, and the others receive its result with the Secret's
// next event.
func (k *Rotator) renew(ctx context.Context, secret *corev1.Secret, r Renewal) error {
	data, err := Renew(secret.Data, r, k.Names, time.Now())
	if err != nil {
		return err
	}
	next := secret.DeepCopy()
	next.Data = data
	if err := k.Client.Update(ctx, next); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("writing new certificates to Secret %s: %w", k.Secret, err)
	}
	return nil
}

// trust writes the authority into the webhook configuration if it is missing there.
func (k *Rotator) trust(ctx context.Context, authority []byte) error {
	hooks := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := k.Client.Get(ctx, types.NamespacedName{Name: k.Webhook}, hooks); err != nil {
		// Without a configuration the API server calls no webhook.
		k.trusted.Store(apierrors.IsNotFound(err))
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", k.Webhook, err)
	}
	patch, err := trustPatch(hooks, authority)
	if err != nil {
		return err
	}
	if patch != nil {
		k.trusted.Store(false)
		if err := k.Client.Patch(ctx, hooks, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return fmt.Errorf("writing the CA into MutatingWebhookConfiguration %s: %w", k.Webhook, err)
		}
	}
	k.trusted.Store(true)
	return nil
}

// trustPatch is the JSON patch that makes each webhook trust the authority; nil where all do.
func trustPatch(hooks *admissionregistrationv1.MutatingWebhookConfiguration, authority []byte) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var ops []operation
	for i, h := range hooks.Webhooks {
		if bytes.Equal(h.ClientConfig.CABundle, authority) {
			continue
		}
		at := "/webhooks/" + strconv.Itoa(i)
		ops = append(ops, operation{"test", at + "/name", h.Name}, operation{"add", at + "/clientConfig/caBundle", authority})
	}
	if ops == nil {
		return nil, nil
	}
	return json.Marshal(ops)
}

// Serve makes a server present the newest certificate in each handshake.
func (k *Rotator) Serve(c *tls.Config) {
	c.MinVersion = tls.VersionTLS13
	c.GetCertificate = k.GetCertificate
}

// GetCertificate returns the newest certificate.
func (k *Rotator) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := k.serving.Load(); s != nil {
		return &s.certificate, nil
	}
	return nil, errors.New("no certificate yet")
}

// Authority returns the PEM of the authority that clients must trust.
func (k *Rotator) Authority() (string, error) {
	if s := k.serving.Load(); s != nil {
		return string(s.authority), nil
	}
	return "", errors.New("no certificate authority yet")
}

// Ready is a health check: it passes once there is a certificate and the API server trusts it.
func (k *Rotator) Ready(*http.Request) error {
	if k.serving.Load() == nil {
		return fmt.Errorf("no certificate yet in Secret %s", k.Secret)
	}
	if !k.trusted.Load() {
		return fmt.Errorf("MutatingWebhookConfiguration %s does not trust the certificate yet", k.Webhook)
	}
	return nil
}
