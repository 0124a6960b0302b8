package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var (
	names = []string{"a.holdfast-system.svc", "b.holdfast-system.svc"}
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	day   = 24 * time.Hour
)

func made(t *testing.T, data map[string][]byte, r Renewal, at time.Time) map[string][]byte {
	t.Helper()
	data, err := Renew(data, r, names, at)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDecide(t *testing.T) {
	fresh := made(t, nil, RenewAll, now)
	without := func(key string) map[string][]byte {
		m := map[string][]byte{}
		for k, v := range fresh {
			if k != key {
				m[k] = v
			}
		}
		return m
	}
	other := made(t, nil, RenewAll, now)
	mixed := without(dataServer)
	mixed[dataServer], mixed[dataServerKey] = other[dataServer], other[dataServerKey]
	for name, c := range map[string]struct {
		data  map[string][]byte
		names []string
		at    time.Time
		want  Renewal
	}{
		"empty":                       {nil, names, now, RenewAll},
		"fresh":                       {fresh, names, now, Keep},
		"long before the end":         {fresh, names, now.Add(serverLife - renewAhead - day), Keep},
		"ahead of the server's end":   {fresh, names, now.Add(serverLife - renewAhead + day), RenewServer},
		"ahead of the authority's":    {fresh, names, now.Add(authorityLife - renewAhead + day), Announce},
		"the authority has ended":     {fresh, names, now.Add(authorityLife + day), RenewAll},
		"another name":                {fresh, append([]string{"c.svc"}, names...), now, RenewServer},
		"no server certificate":       {without(dataServer), names, now, RenewServer},
		"no server key":               {without(dataServerKey), names, now, RenewServer},
		"no authority":                {without(dataAuthority), names, now, RenewAll},
		"no authority key":            {without(dataAuthorityKey), names, now, RenewAll},
		"signed by another authority": {mixed, names, now, RenewServer},
		"rubbish":                     {map[string][]byte{dataAuthority: []byte("x"), dataAuthorityKey: []byte("y")}, names, now, RenewAll},
	} {
		if got := Decide(c.data, c.names, c.at); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRenewedServerKeepsTheAuthority(t *testing.T) {
	fresh := made(t, nil, RenewAll, now)
	later := now.Add(serverLife - day)
	next := made(t, fresh, RenewServer, later)
	if !bytes.Equal(next[dataAuthority], fresh[dataAuthority]) || bytes.Equal(next[dataServer], fresh[dataServer]) {
		t.Error("the authority changed or the server's certificate did not")
	}
	pair, err := tls.X509KeyPair(next[dataServer], next[dataServerKey])
	if _, ok := pair.PrivateKey.(*ecdsa.PrivateKey); err != nil || !ok {
		t.Errorf("the server signs with a %T (%v)", pair.PrivateKey, err)
	}
	if got := Decide(next, names, later); got != Keep {
		t.Errorf("after renewal: %v", got)
	}
}

func TestRenewedAuthorityKeepsItsForerunnerWhileThatHolds(t *testing.T) {
	fresh := made(t, nil, RenewAll, now)
	late := now.Add(authorityLife - day)
	next := made(t, fresh, RenewAll, late)
	if !bytes.HasSuffix(next[dataAuthority], fresh[dataAuthority]) || Decide(next, names, late) != Keep {
		t.Error("servers with the former certificate would not be trusted any more")
	}
	if after := made(t, fresh, RenewAll, now.Add(authorityLife+day)); bytes.Contains(after[dataAuthority], fresh[dataAuthority]) {
		t.Error("an authority that has ended is kept")
	}
	if again := made(t, next, RenewServer, late); Decide(again, names, late) != Keep {
		t.Error("a server certificate of the newer authority is not good")
	}
}

// trusts reports whether a client that trusts a bundle would trust, at that time, the server of a Secret.
func trusts(t *testing.T, bundle []byte, secret map[string][]byte, at time.Time) bool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		t.Fatal("no certificate")
	}
	pair, err := tls.X509KeyPair(secret[dataServer], secret[dataServerKey])
	if err != nil {
		t.Fatal(err)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: names[0], CurrentTime: at})
	return err == nil
}

