package image

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	kauth "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/kubernetes"

	"holdfast.dev/holdfast/webhook"
)

const (
	// Timeout is the total time for one image if Options sets none. The API server waits 5 s for the webhook.
	Timeout = 3 * time.Second
	// mostProcess is the maximal length of ENTRYPOINT and CMD together: they become an annotation.
	mostProcess = 32 << 10
	// mostImages is how many images an index may list.
	mostImages = 256
	// mostSecrets is how many of the pull secrets that a Job names are read.
	mostSecrets = 16
	// mostAtOnce images are read at once, mostOfNamespace for the Jobs of one namespace: hosts that never answer delay only the
	// Jobs of the namespace that names them.
	mostAtOnce, mostOfNamespace = 8, 1
)

const busy = userError("holdfast-controller is already reading as many images as it may, in this namespace or in all: try again")

// Options of a Reader.
type Options struct {
	// Transport reaches registries; see NewTransport.
	Transport http.RoundTripper
	// Insecure registries, HOST or HOST:PORT, may use plain HTTP and be on this machine; see NewTransport.
	Insecure []string
	// Log receives the full error of each failed read.
	Log logr.Logger
	// PullSecrets reads the pull secrets of a Job's pods, and their service account; nil: images are read without credentials.
	PullSecrets kubernetes.Interface
	// Timeout for one image; 0: Timeout.
	Timeout time.Duration
}

// Reader reads what images start.
type Reader struct {
	o     Options
	slots *slots
}

// slots bound what is read at once.
type slots struct {
	all *semaphore.Weighted
	of  sync.Map // *semaphore.Weighted by namespace
}

// New returns a Reader.
func New(o Options) *Reader {
	if o.Timeout == 0 {
		o.Timeout = Timeout
	}
	return &Reader{o, &slots{all: semaphore.NewWeighted(mostAtOnce)}}
}

// Process returns what the image starts. The error text is for users.
func (r *Reader) Process(ctx context.Context, q webhook.ImageQuery) (p webhook.ImageProcess, err error) {
	ref, err := name.ParseReference(q.Image)
	if err != nil {
		return p, fmt.Errorf("%q is no image name", q.Image)
	}
	registry := ref.Context().RegistryStr()
	insecure := slices.Contains(r.o.Insecure, registry)
	if insecure {
		ref, _ = name.ParseReference(q.Image, name.Insecure) // the same name
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	leave, err := r.slots.take(ctx, q.Namespace, r.o.Timeout/2)
	if err != nil {
		return p, err
	}
	defer leave()
	keychain, missing := r.keychain(ctx, q)
	guarded := &guard{inner: r.o.Transport, registry: registry, insecure: insecure}
	desc, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(guarded), remote.WithAuthFromKeychain(keychain),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 1, Steps: 2}))
	if err == nil {
		p, err = process(desc, q.Architecture)
	}
	if err != nil {
		r.o.Log.Info("an image could not be read", "image", shorten(ref.Name(), 300), "error", shorten(err.Error(), 1000))
		return webhook.ImageProcess{}, reason(ctx, guarded, missing, err)
	}
	p.Image = ref.Context().Digest(desc.Digest.String()).String()
	return p, nil
}

// take waits for a slot of the namespace and one of all. take stops waiting while there is still time to read.
func (s *slots) take(ctx context.Context, namespace string, wait time.Duration) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	of, _ := s.of.LoadOrStore(namespace, semaphore.NewWeighted(mostOfNamespace))
	own := of.(*semaphore.Weighted)
	if own.Acquire(ctx, 1) != nil {
		return nil, busy
	}
	if s.all.Acquire(ctx, 1) != nil {
		own.Release(1)
		return nil, busy
	}
	return func() { s.all.Release(1); own.Release(1) }, nil
}

// keychain returns the credentials of the Job's pods: the secrets that they name, else those of their service account, which the
// API server fills in; and an error if some are missing.
func (r *Reader) keychain(ctx context.Context, q webhook.ImageQuery) (k authn.Keychain, missing string) {
	none := authn.NewMultiKeychain()
	if r.o.PullSecrets == nil {
		return none, "holdfast-controller may not read pull secrets (--image-pull-secrets)"
	}
	o := kauth.Options{
		Namespace:          q.Namespace,
		ServiceAccountName: q.ServiceAccount,
		ImagePullSecrets:   q.PullSecrets[:min(len(q.PullSecrets), mostSecrets)],
	}
	if len(q.PullSecrets) > 0 {
		o.ServiceAccountName = kauth.NoServiceAccount
	}
	k, err := kauth.New(ctx, r.o.PullSecrets, o)
	if err != nil {
		return none, "its pull secrets cannot be read: " + shorten(err.Error(), 200)
	}
	return k, ""
}

// process reads the configuration of the image for nodes of the architecture.
func process(desc *remote.Descriptor, arch string) (p webhook.ImageProcess, err error) {
	img, err := imageFor(desc, arch)
	if err != nil {
		return p, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return p, err
	}
	var config struct {
		Config struct{ Entrypoint, Cmd []string } `json:"config"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return p, userError("its configuration cannot be decoded")
	}
	p.Entrypoint, p.Cmd = config.Config.Entrypoint, config.Config.Cmd
	size := 0
	for _, s := range slices.Concat(p.Entrypoint, p.Cmd) {
		if strings.Contains(s, "\x00") {
			return p, userError("its ENTRYPOINT or CMD holds a zero byte")
		}
		size += len(s) + 4
	}
	if size > mostProcess {
		return p, userError("its ENTRYPOINT and CMD are longer than 32Ki")
	}
	return p, nil
}

// imageFor picks the image of the architecture, amd64 where none is named, or the only one for Linux that there is.
func imageFor(desc *remote.Descriptor, arch string) (v1.Image, error) {
	if !desc.MediaType.IsIndex() {
		return desc.Image()
	}
	var list struct{ Manifests []struct{} }
	if err := json.Unmarshal(desc.Manifest, &list); err != nil || len(list.Manifests) > mostImages {
		return nil, userError("its index cannot be decoded, or lists more than 256 images")
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if arch == "" {
		arch = "amd64"
	}
	var linux []v1.Hash
	var have []string
	for _, m := range manifest.Manifests {
		p := v1.Platform{OS: "linux", Architecture: "amd64"} // what a manifest without one is taken for
		if m.Platform != nil {
			p = *m.Platform
		}
		if p.OS != "linux" {
			continue
		}
		if p.Architecture == arch {
			return index.Image(m.Digest)
		}
		linux, have = append(linux, m.Digest), append(have, shorten(p.Architecture, 32))
	}
	if len(linux) == 1 {
		return index.Image(linux[0])
	}
	return nil, userError(fmt.Sprintf("it exists for linux/{%s} and not for linux/%s: set nodeSelector kubernetes.io/arch in the pod template", strings.Join(have[:min(len(have), 8)], ","), arch))
}
