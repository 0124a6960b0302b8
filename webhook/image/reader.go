package image

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/webhook"
)

const (
	// Timeout is the time for one image in all, where Options names none. The API server waits 5 s for the webhook.
	Timeout = 3 * time.Second
	// mostProcess is how long ENTRYPOINT and CMD may be together: they become an annotation.
	mostProcess = 32 << 10
	// tagLife is how long a tag is taken to mean the same image, digestLife how long what an image holds, which
	// never changes, is kept.
	tagLife    = 30 * time.Second
	digestLife = time.Hour
	// mostCached entries are kept.
	mostCached = 1024
	// mostImages is how many images an index may list.
	mostImages = 256
)

// Options of a Reader.
type Options struct {
	// Transport reaches registries; see NewTransport.
	Transport http.RoundTripper
	// Insecure registries, HOST or HOST:PORT, may speak plain HTTP and be on this machine; see NewTransport as well.
	Insecure []string
	// Log takes why an image could not be read, which no answer tells in full.
	Log logr.Logger
	// PullSecrets reads the Secrets that a Job's pods pull with, and their service account; nil: images are read
	// without credentials.
	PullSecrets client.Reader
	// Timeout for one image; 0: Timeout.
	Timeout time.Duration
	// Clock; nil: the machine's.
	Clock clock.Clock
}

// Reader reads what images start.
type Reader struct {
	o Options
	// tags: what a tag means; processes: what an image starts on a platform. Both by who may see it.
	tags, processes *cache.LRUExpireCache
	flight          singleflight.Group
	slots           *slots
}

// New returns a Reader that has read nothing yet.
func New(o Options) *Reader {
	if o.Timeout == 0 {
		o.Timeout = Timeout
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Reader{o: o, slots: newSlots(),
		tags: cache.NewLRUExpireCacheWithClock(mostCached, o.Clock), processes: cache.NewLRUExpireCacheWithClock(mostCached, o.Clock)}
}

// Process says what the image starts. The error is for people.
func (r *Reader) Process(ctx context.Context, q webhook.ImageQuery) (webhook.ImageProcess, error) {
	ref, err := r.reference(q)
	if err != nil {
		return webhook.ImageProcess{}, fmt.Errorf("%q is no image name", q.Image)
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	pull, err := r.credentials(ctx, q)
	if err != nil {
		return webhook.ImageProcess{}, err
	}
	arch := q.Architecture
	if arch == "" {
		arch = "amd64"
	}
	done := r.flight.DoChan(strings.Join([]string{q.Namespace, pull.id, ref.Name(), arch}, " "), func() (any, error) {
		// Whoever asked first may go away; the others wait on.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Timeout)
		defer cancel()
		return r.read(ctx, ref, arch, q.Namespace, pull)
	})
	select {
	case <-ctx.Done():
		return webhook.ImageProcess{}, unreachable(ref.Context().RegistryStr())
	case got := <-done:
		if got.Err != nil {
			return webhook.ImageProcess{}, got.Err
		}
		return got.Val.(webhook.ImageProcess), nil
	}
}

// reference is the image by the digest that was found for it before, else as it is named.
func (r *Reader) reference(q webhook.ImageQuery) (name.Reference, error) {
	ref, err := name.ParseReference(q.Image)
	if err != nil {
		return nil, err
	}
	var options []name.Option
	if r.insecure(ref) {
		options = append(options, name.Insecure)
		if ref, err = name.ParseReference(q.Image, options...); err != nil {
			return nil, err
		}
	}
	if before, err := name.NewDigest(q.Found, options...); err == nil && before.Context() == ref.Context() {
		if _, pinned := ref.(name.Digest); !pinned {
			return before, nil
		}
	}
	return ref, nil
}

// insecure says whether the image's registry is named as such.
func (r *Reader) insecure(ref name.Reference) bool {
	return slices.Contains(r.o.Insecure, ref.Context().RegistryStr())
}

// read answers from what is known, else asks the registry.
func (r *Reader) read(ctx context.Context, ref name.Reference, arch, namespace string, pull credentials) (webhook.ImageProcess, error) {
	tag := pull.id + " " + ref.Name()
	if known, ok := r.tags.Get(tag); ok {
		ref = known.(name.Digest)
	}
	if digest, ok := ref.(name.Digest); ok {
		if p, ok := r.processes.Get(processKey(pull, digest, arch)); ok {
			return p.(webhook.ImageProcess), nil
		}
	}
	leave, err := r.slots.take(ctx, namespace, r.o.Timeout/2)
	if err != nil {
		return webhook.ImageProcess{}, err
	}
	defer leave()
	guarded := &guard{inner: r.o.Transport, registry: ref.Context().Registry, insecure: r.insecure(ref), left: mostBytes}
	desc, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(guarded), remote.WithAuthFromKeychain(pull.keychain),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 1, Steps: 2}))
	if err != nil {
		return webhook.ImageProcess{}, r.reason(ctx, ref, guarded, pull, err)
	}
	digest := ref.Context().Digest(desc.Digest.String())
	p, err := process(desc, arch)
	if err != nil {
		return webhook.ImageProcess{}, r.reason(ctx, ref, guarded, pull, err)
	}
	p.Image = digest.String()
	if _, pinned := ref.(name.Digest); !pinned {
		r.tags.Add(tag, digest, tagLife)
	}
	r.processes.Add(processKey(pull, digest, arch), p, digestLife)
	return p, nil
}

func processKey(pull credentials, digest name.Digest, arch string) string {
	return strings.Join([]string{pull.id, digest.Name(), arch}, " ")
}

// process reads the configuration of the image for nodes of the architecture.
func process(desc *remote.Descriptor, arch string) (p webhook.ImageProcess, err error) {
	var img v1.Image
	if desc.MediaType.IsIndex() {
		img, err = ofIndex(desc, arch)
	} else {
		img, err = desc.Image()
	}
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
	for _, s := range append(append([]string{}, p.Entrypoint...), p.Cmd...) {
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

// ofIndex picks the image of the architecture, or the only one for Linux that there is.
func ofIndex(desc *remote.Descriptor, arch string) (v1.Image, error) {
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
	var linux []v1.Descriptor
	var have []string
	for _, m := range manifest.Manifests {
		p := v1.Platform{OS: "linux", Architecture: "amd64"} // what a manifest without one is taken for
		if m.Platform != nil {
			p = *m.Platform
		}
		if p.OS == "linux" && p.Architecture == arch {
			return index.Image(m.Digest)
		}
		if p.OS == "linux" {
			linux = append(linux, m)
			if len(have) < 8 {
				have = append(have, shorten(p.Architecture, 32))
			}
		}
	}
	if len(linux) == 1 {
		return index.Image(linux[0].Digest)
	}
	return nil, userError(fmt.Sprintf("it is there for linux/{%s} and not for linux/%s: set nodeSelector kubernetes.io/arch in the pod template", strings.Join(have, ","), arch))
}

// credentials are what a Job's pods pull with.
type credentials struct {
	// id tells those apart that may see different images.
	id       string
	keychain authn.Keychain
	// missing says which secrets could not be read, and why; off: none is read at all.
	missing string
	off     bool
}