// TestAuthorityIsRenewedUnderThoseWhoTrustIt plays the last four months of an authority and the time after it. A client that receives the
// bundle once in thirty days trusts the server at every check. No authority signs that was announced for less than a month.
func TestAuthorityIsRenewedUnderThoseWhoTrustIt(t *testing.T) {
	secret := made(t, nil, RenewAll, now)
	first := now.Add(authorityLife - 120*day)
	received, reported := secret[dataAuthority], first
	var changes []string
	for at := first; at.Before(now.Add(authorityLife + 100*day)); at = at.Add(10 * day) {
		for range 5 {
			r := Decide(secret, names, at)
			if r == Keep {
				break
			}
			if r == Announce || r == Promote || r == RenewAll {
				changes = append(changes, fmt.Sprint(map[Renewal]string{Announce: "announce", Promote: "promote", RenewAll: "all"}[r], " ", int(at.Sub(now)/day)))
			}
			secret = made(t, secret, r, at)
		}
		if Decide(secret, names, at) != Keep {
			t.Fatalf("day %d: it is renewed for ever", at.Sub(now)/day)
		}
		if !trusts(t, received, secret, at) {
			t.Fatalf("day %d: a client that received the authority on day %d does not trust the server", at.Sub(now)/day, reported.Sub(now)/day)
		}
		if at.Sub(reported) >= announced-day {
			received, reported = secret[dataAuthority], at
		}
	}
	if got := fmt.Sprint(changes); got != "[announce 3570 promote 3600]" {
		t.Error(got)
	}
}

// TestAnAuthorityThatWasAnnouncedLate: a controller was not running for months. It announces the next authority at once, and that authority
// signs on the last day of the present one, because otherwise no client could trust the server.
func TestAnAuthorityThatWasAnnouncedLate(t *testing.T) {
	fresh := made(t, nil, RenewAll, now)
	late := now.Add(authorityLife - 10*day)
	next := made(t, made(t, fresh, Announce, late), RenewServer, late)
	if !trusts(t, fresh[dataAuthority], next, late) {
		t.Error("a running job does not trust the server any more")
	}
	for at, want := range map[time.Time]Renewal{late: Keep, late.Add(9*day + time.Hour): Promote} {
		if got := Decide(next, names, at); got != want {
			t.Errorf("%v before the end: %v, want %v", now.Add(authorityLife).Sub(at), got, want)
		}
	}
	broken := maps.Clone(next)
	broken[dataNextKey] = []byte("x")
	if got := Decide(broken, names, late); got != Announce {
		t.Errorf("with a key that is none: %v", got)
	}
}

func keeperOn(t *testing.T, c client.Client) *Rotator {
	t.Helper()
	return New(Options{Client: c, Secret: secretKey, Webhook: "holdfast", Names: names})
}

var secretKey = types.NamespacedName{Namespace: "holdfast-system", Name: "holdfast-certs"}

func apiServer(objs ...client.Object) *fake.ClientBuilder {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objs...)
}

func emptySecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretKey.Namespace, Name: secretKey.Name}}
}

func hooks() *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "holdfast"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "a.holdfast.dev"}, {Name: "b.holdfast.dev"}}}
}

func settle(t *testing.T, k *Rotator) {
	t.Helper()
	for range 3 {
		if _, err := k.Reconcile(context.Background(), reconcile.Request{NamespacedName: secretKey}); err != nil {
			t.Fatal(err)
		}
	}
}

// dial connects as a client that trusts the Rotator's authority.
func dial(t *testing.T, k *Rotator, address, name string) error {
	t.Helper()
	authority, err := k.Authority()
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(authority)) {
		t.Fatal("the authority is not PEM")
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, ServerName: name})
	if err == nil {
		err = conn.Close()
	}
	return err
}

func TestKeeperServesFromAnEmptySecret(t *testing.T) {
	c := apiServer(emptySecret(), hooks()).Build()
	k := keeperOn(t, c)
	if k.Ready(nil) == nil {
		t.Error("ready without a certificate")
	}
	if _, err := k.Authority(); err == nil {
		t.Error("an authority out of nothing")
	}
	settle(t, k)
	if err := k.Ready(nil); err != nil {
		t.Error(err)
	}
	got := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := c.Get(context.Background(), types.NamespacedName{Name: "holdfast"}, got); err != nil {
		t.Fatal(err)
	}
	authority, err := k.Authority()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range got.Webhooks {
		if string(h.ClientConfig.CABundle) != authority {
			t.Errorf("webhook %s trusts %q", h.Name, h.ClientConfig.CABundle)
		}
	}
	listener := listen(t, k)
	for _, name := range names {
		if err := dial(t, k, listener.Addr().String(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if dial(t, k, listener.Addr().String(), "c.holdfast-system.svc") == nil {
		t.Error("a name that is not ours is served")
	}
	rotate(t, c, k)
	if err := dial(t, k, listener.Addr().String(), names[0]); err != nil {
		t.Errorf("after the certificates were created again: %v", err)
	}
}

// listen serves handshakes with a server that is started once.
func listen(t *testing.T, k *Rotator) net.Listener {
	t.Helper()
	cfg := &tls.Config{}
	k.Serve(cfg)
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if c, ok := conn.(*tls.Conn); ok {
				_ = c.Handshake() // the test checks the client's side
			}
			_ = conn.Close()
		}
	}()
	return l
}

// rotate empties the Secret, as an administrator does who wants new certificates.
func rotate(t *testing.T, c client.Client, k *Rotator) {
	t.Helper()
	before, err := k.Authority()
	if err != nil {
		t.Fatal(err)
	}
	s := &corev1.Secret{}
	if err := c.Get(context.Background(), secretKey, s); err != nil {
		t.Fatal(err)
	}
	s.Data = nil
	if err := c.Update(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	settle(t, k)
	if after, err := k.Authority(); err != nil || after == before {
		t.Errorf("the authority is still the same: %v", err)
	}
}

// TestReplicasThatStartTogetherAgree: two replicas read the empty Secret before either of them writes it.
func TestReplicasThatStartTogetherAgree(t *testing.T) {
	c := apiServer(emptySecret(), hooks()).Build()
	stale := &corev1.Secret{}
	if err := c.Get(context.Background(), secretKey, stale); err != nil {
		t.Fatal(err)
	}
	first := keeperOn(t, c)
	settle(t, first)
	behind := true
	second := keeperOn(t, interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if s, ok := obj.(*corev1.Secret); ok && behind {
				behind = false
				stale.DeepCopyInto(s)
				return nil
			}
			return w.Get(ctx, key, obj, opts...)
		}}))
	settle(t, second)
	a, errA := first.Authority()
	b, errB := second.Authority()
	if errA != nil || errB != nil || a != b {
		t.Errorf("two authorities: %v, %v", errA, errB)
	}
}

func TestReadyWithoutAConfiguration(t *testing.T) {
	k := keeperOn(t, apiServer(emptySecret()).Build())
	settle(t, k)
	if err := k.Ready(nil); err != nil {
		t.Errorf("where the API server does not call the webhook the rest must go on: %v", err)
	}
}

func TestMissingSecretIsNotReady(t *testing.T) {
	k := keeperOn(t, apiServer(hooks()).Build())
	settle(t, k)
	if k.Ready(nil) == nil {
		t.Error("ready without a Secret")
	}
}

func TestTrustPatchChangesNothingElse(t *testing.T) {
	h := hooks()
	h.Webhooks[0].ClientConfig.CABundle = []byte("ca")
	patch, err := trustPatch(h, []byte("ca"))
	if err != nil {
		t.Fatal(err)
	}
	var ops []map[string]any
	if err := json.Unmarshal(patch, &ops); err != nil {
		t.Fatal(err)
	}
	if len(ops) != 2 || ops[0]["path"] != "/webhooks/1/name" || ops[1]["path"] != "/webhooks/1/clientConfig/caBundle" || ops[1]["value"] != "Y2E=" {
		t.Errorf("patch %s", patch)
	}
	h.Webhooks[1].ClientConfig.CABundle = []byte("ca")
	if patch, err := trustPatch(h, []byte("ca")); patch != nil || err != nil {
		t.Errorf("patch %s, %v", patch, err)
	}
}
